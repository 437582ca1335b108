"""The gate: the vectors of its specification, budgets, and what cannot be configured."""

from __future__ import annotations

import math
from typing import Any

import pytest

from lmhub.engine.drafts.gate import Gate, GateOptions

SMALL = GateOptions(
    window=8, min_verifies=2, min_drafted=4, reprobe_after=4, max_backoff=16, probe_steps=2, turn_off=1.0
)
LOSS = (1, 0, 8, 2.84)


def tripped(options: GateOptions = SMALL) -> Gate:
    gate = Gate(options)
    while gate.state == "on":
        assert gate.budget() > 0
        gate.record(*LOSS)
    return gate


def refusals(gate: Gate) -> int:
    n = 0
    while not gate.budget():
        n += 1
    return n


def test_two_losses_turn_it_off_and_it_probes_later() -> None:
    gate = Gate(SMALL)
    gate.record(*LOSS)
    assert gate.state == "on"
    gate.record(*LOSS)
    assert gate.state == "off"
    assert [bool(gate.budget()) for _ in range(4)] == [False, False, False, True]
    assert gate.state == "probing"


def test_backoff_doubles_up_to_its_cap_and_starts_again() -> None:
    gate = tripped()
    assert refusals(gate) == 3
    gate.record(*LOSS)
    gate.record(*LOSS)
    assert (gate.state, gate.backoff) == ("off", 8)
    assert refusals(gate) == 7
    for _ in range(2):
        gate.record(2, 1, 2, 1.9)
    assert gate.state == "off"  # 1.05 is not worth it
    assert gate.backoff == 16
    assert refusals(gate) == 15
    gate.record(*LOSS)
    gate.record(*LOSS)
    assert gate.backoff == 16
    assert refusals(gate) == 15
    for _ in range(2):
        gate.record(6, 5, 8, 2.84)
    assert gate.state == "on"
    while gate.state == "on":
        gate.record(*LOSS)
    assert (gate.state, gate.backoff) == ("off", 4)


def test_it_needs_evidence() -> None:
    gate = Gate()
    for _ in range(15):
        gate.record(1, 0, 1, 1.12)
    assert gate.state == "on"  # fifteen drafted tokens are not enough
    gate.record(1, 0, 1, 1.12)
    assert gate.state == "off"
    assert refusals(gate) == 127
    few = Gate()
    for _ in range(7):
        few.record(*LOSS)
    assert few.state == "on"  # nor are seven verifying steps
    few.record(*LOSS)
    assert few.state == "off"


def test_a_small_loss_is_borne() -> None:
    gate = Gate()
    for _ in range(100):
        gate.record(1, 0, 4, 1.08)
    assert gate.state == "on"


def test_only_the_window_counts() -> None:
    gate = Gate(SMALL)
    for _ in range(50):
        gate.record(9, 8, 8, 2.84)
    for _ in range(6):
        gate.record(*LOSS)
    assert gate.state == "on"
    gate.record(*LOSS)  # 16 tokens for 22.7
    assert gate.state == "off"


def test_a_good_guess_wakes_it() -> None:
    gate = tripped()
    gate.wake()
    assert gate.budget()
    assert gate.state == "probing"
    gate.wake()
    assert gate.state == "probing"


def test_budgets_follow_acceptance() -> None:
    gate = Gate(GateOptions(max_draft=16))
    assert gate.budget() == 16
    assert gate.estimate == math.inf
    gate.record(9, 8, 8, 2.84)
    assert gate.budget() == 16
    gate.record(1, 0, 8, 2.84)
    assert gate.budget() == 2 + 8
    gate.record(1, 0, 16, 4.5)
    assert gate.budget() == 2 + math.ceil(8 * 16 / 32)
    assert gate.estimate == pytest.approx(11 / (2.84 + 2.84 + 4.5))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"window": 1}, "window"),
        ({"probe_steps": 0}, "probe_steps"),
        ({"reprobe_after": 0}, "reprobe_after"),
        ({"min_verifies": 0}, "min_verifies"),
        ({"max_draft": 0}, "max_draft"),
        ({"reprobe_after": 100, "max_backoff": 99}, "max_backoff"),
        ({"turn_off": 0.0}, "turn_off"),
        ({"turn_off": 1.2, "turn_on": 1.1}, "turn_off"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        GateOptions(**options)
