"""An agent's conversation on the real engine: what each round of it reads again of what it has read or written before.

The model is a golden one, whose text is noise; what it says is put into its mouth, token by token.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lmhub_gemma4
import pytest

from lmhub.hub import Hub
from lmhub.settings import EngineSettings
from lmhub.testing.agent import Agent, Cost
from lmhub.types import Message, Text, Tool

TOOLS = (Tool("get", "Reads a page.", {"type": "object", "properties": {"a": {"type": "string"}}}),)
ROUNDS = 10


@pytest.fixture
def make(hub: Hub, zoo: Path) -> Callable[[bool], Agent]:
    hub.plugins.register(lmhub_gemma4, "gemma4")
    served = hub.load(zoo / "gemma4-31b" / "model-q8_0.gguf", EngineSettings(ctx=2048, batch=1, threads=1))
    return lambda reasoning: Agent(served.model, TOOLS, reasoning=reasoning)


def says(agent: Agent, words: str) -> tuple[Cost, int, int]:
    """What the prompt cost, how many tokens the round before left, and how many of these the prompt has in place."""
    before, prompt = agent.held, agent.request.prompt
    places = (at for at, (one, other) in enumerate(zip(before, prompt, strict=False)) if one != other)
    return agent.replies(words), len(before), next(places, len(before))


@pytest.mark.parametrize("reasoning", [True, False])
def test_each_round_reads_what_is_new(make: Callable[[bool], Agent], reasoning: bool) -> None:
    """The prompts are many times the window of the sliding layers (16), which keep every position."""
    agent = make(reasoning)
    agent.hears(Message("system", (Text("You read pages."),)), Message("user", (Text("Read them all."),)))
    for at in range(ROUNDS):
        thought = f"<|channel>thought\npage {at} is next\n<channel|>" if reasoning else ""
        cost, n_before, n_common = says(
            agent, f'{thought}Page {at}.<|tool_call>call:get{{a:<|"|>page {at}<|"|>}}<tool_call|><|tool_response>'
        )
        if at > 0:
            is_primed = not reasoning and at == 1  # the empty channel is not shown again
            assert cost.n_cached == (n_common if is_primed else n_before)
        agent.hears_results(f"This is page {at}.")
    cost, n_before, _ = says(agent, "That is all.<turn|>")
    assert cost.n_cached == n_before

    agent.hears(Message("user", (Text("And now?"),)))
    fresh = agent.cold()
    cost, n_before, n_common = says(agent, "Nothing.<turn|>")
    assert (cost.n_cached, cost.logits) == (n_common, fresh)
    # Without reasoning nothing is stripped; else the first reply is shown without its thoughts.
    assert n_common == n_before if not reasoning else n_common > len("<|turn>model\n")
