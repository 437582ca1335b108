"""What a step is made of: one row for each decoding slot, and fair shares of the prefill rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lmhub.engine.steppers import schedule


@dataclass(eq=False)
class Pending:
    """As much of a slot as the schedule looks at."""

    n_pending: int


def rows(pending: list[int], budget: int) -> dict[int, int]:
    """Index of each slot that takes part -> its rows."""
    slots: list[Any] = [Pending(n) for n in pending]
    shares = schedule(slots, budget)
    given_rows = {slots.index(share.slot): share.n for share in shares}
    assert len(given_rows) == len(shares)
    return given_rows


def test_decoding_slots_always_take_part() -> None:
    assert rows([1, 1, 1000], 64) == {0: 1, 1: 1, 2: 64}


def test_a_short_prompt_is_not_held_up_by_a_long_one() -> None:
    assert rows([1000, 10], 64) == {0: 54, 1: 10}


def test_long_prompts_share_evenly() -> None:
    assert rows([500, 600, 700], 60) == {0: 20, 1: 20, 2: 20}


def test_what_nobody_needs_is_not_used() -> None:
    assert rows([5, 7], 64) == {0: 5, 1: 7}


@given(st.lists(st.integers(1, 300), min_size=1, max_size=8), st.integers(8, 128))
def test_shares_fit_and_everyone_advances(pending: list[int], budget: int) -> None:
    shares = rows(pending, budget)
    assert sorted(shares) == list(range(len(pending)))
    assert all(1 <= n <= pending[i] for i, n in shares.items())
    prefill = sum(n for i, n in shares.items() if pending[i] > 1)
    assert prefill == min(budget, sum(n for n in pending if n > 1))
