"""What steps cost, how likely guesses are, and who may add how many rows."""

from __future__ import annotations

import itertools
from math import inf, log

import pytest

from lmhub.engine.drafts.costs import SIZES, CostCurve
from lmhub.engine.drafts.grants import MARGIN, Bid, grant, share_of_cost
from lmhub.engine.drafts.odds import CURIOUS, RECYCLED, START, Odds, kind_of

# Seconds that steps of a 0.6B model took on two cores.
MEASURED = {1: 26, 2: 29, 3: 34, 4: 36, 5: 38.5, 6: 41, 8: 46, 12: 56, 16: 62}


def learned(times: dict[int, float], rounds: int = 40) -> CostCurve:
    curve = CostCurve()
    for _ in range(rounds):
        for n_rows, seconds in times.items():
            curve.observe(n_rows, seconds)
    return curve


# --- the curve -------------------------------------------------------------------------------------------------------


def test_the_curve_learns_what_steps_take() -> None:
    curve = learned(MEASURED)
    for n_rows, seconds in MEASURED.items():
        assert curve.seconds(n_rows) == pytest.approx(seconds, rel=0.03)
    assert 41 < curve.seconds(7) < 46
    assert 56 < curve.seconds(14) < 62


def test_the_first_step_sets_the_scale() -> None:
    curve = CostCurve()
    assert (curve.is_measured, curve.seconds(1)) == (False, 1.0)
    curve.observe(4, 1.38)
    assert curve.is_measured
    assert curve.seconds(1) == pytest.approx(1.0)
    curve = CostCurve()
    curve.observe(1, 0.02)
    assert curve.seconds(8) == pytest.approx(0.036)


def test_the_curve_never_falls() -> None:
    curve = learned({1: 10, 2: 16.5, 4: 14.2, 8: 28.4, 16: 45})
    values = [curve.seconds(n_rows) for n_rows in range(1, 700)]
    assert all(low <= high for low, high in itertools.pairwise(values))
    assert curve.seconds(2) == pytest.approx(curve.seconds(4))  # pooled


def test_a_longer_context_moves_the_sizes_that_are_not_measured() -> None:
    curve = learned(MEASURED)
    for n in range(300):
        curve.observe(8, 46 * (1 + n / 300))
    assert curve.seconds(8) == pytest.approx(92, rel=0.02)
    assert curve.seconds(1) > 1.6 * 26
    assert curve.seconds(16) > 1.6 * 62


def test_a_spike_hardly_counts() -> None:
    curve = learned({1: 26})
    curve.observe(1, 5000)
    assert curve.seconds(1) <= 1.25 * 26.1
    for strange in ((0, 1.0), (3, 0.0), (3, -1.0)):
        before = curve.seconds(3)
        curve.observe(*strange)
        assert curve.seconds(3) == before


def test_beyond_the_largest_size_the_line_goes_on() -> None:
    curve = CostCurve()
    step = curve.seconds(SIZES[-1]) - curve.seconds(SIZES[-1] - 1)
    assert curve.seconds(SIZES[-1] + 100) == pytest.approx(curve.seconds(SIZES[-1]) + 100 * step)


# --- odds ------------------------------------------------------------------------------------------------------------


def test_odds_start_with_the_prior_and_learn() -> None:
    shared = Odds(keep=0.98, weight=4.0)
    odds = Odds(shared)
    assert [odds[kind] for kind in range(len(START))] == pytest.approx(list(START))
    for _ in range(100):
        odds.settle(RECYCLED, 3, failed=True)
    assert odds[RECYCLED] == pytest.approx(0.75, abs=0.02)
    assert Odds(shared)[RECYCLED] == pytest.approx(0.75, abs=0.03)  # the next stream knows it as well
    assert odds[0] == pytest.approx(START[0])


def test_what_is_denied_is_forgotten_and_tried_again() -> None:
    odds = Odds(Odds(keep=0.98, weight=4.0))
    for _ in range(50):
        odds.settle(0, 0, failed=True)
    low = odds[0]
    for n in range(CURIOUS):
        assert not odds.is_due(0), n
        odds.deny(0)
    assert odds.is_due(0)
    assert low < odds[0] < START[0]
    odds.settle(0, 1, failed=False)
    assert not odds.is_due(0)


def test_longer_matches_are_other_kinds() -> None:
    assert [kind_of(match) for match in (2, 3, 4, 7, 8, 15, 16, 31, 32, 9999)] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert len(START) == RECYCLED + 1


# --- grants ----------------------------------------------------------------------------------------------------------


def solo_best(p: float, n: int, curve: CostCurve) -> int:
    """The draft length with the most tokens per second, tried one by one."""
    return max(range(n + 1), key=lambda k: sum(p**j for j in range(k + 1)) / curve.seconds(1 + k))


@pytest.mark.parametrize("p", [0.05, 0.3, 0.5, 0.7, 0.9, 0.99])
def test_a_single_stream_gets_about_what_is_fastest(p: float) -> None:
    curve = learned(MEASURED)
    [n] = grant([Bid(16, p)], curve, 1, 1, 1000)
    speed = lambda k: sum(p**j for j in range(k + 1)) / curve.seconds(1 + k)  # noqa: E731
    assert speed(n) >= 0.93 * speed(solo_best(p, 16, curve))
    assert speed(n) >= speed(0)
    assert n == 0 if p < 0.1 else True
    assert n >= 8 if p == 0.99 else True


@pytest.mark.parametrize("n_streams", [2, 4, 8])
def test_grants_are_fair(n_streams: int) -> None:
    """The sum of the logarithms of all rates grows, and one stream's luck does not cost the others much."""
    curve = learned(MEASURED)
    before = curve.seconds(n_streams)
    lucky = grant([Bid(16, 0.95)], curve, n_streams, n_streams, 1000)
    after = curve.seconds(n_streams + lucky[0])
    gain = log(sum(0.95**j for j in range(lucky[0] + 1)))
    assert gain >= n_streams * log(after / before)
    everybody = grant([Bid(16, 0.95)] * n_streams, curve, n_streams, n_streams, 1000)
    assert max(everybody) - min(everybody) <= 2
    assert sum(everybody) > sum(lucky)
    nobody = grant([Bid(16, 0.05)] * n_streams, curve, n_streams, n_streams, 1000)
    assert not any(nobody)


def test_the_likelier_guess_goes_first() -> None:
    curve = learned(MEASURED)
    likely, unlikely = grant([Bid(16, 0.9), Bid(16, 0.4)], curve, 2, 2, 1000)
    assert likely > unlikely
    assert grant([Bid(2, 0.99), Bid(0, 0.99)], curve, 2, 2, 1000) == [2, 0]


def test_limits_hold() -> None:
    curve = learned(MEASURED)
    assert sum(grant([Bid(16, 0.99)] * 2, curve, 2, 2, 7)) == 5
    assert sum(grant([Bid(16, 0.99)] * 2, curve, 2, 2, 2)) == 0
    assert sum(grant([Bid(16, 0.99)], curve, 1, 40, 2)) == 0
    [n] = grant([Bid(16, 0.99)], curve, 1, 1, 1000, within_s=40.0)
    assert n > 0
    assert curve.seconds(1 + n) <= 40.0
    assert grant([Bid(16, 0.99)], CostCurve(), 1, 1, 1000, within_s=1e-9) != [0]  # nothing was measured yet


def test_a_dent_in_the_curve_is_looked_across() -> None:
    """Two rows cost much, five no more than two: the first token alone would not pay."""
    curve = learned({1: 10, 2: 15, 3: 15, 4: 15, 5: 15})
    [n] = grant([Bid(4, 0.45)], curve, 1, 1, 5)
    assert (curve.seconds(2) - curve.seconds(1)) * MARGIN > 0.45 * 10
    assert n == 4


def test_shares_add_up_to_what_the_step_costs() -> None:
    curve = learned(MEASURED)
    assert share_of_cost(curve, 4, 4, 4, 0) == 1.0
    assert share_of_cost(curve, 1, 9, 1, 8) == pytest.approx(curve.seconds(9) / curve.seconds(1))
    shares = [share_of_cost(curve, 4, 12, 4, n) for n in (5, 3, 0, 0)]
    assert shares[2] == 1.0
    assert sum(shares) == pytest.approx(4 * curve.seconds(12) / curve.seconds(4))
    assert share_of_cost(curve, 1, 1, 1, 0) < inf
