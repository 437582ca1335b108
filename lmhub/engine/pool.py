"""Where sequences live: the states of running slots and those that are parked, and which one a prompt goes on from.

When a slot ends, its state is parked with the tokens that it holds. A later prompt takes its beginning from wherever
that is soonest (`ways.py`): a parked state that it continues, a copy of another's rows (also of one that runs, or that
is only reading them now), a file on disk. Memory holds `kv_slots` states, running and parked; beyond them parked ones
stay while they fit into `kv_ram` bytes, then they go to disk, then away.
Knows nothing of steps, sampling or events.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from lmhub.engine.generation import Generation
from lmhub.engine.parked import Parked, common, copy_rows, note, reachable, rewind
from lmhub.engine.rates import StepTimes
from lmhub.engine.slots import Ids, Slot
from lmhub.engine.ways import WORTH_COPYING, Way, Ways
from lmhub.model import BlockLM, CausalLM, State
from lmhub.settings import EngineSettings
from lmhub.types import Source

if TYPE_CHECKING:
    from lmhub.engine.disk import DiskTier
    from lmhub.engine.drafts import Speculator

log = logging.getLogger("lmhub.engine")

WORTH_KEEPING = 64  # tokens; shorter sequences are not worth a file
WORTH_FLUSHING = 256  # tokens; at the end, shorter ones are not written any more
CHECKPOINT_EVERY = 2048  # tokens


@dataclass(slots=True)
class PoolCounts:
    """Counters since the start: generations and tokens by the source of what was cached, and sequences given up."""

    hits: Counter[str] = field(default_factory=Counter)
    reused: Counter[str] = field(default_factory=Counter)
    evicted: int = 0


class SlotPool:
    """The slots of one engine. Its worker's thread alone uses it."""

    def __init__(
        self,
        model: CausalLM | BlockLM,
        n_ctx: int,
        settings: EngineSettings,
        times: StepTimes,
        *,
        disk: DiskTier | None = None,
        speculator: Speculator | None = None,
        wake: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """`wake` is called, on another thread, when something that a slot waited for has come from disk."""
        self.counts = PoolCounts()
        self.running: list[Slot] = []  # admitted and not ended, in this order
        self.n_slots = max(settings.kv_slots or 2 * settings.batch, settings.batch, 1)
        self._model, self._n_ctx, self._batch, self._kv_ram = model, n_ctx, settings.batch, settings.kv_ram
        self._disk, self._speculator = disk, speculator
        self._wake, self._clock = wake, clock
        self._ways = Ways(times, disk)
        self._parked: list[Parked] = []  # the one that was used last at the end
        self._leaving: dict[Future[bool], Parked] = {}  # on their way to disk; their rows may still be copied

    # --- for the worker ----------------------------------------------------------------------------------------------

    @property
    def n_parked(self) -> int:
        """How many states wait for work."""
        return len(self._parked)

    @property
    def has_room(self) -> bool:
        """Whether one more generation can be admitted: those whose readers have stalled do not count."""
        return sum(slot.paused_s is None for slot in self.running) < self._batch

    def holds(self, tokens: Ids) -> bool:
        """Whether a parked state has read all of `tokens`."""
        return any(common(parked.tokens, tokens) == len(tokens) for parked in self._parked)

    def admit(self, generation: Generation, is_ahead: bool = False) -> Slot:
        """Make a slot for `generation`. Raises what `new_state` raises; the pool is then unchanged."""
        slot = Slot(generation, self._clock(), is_ahead)
        self.running.append(slot)
        try:
            self._place(slot)
        except BaseException:
            self.running.remove(slot)
            raise
        return slot

    @property
    def is_busy(self) -> bool:
        """Whether a turn would bring something on: not if all that run wait for their readers or the disk."""
        return any(slot.is_ready or self._is_due(slot) for slot in self.running)

    def settle(self) -> list[tuple[Slot, Exception]]:
        """See to the slots without a state: whether what they wait for is there, or can no longer come.

        Returns those that can get none, and why; they have to be released.
        """
        failed: list[tuple[Slot, Exception]] = []
        for future in [future for future in self._leaving if future.done()]:
            del self._leaving[future]
        for slot in self.running:
            try:
                if slot.restoring is not None and slot.restoring.done():
                    self._restored(slot)
                elif self._is_due(slot):
                    slot.waits_for = None
                    self._place(slot)
            except Exception as error:
                slot.is_sound = False
                failed.append((slot, error))
        return failed

    def release(self, slot: Slot) -> None:
        """End `slot`. Its state is parked, or dropped if it is not sound or still being filled."""
        self.running.remove(slot)
        self._park(slot)

    def flush(self) -> None:
        """Send what is parked to disk, the sequences that were used last first. For the end: nothing waits for it."""
        for parked in reversed(self._parked):
            if self._disk is not None and len(parked.tokens) >= WORTH_FLUSHING and self._is_worth_a_file(parked):
                self._save(parked, self._disk, flush=True)

    def checkpoint(self, slot: Slot) -> None:
        """Note a checkpoint where one is due, after a step."""
        state = slot.state
        if state is not None and not state.can_rewind and state.n_tokens in slot.cuts:
            note(state, slot.checkpoints)

    # --- coming by a prompt's beginning ------------------------------------------------------------------------------

    def _place(self, slot: Slot, from_disk: bool = True) -> None:
        """Find the way by which the slot's tokens are soonest read, and begin to go it."""
        wanted = np.array(slot.tokens[:-1], np.int32)  # the last token has to be forwarded for its logits
        if slot.request.score_prompt and not slot.n_completion:
            wanted = wanted[:0]  # a prompt that is scored is read from its start
        best = self._ways.best(slot, wanted, self._parked, self._leaving.values(), self.running, from_disk=from_disk)
        if best.kind == "wait":
            assert best.slot is not None
            slot.waits_for = (best.slot, best.n)
            if best.slot.state is not None and not best.slot.state.can_rewind:  # a copy needs a checkpoint just there
                best.slot.cuts = tuple(sorted({*best.slot.cuts, best.n}))
            return
        source = self._go(slot, best, wanted)
        self._begin(slot, source, wanted)

    def _is_due(self, slot: Slot) -> bool:
        """Whether a slot without a state has nothing to wait for."""
        waits = slot.waits_for is not None and self._is_coming(*slot.waits_for)
        return slot.state is None and slot.paused_s is None and not waits

    def _is_coming(self, donor: Slot, n: int) -> bool:
        """Whether `donor` will have read `n` tokens, and has not yet."""
        is_reading = donor in self.running and donor.state is not None and donor.paused_s is None
        return is_reading and donor.is_sound and donor.n_past < n

    def _go(self, slot: Slot, way: Way, wanted: Ids) -> Source:
        """Give the slot a state with the first `way.n` tokens, or as many as turn out to be possible. Their source."""
        if way.kind == "place":
            assert way.parked is not None
            self._parked.remove(way.parked)
            if rewind(way.parked.state, way.n, way.checkpoint):
                self._adopt(slot, way.parked)
                return "ram" if way.parked.is_spare else "slot"
            way = self._ways.cold(wanted)
        slot.state = self._free(way.parked, wanted if way.kind == "cold" else wanted[:0])
        if way.kind == "disk":
            assert way.found is not None and self._disk is not None
            slot.restoring = self._disk.load(way.found, way.n, slot.state)
            slot.restoring.add_done_callback(lambda _: self._wake())
            return "disk"
        donor = way.parked.state if way.parked is not None else way.slot.state if way.slot is not None else None
        if donor is None:
            return "slot"
        if donor is slot.state:  # there was no other: the rest of what it held is lost
            if not rewind(donor, way.n, way.checkpoint):
                slot.state = self._model.new_state(self._n_ctx)
            return "slot"
        begun = self._clock()
        if not copy_rows(slot.state, donor, way.n, way.checkpoint):
            return "slot"
        self._ways.copying.observe(way.n * donor.row_nbytes, self._clock() - begun)
        if way.parked in self._parked:  # it has been of use
            self._parked.append(self._parked.pop(self._parked.index(way.parked)))
        return "ram" if way.parked is not None and way.parked.is_spare else "copy"

    def _restored(self, slot: Slot) -> None:
        """The rows from disk are there, or as many as were sound."""
        assert slot.restoring is not None and slot.state is not None
        n, slot.restoring = slot.restoring.result(), None
        if n < WORTH_COPYING:
            slot.state.truncate(0)
            self._parked.insert(0, Parked(slot.state, slot.prompt[:0], 0))
            slot.state = None
            self._place(slot, from_disk=False)
            return
        self._begin(slot, "disk", slot.prompt)

    def _begin(self, slot: Slot, source: Source, wanted: Ids) -> None:
        """The slot has its state, or will have read it from disk: count what it found, and know where to stop."""
        if slot.restoring is not None or slot.state is None:
            return
        n = slot.state.n_tokens
        if not slot.n_completion and not slot.is_ahead:
            slot.n_cached, slot.source = n, source if n else "none"
            self.counts.hits[slot.source] += 1
            self.counts.reused[slot.source] += n
        if not slot.state.can_rewind:
            if n:
                note(slot.state, slot.checkpoints)  # what was copied or read from disk has none of its own
            every = range(CHECKPOINT_EVERY, len(slot.prompt), CHECKPOINT_EVERY)
            shared = max((common(one.tokens, wanted) for one in self._parked), default=0)
            slot.cuts = tuple(sorted({slot.n_stable, len(slot.prompt) - 1, shared, *every} - {0}))
        if self._speculator is not None and (slot.state.can_rewind or slot.state.can_step_back):
            try:
                self._follow(slot, n, self._speculator)
            except Exception:
                log.exception("a sequence goes on without guesses, which failed")
                slot.drafting = slot.index = None

    @staticmethod
    def _follow(slot: Slot, n: int, speculator: Speculator) -> None:
        """Let guesses about the slot's tokens begin, of which its state holds `n`."""
        n_known = n if slot.index is not None else 0
        slot.index = slot.index or speculator.new_index()
        slot.drafting = speculator.open(slot.index, slot.tokens[:n], n_known)
        slot.drafting.prompted(slot.tokens[n:])

    # --- states ------------------------------------------------------------------------------------------------------

    def _adopt(self, slot: Slot, parked: Parked) -> None:
        slot.state = parked.state
        slot.checkpoints = [one for one in parked.checkpoints if one[0] <= parked.state.n_tokens]
        slot.index, parked.index = parked.index, None
        self._make_room(0)

    def _park(self, slot: Slot) -> None:
        """Keep what the slot holds, if it is sound. Its memory is somebody else's from now on."""
        state, slot.state = slot.state, None
        if state is None or slot.restoring is not None or not slot.is_sound:
            return
        tokens = np.array(slot.tokens[: state.n_tokens], np.int32)
        stable = min(slot.n_stable, len(tokens))
        parked = Parked(state, tokens, stable, slot.checkpoints, slot.index)
        slot.checkpoints, slot.index, slot.drafting = [], None, None
        self._parked.insert(len(self._parked) if len(tokens) else 0, parked)
        self._make_room(0)

    @property
    def _n_held(self) -> int:
        """States that count as slots: of all that run, and of those parked that are no spares."""
        n_running = sum(slot.state is not None for slot in self.running)
        return n_running + sum(not parked.is_spare for parked in self._parked)

    def _free(self, kept: Parked | None, wanted: Ids) -> State:
        """A state that may be overwritten, with no rows but those that begin `wanted`.

        A new one while there may be more; that of `kept`, as it is, if nothing else could be had.
        """
        given_up = self._make_room(1, kept)
        if given_up is None:
            return self._model.new_state(self._n_ctx)
        state = given_up.state
        n, blob = reachable(state, given_up.checkpoints, common(given_up.tokens, wanted))
        if given_up is kept or rewind(state, n, blob) or rewind(state, 0, None):
            return state
        return self._model.new_state(self._n_ctx)

    def _make_room(self, n: int, kept: Parked | None = None) -> Parked | None:
        """Give up sequences until `n` more states fit; the last one that is kept nowhere else, if there is any.

        The parked ones go first, in the order of their last use, of these `kept` at last; then those whose readers have
        stalled.
        """
        left: Parked | None = None
        while self._n_held + n > self.n_slots:
            resident = sorted((one for one in self._parked if not one.is_spare), key=lambda one: one is kept)
            if resident:
                left = self._leave(resident[0]) or left
                continue
            stalled = [slot for slot in self.running if slot.paused_s is not None and slot.state is not None]
            if not stalled:
                break
            self._park(min(stalled, key=lambda slot: slot.paused_s or 0.0))
        return left

    def _leave(self, parked: Parked) -> Parked | None:
        """Take a sequence out of the slots: into spare memory, to disk, or away. Itself, if that was the end of it."""
        self.counts.evicted += 1
        if len(parked.tokens) >= WORTH_COPYING and 0 < parked.used <= self._kv_ram:
            parked.is_spare = True
            parked.state.trim()
            while sum(one.used for one in self._parked if one.is_spare) > self._kv_ram:
                self._drop(next(one for one in self._parked if one.is_spare))
            return None
        return self._drop(parked)

    def _drop(self, parked: Parked) -> Parked | None:
        """To disk or away. Itself, if its state is nobody's any more."""
        self._parked.remove(parked)
        if self._is_worth_a_file(parked):
            assert self._disk is not None
            writing = self._save(parked, self._disk)
            if not writing.done():
                self._leaving[writing] = parked
                return None
        return parked

    @staticmethod
    def _save(parked: Parked, disk: DiskTier, *, flush: bool = False) -> Future[bool]:
        """Write it; a state that cannot rewind with a checkpoint at its end, where the next prompt may well go on."""
        if not parked.state.can_rewind:
            note(parked.state, parked.checkpoints)
        return disk.save(parked.state, parked.tokens, parked.n_stable, parked.checkpoints, flush=flush)

    def _is_worth_a_file(self, parked: Parked) -> bool:
        if self._disk is None or len(parked.tokens) < WORTH_KEEPING or self._disk.covers(parked.tokens):
            return False
        others = (one.tokens for one in self._parked if one is not parked)
        return not any(common(tokens, parked.tokens) == len(parked.tokens) for tokens in others)
