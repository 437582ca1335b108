"""Products that are joined with something as they are stored: the bits of the same ops one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lmhub.errors import KernelError
from lmhub.gguf.types import GGMLType
from lmhub.testing.blocks import random_blocks

SILU, GELU = 0, 1
COLS = 256

# One scale for 32 columns; integer scales with minimums and without; 16 bits, with tiles of their own and without;
# floats; types that are expanded.
KINDS = [GGMLType[name] for name in ("Q8_0", "Q4_K", "Q6_K", "BF16", "F16", "F32", "Q3_K", "Q2_K")]
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)

# One row, some, a panel, strips and one row more than whole ones.
COUNTS = (1, 3, 8, 13, 29, 49)


def stored(kind: GGMLType, rows: int, rng: np.random.Generator) -> np.ndarray:
    """The bytes of a random weight: (rows, bytes of a row)."""
    values = rng.standard_normal((rows, COLS), np.float32)
    if kind is GGMLType.F32:
        return values.view(np.uint8)
    if kind is GGMLType.F16:
        return values.astype(np.float16).view(np.uint8)
    if kind is GGMLType.BF16:
        return np.ascontiguousarray(values.view(np.uint8).reshape(rows, -1, 4)[..., 2:]).reshape(rows, -1)
    return random_blocks(kind, (rows, COLS), 1.0, rng).reshape(rows, -1)


def gated(ops: Any, activation: int, gate: np.ndarray, up: np.ndarray) -> bytes:
    both = np.concatenate([gate, up], 1)
    return (ops.silu_mul(both) if activation == SILU else ops.gelu_mul(both)).tobytes()


@kinds
@pytest.mark.parametrize("rows", [5, 16, 50])
def test_a_product_is_added_as_the_sum_would_be(
    kind: GGMLType, rows: int, levels: tuple[str, ...], kernels: Any, rng: np.random.Generator, thread_counts: Any
) -> None:
    data, bias = stored(kind, rows, rng), rng.standard_normal(rows, np.float32)
    x, before = rng.standard_normal((49, COLS), np.float32), rng.standard_normal((49, rows), np.float32)
    for level in levels:
        ops = kernels(level)
        w = ops.weight(kind.id, data, rows, COLS)
        product = ops.linear(w, x)
        for _ in thread_counts():
            for n in COUNTS:
                y = ops.linear_add(before[:n], w, None, x[:n])
                assert y.tobytes() == (before + product)[:n].tobytes(), (level, n)
                y = ops.linear_add(before[:n], w, bias, x[:n])
                assert y.tobytes() == (before + (product + bias))[:n].tobytes(), (level, n)


@kinds
@pytest.mark.parametrize("rows", [5, 16, 50])
@pytest.mark.parametrize("activation", [SILU, GELU], ids=["silu", "gelu"])
def test_a_gate_meets_its_values_as_it_would_later(
    kind: GGMLType,
    rows: int,
    activation: int,
    levels: tuple[str, ...],
    kernels: Any,
    rng: np.random.Generator,
    thread_counts: Any,
) -> None:
    data, x = stored(kind, 2 * rows, rng), rng.standard_normal((49, COLS), np.float32) / 8
    found = set()
    for level in levels:
        ops = kernels(level)
        gate, up = (ops.weight(kind.id, half, rows, COLS) for half in (data[:rows], data[rows:]))
        g, u = ops.linear_many([gate, up], x)
        for _ in thread_counts():
            for n in COUNTS:
                y = ops.linear_gated(gate, up, activation, x[:n])
                assert y.tobytes() == gated(ops, activation, g[:n], u[:n]), (level, n)
        found.add(y.tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("n", [1, 13, 49])
@pytest.mark.parametrize(
    ("kind", "other"),
    [("Q4_K", "Q6_K"), ("Q8_0", "Q4_K"), ("Q8_0", "F32"), ("F32", "Q8_0"), ("F16", "BF16"), ("Q3_K", "BF16")],
)
def test_gate_and_values_may_differ_in_type(
    kind: str, other: str, n: int, ops: Any, rng: np.random.Generator, thread_counts: Any
) -> None:
    gate, up = (ops.weight(t.id, stored(t, 50, rng), 50, COLS) for t in (GGMLType[kind], GGMLType[other]))
    x = rng.standard_normal((n, COLS), np.float32) / 8
    want = gated(ops, SILU, ops.linear(gate, x), ops.linear(up, x))
    for _ in thread_counts():
        assert ops.linear_gated(gate, up, SILU, x).tobytes() == want


@kinds
def test_weights_that_are_not_packed(kind: GGMLType, ops: Any, rng: np.random.Generator) -> None:
    data = [stored(kind, 50, rng) for _ in range(2)]
    gate, up = (ops.weight(kind.id, one, 50, COLS, pack=False) for one in data)
    packed = ops.weight(kind.id, data[1], 50, COLS)
    for n in COUNTS:
        x = rng.standard_normal((n, COLS), np.float32) / 8
        y = ops.linear_gated(gate, up, SILU, x)
        assert y.tobytes() == gated(ops, SILU, ops.linear(gate, x), ops.linear(up, x))
        assert ops.linear_gated(gate, packed, SILU, x).tobytes() == y.tobytes()
        assert ops.linear_add(y, up, None, x).tobytes() == (y + ops.linear(up, x)).tobytes()


@kinds
@pytest.mark.parametrize("activation", [SILU, GELU], ids=["silu", "gelu"])
def test_experts_of_few_and_of_many_rows(
    kind: GGMLType, activation: int, ops: Any, rng: np.random.Generator, thread_counts: Any
) -> None:
    rows, n, n_expert, k = 24, 90, 5, 2
    logits = np.tile(np.array([4, 5, 0, 0, 0], np.float32), (n, 1))  # most rows go to two experts
    logits[7, 3] = logits[8, 2] = logits[9, 2] = logits[80, 4] = 9.0
    r, _, _ = ops.route(logits, k)
    gate, up = (ops.weight(kind.id, stored(kind, n_expert * rows, rng), rows, COLS, n_expert) for _ in range(2))
    for per_slot in (False, True):
        x = rng.standard_normal((n * k if per_slot else n, COLS), np.float32) / 8
        want = gated(ops, activation, *ops.linear_experts_many([gate, up], x, r, per_slot))
        for _ in thread_counts():
            assert ops.linear_experts_gated(gate, up, activation, x, r, per_slot).tobytes() == want


def test_rows_that_are_not_finite_stay_by_themselves(ops: Any, rng: np.random.Generator) -> None:
    gate, up = (ops.weight(GGMLType.Q4_K.id, stored(GGMLType.Q4_K, 50, rng), 50, COLS) for _ in range(2))
    x = rng.standard_normal((49, COLS), np.float32) / 8
    good = ops.linear_gated(gate, up, SILU, x)
    x[[3, 48], 40] = np.nan, np.inf
    y = ops.linear_gated(gate, up, SILU, x)
    others = np.delete(np.arange(49), [3, 48])
    assert np.isnan(y[[3, 48]]).all()
    assert y[others].tobytes() == good[others].tobytes()


def test_halves_of_other_sizes_do_not_fit(ops: Any, rng: np.random.Generator) -> None:
    gate, up = (ops.weight(0, stored(GGMLType.F32, rows, rng), rows, COLS) for rows in (16, 17))
    x = np.zeros((1, COLS), np.float32)
    with pytest.raises(KernelError, match="A gate of 16 outputs does not fit 17 values"):
        ops.linear_gated(gate, up, SILU, x)
    r, _, _ = ops.route(np.zeros((1, 1), np.float32), 1)
    with pytest.raises(KernelError, match="A gate of 17 outputs does not fit 16 values"):
        ops.linear_experts_gated(up, gate, GELU, x, r, False)
