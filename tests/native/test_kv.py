"""KVState as a State: sizes, prefixes, rewinding, rows that leave and come back, memory that is given back."""

from __future__ import annotations

import json
import mmap
from pathlib import Path

import numpy as np
import pytest

from lmhub.errors import KernelError
from lmhub.kv import KVGroups, KVState
from lmhub.native import ffi


def fill(state: KVState, seed: int = 1) -> None:
    """Random bytes in all of its memory."""
    memory = np.frombuffer(state.memory, np.uint8)
    memory[:] = np.random.default_rng(seed).integers(0, 256, memory.shape, np.uint8)


def filled(capacity: int = 10, n_tokens: int = 6, dtype: str = "f16", n_kv: int = 2) -> KVState:
    """Random bytes in every row, those behind `n_tokens` too."""
    state = KVState(3, n_kv, 32, 64, capacity, dtype)
    fill(state)
    state.n_tokens = n_tokens
    return state


def groups(capacity: int = 10, n_tokens: int = 0) -> KVGroups:
    """Three layers of one geometry and one of another, with random bytes."""
    state = KVGroups([filled(capacity), KVState(1, 1, 96, 32, capacity)])
    for group in state.groups:
        fill(group, 2)
    state.n_tokens = n_tokens
    return state


def resident() -> int:
    """Bytes of memory that this process holds."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("this system does not tell how much memory a process uses")
    return int(statm.read_text().split()[1]) * mmap.PAGESIZE


def test_sizes_are_arithmetic() -> None:
    """Memory is for whole tiles of 64 positions; f16: four dimensions of a key and 16 columns of values at a time."""
    state = KVState(3, 2, 6, 20, 10, "f16")
    assert state.nbytes == KVState.nbytes_for(3, 2, 6, 20, 64, "f16") == 3 * 2 * 64 * ((1 + 2 * 8) + (1 + 2 * 32))
    assert KVState.nbytes_for(3, 2, 6, 20, 65, "f16") == 2 * state.nbytes
    assert state.row_nbytes == 3 * 2 * ((1 + 2 * 6) + (1 + 2 * 20))
    assert KVState.nbytes_for(3, 2, 4, 6, 10, "f32") == 3 * 2 * 64 * (4 + 6) * 4
    assert (state.n_tokens, state.capacity) == (0, 10)
    q8_0 = KVState(3, 2, 64, 32, 128, "q8_0")
    assert q8_0.nbytes == 128 * q8_0.row_nbytes == 3 * 2 * 128 * (64 + 32) // 32 * 34
    c = state.c
    assert (c.n_layer, c.n_kv, c.k_dim, c.v_dim, c.capacity, c.dtype) == (3, 2, 6, 20, 10, 1)


def test_a_large_cache_commits_only_what_is_touched() -> None:
    before = resident()
    state = KVState(16, 8, 128, 128, 1 << 14, "f16")
    state.write_rows(np.ones(70 * state.row_nbytes, np.uint8))
    assert state.nbytes == (1 << 14) * state.row_nbytes
    assert resident() - before < 128 * state.row_nbytes + (1 << 24)


@pytest.mark.parametrize("dtype", ["f16", "f32", "q8_0"])
@pytest.mark.parametrize("n", [0, 1, 5])
def test_a_prefix_is_copied_and_only_that(n: int, dtype: str) -> None:
    source, target = filled(dtype=dtype), KVState(3, 2, 32, 64, 8, dtype)
    assert target.copy_prefix(source, n)
    assert target.n_tokens == n
    assert target.read_rows(0, n).tobytes() == source.read_rows(0, n).tobytes()


def test_a_large_prefix_is_copied_by_all_threads() -> None:
    source, target = KVState(2, 3, 128, 96, 5000), KVState(2, 3, 128, 96, 4500)
    fill(source)
    source.n_tokens = 5000
    assert target.copy_prefix(source, 4097)
    assert target.read_rows(0, 4097).tobytes() == source.read_rows(0, 4097).tobytes()
    target.n_tokens = 4500
    assert not target.read_rows(4160, 4500).any()  # the next tile of 64 on


def test_a_prefix_of_itself_is_what_remains() -> None:
    state = filled(n_tokens=6)
    before = bytes(state.memory)
    assert state.copy_prefix(state, 4) and state.n_tokens == 4 and bytes(state.memory) == before


@pytest.mark.parametrize(
    ("source", "n"),
    [
        (filled(), 7),
        (filled(), -1),
        (filled(dtype="f32"), 2),
        (filled(n_kv=1), 2),
        (filled(capacity=12, n_tokens=12), 11),
    ],
    ids=["more than it holds", "a negative number", "another dtype", "another geometry", "more than fits"],
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
    with pytest.raises(KernelError, match=r"'q4_0' is not possible; choose f16, f32 or q8_0"):
        KVState(1, 1, 1, 1, 1, "q4_0")
    with pytest.raises(KernelError, match=r"multiples of 32, and this model has one of 80; choose f16\."):
        KVState(1, 1, 64, 80, 1, "q8_0")
    with pytest.raises(KernelError, match="could not be had"):
        KVState(1 << 20, 1 << 10, 1 << 10, 1 << 10, 1 << 32)
    KVState(1, 1, 1024, 1, 1)
    KVState(1, 1, 2048, 1, 1, "f32")
    with pytest.raises(KernelError, match=r"keys of up to 1024 dimensions, and this model has 1056; choose f32\."):
        KVState(1, 1, 1056, 1, 1)


@pytest.mark.parametrize("dtype", ["f16", "f32", "q8_0"])
def test_rows_leave_in_the_order_of_a_file_and_come_back(dtype: str) -> None:
    source, target = filled(dtype=dtype), KVState(3, 2, 32, 64, 7, dtype)
    rows = source.read_rows(1, 5)
    assert rows.dtype == np.uint8 and rows.shape == (4 * source.row_nbytes,)
    blocks, at, everything = [], 0, source.read_rows(0, 6)
    keys = {"f16": 1 + 2 * 32, "f32": 4 * 32, "q8_0": 34}[dtype]
    for width in 3 * (2 * keys, source.row_nbytes // 3 - 2 * keys):  # of a layer's keys, and its values
        blocks.append(everything[at : at + 6 * width].reshape(6, width))
        at += 6 * width
    assert rows.tobytes() == b"".join(block[1:5].tobytes() for block in blocks)
    target.write_rows(source.read_rows(0, 1))
    target.write_rows(np.frombuffer(rows.tobytes(), np.uint8))  # of a file: not writable
    target.write_rows(source.read_rows(3, 3))
    assert target.n_tokens == 5
    assert target.read_rows(0, 5).tobytes() == source.read_rows(0, 5).tobytes()


@pytest.mark.parametrize(("start", "stop"), [(0, 7), (-1, 3), (4, 3), (7, 7)])
def test_rows_that_are_not_there_are_not_read(start: int, stop: int) -> None:
    with pytest.raises(KernelError, match=rf"Rows \[{start}, {stop}\) are not all in a cache of 6; read fewer."):
        filled(n_tokens=6).read_rows(start, stop)


def test_rows_that_do_not_fit_are_refused_and_change_nothing() -> None:
    rows, state = filled(n_tokens=6).read_rows(0, 6), filled(n_tokens=5)
    before = bytes(state.memory)
    with pytest.raises(KernelError, match="6 rows do not fit behind 5 in a cache of 10; use a larger context"):
        state.write_rows(rows)
    for wrong in (rows[:-1], rows.view(np.uint16), rows[::2]):
        with pytest.raises(KernelError, match=f"{wrong.nbytes} bytes are not rows of {state.row_nbytes}"):
            state.write_rows(wrong)
    assert state.n_tokens == 5 and bytes(state.memory) == before


def test_the_layout_tells_all_that_rows_depend_on() -> None:
    base = KVState(3, 2, 64, 64, 10)
    assert json.loads(base.layout)["dtype"] == "f16" and base.row_nbytes == 3 * 2 * 2 * (1 + 64 * 2)
    assert KVState(3, 2, 64, 64, 99).layout == base.layout  # but not on the capacity
    others = [
        KVState(2, 2, 64, 64, 10),
        KVState(3, 1, 64, 64, 10),
        KVState(3, 2, 96, 32, 10),
        KVState(3, 2, 64, 64, 10, "q8_0"),
    ]
    assert len({base.layout, *(other.layout for other in others)}) == 5


def test_trimming_frees_pages_and_keeps_rows() -> None:
    source = KVState(4, 4, 64, 64, 20_000)
    fill(source)
    source.n_tokens = source.capacity
    source.truncate(1001)
    head = source.read_rows(0, 1001)
    full = resident()
    source.trim()
    assert full - resident() > 0.8 * source.nbytes
    assert source.read_rows(0, 1001).tobytes() == head.tobytes()
    rows = np.full(500 * source.row_nbytes, 7, np.uint8)
    source.write_rows(rows)
    assert source.read_rows(1001, 1501).tobytes() == rows.tobytes()
    assert source.read_rows(0, 1001).tobytes() == head.tobytes()


@pytest.mark.parametrize("n_tokens", [0, 1, 10])
def test_trimming_small_and_full_states_changes_no_row(n_tokens: int) -> None:
    state = filled(n_tokens=n_tokens)
    rows = state.read_rows(0, n_tokens).tobytes()
    state.trim()
    assert state.read_rows(0, n_tokens).tobytes() == rows


def test_groups_are_one_state() -> None:
    state = groups(n_tokens=6)
    one, other = state.groups
    assert (state.n_tokens, state.capacity, state.nbytes) == (6, 10, one.nbytes + other.nbytes)
    assert state.row_nbytes == one.row_nbytes + other.row_nbytes
    assert [(c.n_kv, c.k_dim, c.v_dim) for c in ffi.cast("lmk_kv *", state.address)[0:2]] == [(2, 32, 64), (1, 96, 32)]
    assert state.truncate(9) and state.n_tokens == 6
    assert state.truncate(4) and one.n_tokens == other.n_tokens == 4
    assert [part["n_layer"] for part in json.loads(state.layout)] == [3, 1]


def test_the_rows_of_groups_leave_and_come_back() -> None:
    source, target = groups(n_tokens=6), groups(7)
    rows = source.read_rows(1, 5)
    assert rows.tobytes() == b"".join(group.read_rows(1, 5).tobytes() for group in source.groups)
    target.write_rows(source.read_rows(0, 1))
    target.write_rows(rows)
    target.trim()
    assert target.n_tokens == 5 and target.read_rows(0, 5).tobytes() == source.read_rows(0, 5).tobytes()
    for wrong in (rows[:-1], rows.view(np.uint16), rows[::2], source.read_rows(0, 3)):
        with pytest.raises(KernelError, match=r"come from another cache|do not fit behind"):
            target.write_rows(wrong)
    assert target.read_rows(0, 5).tobytes() == source.read_rows(0, 5).tobytes()


def test_a_prefix_of_groups() -> None:
    source, target = groups(n_tokens=6), groups(8, n_tokens=3)
    assert target.copy_prefix(source, 5) and target.n_tokens == 5
    assert target.read_rows(0, 5).tobytes() == source.read_rows(0, 5).tobytes()
    assert target.copy_prefix(target, 2) and target.n_tokens == 2
    for impossible in (source.groups[0], KVGroups(source.groups[::-1]), groups(4, n_tokens=4)):
        assert not target.copy_prefix(impossible, 5)
        assert [group.n_tokens for group in target.groups] == [0, 0]
