"""How long a step takes by its number of rows, learned from the steps themselves.

The curve is a value at each of some sizes, with straight lines between them. A step moves the value at the size next to
its own, and also those that have not been measured for long, in proportion: what made this step slower, a longer
context for instance, would have made those slower as well. Knows no clock.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512)
# In units of a step with one row: what a 0.6B model took with two threads, weights bound by memory, rows by arithmetic.
START = (1.0, 1.12, 1.25, 1.38, 1.5, 1.6, 1.8, 2.2, 2.5, 3.2, 4.0, 5.6, 7.2, 10.4, 13.6, 26.4, 52.0)
ALPHA = 0.25  # weight of the newest measurement
SPIKE = 2.0  # a measurement counts as at most so many times more, or less, than expected
STALE = 32  # steps after which a value that was not measured follows halfway


class CostCurve:
    """Seconds of a step by its rows; before the first one was measured, in units of a step with one row."""

    def __init__(self) -> None:
        self.is_measured = False
        self._values = list(START)
        self._seen = [0] * len(SIZES)  # the step that measured a value last
        self._n_steps = 0
        self._smooth: list[float] | None = None

    def observe(self, n_rows: int, seconds: float) -> None:
        """A step with `n_rows` rows took `seconds`."""
        if n_rows < 1 or seconds <= 0.0:
            return
        ratio = seconds / _between(self._values, n_rows)
        self._smooth = None
        if not self.is_measured:
            self.is_measured = True
            self._values = [value * ratio for value in self._values]
            return
        self._n_steps = now = self._n_steps + 1
        change = ALPHA * (min(max(ratio, 1.0 / SPIKE), SPIKE) - 1.0)
        at = _nearest(n_rows)
        self._seen[at] = now
        own = self._values[at] * (1.0 + change)
        self._values = [
            value * (1.0 + change * (age := now - seen) / (age + STALE))
            for value, seen in zip(self._values, self._seen, strict=True)
        ]
        self._values[at] = own

    def seconds(self, n_rows: int) -> float:
        """What a step with `n_rows` >= 1 rows takes. Never falls with the number of rows."""
        if self._smooth is None:
            self._smooth = self._values
            if any(low > high for low, high in pairwise(self._values)):
                self._smooth = _rising(self._values, [1.0 / (1 + self._n_steps - seen) for seen in self._seen])
        return _between(self._smooth, n_rows)


def _nearest(n_rows: int) -> int:
    """The place in SIZES of the size next to `n_rows`."""
    at = bisect_left(SIZES, n_rows)
    if at == len(SIZES):
        return at - 1
    return at - 1 if at and n_rows - SIZES[at - 1] < SIZES[at] - n_rows else at


def _between(values: list[float], n_rows: int) -> float:
    """The line through the values on either side of `n_rows`; beyond the largest size, the last line goes on."""
    at = min(max(bisect_left(SIZES, n_rows), 1), len(SIZES) - 1)
    low, high = SIZES[at - 1], SIZES[at]
    return values[at - 1] + (values[at] - values[at - 1]) * (n_rows - low) / (high - low)


def _rising(values: list[float], weights: list[float]) -> list[float]:
    """The nearest sequence that never falls (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []  # (mean, weight, how many)
    for value, own in zip(values, weights, strict=True):
        mean, weight, n = value, own, 1
        while pools and pools[-1][0] > mean:
            before, others, m = pools.pop()
            mean, weight, n = (before * others + mean * weight) / (others + weight), others + weight, n + m
        pools.append((mean, weight, n))
    return [mean for mean, _, n in pools for _ in range(n)]
