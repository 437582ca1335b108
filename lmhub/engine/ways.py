"""The ways to come by a prompt's beginning, and which of them is the soonest. Only looks; the pool goes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from lmhub.engine.parked import Checkpoints, Parked, common, reachable
from lmhub.engine.rates import Rate, StepTimes
from lmhub.engine.slots import Ids, Slot
from lmhub.model import State

if TYPE_CHECKING:
    from lmhub.engine.disk import DiskTier, Found

WORTH_COPYING = 16  # tokens; forwarding fewer is as cheap as copying their rows
WORTH_WAITING = 64  # tokens; for fewer, no slot waits until another one has read them
WORTH_READING = 256  # tokens; as many are read from disk however little of the prompt that is
COPY_RATE = 2e9  # bytes per second, until it has been measured


@dataclass(frozen=True, slots=True)
class Way:
    """One way to come by the first `n` tokens of a prompt; `seconds` until its last token is predicted."""

    seconds: float
    rank: int  # of several that take as long: in place, copied, from disk
    n: int
    kind: Literal["place", "copy", "wait", "disk", "cold"]
    parked: Parked | None = None
    slot: Slot | None = None
    found: Found | None = None
    checkpoint: bytes | None = None


class Ways:
    """Compares them by the time until the prompt's last token is predicted, at measured rates."""

    def __init__(self, times: StepTimes, disk: DiskTier | None):
        self.copying = Rate(COPY_RATE)
        self._times, self._disk = times, disk

    def best(
        self,
        slot: Slot,
        wanted: Ids,
        parked: Iterable[Parked],
        leaving: Iterable[Parked],
        running: Iterable[Slot],
        *,
        from_disk: bool = True,
    ) -> Way:
        """The way by which the tokens `wanted` of `slot` are read soonest.

        `parked` may be taken or copied; `leaving`, and `running` as far as it was admitted before, only copied.
        """
        ways = [*self._all(slot, wanted, parked, leaving, running, from_disk), self.cold(wanted)]
        return min(ways, key=lambda way: (way.seconds, way.rank, -way.n))

    def cold(self, wanted: Ids) -> Way:
        """To read it all."""
        return self._way(wanted, 0, 0.0, 4, "cold")

    def _all(
        self,
        slot: Slot,
        wanted: Ids,
        resting: Iterable[Parked],
        leaving: Iterable[Parked],
        running: Iterable[Slot],
        from_disk: bool,
    ) -> Iterator[Way]:
        sequence = np.array(slot.tokens, np.int32)
        for parked in resting:
            n = common(parked.tokens, sequence)
            if n >= max(parked.n_stable, 1) or n == len(parked.tokens):
                at, blob = reachable(parked.state, parked.checkpoints, min(n, len(wanted)))
                if at:
                    yield self._way(wanted, at, 0.0, 0, "place", parked=parked, checkpoint=blob)
            yield from self._copies(wanted, parked.state, parked.tokens, parked.checkpoints, parked=parked)
        for parked in leaving:
            yield from self._copies(wanted, parked.state, parked.tokens, parked.checkpoints, parked=parked)
        for other in running:
            if other is slot or other.state is None or not other.is_sound:
                continue
            if other.restoring is None:
                yield from self._copies(wanted, other.state, other.held(), other.checkpoints, slot=other)
            yield from self._coming(slot, other, wanted)
        if from_disk and self._disk is not None and (found := self._disk.find(wanted)) is not None:
            n = min(found.n, len(wanted))
            if 10 * n > len(slot.tokens) or n >= WORTH_READING:
                yield self._way(wanted, n, found.seconds, 3, "disk", found=found)

    def _copies(
        self,
        wanted: Ids,
        state: State,
        tokens: Ids,
        checkpoints: Checkpoints,
        *,
        parked: Parked | None = None,
        slot: Slot | None = None,
    ) -> Iterator[Way]:
        n, blob = reachable(state, checkpoints, common(tokens, wanted))
        if n >= WORTH_COPYING:
            seconds = n * state.row_nbytes / self.copying.value
            yield self._way(wanted, n, seconds, 1, "copy", parked=parked, slot=slot, checkpoint=blob)

    def _coming(self, slot: Slot, other: Slot, wanted: Ids) -> Iterator[Way]:
        """What `other`, which was admitted before, is still reading of it, and is then copied.

        The wait counts half: read beside each other, the same tokens would take both of them twice as long.
        """
        n = common(other.prompt, wanted)
        missing = n - other.n_past
        is_reading = missing > 0 and not other.n_completion and other.paused_s is None
        if not is_reading or n < max(WORTH_WAITING, len(slot.tokens) // 4):
            return
        assert other.state is not None
        seconds = missing / (2 * self._times.prefill.value) + n * other.state.row_nbytes / self.copying.value
        yield self._way(wanted, n, seconds, 2, "wait", slot=other)

    def _way(
        self,
        wanted: Ids,
        n: int,
        seconds: float,
        rank: int,
        kind: Literal["place", "copy", "wait", "disk", "cold"],
        *,
        parked: Parked | None = None,
        slot: Slot | None = None,
        found: Found | None = None,
        checkpoint: bytes | None = None,
    ) -> Way:
        rest_s = (len(wanted) + 1 - n) / self._times.prefill.value
        return Way(seconds + rest_s, rank, n, kind, parked, slot, found, checkpoint)
