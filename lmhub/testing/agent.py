"""An agent's conversation with a real model: prompts, states and template are real, the replies are the test's.

    agent = Agent(loaded, (TOOL,))
    agent.hears(Message("user", (Text("What is in a.txt?"),)))
    cost = agent.replies("hm\\n</think>\\n\\n<tool_call>...")  # read by the model's own parser, then in the history
    cost.n_read                                            # tokens of the prompt that were not there yet

What each prompt costs can so be compared with a server that has seen nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lmhub.loaded import LoadedModel
from lmhub.model import CausalLM, Chunk
from lmhub.testing.turns import Turns
from lmhub.types import (
    ChatRequest,
    Event,
    GenerationRequest,
    Message,
    Part,
    Reasoning,
    ReasoningDelta,
    SamplingParams,
    Text,
    TextDelta,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolCallStart,
    ToolResult,
)

if TYPE_CHECKING:
    from lmhub.engine.disk import DiskTier

QUIET_TURNS = 100  # enough to read ahead


@dataclass(frozen=True, slots=True)
class Cost:
    """What one prompt took: its tokens, those that had to be read, where the others came from.

    `n_end` is how many there are behind the reply, without the one that ended it; `logits` are the bytes of the row
    that the reply begins with.
    """

    n_prompt: int
    n_read: int
    n_end: int
    source: str
    logits: bytes

    @property
    def n_cached(self) -> int:
        """Tokens of the prompt that were there."""
        return self.n_prompt - self.n_read


class Agent:
    """See the module. `model` comes from a hub, whose engine must have nothing to do meanwhile."""

    def __init__(self, model: LoadedModel, tools: Sequence[Tool] = (), *, reasoning: bool = True):
        assert isinstance(model.model, CausalLM)
        self._loaded, self._model, self._tools, self._reasoning = model, model.model, tuple(tools), reasoning
        self._ids = count()
        self._script: list[int] = []
        self._logits = b""
        self.messages: list[Message] = []
        self.held: tuple[int, ...] = ()  # the tokens of the last prompt and its reply, but the one that ended it
        self.turns: Turns
        self.restart()

    def restart(self, disk: DiskTier | None = None) -> None:
        """A new server, which knows what `disk` has."""
        self.turns = Turns(
            self._model,
            n_ctx=self._loaded.n_ctx,
            batch=1,
            disk=disk,
            sample=self._sample,
            tokenizer=self._loaded.tokenizer,
        )

    def hears(self, *messages: Message) -> None:
        """What comes from the user and from tools."""
        self.messages += messages

    def hears_results(self, text: str) -> None:
        """An answer to each call of the last reply."""
        calls = [part for part in self.messages[-1].parts if isinstance(part, ToolCall)]
        assert calls, "the reply made no call"
        self.hears(*(Message("tool", (ToolResult(call.id, text),)) for call in calls))

    @property
    def request(self) -> GenerationRequest:
        """The conversation so far, as the engine gets it."""
        [made] = self._loaded.prepare(self._chat, f"r{next(self._ids)}")
        return replace(made, constraint=None)  # the script needs none

    def replies(self, text: str) -> Cost:
        """Generate `text`, markers as tokens, to the conversation so far, and add it as a client sends it back.

        The reply ends with the last token of `text`, if that is one which ends replies.
        """
        made = self.request
        self._script = self._loaded.tokenizer.encode(text, special=True)
        if self._script[-1] not in made.eog:
            self._script.append(min(made.eog))
        done = self.turns.run(replace(made, max_tokens=len(self._script)))
        assert done.reason in ("stop", "tool_calls"), done
        self.messages.append(Message("assistant", tuple(_heard(done.events))))
        self.held = (*made.prompt, *self._script[:-1])
        n = len(made.prompt)
        return Cost(n, n - done.cached, len(self.held), done.source, self._logits)

    def idles(self) -> int:
        """Time between two turns: what the next prompt begins with is read, as a server does it. Its tokens."""
        *before, reply = self.messages
        known = self._loaded.next_turn(replace(self._chat, messages=tuple(before)), reply)
        self.turns.ahead(known)
        self.turns.turn(QUIET_TURNS, quiet=True)
        return len(known)

    def cold(self) -> bytes:
        """The bytes of the row behind the prompt, where nothing of it was there before."""
        state = self._model.new_state(self._loaded.n_ctx)
        return bytes(self._model.forward([Chunk(state, self.request.prompt)])[-1].tobytes())

    @property
    def _chat(self) -> ChatRequest:
        return ChatRequest(tuple(self.messages), tools=self._tools, reasoning=self._reasoning, sampling={"seed": 1})

    def _sample(self, row: NDArray[np.float32], params: SamplingParams, index: int, *_: Any, **__: Any) -> int:
        """`lmhub.engine.steppers.Sample`: what the script says, whatever is likely."""
        if not index:
            self._logits = row.tobytes()
        return self._script[index]


def _heard(events: Sequence[Event]) -> Iterator[Part]:
    """The parts of a reply as a client keeps them."""
    if thought := "".join(event.text for event in events if isinstance(event, ReasoningDelta)):
        yield Reasoning(thought)
    if said := "".join(event.text for event in events if isinstance(event, TextDelta)):
        yield Text(said)
    for start in (event for event in events if isinstance(event, ToolCallStart)):
        fragments = (one.fragment for one in events if isinstance(one, ToolCallDelta) and one.index == start.index)
        yield ToolCall(start.id, start.name, "".join(fragments))
