"""linear and get_rows: every type against float64, and the same bits whatever surrounds a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lmhub import native
from lmhub.errors import KernelError
from lmhub.gguf.quant import expand
from lmhub.gguf.types import GGMLType

TYPES = [kind for kind in GGMLType if native.lib.lmk_type_block(kind.id) > 0]
PACKED = [kind for kind in TYPES if native.lib.lmk_packed_bytes(kind.id, 16, 512, 1)]
QUADS = [GGMLType.Q4_K, GGMLType.Q5_K, GGMLType.Q6_K, GGMLType.IQ4_XS]  # with integer scales in their blocks
INTEGERS = [kind for kind in PACKED if kind not in (GGMLType.F16, GGMLType.BF16)]
Q8_0 = GGMLType.Q8_0


def stored(kind: GGMLType, rows: int, cols: int, rng: np.random.Generator) -> np.ndarray:
    """Random bytes that are a sound matrix of that type: no NaN, no infinity, nothing huge."""
    data = rng.integers(0, 256, (rows, kind.row_bytes(cols)), np.uint8)
    if kind is GGMLType.F32:
        return rng.standard_normal((rows, cols), np.float32).view(np.uint8)
    if kind is GGMLType.F16:
        return rng.standard_normal((rows, cols)).astype(np.float16).view(np.uint8)
    if kind is GGMLType.BF16:
        return np.ascontiguousarray(rng.standard_normal((rows, cols), np.float32).view(np.uint8).reshape(-1, 4)[:, 2:])
    blocks = data.reshape(-1, kind.block_bytes)
    for at in SCALES[kind.name]:  # exponents of the scales: keep them near 1
        blocks[:, at] = (blocks[:, at] & 0x83) | 0x30
    if kind is GGMLType.MXFP4:
        blocks[:, 0] = 120 + blocks[:, 0] % 12
    if kind is GGMLType.NVFP4:
        blocks[:, :4] = 0x20 | (blocks[:, :4] & 0x1F)
    if kind is GGMLType.IQ1_M:  # its half scale is spread over the top bits of four words
        blocks[:, 55] = (blocks[:, 55] & 0x0F) | 0x30
    return data


# Offsets of the high bytes of a block's half-precision scales.
SCALES: dict[str, tuple[int, ...]] = {
    "Q4_0": (1,), "Q4_1": (1, 3), "Q5_0": (1,), "Q5_1": (1, 3), "Q8_0": (1,), "Q2_K": (81, 83), "Q3_K": (109,),
    "Q4_K": (1, 3), "Q5_K": (1, 3), "Q6_K": (209,), "IQ2_XXS": (1,), "IQ2_XS": (1,), "IQ3_XXS": (1,), "IQ1_S": (1,),
    "IQ4_NL": (1,), "IQ3_S": (1,), "IQ2_S": (1,), "IQ4_XS": (1,), "IQ1_M": (), "TQ1_0": (53,), "TQ2_0": (65,),
    "MXFP4": (), "NVFP4": (), "Q1_0": (1,), "Q2_0": (1,), "PQ2_0": (1,),
}  # fmt: skip


def quantised(x: np.ndarray, block: int) -> np.ndarray:
    """Activations as the packed path sees them: int8 per block, times amax / 127."""
    blocks = x.reshape(*x.shape[:-1], -1, block).astype(np.float32)
    amax = np.abs(blocks).max(-1, keepdims=True)
    q = np.rint(blocks * (np.float32(127) / np.where(amax == 0, 1, amax)))
    return (q.astype(np.float64) * (amax / np.float32(127))).reshape(x.shape)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_linear_of_every_type_is_the_product_and_the_same_bits_on_every_level(
    kind: GGMLType, levels: tuple[str, ...], kernels: Any, rng: np.random.Generator
) -> None:
    rows, cols, n = 37, 512, 3
    data = stored(kind, rows, cols, rng)
    x = rng.standard_normal((n, cols), np.float32)
    dense = expand(data.reshape(-1), kind, (rows, cols)).astype(np.float64)
    assert np.isfinite(dense).all() and dense.any()
    want = (quantised(x, 128 if kind in QUADS else 32) if kind in INTEGERS else x.astype(np.float64)) @ dense.T
    found = []
    for level in levels:
        ops = kernels(level)
        found.append(ops.linear(ops.weight(kind.id, data, rows, cols), x))
        scale = np.abs(x).astype(np.float64) @ np.abs(dense).T
        assert (np.abs(found[-1] - want) <= 2e-6 * scale).all()
        assert np.array_equal(ops.get_rows(ops.weight(kind.id, data, rows, cols), [36, 0, 36]), dense[[36, 0, 36]])
    assert all(y.tobytes() == found[0].tobytes() for y in found)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_rows_of_any_bytes_are_the_same_on_every_level(
    kind: GGMLType, levels: tuple[str, ...], kernels: Any, rng: np.random.Generator
) -> None:
    """Every code and sign, and scales that are subnormal, infinite or NaN, where one NaN is as good as another."""
    rows, cols = 40, 1024
    data = rng.integers(0, 256, (rows, kind.row_bytes(cols)), np.uint8)
    want = expand(data.reshape(-1), kind, (rows, cols))
    for level in levels:
        ops = kernels(level)
        got = ops.get_rows(ops.weight(kind.id, data, rows, cols), list(range(rows)))
        same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
        assert same.all(), (level, np.argwhere(~same)[:5])


@pytest.mark.parametrize("kind", [GGMLType.F32, GGMLType.Q3_K, *PACKED], ids=lambda kind: kind.name)
@pytest.mark.parametrize(("rows", "cols"), [(1, 256), (16, 256), (50, 768), (129, 256)])
def test_a_row_never_depends_on_its_neighbours_or_on_the_threads(
    kind: GGMLType, rows: int, cols: int, ops: Any, rng: np.random.Generator, thread_counts: Any
) -> None:
    w = ops.weight(kind.id, stored(kind, rows, cols, rng), rows, cols)
    x = rng.standard_normal((130, cols), np.float32)
    alone = np.concatenate([ops.linear(w, x[i : i + 1]) for i in range(len(x))])
    for _ in thread_counts():
        for n in (2, 3, 5, 8, 9, 67, 130):
            assert ops.linear(w, x[:n]).tobytes() == alone[:n].tobytes()


@pytest.mark.parametrize("cols", [1, 5, 16, 17, 40, 100])
def test_float_rows_of_any_length(cols: int, levels: tuple[str, ...], kernels: Any, rng: np.random.Generator) -> None:
    w, x = rng.standard_normal((9, cols), np.float32), rng.standard_normal((7, cols), np.float32)
    found = [k.linear(k.weight(0, w.view(np.uint8), 9, cols), x) for k in map(kernels, levels)]
    np.testing.assert_allclose(found[0], x.astype(np.float64) @ w.T.astype(np.float64), rtol=1e-5, atol=1e-6)
    assert all(y.tobytes() == found[0].tobytes() for y in found)


def q8_blocks(weights: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """int8 (rows, cols) and float16 (rows, cols / 32) -> stored bytes."""
    rows = len(weights)
    blocks = np.concatenate([scales[..., None].view(np.uint8), weights.reshape(rows, -1, 32).view(np.uint8)], axis=-1)
    return np.ascontiguousarray(blocks.reshape(rows, -1))


def test_packed_integers_are_exact_at_their_extremes(ops: Any) -> None:
    """w = -128 throughout, activations at +-127: 16-bit pair sums would saturate if they were done carelessly."""
    rows, cols = 21, 64
    for value in (-128, 127, 0):
        data = q8_blocks(np.full((rows, cols), value, np.int8), np.ones((rows, cols // 32), np.float16))
        x = np.stack([np.full(cols, 127.0), np.full(cols, -127.0), np.zeros(cols)]).astype(np.float32)
        y = ops.linear(ops.weight(Q8_0.id, data, rows, cols), x)
        assert np.array_equal(y, np.repeat(x.sum(1)[:, None] * value, rows, 1))


def test_a_zero_block_and_a_tiny_block_count_as_zero(ops: Any) -> None:
    data = q8_blocks(np.full((3, 64), 5, np.int8), np.ones((3, 2), np.float16))
    x = np.zeros((2, 64), np.float32)
    x[0, :32], x[1, 32:], x[1, 0] = 1.0, 1e-38, 2.0
    y = ops.linear(ops.weight(Q8_0.id, data, 3, 64), x)
    assert np.allclose(y, [[160.0] * 3, [10.0] * 3])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numerical_failure_of_a_row_shows_in_that_row_only(bad: float, ops: Any, rng: np.random.Generator) -> None:
    w = ops.weight(Q8_0.id, stored(Q8_0, 20, 64, rng), 20, 64)
    x = rng.standard_normal((3, 64), np.float32)
    good = ops.linear(w, x)
    x[1, 40] = bad
    y = ops.linear(w, x)
    assert np.isnan(y[1]).all()
    assert y[[0, 2]].tobytes() == good[[0, 2]].tobytes()


def test_errors_are_sentences(kernels: Any) -> None:
    ops = kernels(None)
    data = np.zeros(64, np.uint8)
    with pytest.raises(KernelError, match="Token id 7 is outside the vocabulary of 2"):
        ops.get_rows(ops.weight(0, data, 2, 8), [0, 7])
    with pytest.raises(KernelError, match="no kernel for weights of GGML type 26"):
        ops.linear(ops.weight(26, data, 2, 8), np.zeros((1, 8), np.float32))
    with pytest.raises(KernelError, match="not a multiple of its block of 32"):
        ops.linear(ops.weight(2, data, 1, 40), np.zeros((1, 40), np.float32))
