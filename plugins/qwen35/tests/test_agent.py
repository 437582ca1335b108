"""What an agent's prompts cost: its next step reads what is new, its next question not more than the last turn.

Ten replies with reasoning and calls, on a golden model with the real template. Its states cannot be cut back, so all of
this rests on checkpoints; every reply begins with the logits that a server would give which has seen nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import lmhub_qwen35
import pytest

from lmhub.engine.disk import DiskTier
from lmhub.hub import Hub
from lmhub.settings import EngineSettings
from lmhub.testing.agent import Agent, Cost
from lmhub.testing.fake import PATIENCE_S
from lmhub.types import Message, Reasoning, Text, Tool

TOOL = Tool("read", "Reads", {"type": "object", "properties": {"path": {"type": "string"}, "all": {"type": "boolean"}}})
STEPS = 4  # calls for each question


@pytest.fixture(scope="module")
def make(zoo: Path) -> Iterator[Callable[..., Agent]]:
    hub = Hub(entry_points=False)
    hub.plugins.register(lmhub_qwen35, "qwen35")
    served = hub.load(zoo / "qwen35" / "model-q8_0.gguf", EngineSettings(ctx=4096, batch=1))
    yield lambda **options: Agent(served.model, (TOOL,), **options)
    hub.close()


def asks(agent: Agent, text: str) -> None:
    agent.hears(Message("user", (Text(text),)))


def step(agent: Agent, n: int, thought: str = "It is missing.\n</think>\n\n") -> Cost:
    """One call and its result; the reply begins as it would on a fresh server."""
    cold = agent.cold()
    cost = agent.replies(
        f"{thought}Look.\n\n<tool_call>\n<function=read>\n<parameter=path>\n  a/{n} é\n"
        "</parameter>\n<parameter=all>\nTrue\n</parameter>\n</function>\n</tool_call>"
    )
    assert cost.logits == cold
    agent.hears_results(f"content {n}")
    return cost


def answer(agent: Agent) -> Cost:
    cold = agent.cold()
    cost = agent.replies("That is all.\n</think>\n\nFive.")
    assert cost.logits == cold
    return cost


def test_ten_replies(make: Callable[..., Agent]) -> None:
    agent = make()
    n_read = n_cold = began = 0
    for question in range(2):
        asks(agent, f"Question {question}?")
        n_stable = agent.request.n_stable
        before: Cost | None = None
        for n in range(STEPS + 1):
            cost = step(agent, n) if n < STEPS else answer(agent)
            if before is not None:  # a step goes on from the very end of the reply before it
                assert (cost.n_read, cost.source) == (cost.n_prompt - before.n_end, "slot")
            elif question:  # the reasoning of the turn that is over goes, from where its first reply began
                assert cost.n_read == cost.n_prompt - began
            before = cost
            n_read, n_cold = n_read + cost.n_read, n_cold + cost.n_prompt
        began = n_stable or 0
    assert n_read < n_cold / 5


def test_a_loop_without_reasoning(make: Callable[..., Agent]) -> None:
    """The empty thought that the prompt opens the reply with is in the history as well, until the turn is over."""
    agent = make(reasoning=False)
    asks(agent, "Question 1?")
    before = step(agent, 0, thought="")
    for n in (1, 2):
        cost = step(agent, n, thought="")
        assert (cost.n_read, cost.source) == (cost.n_prompt - before.n_end, "slot")
        before = cost


def test_between_two_questions_the_turn_that_is_over_is_read(make: Callable[..., Agent]) -> None:
    agent = make()
    asks(agent, "Question 1?")
    step(agent, 1)
    answer(agent)
    n_known = agent.idles()
    asks(agent, "Question 2?")
    cost = step(agent, 2)
    assert (cost.n_read, cost.source) == (cost.n_prompt - n_known, "slot")  # the question, and what opens the reply


def test_a_restart_in_the_middle_of_a_turn(make: Callable[..., Agent], tier: Callable[[], DiskTier]) -> None:
    agent = make()
    agent.restart(tier())
    asks(agent, "Question 1?")
    step(agent, 1)
    before = step(agent, 2)
    agent.turns.close()
    agent.restart(tier())
    cost = step(agent, 3)
    assert (cost.n_read, cost.source) == (cost.n_prompt - before.n_end, "disk")
    answer(agent)


def test_a_restart_between_two_questions(make: Callable[..., Agent], tier: Callable[[], DiskTier]) -> None:
    """Also where there was one in the turn that is over: the file has kept where that began."""
    agent = make()
    agent.restart(tier())
    asks(agent, "Question 1?")
    began = agent.request.n_stable or 0
    step(agent, 1)
    agent.turns.close()
    agent.restart(tier())
    answer(agent)
    agent.turns.close()
    agent.restart(tier())
    asks(agent, "Question 2?")
    cost = step(agent, 2)
    assert (cost.n_read, cost.source) == (cost.n_prompt - began, "disk")


def test_a_client_that_drops_the_reasoning(make: Callable[..., Agent]) -> None:
    """The history shows an empty thought then: the last reply is read again, and nothing before it."""
    agent = make()
    asks(agent, "Question 1?")
    before = 0
    for n in range(3):
        began = agent.request.n_stable
        cost = step(agent, n)
        assert cost.n_read <= cost.n_prompt - before
        reply, result = agent.messages[-2:]
        kept = tuple(part for part in reply.parts if not isinstance(part, Reasoning))
        agent.messages[-2:] = [Message("assistant", kept), result]
        before = began or 0


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[Callable[[], DiskTier]]:
    """Opens the folder of the test; what it opened before is closed."""
    tiers: list[DiskTier] = []

    def opened() -> DiskTier:
        for one in tiers:
            one.close(PATIENCE_S)
        tiers.append(DiskTier(tmp_path / "kv", "model", max_bytes=1 << 30, max_files=100))
        assert tiers[-1].scanned.wait(PATIENCE_S)
        return tiers[-1]

    yield opened
    for one in tiers:
        one.close(PATIENCE_S)
