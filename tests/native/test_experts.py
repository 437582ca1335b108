"""Mixture-of-experts ops: the choice, the products of each slot, the sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lmhub.errors import KernelError
from lmhub.gguf.types import GGMLType
from lmhub.testing.blocks import random_blocks


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize(("n_expert", "k"), [(4, 1), (8, 3), (60, 4), (128, 8), (5, 5)])
def test_route(n_expert: int, k: int, levels: tuple[str, ...], kernels: Any, rng: np.random.Generator) -> None:
    logits = rng.standard_normal((33, n_expert), np.float32) * 2
    routes = [kernels(level).route(logits, k)[1:] for level in levels]
    expert, weight = routes[0]
    p = softmax(logits)
    want = np.sort(np.argsort(-p, axis=1, kind="stable")[:, :k], axis=1)
    assert np.array_equal(expert, want)
    chosen = np.take_along_axis(p, want, 1)
    np.testing.assert_allclose(weight, chosen / chosen.sum(1, keepdims=True), rtol=1e-5)
    assert all(e.tobytes() == expert.tobytes() and w.tobytes() == weight.tobytes() for e, w in routes)


def test_ties_go_to_the_lowest_ids(ops: Any) -> None:
    _, expert, weight = ops.route(np.zeros((1, 6), np.float32), 2)
    assert expert.tolist() == [[0, 1]]
    assert weight.tolist() == [[0.5, 0.5]]


def test_nan_logits_give_nan_weights_and_sound_ids(ops: Any) -> None:
    _, expert, weight = ops.route(np.full((1, 4), np.nan, np.float32), 3)
    assert sorted(set(expert[0].tolist())) == expert[0].tolist()
    assert set(expert[0].tolist()) <= {0, 1, 2, 3}
    assert np.isnan(weight).all()


def test_more_experts_per_token_than_there_are_is_refused(kernels: Any) -> None:
    with pytest.raises(KernelError, match="9 experts per token were asked for, but the layer has 8"):
        kernels(None).route(np.zeros((1, 8), np.float32), 9)


@pytest.mark.parametrize("kind", [GGMLType.F32, GGMLType.Q8_0, GGMLType.Q4_0], ids=lambda kind: kind.name)
@pytest.mark.parametrize("per_slot", [False, True])
@pytest.mark.parametrize("n", [1, 7, 90])
def test_a_slot_is_linear_of_its_expert(
    kind: GGMLType, per_slot: bool, n: int, ops: Any, rng: np.random.Generator, thread_counts: Any
) -> None:
    n_expert, rows, cols, k = 6, 21, 64, 2
    data = rng.integers(0, 256, (n_expert, rows, kind.row_bytes(cols)), np.uint8)
    if kind is GGMLType.F32:
        data = rng.standard_normal((n_expert, rows, cols), np.float32).view(np.uint8)
    else:
        blocks = data.reshape(-1, kind.block_bytes)
        blocks[:, 1] = (blocks[:, 1] & 0x83) | 0x30
    x = rng.standard_normal((n * k if per_slot else n, cols), np.float32)
    r, expert, weight = ops.route(rng.standard_normal((n, n_expert), np.float32), k)
    w = ops.weight(kind.id, data, rows, cols, n_expert)
    alone = [ops.weight(kind.id, data[e], rows, cols) for e in range(n_expert)]
    source = x if per_slot else np.repeat(x, k, 0)
    want = np.concatenate([ops.linear(alone[e], source[s : s + 1]) for s, e in enumerate(expert.reshape(-1))])
    for _ in thread_counts():
        y = ops.linear_experts(w, x, r, per_slot)
        assert y.tobytes() == want.tobytes()
    start = rng.standard_normal((n, rows), np.float32)
    total = ops.moe_sum(start, y, r)
    by_row = (y.reshape(n, k, rows).astype(np.float64) * weight[..., None]).sum(1)
    np.testing.assert_allclose(total, start + by_row, rtol=1e-4, atol=1e-5 * np.abs(by_row).max())


@pytest.mark.parametrize("n", [1, 60])
def test_weights_that_share_a_route_are_multiplied_at_once(n: int, ops: Any, rng: np.random.Generator) -> None:
    """Of one type or of several, packed or not, of different heights."""
    n_expert, cols, x = 4, 64, rng.standard_normal((n, 64), np.float32)
    ws = []
    for kind, rows in ((GGMLType.Q8_0, 20), (GGMLType.Q4_0, 33), (GGMLType.F32, 5)):
        if kind is GGMLType.F32:
            data = rng.standard_normal((n_expert, rows, cols), np.float32).view(np.uint8)
        else:
            data = random_blocks(kind, (n_expert, rows, cols), 1.0, rng)
        ws.append(ops.weight(kind.id, data, rows, cols, n_expert))
    r, _, _ = ops.route(rng.standard_normal((n, n_expert), np.float32), 2)
    alone = [ops.linear_experts(w, x, r, False) for w in ws]
    together = ops.linear_experts_many(ws, x, r, False)
    assert [y.tobytes() for y in together] == [y.tobytes() for y in alone]


def test_an_expert_that_one_of_the_weights_lacks_is_refused(ops: Any, rng: np.random.Generator) -> None:
    ws = [ops.weight(0, np.zeros((n, 16, 32), np.float32).view(np.uint8), 16, 32, n) for n in (3, 2)]
    r, _, _ = ops.route(np.array([[0.0, 0.0, 9.0]], np.float32), 1)
    with pytest.raises(KernelError, match="Expert 2 was chosen, but the layer has 2"):
        ops.linear_experts_many(ws, np.zeros((1, 32), np.float32), r, False)
