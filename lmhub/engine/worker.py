"""The worker thread's loop: every turn ends what was called off, admits what waits, and takes one step.

Everything here runs on that one thread, which alone touches the model, its states and the sampler. What goes wrong in
one generation (a sampler, a parser, a state that does not fit) ends that generation only. Knows nothing of callers
beyond their `Generation`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lmhub.engine.generation import Delivery, Generation, deliver
from lmhub.engine.inbox import Inbox, shutting_down
from lmhub.engine.slots import Slot, SlotPool, SlotStats
from lmhub.engine.steppers import Commit, Stepper, as_error
from lmhub.errors import GenerationError, LmhubError
from lmhub.types import Event, Failure, Finish, FinishReason, GenerationRecord, Timings, Usage

log = logging.getLogger("lmhub.engine")


@dataclass(slots=True)
class Totals:
    """Counters since the start; written by the worker only."""

    steps: int = 0
    finished: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Worker:
    """Advances the generations of one inbox on one pool of slots."""

    def __init__(self, inbox: Inbox, pool: SlotPool, stepper: Stepper, report: Callable[[GenerationRecord], None]):
        """`report` gets every ended generation, its `model` and `family` still empty; it must not raise."""
        self.totals = Totals()
        self.slots: tuple[SlotStats, ...] = ()  # of what runs, as of the last turn
        self._inbox = inbox
        self._pool = pool
        self._stepper = stepper
        self._report = report
        self._outgoing: list[Delivery] = []

    def run(self) -> None:
        """Work until the inbox is closed and nothing runs."""
        while self._inbox.wait(busy=bool(self._pool.running)):
            try:
                self._turn()
            except Exception as error:  # not a generation's fault: a defect of the engine, which must go on
                log.exception("the engine failed in its own code; running generations end")
                self._fail_running(error)

    def _turn(self) -> None:
        while (task := self._inbox.take_task()) is not None:
            task()
        self._reap()
        self._admit()
        self._publish()
        self._deliver()  # a step may be long, and these need not wait for it
        if self._pool.running:
            self.totals.steps += 1
            for commit in self._stepper.step(self._pool.running):
                self._apply(commit)
            self._deliver()
        self._publish()

    def _publish(self) -> None:
        self.slots = tuple(slot.stats() for slot in self._pool.running)

    def _reap(self) -> None:
        for generation in self._inbox.take_gone():
            self._end(generation, "cancelled" if generation.cancelled else shutting_down())
        for slot in tuple(self._pool.running):
            if slot.generation.cancelled:
                self._end(slot.generation, "cancelled", slot)
            elif self._inbox.cut:
                self._end(slot.generation, shutting_down(), slot)

    def _admit(self) -> None:
        while self._pool.has_room and (generation := self._inbox.take_next()) is not None:
            try:
                self._pool.admit(generation)
            except Exception as error:
                self._end(generation, as_error(error, "making room for the sequence"))

    def _apply(self, commit: Commit) -> None:
        """Turn a commit into events. What was called off during the step is left to the next turn."""
        slot, generation = commit.slot, commit.slot.generation
        if self._inbox.cut or generation.cancelled:
            slot.is_sound = slot.is_sound and commit.error is None
            return
        if commit.error is not None:
            slot.is_sound = False
            self._end(generation, commit.error, slot)
            return
        try:
            events = self._read(commit)
        except Exception as error:
            self._end(generation, as_error(error, "reading the reply"), slot)
            return
        if generation.reply.reason is not None:
            self._end(generation, generation.reply.reason, slot, events)
        elif events:
            self._outgoing.append((generation, events))

    def _read(self, commit: Commit) -> list[Event]:
        """The events of a commit. A reasoning that has used up its budget is closed with tokens that nobody chose."""
        slot, reply = commit.slot, commit.slot.generation.reply
        events: list[Event] = []
        if commit.has_read and slot.request.score_prompt:
            events.append(reply.scored(slot.prompt_scores))
        events += reply.feed(commit.tokens, commit.scores)
        if reply.must_close:
            forced = slot.request.close_reasoning[: reply.budget - reply.n_tokens]
            for token in forced:
                slot.commit(token)
            events += reply.feed(forced)
        return events

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
        self._inbox.finished(timings.prefill_s + timings.decode_s if slot is not None else None)
        self.totals.finished += 1
        self.totals.prompt_tokens += usage.prompt_tokens if slot is not None else 0
        self.totals.completion_tokens += usage.completion_tokens
        finish = "failed" if isinstance(outcome, LmhubError) else outcome
        self._report(GenerationRecord(generation.request.id, "", "", finish, usage, timings))
        last = (
            Failure(outcome)
            if isinstance(outcome, LmhubError)
            else Finish(outcome, usage, generation.reply.stop_sequence, timings)
        )
        self._outgoing.append((generation, (*events, last)))

    def _deliver(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        deliver(outgoing)

    def _fail_running(self, error: Exception) -> None:
        failure = GenerationError(f"the engine failed with {type(error).__name__}: {error}; this is a defect of lmhub")
        for slot in tuple(self._pool.running):
            slot.is_sound = False
            self._end(slot.generation, failure, slot)
        self._deliver()


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
