"""What a step is made of: a row for every reply, and prompts dealt fairly within a latency target."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmhub.engine.rates import Rate, StepTimes
from lmhub.engine.schedule import ALIGN, LEAST, OVERTAKE_S, Budget, Prefills

QUANTUM = 256


@dataclass
class Submitted:
    submitted_s: float = 0.0


@dataclass(eq=False)
class Reading:
    """As much of a slot as the schedule looks at; `read` advances it."""

    n_tokens: int
    generation: Submitted = field(default_factory=Submitted)
    n_past: int = 0
    cuts: tuple[int, ...] = ()
    deficit: int = 0

    @property
    def n_pending(self) -> int:
        return self.n_tokens - self.n_past


def dealt(prefills: Prefills, slots: list[Any], budget: int) -> dict[int, int]:
    """Deal one step and read what was dealt: index of each slot that takes part -> its tokens."""
    reading = [slot for slot in slots if slot.n_pending > 1]
    out = {}
    for share in prefills.deal(reading, budget):
        index = slots.index(share.slot)
        assert index not in out and 1 <= share.n <= share.slot.n_pending
        out[index] = share.n
    for index, n in out.items():
        slots[index].n_past += n
    return out


def test_a_step_of_prompts_alone_is_as_large_as_allowed() -> None:
    assert Budget(StepTimes(1000.0), 0.08, 512).prefill(0) == 512


def test_a_step_of_prompts_alone_is_short_enough_for_newcomers() -> None:
    assert Budget(StepTimes(100.0), 0.08, 512).prefill(0) == 80  # ten times the target


def test_prompts_fill_what_replies_leave_of_the_latency_target() -> None:
    times = StepTimes(1000.0)
    times.observe(4, 0, 0.03)
    assert Budget(times, 0.08, 512).prefill(4) == 50
    assert Budget(times, 0.08, 40).prefill(4) == 40


def test_prompts_advance_however_slow_the_replies_are() -> None:
    times = StepTimes(100.0)
    times.observe(4, 0, 0.2)
    assert Budget(times, 0.08, 512).prefill(4) == LEAST  # half of 0.2 s more would be 10
    assert Budget(times, 0.08, 4).prefill(4) == 4


def test_a_slow_model_is_given_half_as_much_again_as_its_replies_take() -> None:
    times = StepTimes(1000.0)
    times.observe(1, 0, 0.4)
    assert Budget(times, 0.08, 512).target_s(1) == pytest.approx(0.6)
    assert Budget(times, 0.08, 512).prefill(1) == pytest.approx(200, abs=1)


def test_long_prompts_take_turns() -> None:
    prefills = Prefills(QUANTUM)
    slots = [Reading(10_000) for _ in range(3)]
    turns = [dealt(prefills, slots, QUANTUM // 2) for _ in range(8)]
    assert turns == [{place: QUANTUM // 2} for place in (0, 0, 1, 1, 2, 2, 0, 0)]


def test_what_a_prompt_does_not_need_goes_to_the_next_one() -> None:
    slots = [Reading(30), Reading(40)]
    assert dealt(Prefills(QUANTUM), slots, 512) == {0: 30, 1: 40}


def test_a_short_prompt_overtakes_a_long_one_that_has_waited_only_a_little_longer() -> None:
    slots = [Reading(10_000), Reading(30, Submitted(OVERTAKE_S / 2))]
    assert dealt(Prefills(QUANTUM), slots, 256) == {1: 30, 0: 226 // ALIGN * ALIGN}


def test_a_short_prompt_waits_for_its_turn_behind_one_that_has_waited_much_longer() -> None:
    slots = [Reading(10_000), Reading(30, Submitted(OVERTAKE_S))]
    assert dealt(Prefills(QUANTUM), slots, 256) == {0: 256}


def test_an_endless_stream_of_short_prompts_starves_nobody() -> None:
    prefills, long = Prefills(QUANTUM), Reading(20_000)
    slots: list[Any] = [long]
    for step in range(1000):
        slots = [slot for slot in slots if slot.n_pending > 1]
        slots.append(Reading(100, Submitted(step * 0.1)))  # a tenth of a second later each
        dealt(prefills, slots, 128)
        if long.n_pending <= 1:
            return
    raise AssertionError(f"after 1000 steps {long.n_pending} tokens are left")


@given(st.integers(2, 6), st.lists(st.integers(LEAST, 512), min_size=1, max_size=20))
def test_long_prompts_get_equal_shares(n: int, budgets: list[int]) -> None:
    prefills, slots = Prefills(QUANTUM), [Reading(10**9) for _ in range(n)]
    got: Counter[int] = Counter()
    for step in range(400):
        got.update(dealt(prefills, slots, budgets[step % len(budgets)]))
    assert max(got.values()) - min(got.values()) <= 2 * QUANTUM


@given(st.lists(st.tuples(st.integers(2, 3000), st.floats(0, 5)), min_size=1, max_size=8), st.integers(16, 512))
def test_every_step_is_within_its_budget_and_everything_is_read_in_the_end(
    prompts: list[tuple[int, float]], budget: int
) -> None:
    prefills, slots = Prefills(QUANTUM), [Reading(n, Submitted(at)) for n, at in prompts]
    for _ in range(sum(n for n, _ in prompts)):
        if all(slot.n_pending <= 1 for slot in slots):
            return
        shares = dealt(prefills, slots, budget)
        assert shares and sum(shares.values()) <= budget
    raise AssertionError("not everything was read")


def test_prompts_are_cut_at_round_positions() -> None:
    slot = Reading(1000, n_past=37)
    assert dealt(Prefills(QUANTUM), [slot], 100) == {0: 2 * ALIGN - 37}


def test_a_step_ends_where_a_checkpoint_is_due() -> None:
    slot = Reading(1000, cuts=(70, 75, 999))
    prefills = Prefills(QUANTUM)
    assert [dealt(prefills, [slot], 256)[0] for _ in range(3)] == [70, 5, 256 - 75]


def test_a_rate_follows_what_is_measured() -> None:
    rate = Rate(5.0)
    rate.observe(100, 1.0)
    assert rate.value == 100.0
    rate.observe(200, 1.0)
    assert rate.value == 125.0
    rate.observe(0, 1.0)
    rate.observe(1, 0.0)
    assert rate.value == 125.0


def test_step_times_of_sizes_that_were_never_seen_are_those_of_the_nearest() -> None:
    times = StepTimes()
    assert times.decode_s(3) == 0.0
    times.observe(1, 0, 0.02)
    times.observe(8, 0, 0.05)
    assert [times.decode_s(n) for n in (0, 1, 2, 5, 8, 64)] == [0.0, 0.02, 0.02, 0.05, 0.05, 0.05]


def test_the_cost_of_prompts_is_what_replies_beside_them_do_not_explain() -> None:
    times = StepTimes()
    times.observe(2, 0, 0.03)
    times.observe(2, 100, 0.13)
    assert times.prefill.value == pytest.approx(1000)
