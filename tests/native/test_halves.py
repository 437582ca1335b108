"""Packed F16 and BF16 weights: exact sums, few rows and many, what is padded, tiny numbers, NaN and infinity.

`halves.h` has the definition, which `defined` repeats here in float32, step by step. Every level must give its bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lmhub import native
from lmhub.gguf.types import GGMLType

F16, BF16 = GGMLType.F16, GGMLType.BF16
kinds = pytest.mark.parametrize("kind", [F16, BF16], ids=lambda kind: kind.name)
COUNTS = (1, 2, 3, 5, 11, 12, 13, 16, 17, 33, 53)


def bf16(values: np.ndarray) -> np.ndarray:
    """float32 rounded to BF16, ties to even; finite."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)


def stored(kind: GGMLType, values: np.ndarray) -> np.ndarray:
    """float32 (rows, cols) -> bytes of a file; values that BF16 has, for BF16."""
    if kind is F16:
        return values.astype(np.float16).view(np.uint8)
    return np.ascontiguousarray((values.view(np.uint32) >> 16).astype(np.uint16)).view(np.uint8)


def weights(kind: GGMLType, rows: int, cols: int, rng: np.random.Generator) -> np.ndarray:
    """Random float32 values that the type holds exactly."""
    values = rng.standard_normal((rows, cols), np.float32)
    return bf16(values) if kind is BF16 else values.astype(np.float16).astype(np.float32)


def parts_of(kind: GGMLType, row: np.ndarray) -> tuple[list[np.ndarray], np.float32]:
    """What a row of x is multiplied as, and the power of two that the sums are multiplied by."""
    if kind is F16:
        return [row], np.float32(1)
    unit = np.float32(2.0 ** (np.floor(np.log2(np.abs(row).max())) - 1))
    scaled = row / unit
    high = bf16(scaled)
    low = bf16(scaled - high)
    return [np.where(np.abs(part) < 2.0**-30, np.float32(0), part) for part in (high, low)], unit


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Fused in float32. Where doubles hold the exact result, which they do for weights of 8 or 11 bits and x of few."""
    return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float32)


def defined(kind: GGMLType, w: np.ndarray, x: np.ndarray) -> np.ndarray:
    """y = x Wᵀ as halves.h defines it."""
    rows, cols = w.shape
    pad = -cols % 32
    w = np.pad(w, ((0, 0), (0, pad)))
    y = np.zeros((len(x), rows), np.float32)
    for j, row in enumerate(x):
        parts, unit = parts_of(kind, np.pad(row, (0, pad)))
        acc = np.zeros(rows, np.float32)
        for block in range(0, cols + pad, 32):
            for part in parts:
                even, odd = np.zeros(rows, np.float32), np.zeros(rows, np.float32)
                for k in range(block, block + 32, 2):
                    even = fma(w[:, k], part[k], even)
                    odd = fma(w[:, k + 1], part[k + 1], odd)
                acc = acc + (even + odd)
        y[j] = acc * unit
    return y


@kinds
@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (16, 32), (37, 100), (33, 1056)])
def test_every_level_and_number_of_rows_gives_the_bits_of_the_definition(
    kind: GGMLType, rows: int, cols: int, levels: tuple[str, ...], kernels: Any, rng: np.random.Generator
) -> None:
    # x has few bits, and exponents close to each other: sums in doubles, rounded once, are then fused float32 sums.
    w = weights(kind, rows, cols, rng)
    x = bf16(rng.uniform(0.5, 2, (53, cols)).astype(np.float32)) * rng.choice(np.float32([-1, 1]), (53, cols))
    if kind is BF16:
        x = x * np.float32(1 + 2**-10)
    want = defined(kind, w, x)
    data = stored(kind, w)
    for level in levels:
        ops = kernels(level)
        packed = ops.weight(kind.id, data, rows, cols)
        for n in COUNTS:
            assert ops.linear(packed, x[:n]).tobytes() == want[:n].tobytes(), (level, n)


@kinds
@pytest.mark.parametrize("cols", [5, 512, 3104])
def test_the_error_against_exact_sums_is_bounded(kind: GGMLType, cols: int, ops: Any, rng: np.random.Generator) -> None:
    """F16: that of float32 sums. BF16: x keeps 16 bits, so each product is off by at most 2^-17 of its size."""
    w, x = weights(kind, 40, cols, rng), rng.standard_normal((20, cols), np.float32)
    y = ops.linear(ops.weight(kind.id, stored(kind, w), 40, cols), x)
    error = np.abs(y - x.astype(np.float64) @ w.T.astype(np.float64))
    scale = np.abs(x).astype(np.float64) @ np.abs(w).T.astype(np.float64)
    sums = 2.0**-24 * (2 + 16 + cols / 32)
    assert (error <= scale * (sums + (2.0**-17 if kind is BF16 else 0))).all()
    assert np.sqrt((error**2).mean()) < np.sqrt((scale**2).mean()) * (2.0**-17 if kind is BF16 else 2.0**-22)


@kinds
def test_parts_of_many_rows_and_any_number_of_threads(
    kind: GGMLType, levels: tuple[str, ...], kernels: Any, rng: np.random.Generator, thread_counts: Any
) -> None:
    """6144 columns: 48 rows fill the cache, and the others are further parts."""
    w, x = weights(kind, 40, 6144, rng), rng.standard_normal((150, 6144), np.float32)
    found = set()
    for level in levels[1:] or levels:
        ops = kernels(level)
        packed = ops.weight(kind.id, stored(kind, w), 40, 6144)
        found |= {ops.linear(packed, x).tobytes() for _ in thread_counts()}
        found.add(np.concatenate([ops.linear(packed, x[i : i + 1]) for i in range(150)]).tobytes())
    assert len(found) == 1


@kinds
def test_experts_of_few_and_of_many_rows(
    kind: GGMLType, levels: tuple[str, ...], kernels: Any, rng: np.random.Generator
) -> None:
    rows, cols, n, n_expert, k = 40, 96, 60, 6, 2
    w, x = weights(kind, n_expert * rows, cols, rng), rng.standard_normal((n, cols), np.float32)
    data = stored(kind, w)
    logits = np.tile(np.array([4, 5, 0, 0, 0, 0], np.float32), (n, 1))
    logits[7, 3] = logits[8, 2] = logits[9, 2] = logits[20, 5] = 9.0
    found = set()
    for level in levels:
        ops = kernels(level)
        route, expert, _ = ops.route(logits, k)
        y = ops.linear_experts(ops.weight(kind.id, data, rows, cols, n_expert), x, route, False)
        found.add(y.tobytes())
        for slot in (0, 1, 15, 17, 41, 119):
            own = np.ascontiguousarray(data.reshape(n_expert, rows, -1)[expert[slot // k, slot % k]])
            alone = ops.linear(ops.weight(kind.id, own, rows, cols), x[slot // k : slot // k + 1])
            assert alone.tobytes() == y[slot].tobytes()
        one, _, _ = ops.route(logits[:1], k)
        first = ops.linear_experts(ops.weight(kind.id, data, rows, cols, n_expert), x[:1], one, False)
        assert first.tobytes() == y[:k].tobytes()
    assert len(found) == 1


@pytest.mark.parametrize("n", [1, 3, 40])
def test_both_types_may_share_an_input_with_others(n: int, ops: Any, rng: np.random.Generator) -> None:
    x = rng.standard_normal((n, 256), np.float32)
    ws = [ops.weight(kind.id, stored(kind, weights(kind, rows, 256, rng)), rows, 256)
          for kind, rows in ((F16, 33), (BF16, 70), (F16, 16), (BF16, 5))]  # fmt: skip
    ws.append(ops.weight(0, rng.standard_normal((9, 256), np.float32).view(np.uint8), 9, 256))
    alone = [ops.linear(w, x).tobytes() for w in ws]
    assert [y.tobytes() for y in ops.linear_many(ws, x)] == alone


@kinds
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows_in_its_row_and_has_one_nan(
    kind: GGMLType, bad: float, levels: tuple[str, ...], kernels: Any, rng: np.random.Generator
) -> None:
    w, x = weights(kind, 20, 64, rng), rng.standard_normal((20, 64), np.float32)
    w[3, 7] = bad
    x[2, 40] = bad
    x[5] = 0
    found = set()
    for level in levels:
        ops = kernels(level)
        packed = ops.weight(kind.id, stored(kind, w), 20, 64)
        y = ops.linear(packed, x)
        found.add(y.tobytes())
        found.add(np.concatenate([ops.linear(packed, x[i : i + 1]) for i in range(20)]).tobytes())
        finite = np.isfinite(y)
        assert not finite[2].any() and not finite[:, 3].any()
        assert np.delete(np.delete(finite, 2, 0), 3, 1).all()
        assert np.isnan(y[5, 3])
    assert len(found) == 1


@kinds
def test_sizes_from_one_end_of_the_range_to_the_other(
    kind: GGMLType, levels: tuple[str, ...], kernels: Any, rng: np.random.Generator
) -> None:
    """Subnormal and huge numbers on either side: tiles would take some of them for zero."""
    w, x = weights(kind, 48, 96, rng), rng.standard_normal((40, 96), np.float32)
    with np.errstate(over="ignore", under="ignore"):
        x *= np.float32(2.0) ** rng.integers(-140, 127, (40, 1)).astype(np.float32)
        x[::3] *= np.float32(2.0) ** rng.integers(-60, 0, (14, 96)).astype(np.float32)
        exponents = rng.integers(-130, 126, (48, 1)) if kind is BF16 else rng.integers(-24, 13, (48, 1))
        w = w * np.float32(2.0) ** exponents.astype(np.float32)
        w[::3] *= np.float32(2.0) ** rng.integers(-60, 0, (16, 96)).astype(np.float32)
    data = stored(kind, w)
    found = set()
    for level in levels:
        ops = kernels(level)
        packed = ops.weight(kind.id, data, 48, 96)
        found.add(ops.linear(packed, x).tobytes())
        found.add(np.concatenate([ops.linear(packed, x[i : i + 1]) for i in range(40)]).tobytes())
    assert len(found) == 1
    assert np.isfinite(np.frombuffer(next(iter(found)), np.float32)).any()


@kinds
@pytest.mark.parametrize("n", [1, 2, 30])
def test_a_weight_that_stays_in_the_file_gives_the_bits_of_a_packed_one(
    kind: GGMLType, n: int, ops: Any, rng: np.random.Generator
) -> None:
    data, x = stored(kind, weights(kind, 70, 72, rng)), rng.standard_normal((n, 72), np.float32)
    packed, plain = (ops.weight(kind.id, data, 70, 72, pack=pack) for pack in (True, False))
    assert not plain.packed
    assert ops.linear(plain, x).tobytes() == ops.linear(packed, x).tobytes()


def test_tiny_bf16_weights_and_rows_count_as_zero(ops: Any) -> None:
    w = np.array([[2.0**-81] * 32, [2.0**-80] * 32], np.float32)
    packed = ops.weight(BF16.id, stored(BF16, w), 2, 32)
    assert np.array_equal(ops.linear(packed, np.ones((1, 32), np.float32)), [[0.0, 32 * 2.0**-80]])
    assert np.array_equal(ops.linear(packed, np.full((1, 32), 2.0**-101, np.float32)), [[0.0, 0.0]])


@kinds
def test_packing_costs_what_padding_costs(kind: GGMLType) -> None:
    assert native.lib.lmk_packed_bytes(kind.id, 48, 1024, 3) == 3 * 48 * 1024 * 2
    assert native.lib.lmk_packed_bytes(kind.id, 17, 33, 1) == 32 * 64 * 2
