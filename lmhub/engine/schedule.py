"""What a step is made of: a row for every reply, guesses behind some, and as much of the prompts as there is time.

While replies are being decoded, a step is held under a latency target, so that a long prompt never makes them stutter;
prompts always advance all the same. Among prompts the rows are dealt by deficit round robin (Shreedhar and Varghese,
1995), and a short one may overtake a long one that has waited only a little longer. Decides on sizes, runs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lmhub.engine.rates import StepTimes
from lmhub.engine.slots import Slot
from lmhub.model import Chunk, Want

ALIGN = 64  # prompts are cut at multiples of this position where a step has room for it
LEAST = 16  # prompt tokens that a step takes however long it gets
OVERTAKE_S = 2.0  # how much longer than a short prompt a long one may have waited and still be overtaken
ALONE = 10  # a step of prompts alone may take so many times the latency target: nobody waits but newcomers


@dataclass(frozen=True, slots=True)
class Share:
    """One slot's part of a step: its next `n` pending tokens and, behind them, a guess of those that will follow."""

    slot: Slot
    n: int
    draft: tuple[int, ...] = ()

    @property
    def is_last(self) -> bool:
        """Whether nothing is pending behind it, so that its last row predicts a new token."""
        return self.n == self.slot.n_pending

    @property
    def n_rows(self) -> int:
        """How many rows of logits it gets."""
        if self.slot.scores_prompt or self.draft:
            return self.n + len(self.draft)
        return int(self.is_last)

    def chunk(self) -> Chunk:
        """The model's view of it."""
        state = self.slot.state
        assert state is not None
        start = state.n_tokens
        want: Want = "all" if self.slot.scores_prompt or self.draft else "last" if self.is_last else "none"
        return Chunk(state, [*self.slot.tokens[start : start + self.n], *self.draft], want)


class Budget:
    """How many rows a step may have."""

    def __init__(self, times: StepTimes, latency_s: float, prefill_chunk: int):
        """`latency_s` is what a step may take while replies are decoded, `prefill_chunk` its most prompt tokens."""
        self._times = times
        self._latency_s = latency_s
        self._prefill_chunk = prefill_chunk

    def prefill(self, n_decode: int, *, is_ahead: bool = False) -> int:
        """Prompt tokens beside `n_decode` rows of replies. `is_ahead`: nobody waits for them, but somebody may come."""
        target = self.target_s(n_decode) if n_decode or is_ahead else ALONE * self._latency_s
        rows = int((target - self._times.decode_s(n_decode)) * self._times.prefill.value)
        return max(min(rows, self._prefill_chunk), min(LEAST, self._prefill_chunk))

    def target_s(self, n_decode: int) -> float:
        """How long a step with `n_decode` rows of replies may take."""
        return max(self._latency_s, 1.5 * self._times.decode_s(n_decode))


class Prefills:
    """Deals a step's prompt rows to the slots that read. Keeps whose turn it is."""

    def __init__(self, quantum: int) -> None:
        """`quantum`: tokens that one prompt gets in its turn, in as many steps as that takes."""
        self._quantum = quantum
        self._ring: list[Slot] = []  # the one whose turn it is first

    def deal(self, slots: Sequence[Slot], budget: int) -> list[Share]:
        """Shares of `slots`, which all have more than one token pending, of at most `budget` tokens together."""
        reading = set(map(id, slots))
        known = set(map(id, self._ring))
        self._ring = [slot for slot in self._ring if id(slot) in reading]
        self._ring += [slot for slot in slots if id(slot) not in known]
        shares, left = [], budget
        for slot in self._order(budget):
            if left < 1:
                break
            if slot.deficit < LEAST:
                slot.deficit += self._quantum
            n = _cut(slot, min(slot.n_pending, slot.deficit, left))
            slot.deficit = 0 if n == slot.n_pending else slot.deficit - n
            left -= n
            shares.append(Share(slot, n))
            if slot.deficit < LEAST:  # else the step is full, and the rest of its turn comes first in the next one
                self._ring.remove(slot)
                self._ring.append(slot)
        return shares

    def _order(self, budget: int) -> list[Slot]:
        """Short prompts first, as far as they do not overtake one that has waited much longer; then in turn."""
        if not self._ring:
            return []
        head_s = self._ring[0].generation.submitted_s
        short = [
            slot
            for slot in self._ring
            if slot.n_pending <= budget and slot.generation.submitted_s - head_s < OVERTAKE_S
        ]
        return [*sorted(short, key=lambda slot: slot.n_pending), *(slot for slot in self._ring if slot not in short)]


def _cut(slot: Slot, n: int) -> int:
    """`n` or a little less: up to the next position where a checkpoint is due, or at a multiple of ALIGN."""
    start = slot.n_past
    due = next((cut for cut in slot.cuts if start < cut <= start + n), None)
    if due is not None:
        return due - start
    aligned = (start + n) // ALIGN * ALIGN - start
    return aligned if n < slot.n_pending and aligned >= LEAST else n
