"""Short convolutions and the delta rule against float64, and bit for bit across levels, cuts, neighbours and threads;
and the state that holds what they remember.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from lmhub.kv import KVGroups, KVState
from lmhub.recurrent import RecurrentState

OFFSET = 48  # of what is tested within the memory; what lies around it must stay as it is
CUTS = ([1] * 20, [3, 17], [7, 1, 12], [20])
Floats = np.ndarray[Any, np.dtype[np.float32]]


def state(n_floats: int, capacity: int = 64) -> RecurrentState:
    """An empty one, whose memories hold what nobody may read."""
    made = RecurrentState(KVState(1, 1, 32, 32, capacity, "f32"), n_floats)
    for _ in range(2):
        made.memory[:] = np.nan
        made.advance(0)
    return made


def in_cuts(
    step: Callable[[RecurrentState, int, int], Floats], cuts: Sequence[int], n_floats: int
) -> tuple[bytes, bytes]:
    """The outputs of `step(state, first row, rows)` and the memory behind the last one."""
    one, at, out = state(n_floats), 0, []
    for n in cuts:
        out.append(step(one, at, n))
        one.advance(n)
        at += n
    assert np.isnan(one.memory[:OFFSET]).all() and not np.isnan(one.memory[OFFSET:]).any()
    return np.concatenate(out).tobytes(), one.memory[OFFSET:].tobytes()


# --- short convolutions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("taps", "dim", "silu"), [(4, 48, 1), (3, 272, 1), (4, 1024, 0), (1, 16, 0), (8, 16, 1)])
def test_short_conv(
    taps: int, dim: int, silu: int, levels: tuple[str, ...], kernels: Any, rng: np.random.Generator
) -> None:
    x, w = rng.standard_normal((20, dim + 16), np.float32), rng.standard_normal((taps, dim), np.float32)

    def on(level: str, cuts: Sequence[int] = (20,)) -> tuple[bytes, bytes]:
        ops = kernels(level)
        return in_cuts(
            lambda one, at, n: ops.short_conv([one], [n], x[at : at + n], w, silu, OFFSET),
            cuts,
            OFFSET + (taps - 1) * dim,
        )

    found = on("ref")
    padded = np.concatenate([np.zeros((taps - 1, dim)), x[:, :dim].astype(np.float64)])
    want = sum(w[j] * padded[j : j + 20] for j in range(taps))
    want = want / (1 + np.exp(-want)) if silu else want
    np.testing.assert_allclose(np.frombuffer(found[0], np.float32).reshape(20, dim), want, rtol=1e-5, atol=1e-6)
    assert found[1] == padded[20:].astype(np.float32).tobytes()
    for level in levels:
        assert on(level) == found
    for cuts in CUTS:
        assert on(levels[-1], cuts) == found, cuts


# --- the delta rule --------------------------------------------------------------------------------------------------


def operands(rng: np.random.Generator, n: int, n_k: int, n_v: int, k_dim: int, v_dim: int) -> dict[str, Floats]:
    """Random rows, their keys of length one; decays from almost nothing to 1."""
    rows = {name: rng.standard_normal((n, n_k, k_dim), np.float32) for name in "qk"}
    rows["k"] /= np.linalg.norm(rows["k"], axis=-1, keepdims=True)
    rows["v"] = rng.standard_normal((n, n_v, v_dim), np.float32)
    rows["decay"] = np.exp(-(rng.uniform(0, 1, (n, n_v)) ** 4) * 30).astype(np.float32)
    rows["beta"] = rng.uniform(0, 1, (n, n_v)).astype(np.float32)
    return rows


def in_float64(rows: dict[str, Floats], grouped: bool) -> np.ndarray:
    """The recurrence as it is written."""
    wide = {name: values.astype(np.float64) for name, values in rows.items()}
    (n, n_v, v_dim), n_k = wide["v"].shape, wide["q"].shape[1]
    out = np.zeros((n, n_v, v_dim))
    for h in range(n_v):
        key, m = h // (n_v // n_k) if grouped else h % n_k, np.zeros((v_dim, wide["q"].shape[2]))
        for i in range(n):
            k = wide["k"][i, key]
            m = m * wide["decay"][i, h]
            m = m + np.outer(wide["beta"][i, h] * (wide["v"][i, h] - m @ k), k)
            out[i, h] = 0.5 * m @ wide["q"][i, key]
    return out


SIZES = [(2, 6, 32, 32), (3, 3, 24, 16), (1, 2, 128, 128), (2, 4, 40, 80)]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("grouped", [False, True])
def test_delta_rule(
    sizes: tuple[int, int, int, int], grouped: bool, levels: tuple[str, ...], kernels: Any, rng: np.random.Generator
) -> None:
    rows = operands(rng, 20, *sizes)
    _, n_v, k_dim, v_dim = sizes

    def on(level: str, cuts: Sequence[int] = (20,)) -> tuple[bytes, bytes]:
        ops = kernels(level)

        def step(one: RecurrentState, at: int, n: int) -> Floats:
            part = {name: np.ascontiguousarray(values[at : at + n]) for name, values in rows.items()}
            return ops.delta_rule([one], [n], part, OFFSET, grouped)

        return in_cuts(step, cuts, OFFSET + n_v * v_dim * k_dim)

    found = on("ref")
    got = np.frombuffer(found[0], np.float32).reshape(20, n_v, v_dim)
    np.testing.assert_allclose(got, in_float64(rows, grouped), rtol=1e-4, atol=3e-6)
    for level in levels:
        assert on(level) == found
    for cuts in CUTS:
        assert on(levels[-1], cuts) == found, cuts


def test_sequences_side_by_side(
    levels: tuple[str, ...], kernels: Any, rng: np.random.Generator, thread_counts: Any
) -> None:
    """Of different lengths, one of which has a past: each as if it were alone, on any number of threads."""
    ops, counts, sizes = kernels(levels[-1]), [5, 1, 8], (2, 4, 32, 48)
    rows, first = operands(rng, sum(counts), *sizes), operands(rng, 6, *sizes)
    ends = np.cumsum(counts)[:-1]
    each = [
        dict(zip(rows, parts, strict=True)) for parts in zip(*(np.split(r, ends) for r in rows.values()), strict=True)
    ]

    def with_past() -> list[RecurrentState]:
        states = [state(4 * 48 * 32) for _ in counts]
        ops.delta_rule(states[1:2], [6], first, 0)
        states[1].advance(6)
        return states

    states, alone = with_past(), []
    for one, n, part in zip(states, counts, each, strict=True):
        alone.append(ops.delta_rule([one], [n], {k: np.ascontiguousarray(v) for k, v in part.items()}, 0))
        one.advance(n)
    for _ in thread_counts():
        together = with_past()
        assert ops.delta_rule(together, counts, rows, 0).tobytes() == np.concatenate(alone).tobytes()
        for one, other, n in zip(together, states, counts, strict=True):
            one.advance(n)
            assert one.memory.tobytes() == other.memory.tobytes()


# --- the state -------------------------------------------------------------------------------------------------------


def filled(n_tokens: int = 6, seed: int = 1, n_floats: int = 40) -> RecurrentState:
    """One that has seen `n_tokens`."""
    made, rng = state(n_floats, 10), np.random.default_rng(seed)
    rows = rng.integers(0, 256, n_tokens * made.row_nbytes, np.uint8)
    made.write_rows(rows)
    made.memory[:] = rng.standard_normal(n_floats)
    return made


def held(one: RecurrentState) -> tuple[int, bytes, bytes]:
    return one.n_tokens, one.read_rows(0, one.n_tokens).tobytes(), one.memory.tobytes()


def test_a_step_that_fails_leaves_the_memory_as_it_was(kernels: Any) -> None:
    one = filled()
    before = held(one)
    kernels(None).short_conv([one], [2], np.ones((2, 16), np.float32), np.ones((2, 16), np.float32), 0, 0)
    assert held(one) == before  # nobody has said that the step has succeeded
    one.advance(2)
    assert one.n_tokens == 8 and one.memory[:16].tolist() == [1.0] * 16


def test_it_goes_back_to_where_its_last_step_began(kernels: Any) -> None:
    one, w = filled(), np.ones((2, 16), np.float32)
    before = held(one)
    assert one.can_step_back and not one.step_back()
    for x in (1, 2):
        kernels(None).short_conv([one], [3], np.full((3, 16), x, np.float32), w, 0, 0)
        one.advance(3)
        assert one.memory[0] == x and one.step_back() and held(one) == before
        assert not one.step_back()  # once
    for other in (
        lambda: one.restore(one.checkpoint(), 5),
        lambda: one.truncate(0),
        lambda: one.copy_prefix(filled(), 6),
    ):
        one.advance(0)
        assert other() and not one.step_back()


def test_it_goes_back_to_nothing_or_to_a_checkpoint() -> None:
    one, other = filled(), filled(seed=2)
    before, checkpoint = held(one), one.checkpoint()
    assert not one.can_rewind and not one.truncate(3) and one.truncate(6) and one.truncate(9) and held(one) == before
    one.write_rows(other.read_rows(0, 2))
    one.memory[:] = 0
    assert one.restore(checkpoint, 6) and held(one) == before
    assert one.truncate(0) and one.n_tokens == 0


@pytest.mark.parametrize(("cut", "n_tokens"), [(4, 6), (0, 7), (0, 0)])
def test_a_checkpoint_of_something_else_is_refused(cut: int, n_tokens: int) -> None:
    one = filled()
    assert not one.restore(one.checkpoint()[cut:], n_tokens)
    assert one.n_tokens == 0


def test_copies_are_of_all_or_nothing() -> None:
    source, copy = filled(), filled(seed=2)
    assert copy.copy_prefix(source, 6) and held(copy) == held(source)
    copy.memory[:] = 0
    assert source.memory.any()
    assert source.copy_prefix(source, 6) and source.n_tokens == 6
    for other, n in ((source, 5), (source.cache, 6), (filled(n_floats=48), 6)):
        assert not copy.copy_prefix(other, n) and copy.n_tokens == 0
    assert copy.copy_prefix(source, 0) and copy.n_tokens == 0


def test_sizes() -> None:
    one, caches = filled(), KVGroups([KVState(2, 1, 32, 32, 8), KVState(1, 2, 64, 64, 8)])
    two = RecurrentState(caches, 16)
    assert one.nbytes == one.cache.nbytes + 2 * 160 and len(one.checkpoint()) == 160
    assert two.layers == caches.layers and two.capacity == 8 and two.row_nbytes == caches.row_nbytes
    assert len({one.layout, one.cache.layout, filled(n_floats=48).layout}) == 3
