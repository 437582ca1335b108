"""KVState as a State: sizes, prefixes, rewinding."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from lmhub.errors import KernelError
from lmhub.kv import KVState


def filled(capacity: int = 10, n_tokens: int = 6, dtype: str = "f16", n_kv: int = 2) -> KVState:
    state = KVState(3, n_kv, 4, 6, capacity, dtype)
    rng = np.random.default_rng(1)
    state.k[:], state.v[:] = rng.standard_normal(state.k.shape), rng.standard_normal(state.v.shape)
    state.n_tokens = n_tokens
    return state


def test_sizes_are_arithmetic() -> None:
    state = KVState(3, 2, 4, 6, 10, "f16")
    assert state.nbytes == KVState.nbytes_for(3, 2, 4, 6, 10, "f16") == 3 * 2 * 10 * (4 + 6) * 2
    assert KVState.nbytes_for(3, 2, 4, 6, 10, "f32") == 2 * state.nbytes
    assert (state.n_tokens, state.capacity) == (0, 10)
    c = state.c
    assert (c.n_layer, c.n_kv, c.k_dim, c.v_dim, c.capacity, c.dtype) == (3, 2, 4, 6, 10, 1)


def test_a_large_cache_commits_only_what_is_touched() -> None:
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("this system does not tell how much memory a process uses")

    def resident() -> int:
        return int(statm.read_text().split()[1]) * mmap.PAGESIZE

    before = resident()
    state = KVState(16, 8, 128, 128, 1 << 14, "f16")
    state.k[3, 2, 100] = 1.0
    assert state.nbytes == 1 << 30
    assert resident() - before < 1 << 26


def test_a_prefix_is_copied_and_only_that() -> None:
    source, target = filled(), KVState(3, 2, 4, 6, 8, "f16")
    assert target.copy_prefix(source, 5)
    assert target.n_tokens == 5
    assert np.array_equal(target.k[:, :, :5], source.k[:, :, :5])
    assert np.array_equal(target.v[:, :, :5], source.v[:, :, :5])
    assert not target.k[:, :, 5:].any()


@pytest.mark.parametrize(
    ("source", "n"),
    [(filled(), 7), (filled(dtype="f32"), 2), (filled(n_kv=1), 2), (filled(capacity=12, n_tokens=12), 11)],
    ids=["more than it holds", "another dtype", "another geometry", "more than fits"],
)
def test_an_impossible_prefix_leaves_the_state_empty(source: KVState, n: int) -> None:
    target = filled()
    assert not target.copy_prefix(source, n)
    assert target.n_tokens == 0


def test_truncate_never_grows() -> None:
    state = filled(n_tokens=6)
    assert state.truncate(9) and state.n_tokens == 6
    assert state.truncate(2) and state.n_tokens == 2


def test_an_unknown_dtype_and_an_impossible_size_are_refused() -> None:
    with pytest.raises(KernelError, match="'q8_0' is not possible; choose f16 or f32"):
        KVState(1, 1, 1, 1, 1, "q8_0")
    with pytest.raises(KernelError, match="could not be had"):
        KVState(1 << 20, 1 << 10, 1 << 12, 1 << 12, 1 << 30)
