"""A tool that a model runs by itself amid a reply: what it writes is run, the answer is forced into its reply.

    text --open--> call --close--> answer_open ANSWER answer_close, forced token by token --> text

Forced tokens are part of the reply like any others: the model reads them, they count, and they are guessed ahead, so
that an answer costs one step. None of it is shown to the client, or all of it as code. Knows no engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from lmhub.errors import GenerationError
from lmhub.family import InnerTool
from lmhub.tokenize import Tokenizer
from lmhub.types import Constraint, Content, ReplyItem, ReplyParser

log = logging.getLogger("lmhub")

MAX_CALL = 2048  # tokens of a call; what is longer is not run


@dataclass(frozen=True, slots=True)
class Inner:
    """An `InnerTool` with the ids of one model's tokens. `answer` gives the ids to be forced for the ids of a call."""

    open: int
    close: int
    answer_open: int
    answer_close: int
    n_vocab: int
    is_shown: bool
    answer: Callable[[Sequence[int]], Sequence[int]]

    @classmethod
    def of(cls, tool: InnerTool | None, tokenizer: Tokenizer, n_vocab: int) -> Inner | None:
        """None where there is no tool, or where the vocabulary lacks one of its tokens."""
        if tool is None:
            return None
        ids = [tokenizer.token_id(text) for text in (tool.open, tool.close, tool.answer_open, tool.answer_close)]
        module, _, name = tool.run.partition(":")
        run: Callable[[str], str | None] = getattr(import_module(module), name)
        opener, close, answer_open, answer_close = ids
        if opener is None or close is None or answer_open is None or answer_close is None:
            log.warning("the model's vocabulary lacks a token of its tool %s, which is left out", tool.name)
            return None

        def answer(call: Sequence[int]) -> Sequence[int]:
            text = run(tokenizer.decode(call)) if 0 < len(call) <= MAX_CALL else None
            return () if text is None else (answer_open, *tokenizer.encode(text), answer_close)

        return cls(opener, close, answer_open, answer_close, n_vocab, tool.is_shown, answer)

    def constraint(self) -> Constraint:
        """What forces the answers of one reply."""
        return _Forcing(self)

    def parser(self, inside: ReplyParser) -> ReplyParser:
        """`inside` for the text that remains of one reply."""
        return _Hiding(self, inside)


class _Forcing:
    """The Constraint: sleeps until a call is closed, then lets nothing but the answer follow."""

    def __init__(self, inner: Inner):
        self._inner = inner
        self._call: list[int] | None = None  # what was written since the call was opened
        self._pending: list[int] = []

    def mask(self) -> NDArray[np.uint32] | None:
        """See Constraint."""
        if not self._pending:
            return None
        bits = np.zeros(-(-self._inner.n_vocab // 32), np.uint32)
        bits[self._pending[0] // 32] = 1 << self._pending[0] % 32
        return bits

    def commit(self, token: int) -> None:
        """See Constraint."""
        if self._pending:
            if token != self._pending[0]:
                raise GenerationError(f"token {token} came where the answer of a tool goes on; ask again")
            del self._pending[0]
        elif token == self._inner.open:
            self._call = []
        elif token == self._inner.close:
            self._pending = list(self._inner.answer(self._call or ()))
            self._call = None
        elif self._call is not None and len(self._call) <= MAX_CALL:
            self._call.append(token)

    def forced(self) -> Sequence[int]:
        """See Constraint."""
        return tuple(self._pending)

    def accepts(self, tokens: Sequence[int]) -> int:
        """See Constraint. Counts no further than the token that closes a call."""
        for place, token in enumerate(tokens):
            if place < len(self._pending):
                if token != self._pending[place]:
                    return place
            elif token == self._inner.close:
                return place + 1
        return len(tokens)


class _Hiding:
    """The ReplyParser: leaves calls and answers out, or shows both as code."""

    def __init__(self, inner: Inner, inside: ReplyParser):
        self._inner, self._inside = inner, inside
        self._until: int | None = None  # the token that ends what is being left out
        self.reasoning_tokens, self.in_reasoning, self.n_calls = 0, inside.in_reasoning, 0
        self._texts = {inner.open: b"`", inner.close: b"`", inner.answer_open: b" = `", inner.answer_close: b"` "}

    def feed(self, token: int, piece: bytes) -> Sequence[ReplyItem]:
        """See ReplyParser."""
        if self._inner.is_shown:
            shown = self._texts.get(token)
            return (Content(shown),) if shown is not None else self._passed(self._inside.feed(token, piece))
        if token == self._until:
            self._until = None
            return ()
        if token in (self._inner.open, self._inner.answer_open):
            self._until = self._inner.close if token == self._inner.open else self._inner.answer_close
        return () if self._until is not None else self._passed(self._inside.feed(token, piece))

    def finish(self, cut: bool = False) -> Sequence[ReplyItem]:
        """See ReplyParser. A call that is not closed is dropped."""
        return self._passed(self._inside.finish(cut))

    def _passed(self, items: Sequence[ReplyItem]) -> Sequence[ReplyItem]:
        """`items`, with what the parser inside counts."""
        inside = self._inside
        self.reasoning_tokens, self.in_reasoning, self.n_calls = (
            inside.reasoning_tokens,
            inside.in_reasoning,
            inside.n_calls,
        )
        return items
