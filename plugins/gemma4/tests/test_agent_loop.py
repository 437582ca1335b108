"""An agent's conversation on the real engine: what each round of it reads again of what it has read or written before.

The model is a golden one, whose text is noise; what it says is put into its mouth, token by token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmhub.hub import Hub, Served
from lmhub.settings import EngineSettings
from lmhub.testing import drive
from lmhub.types import (
    ChatRequest,
    Finish,
    Message,
    Part,
    Reasoning,
    ReasoningDelta,
    Text,
    TextDelta,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolCallStart,
    ToolResult,
    Usage,
)

TOOLS = (Tool("get", "Reads a page.", {"type": "object", "properties": {"a": {"type": "string"}}}),)
ROUNDS = 10


class Agent:
    """A client that sends the whole conversation each time, and a model that says what it is told to say."""

    def __init__(self, served: Served, reasoning: bool):
        self.served, self.reasoning = served, reasoning
        self.messages = [Message("system", (Text("You read pages."),)), Message("user", (Text("Read them all."),))]
        self.prompt: tuple[int, ...] = ()
        self.held: tuple[int, ...] = ()  # of the prompt and the reply before

    def say(self, words: str) -> Usage:
        """One request, answered with `words`."""
        request = ChatRequest(
            tuple(self.messages), tools=TOOLS, reasoning=self.reasoning, sampling={"seed": 1}, max_tokens=200
        )
        model = self.served.model
        [made] = model.prepare(request, f"round {len(self.messages)}")
        script = model.tokenizer.encode(words, special=True)
        self.before, self.prompt = self.held, made.prompt

        def dictate(row: np.ndarray, tokens: Sequence[int]) -> None:
            row[:] = -1e9
            row[script[len(tokens) - len(made.prompt)]] = 0.0

        events = list(self.served.engine.submit(replace(made, processors=(dictate,))).events())
        finish = events[-1]
        assert isinstance(finish, Finish), finish
        self.messages.append(Message("assistant", tuple(heard(events))))
        self.held = (*made.prompt, *script[:-1])
        return finish.usage

    def n_common(self) -> int:
        """How many tokens of the last prompt are those that came before, in place."""
        pairs = zip(self.before, self.prompt, strict=False)
        return next((at for at, (one, other) in enumerate(pairs) if one != other), len(self.before))


def heard(events: Sequence[Any]) -> Iterator[Part]:
    """The parts of a reply as a client keeps them."""
    if thought := "".join(event.text for event in events if isinstance(event, ReasoningDelta)):
        yield Reasoning(thought)
    if said := "".join(event.text for event in events if isinstance(event, TextDelta)):
        yield Text(said)
    for start in (event for event in events if isinstance(event, ToolCallStart)):
        fragments = (e.fragment for e in events if isinstance(e, ToolCallDelta) and e.index == start.index)
        yield ToolCall(start.id, start.name, "".join(fragments))


@pytest.fixture
def served(hub: Hub, zoo: Path) -> Served:
    import lmhub_gemma4

    hub.plugins.register(lmhub_gemma4, "gemma4")
    return hub.load(zoo / "gemma4-31b" / "model-q8_0.gguf", EngineSettings(ctx=2048, batch=1, threads=1))


@pytest.mark.parametrize("reasoning", [True, False])
def test_each_round_reads_what_is_new(served: Served, reasoning: bool) -> None:
    """The prompts are many times the window of the sliding layers (16), which keep every position."""
    agent = Agent(served, reasoning)
    for at in range(ROUNDS):
        thought = f"<|channel>thought\npage {at} is next\n<channel|>" if reasoning else ""
        usage = agent.say(
            f'{thought}Page {at}.<|tool_call>call:get{{a:<|"|>page {at}<|"|>}}<tool_call|><|tool_response>'
        )
        if at > 0:
            is_primed = not reasoning and at == 1  # the empty channel is not shown again
            assert usage.cached_tokens == (agent.n_common() if is_primed else len(agent.before))
        [call] = [part for part in agent.messages[-1].parts if isinstance(part, ToolCall)]
        agent.messages.append(Message("tool", (ToolResult(call.id, f"This is page {at}."),)))
    usage = agent.say("That is all.<turn|>")
    assert usage.cached_tokens == len(agent.before)

    agent.messages.append(Message("user", (Text("And now?"),)))
    usage = agent.say("Nothing.<turn|>")
    n_opened = len(served.model.tokenizer.encode("<|turn>model\n", special=True))
    assert usage.cached_tokens == agent.n_common()
    if not reasoning:  # nothing was stripped
        assert usage.cached_tokens == len(agent.before)
    else:  # the first reply is shown without its thoughts, and everything behind it is new
        assert usage.cached_tokens > n_opened

    request = replace(
        served.model.prepare(ChatRequest(tuple(agent.messages), sampling={"temperature": 0}, max_tokens=8), "free")[0],
        eog=frozenset(),
        return_token_ids=True,
    )
    reused = list(served.engine.submit(request).events())
    fresh = drive.greedy(served.model.model, request.prompt, 8)
    assert [token for event in reused for token in getattr(event, "tokens", ())] == fresh
