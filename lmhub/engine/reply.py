"""Turns the tokens that a stream commits into events, and decides when the reply is over.

One pipeline per stream: `token -> piece bytes -> ReplyParser -> stop scanner (content only) -> UTF-8 decoder ->
events`. Everything here is a small state machine over tokens and bytes; it knows nothing of models, slots, threads or
HTTP.

Counting: every sampled token is a completion token, so the one that ended the reply (end of generation, or the last
of a stop string) is counted although none of its text may be shown. The budget counts the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from lmhub.engine.stops import StopScanner
from lmhub.tokenize.stream import Utf8Stream
from lmhub.types import (
    Content,
    Event,
    FinishReason,
    GenerationRequest,
    ReasoningDelta,
    ReplyItem,
    ReplyParser,
    TextDelta,
    Thought,
    ToolCallStart,
)

_DELTAS = (TextDelta, ReasoningDelta)


class Pieces(Protocol):
    """What the engine needs of a tokenizer."""

    def piece(self, token: int) -> bytes:
        """The bytes that `token` stands for in a reply; empty for control tokens."""
        ...


class PlainText:
    """The ReplyParser of a model without channels: everything is content."""

    reasoning_tokens = 0

    def feed(self, token: int, piece: bytes) -> Sequence[ReplyItem]:
        """`piece`, as content."""
        return (Content(piece),)

    def finish(self) -> Sequence[ReplyItem]:
        """Nothing: no byte is ever held back."""
        return ()


class Reply:
    """One reply in the making. `reason` is None until it is over; it must not be fed after that."""

    def __init__(self, request: GenerationRequest, pieces: Pieces, budget: int):
        """`budget`: tokens after which the reply ends. Raises RequestError for unusable stop strings."""
        self.reason: FinishReason | None = None
        self.stop_sequence: str | None = None
        self.n_tokens = 0
        self.budget = budget
        self._eog = request.eog
        self._pieces = pieces
        self._parser: ReplyParser = request.parser or PlainText()
        self._stops = StopScanner(request.stop)
        self._utf8 = Utf8Stream()
        self._delta: type[TextDelta] | type[ReasoningDelta] = TextDelta  # the channel of the bytes in the decoder
        self._literal = False
        self._called = False
        self._events: list[Event] = []

    @property
    def reasoning_tokens(self) -> int:
        """How many of the tokens so far were reasoning."""
        return self._parser.reasoning_tokens

    def feed(self, tokens: Iterable[int]) -> list[Event]:
        """The events that `tokens` complete, neighbours merged. Tokens behind the end of the reply are ignored."""
        for token in tokens:
            if self.reason is None:
                self._feed(token)
        events, self._events = self._events, []
        return events

    def _feed(self, token: int) -> None:
        self.n_tokens += 1
        if token in self._eog:
            self._finish("stop")
            return
        self._route(self._parser.feed(token, self._pieces.piece(token)))
        if self.reason is None and self.n_tokens >= self.budget:
            self._finish("length")

    def _finish(self, reason: FinishReason) -> None:
        """The reply ended by itself or by its budget: whatever was held back was text after all."""
        self._route(self._parser.finish())
        if self.reason is not None:  # the text that flowed back completed a stop string
            return
        self._boundary()
        self.reason = "tool_calls" if reason == "stop" and self._called else reason

    def _route(self, items: Iterable[ReplyItem]) -> None:
        for item in items:
            if self.reason is not None:
                return
            if isinstance(item, Content):
                self._content(item)
            elif isinstance(item, Thought):
                self._switch(ReasoningDelta, literal=False)
                self._decode(item.data)
            else:
                self._boundary()
                self._called = self._called or isinstance(item, ToolCallStart)
                self._events.append(item)

    def _content(self, item: Content) -> None:
        self._switch(TextDelta, item.literal)
        if item.literal:
            self._decode(item.data)
            return
        data, fired = self._stops.feed(item.data)
        self._decode(data)
        if fired is not None:
            self._show(self._utf8.finish())
            self.reason, self.stop_sequence = "stop_sequence", fired

    def _switch(self, delta: type[TextDelta] | type[ReasoningDelta], literal: bool) -> None:
        if delta is not self._delta:
            self._boundary()
        elif literal != self._literal:
            self._decode(self._stops.flush())
        self._delta, self._literal = delta, literal

    def _boundary(self) -> None:
        """No stop string and no character spans what comes before and after this point."""
        self._decode(self._stops.flush())
        self._show(self._utf8.finish())

    def _decode(self, data: bytes) -> None:
        self._show(self._utf8.feed(data))

    def _show(self, text: str) -> None:
        if not text:
            return
        last = self._events[-1] if self._events else None
        if isinstance(last, _DELTAS) and type(last) is self._delta:
            self._events[-1] = self._delta(last.text + text)
        else:
            self._events.append(self._delta(text))
