"""Whether guessing pays at all: a switch that watches what the last guesses cost and brought, one for each region.

               est < 0.9                        n steps later
           on ----------> off (n = backoff) ---------------------> probing
            ^                      ^                                  |
            |                      `-- est < 1.1, backoff doubled ----|
            `---------------------------------------------------------'

`est` is tokens committed per cost over the last verifying steps; the unit of cost is a plain step, which commits one.
Only speed depends on it: the tokens are the same whatever it says.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class GateOptions:
    """Lengths are in steps, verifying ones for `window` and `probe_steps`; drafts in tokens."""

    window: int = 16
    min_verifies: int = 8  # before est is believed
    min_drafted: int = 16  # tokens, likewise
    reprobe_after: int = 128
    max_backoff: int = 1024
    probe_steps: int = 4
    turn_off: float = 0.9  # est below this; grants.py keeps drafts worth their rows, this is for when it is mistaken
    turn_on: float = 1.1  # est from this on, after probing
    max_draft: int = 16

    def __post_init__(self) -> None:
        """Raises ValueError for what cannot work."""
        least = {"window": 2, "min_verifies": 1, "reprobe_after": 1, "probe_steps": 1, "max_draft": 1}
        for name, least_of in least.items():
            if getattr(self, name) < least_of:
                raise ValueError(f"{name} of a gate must be at least {least_of}, not {getattr(self, name)}")
        if self.max_backoff < self.reprobe_after:
            raise ValueError(f"max_backoff must be at least reprobe_after, {self.reprobe_after}")
        if not 0 < self.turn_off <= self.turn_on:
            raise ValueError("turn_off must be above 0 and not above turn_on")


DEFAULT = GateOptions()


@dataclass(frozen=True, slots=True)
class _Verify:
    committed: int
    accepted: int
    drafted: int
    cost: float


class Gate:
    """The switch of one stream, inside or outside of its reasoning."""

    def __init__(self, options: GateOptions = DEFAULT):
        self.state: Literal["on", "off", "probing"] = "on"
        self.backoff = options.reprobe_after
        self._options = options
        self._window: deque[_Verify] = deque()
        self._left = 0  # steps until probing, or verifying steps of the probe

    def budget(self) -> int:
        """How many tokens may be guessed in this step; 0: none. To be asked exactly once per step."""
        if self.state == "off":
            self._left -= 1
            if self._left > 0:
                return 0
            self._probe()
        o = self._options
        drafted = sum(verify.drafted for verify in self._window)
        if not drafted:
            return o.max_draft
        accepted = sum(verify.accepted for verify in self._window)
        return min(o.max_draft, 2 + math.ceil(accepted * o.max_draft / drafted))

    def wake(self) -> None:
        """There is an unusually good guess: probe now instead of later."""
        if self.state == "off":
            self._left = 0

    @property
    def estimate(self) -> float:
        """Tokens committed per cost of a plain step."""
        cost = math.fsum(verify.cost for verify in self._window)
        return sum(verify.committed for verify in self._window) / cost if cost else math.inf

    def record(self, committed: int, accepted: int, drafted: int, cost: float) -> None:
        """A verifying step: `committed` tokens, `accepted` of them of `drafted` ones, for `cost` plain steps."""
        o = self._options
        self._window.append(_Verify(committed, accepted, drafted, cost))
        if len(self._window) > o.window:
            self._window.popleft()
        n_drafted = sum(verify.drafted for verify in self._window)
        is_known = len(self._window) >= o.min_verifies and n_drafted >= o.min_drafted
        if self.state == "probing":
            self._left -= 1
        if is_known and self.estimate < o.turn_off:
            self._turn_off()
        elif self.state == "probing" and self._left <= 0:
            if self.estimate >= o.turn_on:
                self.state = "on"
            else:
                self._turn_off()

    def _turn_off(self) -> None:
        o = self._options
        self.backoff = min(2 * self.backoff, o.max_backoff) if self.state == "probing" else o.reprobe_after
        self.state, self._left = "off", self.backoff
        self._window.clear()

    def _probe(self) -> None:
        self.state, self._left = "probing", self._options.probe_steps
        self._window.clear()
