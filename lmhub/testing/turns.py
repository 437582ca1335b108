"""An engine without its thread: a test takes its turns one by one, sets its clock, and looks inside between them.

    turns = Turns(Letters(), batch=2, kv_slots=2)
    generation = turns.submit(request)
    turns.turn()                          # admit, one step, hand out
    done = turns.end(generation)          # all the turns that it needs

After every turn `check` holds what the engine keeps against its invariants, so every test is a test of them as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lmhub.engine.blocks import BlockStepper
from lmhub.engine.generation import RESUME, Generation
from lmhub.engine.inbox import Inbox
from lmhub.engine.pool import SlotPool
from lmhub.engine.rates import StepTimes
from lmhub.engine.reply import Reply
from lmhub.engine.slots import Slot
from lmhub.engine.steppers import CausalStepper, Sample, Stepper
from lmhub.engine.worker import Worker
from lmhub.model import BlockLM, CausalLM, State
from lmhub.settings import EngineSettings
from lmhub.testing.fake import PATIENCE_S, FakeState, FakeTokenizer, NoiseModel, Tokens
from lmhub.types import (
    Event,
    Failure,
    Finish,
    GenerationRecord,
    GenerationRequest,
    SamplingParams,
    TextDelta,
    TokenIds,
)

if TYPE_CHECKING:
    from lmhub.engine.disk import DiskTier
    from lmhub.engine.drafts import Speculator
    from lmhub.tokenize import Tokenizer

MOST_TURNS = 20_000


@dataclass(frozen=True, slots=True)
class Done:
    """What a generation that has ended gave its reader, and the engine's own account of it."""

    events: tuple[Event, ...]
    record: GenerationRecord

    @property
    def text(self) -> str:
        """The visible reply."""
        return "".join(event.text for event in self.events if isinstance(event, TextDelta))

    @property
    def tokens(self) -> Tokens:
        """The ids, where the request wanted them."""
        return tuple(token for event in self.events if isinstance(event, TokenIds) for token in event.tokens)

    @property
    def reason(self) -> str:
        """Why it ended, or the name of the error's class."""
        last = self.events[-1]
        assert isinstance(last, Finish | Failure)
        return last.reason if isinstance(last, Finish) else type(last.error).__name__

    @property
    def cached(self) -> int:
        """Tokens of the prompt that need not be forwarded."""
        return self.record.usage.cached_tokens

    @property
    def source(self) -> str:
        """Where those came from."""
        return self.record.source


class Turns:
    """See the module. `now_s` is the time on its clock; `times` what it believes about speed."""

    def __init__(
        self,
        model: CausalLM | BlockLM,
        *,
        n_ctx: int = 4096,
        disk: DiskTier | None = None,
        speculator: Speculator | None = None,
        sample: Sample | None = None,
        tokenizer: Tokenizer | None = None,
        times: StepTimes | None = None,
        **settings: Any,
    ):
        """`settings` are fields of EngineSettings. Without a `speculator` there is no speculation.

        Without a `tokenizer` tokens are bytes.
        """
        self.now_s = 1000.0
        self.settings = EngineSettings(**{"batch": 4, "queue": 1000, "latency_s": 10.0, **settings})
        self.tokenizer = tokenizer or FakeTokenizer()
        self.records: dict[str, GenerationRecord] = {}
        self.n_ctx, self.times = n_ctx, times or StepTimes()
        self.inbox = Inbox(self.settings.batch, self.settings.queue)
        self.pool = SlotPool(
            model,
            n_ctx,
            self.settings,
            self.times,
            disk=disk,
            speculator=speculator,
            wake=self.inbox.wake,
            clock=lambda: self.now_s,
        )
        self.is_causal = isinstance(model, CausalLM)
        self.stepper = self._stepper(model, sample, speculator)
        self.worker = Worker(self.inbox, self.pool, self.stepper, self.settings, self._record, clock=lambda: self.now_s)

    def _stepper(self, model: CausalLM | BlockLM, sample: Sample | None, speculator: Speculator | None) -> Stepper:
        def clock() -> float:
            return self.now_s

        if isinstance(model, BlockLM):
            return BlockStepper(model, self.settings, self.times, clock=clock)
        if sample is None:
            from lmhub.sampling import Sampler

            sample = Sampler(model.n_vocab).sample
        return CausalStepper(model, sample, self.settings, self.times, speculator=speculator, clock=clock)

    def submit(self, request: GenerationRequest) -> Generation:
        """See Engine.submit; ids must be unique."""
        budget = min(request.max_tokens, self.n_ctx - len(request.prompt))
        resume_below = int(self.settings.pipe_max * RESUME)
        generation = Generation(
            request, Reply(request, self.tokenizer, budget), self.inbox.wake, resume_below=resume_below
        )
        self.inbox.put(generation)
        return generation

    def ahead(self, prompt: Sequence[int]) -> None:
        """See Engine.read_ahead."""
        request = GenerationRequest("", tuple(prompt), SamplingParams(), 0, frozenset())
        self.inbox.put_ahead(Generation(request, Reply(request, self.tokenizer, 0), self.inbox.wake))

    def turn(self, n: int = 1, *, quiet: bool = False) -> None:
        """The next `n` turns, whether there is anything to do or not; `quiet`: after a while without any request."""
        for _ in range(n):
            self.worker._read_ahead(quiet)
            self.worker._turn()
            self.check()

    def end(self, *generations: Generation) -> list[Done]:
        """As many turns as it takes until all of them have ended, each only where the worker's own loop would take it.

        Raises AssertionError where that would wait although nobody is going to wake it.
        """
        for _ in range(MOST_TURNS):
            if all(generation.request.id in self.records for generation in generations):
                return [
                    Done(tuple(generation.events()), self.records[generation.request.id]) for generation in generations
                ]
            restoring = [slot.restoring for slot in self.pool.running if slot.restoring is not None]
            inbox = self.inbox
            if not (self.worker.is_busy or inbox._woken or inbox._waiting or inbox._tasks):
                assert restoring, "the worker sleeps, and nobody wakes it"
                restoring[0].result(PATIENCE_S)
            inbox._woken = False
            self.turn()
        raise AssertionError(f"{MOST_TURNS} turns were not enough")

    def run(self, request: GenerationRequest) -> Done:
        """One request from its beginning to its end."""
        return self.end(self.submit(request))[0]

    def slot(self, generation: Generation) -> Slot:
        """Where `generation` runs."""
        [slot] = [slot for slot in self.pool.running if slot.generation is generation]
        return slot

    def held(self) -> list[Tokens]:
        """What is parked, in the order of last use."""
        return [tuple(parked.tokens.tolist()) for parked in self.pool._parked]

    def saved(self) -> None:
        """Wait until everything that is on its way to disk has arrived."""
        for future in tuple(self.pool._leaving):
            future.result(PATIENCE_S)

    def close(self) -> None:
        """Flush as the engine does at its end; the disk is the caller's."""
        self.stepper.close()
        self.pool.flush()

    def check(self) -> None:
        """The invariants between two turns. Raises AssertionError."""
        pool = self.pool
        states: list[State] = []
        for parked in pool._parked:
            assert len(parked.tokens) == parked.state.n_tokens, "a parked state holds what its tokens say"
            assert 0 <= parked.n_stable <= len(parked.tokens)
            assert all(at <= len(parked.tokens) for at, _ in parked.checkpoints)
            _check_rows(parked.state, parked.tokens.tolist())
            states.append(parked.state)
        for slot in pool.running:
            if slot.state is None or slot.restoring is not None:
                continue
            assert slot.n_pending >= self.is_causal, "the newest token is never in a causal model's state"
            assert slot.n_past <= slot.state.capacity
            assert [at for at, _ in slot.checkpoints] == sorted({at for at, _ in slot.checkpoints})
            _check_rows(slot.state, slot.tokens[: slot.n_past])
            states.append(slot.state)
        assert len(set(map(id, states))) == len(states), "no two sequences share a state"
        assert pool._n_held <= pool.n_slots, "no more states than slots"
        spares = [parked for parked in pool._parked if parked.is_spare]
        assert sum(parked.used for parked in spares) <= self.settings.kv_ram
        assert sum(slot.is_ready for slot in pool.running) <= self.settings.batch, "no more than a batch runs"

    def _record(self, record: GenerationRecord) -> None:
        assert record.id not in self.records, "a generation ends once"
        self.records[record.id] = record


def _check_rows(state: State, tokens: Sequence[int]) -> None:
    if isinstance(state, FakeState):
        assert state.tokens == list(tokens), "the rows are those of the tokens"


class Letters(NoiseModel):
    """Replies with small letters that depend on every token before them, so that a wrong state changes the text."""

    def row(self, tokens: Tokens, n_prompt: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Noise for letters, nothing for the rest."""
        row = np.full(self.n_vocab, -1e9, np.float32)
        row[ord("a") : ord("z") + 1] = super().row(tokens, n_prompt)[:26]
        return row

    @property
    def n_forwarded(self) -> int:
        """Tokens of all steps so far."""
        return sum(len(row.tokens) for step in self.steps for row in step)
