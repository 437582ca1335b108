"""What followed a token last, and chains of it."""

from __future__ import annotations

import pytest

from lmhub.engine.drafts.recycling import Recycling


def test_a_chain_follows_what_was_said() -> None:
    table = Recycling(20)
    assert table.chain(1, 8) == ()
    table.promote([1, 2, 3, 4])
    assert table.chain(1, 8) == (2, 3, 4)
    assert table.chain(1, 2) == (2, 3)
    assert table.chain(4, 8) == ()


def test_a_loop_ends_with_the_budget() -> None:
    table = Recycling(20)
    table.promote([3, 4, 4])
    assert table.chain(3, 8) == (4,) * 8


def test_what_was_said_last_counts() -> None:
    table = Recycling(20)
    table.promote([5, 16])
    table.promote([5, 2])
    assert table.chain(5, 8) == (2,)


@pytest.mark.parametrize("strange", [-1, 20, 1 << 30])
def test_tokens_that_do_not_exist_are_skipped(strange: int) -> None:
    table = Recycling(20)
    table.promote([strange, 1, strange, 2, 3])
    assert table.chain(strange, 8) == ()
    assert table.chain(1, 8) == ()
    assert table.chain(2, 8) == (3,)


def test_its_size_goes_with_the_vocabulary() -> None:
    assert Recycling(1000).nbytes == 4000
