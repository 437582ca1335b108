"""Turns the tokens that a stream commits into events, and decides when the reply is over.

One pipeline per stream: `token -> piece bytes -> ReplyParser -> stop scanner (content only) -> UTF-8 decoder ->
events`. Everything here is a small state machine over tokens and bytes; it knows nothing of models, slots, threads or
HTTP.

Counting: every token that was chosen for the reply is a completion token, also the last one of a stop string, of which
nothing is shown; only the one that ends the generation is not, for it is no part of the reply. It costs budget like any
other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from lmhub.engine.ledger import Ledger
from lmhub.engine.stops import StopScanner
from lmhub.tokenize.stream import Utf8Stream
from lmhub.types import (
    Content,
    Draft,
    Event,
    FinishReason,
    GenerationRequest,
    PromptScored,
    ReasoningDelta,
    ReplyItem,
    ReplyParser,
    TextDelta,
    Thought,
    TokenIds,
    TokenLogprob,
    ToolCallStart,
)

if TYPE_CHECKING:
    from lmhub.sampling import Score


class Pieces(Protocol):
    """What the engine needs of a tokenizer. Ids may go beyond its vocabulary: models have rows for padding."""

    n_vocab: int

    def piece(self, token: int) -> bytes:
        """The bytes that `token` stands for in a reply; empty for control tokens."""
        ...


class PlainText:
    """The ReplyParser of a model without channels: everything is content."""

    reasoning_tokens = 0
    in_reasoning = False
    n_calls = 0

    def feed(self, token: int, piece: bytes) -> Sequence[ReplyItem]:
        """`piece`, as content."""
        return (Content(piece),)

    def finish(self, cut: bool = False) -> Sequence[ReplyItem]:
        """Nothing: no byte is ever held back."""
        return ()


class Reply:
    """One reply in the making. `reason` is None until it is over."""

    def __init__(self, request: GenerationRequest, pieces: Pieces, budget: int):
        """`budget`: tokens after which the reply ends. Raises RequestError for unusable stop strings."""
        self.reason: FinishReason | None = None
        self.stop_sequence: str | None = None
        self.n_tokens = 0  # that were chosen, the end included
        self.has_end = False  # whether the last one was the end of generation
        self.budget = budget
        self._request = request
        self._pieces = pieces
        self._parser: ReplyParser = request.parser or PlainText()
        self._stops = StopScanner(request.stop)
        self._utf8 = Utf8Stream()
        self._ledger = Ledger() if request.logprobs is not None else None
        self._delta: type[TextDelta] | type[ReasoningDelta] = TextDelta  # the channel of the bytes in the decoder
        self._literal = False
        self._n_announced = 0  # tool calls that were begun
        self._events: list[Event] = []
        self._pushed: list[int] = []  # since the last `take`

    @property
    def reasoning_tokens(self) -> int:
        """How many of the tokens so far were reasoning."""
        return self._parser.reasoning_tokens

    @property
    def in_reasoning(self) -> bool:
        """Whether the next token would be reasoning."""
        return self._parser.in_reasoning

    @property
    def must_close(self) -> bool:
        """Whether the reasoning has used up its budget and has to be closed now, between two characters."""
        budget = self._request.reasoning_budget
        return (
            budget is not None
            and self.reason is None
            and self._parser.in_reasoning
            and self._parser.reasoning_tokens >= budget
            and self._utf8.is_clean
        )

    def scored(self, scores: Sequence[Score]) -> PromptScored:
        """The event for the prompt's own log probabilities: `scores` are of its second token and those behind it."""
        prompt = self._request.prompt
        first = TokenLogprob(prompt[0], self._piece(prompt[0]), None)
        return PromptScored((first, *map(self._entry, prompt[1:], scores)))

    def sketched(self, tokens: Sequence[int]) -> Draft:
        """The text that these tokens would add, up to an end, as it is: no channel is told from another."""
        eog = self._request.eog
        n = next((at for at, token in enumerate(tokens) if token in eog), len(tokens))
        return Draft(b"".join(map(self._piece, tokens[:n])).decode("utf-8", "replace"))

    def feed(self, tokens: Sequence[int], scores: Sequence[Score] = ()) -> list[Event]:
        """`push` all of `tokens`, whose `scores` may be fewer, and `take`."""
        for at, token in enumerate(tokens):
            self.push(token, scores[at] if at < len(scores) else None)
        return self.take()

    def push(self, token: int, score: Score | None = None) -> None:
        """Read one more token; `take` has the events. `score` is its log probability where it was asked for and drawn.

        A token behind the end of the reply is ignored.
        """
        if self.reason is None:
            self._pushed.append(token)
            self._feed(token, score)

    def take(self) -> list[Event]:
        """The events since the last call, neighbours merged. With a budget of zero the reply ends without any token."""
        if self.reason is None and self.n_tokens >= self.budget:
            self._finish("length")
        events, self._events = self._events, []
        if self._request.return_token_ids and self._pushed:
            events.insert(0, TokenIds(tuple(self._pushed)))
        self._pushed.clear()
        return events

    def cut(self) -> list[Event]:
        """End the reply as if its budget were used up, and take what is left."""
        if self.reason is None:
            self._finish("length")
        return self.take()

    def _feed(self, token: int, score: Score | None) -> None:
        self.n_tokens += 1
        if token in self._request.eog:
            self.has_end = True
            self._finish("stop")
            return
        if self._ledger is not None and score is not None:
            self._ledger.fed(self._entry(token, score))
        self._route(self._parser.feed(token, self._piece(token)))
        if self.reason is None and self._calls_are_complete:
            self._boundary()
            self.reason = "tool_calls"
        if self.reason is None and self.n_tokens >= self.budget:
            self._finish("length")

    @property
    def _calls_are_complete(self) -> bool:
        most = self._request.max_calls
        return most is not None and self._parser.n_calls >= most

    def _piece(self, token: int) -> bytes:
        return self._pieces.piece(token) if token < self._pieces.n_vocab else b""

    def _entry(self, token: int, score: Score) -> TokenLogprob:
        top = tuple((id, self._piece(id), logprob) for id, logprob in score.top)
        return TokenLogprob(token, self._piece(token), score.logprob, top)

    def _finish(self, reason: FinishReason) -> None:
        """The reply ended by itself or by its budget: whatever was held back was text after all."""
        self._route(self._parser.finish(cut=reason == "length"))
        if self.reason is None:  # else the text that flowed back completed a stop string
            self._boundary()
            self._end(reason)

    def _end(self, reason: FinishReason, stop_sequence: str | None = None) -> None:
        """A complete call is what the reply will be known for, whatever ended it afterwards.

        Unless the budget cut off one that had been announced: a client must not run that.
        """
        called = 0 < self._parser.n_calls >= self._n_announced
        self.reason, self.stop_sequence = "tool_calls" if called else reason, None if called else stop_sequence

    def _route(self, items: Iterable[ReplyItem]) -> None:
        most = self._request.max_calls
        for item in items:
            if self.reason is not None:
                return
            if isinstance(item, Content):
                self._content(item)
            elif isinstance(item, Thought):
                self._skip()
                self._switch(ReasoningDelta, literal=False)
                self._decode(item.data)
            elif isinstance(item, ToolCallStart) and most is not None and item.index >= most:
                return  # one marker may close several calls
            else:
                self._n_announced += isinstance(item, ToolCallStart)
                self._skip()
                self._boundary()
                self._events.append(item)

    def _content(self, item: Content) -> None:
        self._switch(TextDelta, item.literal)
        if self._ledger is not None:
            self._ledger.content(item.data)
        if item.literal:
            self._decode(item.data)
            return
        data, fired = self._stops.feed(item.data)
        self._decode(data)
        if fired is not None:
            self._show(self._utf8.finish(), last=True)
            self._end("stop_sequence", fired)

    def _skip(self) -> None:
        if self._ledger is not None:
            self._ledger.skip()

    def _switch(self, delta: type[TextDelta] | type[ReasoningDelta], literal: bool) -> None:
        if delta is not self._delta:
            self._boundary()
        elif literal != self._literal:
            self._decode(self._stops.flush())
        self._delta, self._literal = delta, literal

    def _boundary(self) -> None:
        """No stop string and no character spans what comes before and after this point."""
        self._decode(self._stops.flush())
        self._show(self._utf8.finish(), last=True)

    def _decode(self, data: bytes) -> None:
        if self._ledger is not None and self._delta is TextDelta:
            self._ledger.shown(len(data))
        self._show(self._utf8.feed(data))

    def _show(self, text: str, last: bool = False) -> None:
        """Emit `text`; the `last` one before a boundary takes every log probability along that still waits."""
        if self._delta is ReasoningDelta:
            self._emit_thought(text)
            return
        logprobs: tuple[TokenLogprob, ...] = ()
        if self._ledger is not None and last:
            self._ledger.close()
        if self._ledger is not None and (text or last):
            logprobs = self._ledger.take(self._utf8.n_held)
        if not text and not logprobs:
            return
        previous = self._events[-1] if self._events else None
        if isinstance(previous, TextDelta):
            self._events[-1] = TextDelta(previous.text + text, previous.logprobs + logprobs)
        else:
            self._events.append(TextDelta(text, logprobs))

    def _emit_thought(self, text: str) -> None:
        previous = self._events[-1] if self._events else None
        if text and isinstance(previous, ReasoningDelta):
            self._events[-1] = ReasoningDelta(previous.text + text)
        elif text:
            self._events.append(ReasoningDelta(text))
