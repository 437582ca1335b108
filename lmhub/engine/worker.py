"""The worker thread's loop: every turn ends what was called off, admits what waits, and takes one step.

Everything here runs on that one thread, which alone touches the model, its states and the sampler. What goes wrong in
one generation (a sampler, a parser, a state that does not fit) ends that generation only. Knows nothing of callers
beyond their `Generation`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from lmhub.engine.generation import RESUME, Delivery, Generation, deliver
from lmhub.engine.inbox import Inbox, shutting_down
from lmhub.engine.pool import SlotPool
from lmhub.engine.slots import Slot, SlotStats
from lmhub.engine.steppers import Commit, Stepper, as_error
from lmhub.errors import GenerationError, LmhubError, RequestTimedOut
from lmhub.settings import EngineSettings
from lmhub.types import Event, ExpertReads, Failure, Finish, FinishReason, GenerationRecord, Timings, Usage

if TYPE_CHECKING:
    from lmhub.shelf import Shelf

log = logging.getLogger("lmhub.engine")


QUIET_S = 0.05  # after so long without any request, what the next one may begin with is read
FAILING = 3  # steps in a row with failures, after which the model is taken to be broken


@dataclass(slots=True)
class Totals:
    """Counters since the start; written by the worker only. Tokens are of generations that ran and ended."""

    finished: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Worker:
    """Advances the generations of one inbox on one pool of slots."""

    def __init__(
        self,
        inbox: Inbox,
        pool: SlotPool,
        stepper: Stepper,
        settings: EngineSettings,
        report: Callable[[GenerationRecord], None],
        clock: Callable[[], float] = time.monotonic,
        shelf: Shelf | None = None,
    ):
        """`report` gets every ended generation, its `model` and `family` still empty; it must not raise.

        `shelf`: where the model's experts are kept of which only some are in memory.
        """
        self.totals = Totals()
        self.slots: tuple[SlotStats, ...] = ()  # of what runs, as of the last turn
        self.is_healthy = True
        self._inbox, self._pool, self._stepper = inbox, pool, stepper
        self._settings, self._report, self._clock, self._shelf = settings, report, clock, shelf
        self._outgoing: list[Delivery] = []

    def run(self) -> None:
        """Work until the inbox is closed and nothing runs."""
        while not self._inbox.is_over:
            was_quiet = self._inbox.wait(self.is_busy, self._patience_s())
            try:
                self._read_ahead(was_quiet)
                self._turn()
            except Exception as error:  # not a generation's fault: a defect of the engine, which must go on
                log.exception("the engine failed in its own code; running generations end")
                self._fail_running(
                    GenerationError(
                        f"the engine failed with {type(error).__name__}: {error}; this is a defect of lmhub"
                    )
                )
        for slot in tuple(self._pool.running):  # nobody waits for what is left
            self._pool.release(slot)

    @property
    def is_busy(self) -> bool:
        """Whether a turn would bring something on."""
        pool = self._pool
        return pool.is_busy or (pool.has_room and any(self._has_caught_up(slot) for slot in pool.running))

    def _patience_s(self) -> float | None:
        """How long nothing needs to be done, if nobody asks for anything."""
        settings = self._settings
        if self._inbox.has_ahead and not self._pool.running:
            return QUIET_S
        paused = any(slot.paused_s is not None for slot in self._pool.running)
        timeouts = [settings.stall_timeout_s] if paused else []
        timeouts += [settings.request_timeout_s] if self._pool.running and settings.request_timeout_s else []
        return min(timeouts, default=None)

    def _turn(self) -> None:
        while (task := self._inbox.take_task()) is not None:
            task()
        self._reap()
        self._pause()
        self._settle()
        self._admit()
        self._publish()
        self._deliver()  # a step may be long, and these need not wait for it
        ready = [slot for slot in self._pool.running if slot.is_ready]
        if ready:
            for commit in self._stepper.step(ready):
                self._apply(commit)
            for slot in ready:
                self._pool.checkpoint(slot)
            self._check()
            self._deliver()
        self._publish()

    def _read_ahead(self, was_quiet: bool) -> None:
        """Make use of a quiet moment, and step aside as soon as it is over."""
        running, is_quiet = self._pool.running, self._inbox.is_quiet
        if was_quiet and is_quiet and not running:
            generation = self._inbox.take_ahead()
            if generation is not None and not self._pool.holds(np.array(generation.request.prompt, np.int32)):
                self._pool.admit(generation, is_ahead=True)
        elif not is_quiet or any(not slot.is_ahead for slot in running):
            for slot in [slot for slot in running if slot.is_ahead]:
                self._pool.release(slot)

    def _publish(self) -> None:
        self.slots = tuple(slot.stats() for slot in self._pool.running if not slot.is_ahead)

    def _reap(self) -> None:
        """End what was called off, what the engine's own end cuts short, and what has run out of time."""
        for generation in self._inbox.take_gone():
            self._end(generation, "cancelled" if generation.cancelled else shutting_down())
        limit_s = self._settings.request_timeout_s
        for slot in [slot for slot in self._pool.running if not slot.is_ahead]:
            if slot.generation.cancelled:
                self._end(slot.generation, "cancelled", slot)
            elif self._inbox.cut:
                self._end(slot.generation, shutting_down(), slot)
            elif limit_s and self._clock() - slot.admitted_s >= limit_s:
                self._time_out(slot, limit_s)

    def _time_out(self, slot: Slot, limit_s: float) -> None:
        """A reply that has begun ends as if it were long enough."""
        reply = slot.generation.reply
        if not slot.n_completion:
            self._end(slot.generation, timed_out(limit_s), slot)
            return
        try:
            events = reply.cut()
            assert reply.reason is not None
        except Exception as error:  # of a parser
            self._end(slot.generation, as_error(error, "ending the reply"), slot)
        else:
            self._end(slot.generation, reply.reason, slot, events)

    def _pause(self) -> None:
        """Let a reply rest whose reader is far behind; end it if the reader does not move at all any more."""
        now, settings = self._clock(), self._settings
        for slot in tuple(self._pool.running):
            generation = slot.generation
            if slot.paused_s is None:
                if generation.backlog >= settings.pipe_max:
                    slot.paused_s, slot.n_read = now, generation.n_read
            elif self._has_caught_up(slot):
                slot.paused_s = None if self._pool.has_room else slot.paused_s
            elif generation.n_read != slot.n_read:
                slot.paused_s, slot.n_read = now, generation.n_read
            elif now - slot.paused_s >= settings.stall_timeout_s:
                stalled = f"nobody has read this reply for {settings.stall_timeout_s:g} s, so it was given up"
                self._end(generation, GenerationError(stalled), slot)
        self._inbox.resting(slot.generation for slot in self._pool.running if slot.paused_s is not None)

    def _has_caught_up(self, slot: Slot) -> bool:
        """Whether it rests, and its reader has read enough for it to go on."""
        return slot.paused_s is not None and slot.generation.backlog < self._settings.pipe_max * RESUME

    def _settle(self) -> None:
        for slot, error in self._pool.settle():
            if slot.is_ahead:
                self._pool.release(slot)
            else:
                self._end(slot.generation, as_error(error, "making room for the sequence"), slot)

    def _admit(self) -> None:
        while self._pool.has_room and (generation := self._inbox.take_next()) is not None:
            try:
                slot = self._pool.admit(generation)
                slot.shelf_then = None if self._shelf is None else self._shelf.numbers()
            except Exception as error:
                self._end(generation, as_error(error, "making room for the sequence"))

    def _apply(self, commit: Commit) -> None:
        """Hand out what a step brought. What was called off during the step is left to the next turn."""
        slot, generation = commit.slot, commit.slot.generation
        if slot.is_ahead:
            self._pool.release(slot)
            return
        if self._inbox.cut or generation.cancelled:
            return
        if commit.error is not None:
            self._end(generation, commit.error, slot)
        elif generation.reply.reason is not None:
            self._end(generation, generation.reply.reason, slot, commit.events)
        elif commit.events:
            self._outgoing.append((generation, commit.events))

    def _check(self) -> None:
        """A model that fails step after step will go on failing: end what runs, and say so."""
        failing = self._stepper.counts.failing
        if not failing:
            self.is_healthy = True
        elif failing >= FAILING and self.is_healthy:
            self.is_healthy = False
            log.error("the model has failed in %d steps in a row; running generations end", failing)
            self._fail_running(GenerationError(f"the model has failed in {failing} steps in a row; see the log"))

    def _end(
        self,
        generation: Generation,
        outcome: FinishReason | LmhubError,
        slot: Slot | None = None,
        events: Sequence[Event] = (),
    ) -> None:
        """The one place where a generation ends: free its slot, count it, report it, queue its last events."""
        if slot is not None:
            self._pool.release(slot)
        usage, timings = _account(generation, slot)
        self._inbox.finished(generation, timings.prefill_s + timings.decode_s if slot is not None else None)
        self.totals.finished += 1
        self.totals.prompt_tokens += usage.prompt_tokens if slot is not None else 0
        self.totals.completion_tokens += usage.completion_tokens
        finish = "failed" if isinstance(outcome, LmhubError) else outcome
        record = GenerationRecord(generation.request.id, "", "", finish, usage, timings)
        if slot is not None:
            record = replace(record, source=slot.source, n_drafted=slot.n_drafted, n_accepted=slot.n_accepted)
        self._report(record)
        last = (
            Failure(outcome)
            if isinstance(outcome, LmhubError)
            else Finish(outcome, usage, generation.reply.stop_sequence, timings, self._expert_reads(slot))
        )
        self._outgoing.append((generation, (*events, last)))

    def _expert_reads(self, slot: Slot | None) -> ExpertReads | None:
        """Since `slot` was admitted."""
        if self._shelf is None or slot is None or slot.shelf_then is None:
            return None
        now, then = self._shelf.numbers(), slot.shelf_then
        return ExpertReads(now.used - then.used, now.hits - then.hits, now.read - then.read)

    def _deliver(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        deliver(outgoing)

    def _fail_running(self, error: LmhubError) -> None:
        for slot in tuple(self._pool.running):
            slot.is_sound = False
            if slot.is_ahead:
                self._pool.release(slot)
            else:
                self._end(slot.generation, error, slot)
        self._deliver()


def timed_out(limit_s: float) -> LmhubError:
    """The error of a request that has not got a single token in time."""
    return RequestTimedOut(
        f"the request ran for {limit_s:g} s without a reply, which is the limit; send a shorter prompt"
    )


def _account(generation: Generation, slot: Slot | None) -> tuple[Usage, Timings]:
    """The token counts and the times of a generation that ends now; `slot` is None if it never ran."""
    now = time.monotonic()
    reply = generation.reply
    n_prompt = len(generation.request.prompt)
    if slot is None:
        return Usage(n_prompt, 0), Timings(queued_s=now - generation.submitted_s)
    usage = Usage(n_prompt, reply.n_tokens - reply.has_end, slot.n_cached, reply.reasoning_tokens)
    decoding_s = now if slot.decoding_s is None else slot.decoding_s
    timings = Timings(slot.admitted_s - generation.submitted_s, decoding_s - slot.admitted_s, now - decoding_s)
    return usage, timings
