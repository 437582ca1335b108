"""Successors of tokens, and the ids of the largest logits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmhub.engine.drafts.recycling import NO_TOKEN, WIDTH, Recycling, top_ids


def oracle(row: np.ndarray, n: int) -> tuple[int, ...]:
    usable = np.where(np.isnan(row), -np.inf, row)
    order = np.argsort(-usable, kind="stable")
    return tuple(int(id) for id in order[:n] if usable[id] > -np.inf)


@pytest.mark.parametrize("n_vocab", [1, 3, 8, 255, 256, 257, 5000])
def test_top_ids_are_the_largest_with_ties_to_the_lower_id(n_vocab: int) -> None:
    draw = np.random.default_rng(n_vocab)
    for row in (draw.normal(size=n_vocab), draw.integers(0, 4, n_vocab), np.arange(n_vocab), -np.arange(n_vocab)):
        floats = row.astype(np.float32)
        for n in (1, 3, WIDTH):
            assert top_ids(floats, n) == oracle(floats, n)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([0.0, -0.0, 1.0, 2.0, np.inf, -np.inf, np.nan]), min_size=1, max_size=40))
def test_top_ids_of_strange_rows(values: list[float]) -> None:
    row = np.array(values, np.float32)
    assert top_ids(row) == oracle(row, WIDTH)


def test_rows_become_successors() -> None:
    table = Recycling(20)
    assert table.chain(3, 8) == ()
    rows = np.random.default_rng(0).normal(size=(2, 20)).astype(np.float32)
    table.update([3, 7], rows)
    for token, row in zip((3, 7), rows, strict=True):
        assert tuple(table.successors[token]) == oracle(row, WIDTH)
    assert (table.successors[4] == NO_TOKEN).all()
    assert table.nbytes == 20 * WIDTH * 4


def test_a_chain_follows_the_likeliest_successors() -> None:
    table = Recycling(20)
    table.promote([1, 2, 3, 4])
    assert table.chain(1, 8) == (2, 3, 4)
    assert table.chain(1, 2) == (2, 3)
    assert table.chain(4, 8) == ()
    table.promote([4, 4])
    assert table.chain(3, WIDTH + 5) == (4,) * WIDTH  # a loop ends with the budget


def test_what_was_said_comes_first_and_the_last_falls_out() -> None:
    table = Recycling(20)
    table.update([5], np.arange(20, dtype=np.float32)[None])
    assert tuple(table.successors[5]) == (19, 18, 17, 16, 15, 14, 13, 12)
    table.promote([5, 16])
    assert tuple(table.successors[5]) == (16, 19, 18, 17, 15, 14, 13, 12)
    table.promote([5, 2])
    assert tuple(table.successors[5]) == (2, 16, 19, 18, 17, 15, 14, 13)


@pytest.mark.parametrize("strange", [-1, 20, 1 << 30])
def test_tokens_that_do_not_exist_are_skipped(strange: int) -> None:
    table = Recycling(20)
    table.promote([strange, 1, strange, 2, 3])
    table.update([strange], np.zeros((1, 20), np.float32))
    assert table.chain(strange, 8) == ()
    assert table.chain(2, 8) == (3,)
    assert np.count_nonzero(table.successors != NO_TOKEN) == 1


def test_rows_of_another_shape_are_refused() -> None:
    table = Recycling(20)
    with pytest.raises(ValueError, match=r"float32 \(1, 20\)"):
        table.update([1], np.zeros((1, 21), np.float32))
    with pytest.raises(ValueError, match="float32"):
        table.update([1], np.zeros((1, 20), np.float64))
