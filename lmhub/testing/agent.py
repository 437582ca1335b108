"""An agent's conversation with a real model: prompts, states and template are real, the replies are the test's.

    agent = Agent(model, tokenizer, chat, (TOOL,))
    agent.hears(Message("user", (Text("What is in a.txt?"),)))
    cost = agent.replies("hm\n</think>\n\n<tool_call>...")  # read with the model's own parser, then in the history
    cost.n_read                                            # tokens of the prompt that were not there yet

What each prompt costs can so be compared with a server that has seen nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lmhub.chat.prompt import ChatFormat, Prompt
from lmhub.model import CausalLM, Chunk
from lmhub.testing.turns import Turns
from lmhub.tokenize import Tokenizer
from lmhub.types import (
    Content,
    GenerationRequest,
    Message,
    Part,
    Reasoning,
    ReplyItem,
    SamplingParams,
    Text,
    Thought,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolCallStart,
)

if TYPE_CHECKING:
    from lmhub.engine.disk import DiskTier


MOST_QUIET_TURNS = 100


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


class Agent:
    """See the module. Every reply reasons first where the model can."""

    def __init__(
        self,
        model: CausalLM,
        tokenizer: Tokenizer,
        chat: ChatFormat,
        tools: Sequence[Tool] = (),
        *,
        n_ctx: int = 4096,
    ):
        self._model, self._tokenizer, self._chat, self._tools = model, tokenizer, chat, tools
        self._n_ctx = n_ctx
        self._ids = count()
        self._script: list[int] = []
        self._logits = b""
        self.messages: list[Message] = []
        self.turns: Turns
        self.restart()

    def restart(self, disk: DiskTier | None = None) -> None:
        """A new server, which knows what `disk` has."""
        self.turns = Turns(
            self._model, n_ctx=self._n_ctx, batch=1, disk=disk, sample=self._sample, tokenizer=self._tokenizer
        )

    def hears(self, *messages: Message) -> None:
        """What comes from the user and from tools."""
        self.messages += messages

    @property
    def prompt(self) -> Prompt:
        """The conversation so far, as the model would get it."""
        return self._chat.render(self.messages, self._tools, reasoning=True)

    def replies(self, text: str) -> Cost:
        """Generate `text`, markers as tokens, to the conversation so far, and add it as a client sends it back."""
        prompt = self.prompt
        end = min(self._tokenizer.eog)
        self._script = [*self._tokenizer.encode(text, special=True), end]
        request = GenerationRequest(
            f"r{next(self._ids)}",
            prompt.ids,
            SamplingParams(),
            len(self._script),
            frozenset((end,)),
            n_stable=prompt.n_stable,
        )
        done = self.turns.run(request)
        assert done.reason == "stop"
        self.messages.append(self._read(prompt))
        n = len(prompt.ids)
        return Cost(n, n - done.cached, n + len(self._script) - 1, done.source, self._logits)

    def idles(self) -> int:
        """Time between two turns: what the next question's prompt begins with is read. Its tokens."""
        asked = (self._chat.render((*self.messages, Message("user", (Text(text),))), self._tools) for text in "ab")
        one, other = (prompt.ids for prompt in asked)
        same = next(at for at, (id, its) in enumerate(zip(one, other, strict=False)) if id != its)
        self.turns.ahead(one[:same])
        self.turns.turn(MOST_QUIET_TURNS, quiet=True)
        return same

    def cold(self) -> bytes:
        """The bytes of the row behind the prompt, where nothing of it was there before."""
        state = self._model.new_state(self._n_ctx)
        return bytes(self._model.forward([Chunk(state, self.prompt.ids)])[-1].tobytes())

    def _sample(
        self,
        row: NDArray[np.float32],
        params: SamplingParams,
        index: int,
        penalty_ids: NDArray[np.int32],
        penalty_counts: NDArray[np.int32],
        bias_ids: NDArray[np.int32],
        bias: NDArray[np.float32],
        mask: NDArray[np.uint32] | None,
    ) -> int:
        if not index:
            self._logits = row.tobytes()
        return self._script[index]

    def _read(self, prompt: Prompt) -> Message:
        """The reply as its client hears it."""
        parser = self._chat.parser(prompt, self._tools)
        items: list[ReplyItem] = []
        for id in self._script[:-1]:
            items += parser.feed(id, self._tokenizer.piece(id))
        items += parser.finish()
        thought, said = (
            b"".join(one.data for one in items if isinstance(one, kind)).decode() for kind in (Thought, Content)
        )
        parts: list[Part] = [Reasoning(thought)] if thought else []
        parts += [Text(said)] if said else []
        for start in (one for one in items if isinstance(one, ToolCallStart)):
            fragments = (one.fragment for one in items if isinstance(one, ToolCallDelta) and one.index == start.index)
            parts.append(ToolCall(start.id, start.name, "".join(fragments)))
        return Message("assistant", tuple(parts))
