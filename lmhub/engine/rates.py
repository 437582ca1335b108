"""How long things take on this machine, learned from what they took: steps, prompts, copies.

Every figure is an exponentially weighted mean of measurements. They decide how much work a step gets and where a
prompt's beginning is taken from; never what is computed. Knows no clock: whoever measures says how long it was.
"""

from __future__ import annotations

ALPHA = 0.25  # weight of the newest measurement


class Rate:
    """Units per second. `start` is what is believed before anything was measured."""

    def __init__(self, start: float):
        self.value = start
        self._measured = False

    def observe(self, units: float, seconds: float) -> None:
        """`units` took `seconds`; what is too small to say anything is ignored."""
        if units <= 0 or seconds <= 0:
            return
        rate = units / seconds
        self.value = self.value + ALPHA * (rate - self.value) if self._measured else rate
        self._measured = True


class StepTimes:
    """How long a step takes, by the rows of replies and of prompts in it."""

    def __init__(self, prefill_rate: float = 200.0):
        """`prefill_rate` in tokens per second, until it has been measured."""
        self.prefill = Rate(prefill_rate)
        self._decode: dict[int, float] = {}  # power of two that the rows do not exceed -> seconds

    def decode_s(self, n_rows: int) -> float:
        """Seconds of a step with `n_rows` rows of replies alone; those of the nearest size that was measured."""
        if not n_rows or not self._decode:
            return 0.0
        bucket = _bucket(n_rows)
        nearest = min(self._decode, key=lambda size: (abs(size.bit_length() - bucket.bit_length()), size))
        return self._decode[nearest]

    def observe(self, n_decode: int, n_prefill: int, seconds: float) -> None:
        """A step with so many rows of either kind took `seconds`."""
        if not n_prefill and n_decode:
            bucket = _bucket(n_decode)
            before = self._decode.get(bucket, seconds)
            self._decode[bucket] = before + ALPHA * (seconds - before)
        elif n_prefill >= 16:  # of fewer, the fixed cost of a step is most
            self.prefill.observe(n_prefill, max(seconds - self.decode_s(n_decode), 0.1 * seconds))


def _bucket(n_rows: int) -> int:
    return 1 << (n_rows - 1).bit_length()
