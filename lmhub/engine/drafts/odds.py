"""How likely a guessed token is right if those before it were, by the kind of guess: learned from what became of it.

What was seen fades. The less there is of it, the more the answer leans on a prior: on what all streams have seen, and
that on a constant. A kind that is denied fades as well, and a token of it is tried once in a while whatever its odds.
"""

from __future__ import annotations

from collections.abc import Sequence

# Copies by the length of their match, then chains of recycled successors.
MATCHES = (4, 8, 16, 32)  # a match below the first of these is kind 0, and so on
RECYCLED = len(MATCHES) + 1
START = (0.3, 0.45, 0.6, 0.75, 0.85, 0.25)  # by kind
DENIED = 1.0 - 1.0 / 256  # what a denied draft leaves of what was seen
CURIOUS = 128  # drafts that are denied in a row before a token is tried again


class Odds:
    """The odds of each kind, in one stream and region, or of all streams."""

    def __init__(self, prior: Odds | Sequence[float] = START, keep: float = 0.95, weight: float = 3.0):
        """`keep` is what is left of earlier trials with each new draft; `weight` is that of the prior, in trials."""
        self._prior, self._keep, self._weight = prior, keep, weight
        self._hits = [0.0] * len(START)
        self._trials = [0.0] * len(START)
        self._denied = [0] * len(START)

    def __getitem__(self, kind: int) -> float:
        """The chance of a token of this kind, in (0, 1)."""
        return (self._hits[kind] + self._weight * self._prior[kind]) / (self._trials[kind] + self._weight)

    def is_due(self, kind: int) -> bool:
        """Whether this kind has been denied for so long that nothing is known of it any more."""
        return self._denied[kind] >= CURIOUS

    def settle(self, kind: int, accepted: int, failed: bool) -> None:
        """Of a draft, `accepted` tokens were right; `failed`: the next one was wrong."""
        self._denied[kind] = 0
        self._hits[kind] = self._keep * self._hits[kind] + accepted
        self._trials[kind] = self._keep * self._trials[kind] + accepted + failed
        if isinstance(self._prior, Odds):
            self._prior.settle(kind, accepted, failed)

    def deny(self, kind: int) -> None:
        """A draft of this kind was not worth its rows."""
        self._denied[kind] += 1
        self._hits[kind] *= DENIED
        self._trials[kind] *= DENIED
        if isinstance(self._prior, Odds):
            self._prior.deny(kind)


def kind_of(match: int) -> int:
    """The kind of a copy with a match of that length."""
    return sum(match >= least for least in MATCHES)
