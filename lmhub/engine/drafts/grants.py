"""How many guessed tokens each stream may add to a step: as long as that is fair to those that wait for the step.

A stream's j-th guess is right with a chance of p^j, and what another row costs is in the curve of step times. Every
stream runs at a rate of (tokens it commits) / (seconds of the step), and grants raise the sum of the logarithms of
these rates: for one stream that is the same as most tokens per second, and of several none is slowed down much for
the sake of another (proportional fairness; Kelly 1997).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log

from lmhub.engine.drafts.costs import CostCurve

MARGIN = 1.25  # how much more a guess must promise than it costs: chances are estimates, the best-looking ones too good

HOPELESS = 0.02  # a chance that pays for no row


@dataclass(frozen=True, slots=True)
class Bid:
    """A stream's draft: `n` tokens, each right with chance `p` if those before it were."""

    n: int
    p: float


def grant(
    bids: Sequence[Bid], curve: CostCurve, n_streams: int, n_rows: int, row_limit: int, within_s: float = inf
) -> list[int]:
    """How many tokens of each draft to take in a step of `n_streams` streams.

    Without them it has `n_rows` rows; it may grow to `row_limit` rows and, where that can be told, `within_s` seconds.
    """
    granted, expected = [0] * len(bids), [1.0] * len(bids)  # tokens that a stream takes along, and will commit
    cost = curve.seconds(n_rows)
    if not curve.is_measured:
        within_s = inf
    while True:
        best, best_rate = None, MARGIN
        for place, bid in enumerate(bids):
            brought, chance = 0.0, bid.p ** granted[place]
            for more in range(1, min(bid.n - granted[place], row_limit - n_rows) + 1):
                chance *= bid.p
                if chance < HOPELESS:
                    break
                brought += chance
                after = curve.seconds(n_rows + more)
                if after > within_s:
                    break
                paid = n_streams * log(after / cost)
                rate = log(1.0 + brought / expected[place]) / max(paid, 1e-9)
                if rate > best_rate:
                    best, best_rate = (place, more, brought, after), rate
        if best is None:
            return granted
        place, more, brought, cost = best
        granted[place] += more
        expected[place] += brought
        n_rows += more


def share_of_cost(curve: CostCurve, n_before: int, n_after: int, n_streams: int, n_own: int) -> float:
    """What a stream pays for its `n_own` guesses, in plain steps, when a step grew from `n_before` to `n_after` rows.

    One for itself, and its part of what the growth costs all `n_streams`.
    """
    if n_after == n_before:
        return 1.0
    before = curve.seconds(n_before)
    grown = (curve.seconds(n_after) - before) / before
    return 1.0 + n_streams * grown * n_own / (n_after - n_before)
