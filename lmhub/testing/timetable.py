"""Drives an engine through a timetable: what is asked for, called off and left unread before which step of the model.

    outcomes = play(engine, hooked, [Asked(make_request), Asked(make_request, after=3, cancel=2)])

The timetable counts steps, not seconds: it goes on whenever the model begins one, and while nothing runs it jumps to
the next entry. So nothing sleeps, and an entry that is due in the middle of a reply always is. `outcome_of` turns the
events of a generation into what must not depend on anything but its request, however they were cut into pieces.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from lmhub.errors import LmhubError
from lmhub.model import CausalLM, Chunk, State
from lmhub.testing.fake import PATIENCE_S
from lmhub.types import (
    Event,
    Failure,
    Finish,
    GenerationRequest,
    PromptScored,
    ReasoningDelta,
    TextDelta,
    TokenIds,
    TokenLogprob,
)

if TYPE_CHECKING:
    import numpy as np

    from lmhub.engine import Engine, Generation


class Hooked(CausalLM):
    """`model`, with `before_step` called on the engine's thread at the start of each of its steps."""

    def __init__(self, model: CausalLM):
        self.before_step: Callable[[], None] = lambda: None
        self.n_vocab, self.n_ctx_train, self.row_invariant = model.n_vocab, model.n_ctx_train, model.row_invariant
        self._model = model

    def new_state(self, n_ctx: int) -> State:
        """See CausalLM."""
        return self._model.new_state(n_ctx)

    def forward(self, chunks: Sequence[Chunk]) -> np.ndarray:
        """See CausalLM."""
        self.before_step()
        return self._model.forward(chunks)

    def abort(self) -> None:
        """See CausalLM."""
        self._model.abort()


@dataclass(frozen=True, slots=True)
class Asked:
    """An entry: a request, which `make` makes anew, for constraints and parsers serve once.

    `after`: steps since the entry before. `cancel`: steps until it is called off. `leave`: events after which its
    reader does.
    """

    make: Callable[[], GenerationRequest]
    after: int = 0
    cancel: int | None = None
    leave: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a reader has got: tokens, channels with their texts, log probabilities; and how it ended.

    `end` is None where the reader left. `n_cached` is how much of the prompt had been there, and no part of equality.
    """

    tokens: tuple[int, ...]
    texts: tuple[tuple[str, str], ...]
    logprobs: tuple[TokenLogprob, ...]
    scored: tuple[TokenLogprob, ...]
    end: tuple[object, ...] | None

    @property
    def was_cancelled(self) -> bool:
        """Whether it is only the beginning of a reply."""
        return self.end is None or self.end[0] == "cancelled"

    def begins(self, whole: Outcome) -> bool:
        """Whether this is `whole`, or a beginning of it where it was called off."""
        if not self.was_cancelled:
            return self == whole
        return (
            self.tokens == whole.tokens[: len(self.tokens)]
            and self.logprobs == whole.logprobs[: len(self.logprobs)]
            and self.scored in ((), whole.scored)
            and _is_beginning(self.texts, whole.texts)
        )


def outcome_of(events: Iterable[Event]) -> Outcome:
    """What `events` add up to. Raises ValueError if one comes behind the last one."""
    tokens: list[int] = []
    texts: list[tuple[str, str]] = []
    logprobs: list[TokenLogprob] = []
    scored: tuple[TokenLogprob, ...] = ()
    end: tuple[object, ...] | None = None
    for event in events:
        if end is not None:
            raise ValueError(f"{event} came behind the end")
        match event:
            case TokenIds():
                tokens += event.tokens
            case PromptScored():
                scored = event.logprobs
            case TextDelta():
                _add(texts, "content", event.text)
                logprobs += event.logprobs
            case ReasoningDelta():
                _add(texts, "reasoning", event.text)
            case Finish(reason, usage, stop_sequence):
                end = (reason, stop_sequence, usage.prompt_tokens, usage.completion_tokens, usage.reasoning_tokens)
            case Failure(error):
                end = ("failed", type(error).__name__, str(error))
            case _:
                texts.append((type(event).__name__, str(event)))
    return Outcome(tuple(tokens), tuple(texts), tuple(logprobs), scored, end)


def play(engine: Engine, model: Hooked, table: Sequence[Asked]) -> list[Outcome]:
    """Run `engine` over `model` through `table`, and give what each entry got.

    Replies are read to their end one after the other in the order of the table, so that all but one of those that run
    have a reader who does not read. What the engine refuses is raised.
    """
    clock = _Clock(engine, table)
    model.before_step = clock.tick
    hangs = threading.Timer(2 * PATIENCE_S, engine.stop)  # what still runs by then fails
    hangs.start()
    try:
        outcomes: list[Outcome] = []
        while len(outcomes) < len(table):
            if len(clock.generations) == len(outcomes):
                clock.jump()
            if clock.refusal is not None:
                raise clock.refusal
            at = len(outcomes)
            outcomes.append(outcome_of(_read(clock.generations[at], table[at].leave)))
            if outcomes[-1].end is None:
                for _ in range(2):  # what was called off ends in the turn behind the first of these, before the second
                    engine.call(lambda: None).result(PATIENCE_S)
        return outcomes
    finally:
        hangs.cancel()
        hangs.join()
        model.before_step = lambda: None


class _Clock:
    """Counts the steps of the model and does what is due, on the engine's thread, or the caller's if all is still."""

    def __init__(self, engine: Engine, table: Sequence[Asked]):
        self.generations: list[Generation] = []
        self.refusal: LmhubError | None = None
        self._engine = engine
        self._lock = threading.Lock()
        self._now = 0
        self._order = count()
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        at = 0
        for asked in table:
            at += asked.after
            self._at(at, lambda asked=asked: self._submit(asked))  # type: ignore[misc]

    def tick(self) -> None:
        """A step begins."""
        with self._lock:
            self._now += 1
            self._run()

    def jump(self) -> None:
        """Nothing runs: go on to where something is due that makes something run."""
        with self._lock:
            n = len(self.generations)
            while self._due and len(self.generations) == n:
                self._now = max(self._now, self._due[0][0])
                self._run()

    def _run(self) -> None:
        while self._due and self._due[0][0] <= self._now:
            heapq.heappop(self._due)[2]()

    def _at(self, step: int, do: Callable[[], None]) -> None:
        heapq.heappush(self._due, (step, next(self._order), do))

    def _submit(self, asked: Asked) -> None:
        try:
            generation = self._engine.submit(asked.make())
        except LmhubError as error:  # kept: the step that this may happen in is not to blame
            self.refusal = error
            return
        self.generations.append(generation)
        if asked.cancel == 0:
            generation.cancel()
        elif asked.cancel is not None:
            self._at(self._now + asked.cancel, generation.cancel)


def _read(generation: Generation, leave: int | None) -> list[Event]:
    events = generation.events()
    out: list[Event] = []
    for event in events:
        out.append(event)
        if leave is not None and len(out) > leave:
            events.close()
    return out


def _add(texts: list[tuple[str, str]], channel: str, text: str) -> None:
    if texts and texts[-1][0] == channel:
        texts[-1] = (channel, texts[-1][1] + text)
    elif text:
        texts.append((channel, text))


def _is_beginning(part: Sequence[tuple[str, str]], whole: Sequence[tuple[str, str]]) -> bool:
    if len(part) > len(whole):
        return False
    *settled, last = part or [("", "")]
    if list(whole[: len(settled)]) != settled:
        return False
    return not part or (whole[len(settled)][0] == last[0] and whole[len(settled)][1].startswith(last[1]))
