"""Packed weights: size, slices, extremes, experts, and how much is lost by rounding activations.

`test_linear.py` compares every type with float64, every level with the others and many rows with one; here is what
random bytes and plain matrices would miss.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lmhub import native
from lmhub.gguf.quant import expand
from lmhub.gguf.types import GGMLType
from lmhub.testing.blocks import random_blocks

HALVES = {  # where a block keeps half-precision numbers; MXFP4 has an exponent in byte 0
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2),
    "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,), "MXFP4": (),
}  # fmt: skip
PACKED = [GGMLType[name] for name in HALVES]
kinds = pytest.mark.parametrize("kind", PACKED, ids=lambda kind: kind.name)
ROWS, COLS = 20, 512


def stored(kind: GGMLType, rows: int, cols: int, rng: np.random.Generator) -> np.ndarray:
    """The bytes of a random weight with values around 1: (rows, bytes of a row)."""
    return random_blocks(kind, (rows, cols), 1.0, rng).reshape(rows, -1)


def dense(kind: GGMLType, data: np.ndarray, cols: int = COLS) -> np.ndarray:
    """The stored weight as float64."""
    return expand(data.reshape(-1), kind, (len(data), cols)).astype(np.float64)


def rounded(x: np.ndarray, block: int) -> np.ndarray:
    """x as float64, each block of a row as int8 times amax / 127."""
    blocks = x.reshape(len(x), -1, block)
    amax = np.abs(blocks).max(-1, keepdims=True)
    q = np.rint(blocks * (np.float32(127) / amax))
    return np.asarray((q.astype(np.float64) * (amax / np.float32(127))).reshape(x.shape))


def test_these_types_and_no_others_are_packed() -> None:
    found = [kind for kind in GGMLType if native.lib.lmk_packed_bytes(kind.id, 16, 256, 1)]
    assert set(found) == {*PACKED, GGMLType.F16, GGMLType.BF16}  # of the last two, test_halves.py has more


@kinds
def test_packing_costs_no_memory(kind: GGMLType) -> None:
    assert native.lib.lmk_packed_bytes(kind.id, 48, 1024, 3) == 3 * 48 * kind.row_bytes(1024)


@kinds
def test_rows_are_packed_alike_alone_and_among_others(kind: GGMLType, rng: np.random.Generator) -> None:
    """What a loader relies on that packs a tensor in slices."""

    def pack(data: np.ndarray) -> bytes:
        w = native.ffi.new("lmk_weight *", {"type": kind.id, "n_expert": 1, "rows": len(data), "cols": COLS})
        w.data = native.ffi.cast("void *", data.ctypes.data)
        memory = native.pages(native.lib.lmk_packed_bytes(kind.id, len(data), COLS, 1), huge=True)
        native.check(native.lib.lmk_pack(w, native.ffi.from_buffer(memory)))
        return bytes(memory)[: native.lib.lmk_packed_bytes(kind.id, len(data), COLS, 1)]

    data = stored(kind, 40, COLS, rng)
    slices = [np.ascontiguousarray(data[first : first + 16]) for first in (0, 16, 32)]
    assert pack(data) == b"".join(map(pack, slices))


@kinds
@pytest.mark.parametrize("byte", [0x00, 0xFF, 0x0F, 0xF0, 0x80, 0x7F], ids=hex)
def test_the_largest_products_do_not_overflow(kind: GGMLType, byte: int, ops: Any, rng: np.random.Generator) -> None:
    """Codes and sub-scales at an end of their range, activations at +-127: careless 16-bit sums would saturate."""
    data = np.full((ROWS, kind.row_bytes(COLS)), byte, np.uint8)
    blocks = data.reshape(-1, kind.block_bytes)
    for at in HALVES[kind.name]:
        blocks[:, at : at + 2] = np.frombuffer(np.float16(0.5).tobytes(), np.uint8)
    if kind is GGMLType.MXFP4:
        blocks[:, 0] = 127
    signs = np.where(rng.integers(0, 2, COLS) > 0, 127.0, -127.0)
    x = np.stack([np.full(COLS, 127.0), np.full(COLS, -127.0), signs] * 5).astype(np.float32)  # rows enough for a panel
    want, scale = x @ dense(kind, data).T, np.abs(x) @ np.abs(dense(kind, data)).T
    y = ops.linear(ops.weight(kind.id, data, ROWS, COLS), x)
    # Codes and minimums are summed apart: what cancels is larger than the values themselves.
    slack = 1.0 if len(HALVES[kind.name]) == 2 else 0.0
    assert (np.abs(y - want) <= 2e-6 * scale + slack).all()


def test_mxfp4_exponents_from_end_to_end(levels: tuple[str, ...], kernels: Any, rng: np.random.Generator) -> None:
    """From scales whose products with those of activations are subnormal, and lose bits, up to nearly the largest."""
    kind = GGMLType.MXFP4
    for exponent in (0, 1, 2, 3, 4, 20, 127, 200, 240):
        data = stored(kind, ROWS, COLS, rng)
        data.reshape(-1, kind.block_bytes)[:, 0] = exponent
        x = rng.standard_normal((2, COLS), np.float32)
        want = rounded(x, 32) @ dense(kind, data).T
        found = [k.linear(k.weight(kind.id, data, ROWS, COLS), x) for k in map(kernels, levels)]
        assert (np.abs(found[0] - want) <= 2e-6 * (np.abs(x) @ np.abs(dense(kind, data)).T) + 1e-38).all()
        assert all(y.tobytes() == found[0].tobytes() for y in found)


@kinds
def test_experts_are_products_with_their_own_matrix(kind: GGMLType, ops: Any, rng: np.random.Generator) -> None:
    """Experts with few rows and with many, in a matrix whose last group is not full."""
    n_expert, n, k = 5, 40, 2
    data = stored(kind, n_expert * ROWS, COLS, rng)
    x = rng.standard_normal((n, COLS), np.float32)
    logits = rng.standard_normal((n, n_expert), np.float32)
    logits[:, 2] += 4.0
    r, expert, _ = ops.route(logits, k)
    y = ops.linear_experts(ops.weight(kind.id, data, ROWS, COLS, n_expert), x, r, False)
    parts = [np.ascontiguousarray(data[e * ROWS : (e + 1) * ROWS]) for e in range(n_expert)]
    alone = [ops.linear(ops.weight(kind.id, part, ROWS, COLS), x) for part in parts]
    want = np.stack([alone[e][row] for row in range(n) for e in expert[row]])
    assert y.tobytes() == want.tobytes()


@kinds
@pytest.mark.parametrize("n", [1, 4, 40])
def test_a_weight_that_is_not_packed_gives_the_same_bits(
    kind: GGMLType, n: int, ops: Any, rng: np.random.Generator, thread_counts: Any
) -> None:
    """Rows are packed when they are used: for few rows of x and for many, experts, groups that are not full."""
    n_expert, data, x = 3, stored(kind, 3 * ROWS, COLS, rng), rng.standard_normal((n, COLS), np.float32)
    r, _, _ = ops.route(rng.standard_normal((n, n_expert), np.float32), 2)

    def products(pack: bool) -> list[bytes]:
        plain = ops.weight(kind.id, data, 3 * ROWS, COLS, pack=pack)
        experts = ops.weight(kind.id, data, ROWS, COLS, n_expert, pack=pack)
        return [y.tobytes() for y in (*ops.linear_many([plain, plain], x), ops.linear_experts(experts, x, r, False))]

    packed = products(True)
    for _ in thread_counts():
        assert products(False) == packed


@kinds
def test_rounding_activations_loses_less_than_in_blocks_of_256(
    kind: GGMLType, ops: Any, rng: np.random.Generator
) -> None:
    """Other engines round the activations that meet K-quants to 8 bits per 256; ours are per 128, or per 32."""
    data = stored(kind, 64, COLS, rng)
    x = rng.standard_normal((16, COLS), np.float32) * np.exp(rng.standard_normal((16, COLS), np.float32))
    exact = x.astype(np.float64) @ dense(kind, data).T
    y = ops.linear(ops.weight(kind.id, data, 64, COLS), x)
    theirs = rounded(x, 256) @ dense(kind, data).T
    share = 0.8 if kind.name.endswith(("_K", "_XS")) else 0.5
    assert np.square(y - exact).mean() < share * np.square(theirs - exact).mean()


@kinds
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numerical_failure_shows_in_its_row_only(
    kind: GGMLType, bad: float, ops: Any, rng: np.random.Generator
) -> None:
    """On the paths for one row and for many."""
    w = ops.weight(kind.id, stored(kind, ROWS, COLS, rng), ROWS, COLS)
    x = rng.standard_normal((20, COLS), np.float32)
    good = ops.linear(w, x)
    x[3, 40] = bad
    for y in (ops.linear(w, x), np.concatenate([ops.linear(w, row[None]) for row in x])):
        assert np.isnan(y[3]).all()
        rest = np.arange(20) != 3
        assert y[rest].tobytes() == good[rest].tobytes()
