"""The KV cache and attention: float64, and the same bits however a sequence is cut and whatever runs beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lmhub.kv import KVState

N_KV, K_DIM, V_DIM = 2, 40, 24


def oracle(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, window: int) -> np.ndarray:
    """One sequence from its beginning: q (n, H, d), k (n, KV, d), v (n, KV, e) -> (n, H, e), in float64."""
    n, heads = q.shape[0], q.shape[1] // k.shape[1]
    k, v = (np.repeat(a.astype(np.float64), heads, axis=1) for a in (k, v))
    scores = np.einsum("ihd,jhd->hij", q.astype(np.float64), k) * scale
    i, j = np.arange(n)[:, None], np.arange(n)
    hidden = (j > i) | ((j <= i - window) if window else False)
    scores = np.where(hidden, -np.inf, scores)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hij,jhe->ihe", p / p.sum(-1, keepdims=True), v)


def sequence(rng: np.random.Generator, n: int, n_head: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    q, k = rng.standard_normal((n, n_head, K_DIM), np.float32), rng.standard_normal((n, N_KV, K_DIM), np.float32)
    return q * 2, k, rng.standard_normal((n, N_KV, V_DIM), np.float32)


def new_state(capacity: int, dtype: str) -> KVState:
    state = KVState(1, N_KV, K_DIM, V_DIM, capacity, dtype)
    state.k[:], state.v[:] = np.nan, np.nan  # what was never written must never be read
    return state


def run(ops: Any, dtype: str, qkv: Any, cuts: list[int], window: int) -> np.ndarray:
    """The whole sequence in chunks of the given lengths, the last one repeated as needed."""
    q, k, v = qkv
    n, state, out = len(q), new_state(len(q), dtype), []
    cuts = list(cuts)
    while state.n_tokens < n:
        a = state.n_tokens
        b = min(a + (cuts.pop(0) if len(cuts) > 1 else cuts[0]), n)
        out.append(ops.append_and_attend([state], [b - a], q[a:b].copy(), k[a:b].copy(), v[a:b].copy(), 0.2, window))
    return np.concatenate(out)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("n_head", [2, 6])
@pytest.mark.parametrize("window", [0, 1, 5, 64, 100])
def test_attention_is_softmax_and_does_not_depend_on_the_cuts(
    dtype: str, n_head: int, window: int, levels: tuple[str, ...], kernels: Any, rng: np.random.Generator
) -> None:
    qkv = sequence(rng, 200, n_head)
    q, k, v = qkv
    stored = (k, v) if dtype == "f32" else (k.astype(np.float16), v.astype(np.float16))
    found = []
    for level in levels:
        ops = kernels(level)
        whole = run(ops, dtype, qkv, [200], window)
        np.testing.assert_allclose(whole, oracle(q, *stored, 0.2, window), rtol=1e-4, atol=2e-6)
        for cuts in ([1], [64, 64], [63, 2, 70], [7]):
            assert run(ops, dtype, qkv, cuts, window).tobytes() == whole.tobytes()
        found.append(whole)
    assert all(y.tobytes() == found[0].tobytes() for y in found)


def test_sequences_of_a_step_do_not_see_each_other(ops: Any, rng: np.random.Generator, thread_counts: Any) -> None:
    lengths, chunks = [3, 130, 64, 0], [1, 70, 1, 9]
    parts = [sequence(rng, past + n, 4) for past, n in zip(lengths, chunks, strict=True)]

    def warm() -> list[KVState]:
        states = []
        for past, (q, k, v) in zip(lengths, parts, strict=True):
            state = new_state(past + 80, "f16")
            if past:
                ops.append_and_attend([state], [past], q[:past].copy(), k[:past].copy(), v[:past].copy(), 0.3)
            states.append(state)
        return states

    tails = [tuple(a[past:].copy() for a in part) for past, part in zip(lengths, parts, strict=True)]
    alone = [
        ops.append_and_attend([state], [n], *tail, 0.3) for state, n, tail in zip(warm(), chunks, tails, strict=True)
    ]
    for _ in thread_counts():
        together = ops.append_and_attend(warm(), chunks, *(np.concatenate(a) for a in zip(*tails, strict=True)), 0.3)
        assert together.tobytes() == np.concatenate(alone).tobytes()


def test_a_truncated_state_goes_on_as_if_nothing_had_been(ops: Any, rng: np.random.Generator) -> None:
    q, k, v = sequence(rng, 150, 2)
    whole = run(ops, "f16", (q, k, v), [150], 0)
    state = new_state(150, "f16")
    garbage = sequence(rng, 120, 2)
    ops.append_and_attend([state], [70], q[:70].copy(), k[:70].copy(), v[:70].copy(), 0.2)
    ops.append_and_attend([state], [50], *(a[:50].copy() for a in garbage), 0.2)
    assert state.truncate(70)
    rest = ops.append_and_attend([state], [80], q[70:].copy(), k[70:].copy(), v[70:].copy(), 0.2)
    assert rest.tobytes() == whole[70:].tobytes()


def test_large_scores_neither_overflow_nor_vanish(ops: Any) -> None:
    q, k = np.full((3, N_KV, K_DIM), 100.0, np.float32), np.zeros((3, N_KV, K_DIM), np.float32)
    k[1], k[2] = 100.0, -100.0
    v = np.arange(3, dtype=np.float32)[:, None, None] * np.ones((3, N_KV, V_DIM), np.float32)
    y = ops.append_and_attend([new_state(3, "f32")], [3], q, k, v, 1.0)
    assert np.array_equal(y[:, 0, 0], [0.0, 1.0, 1.0])


def test_the_cache_stores_halves_rounded_to_nearest_even(levels: tuple[str, ...], kernels: Any) -> None:
    """Every half, every midpoint between two, and their neighbours, through kv_append."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    exact = halves[~np.isnan(halves)]
    finite = np.sort(exact[np.isfinite(exact)])
    middle = ((finite[1:].astype(np.float64) + finite[:-1]) / 2).astype(np.float32)
    up, down = np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(-np.inf))
    x = np.concatenate([exact, middle, up, down, np.array([65519, 65520, -65520, 1e30, 1e-30, 3e-8, -0.0], np.float32)])
    x = np.concatenate([x, np.zeros(-len(x) % K_DIM, np.float32)]).reshape(-1, 1, K_DIM)
    with np.errstate(over="ignore"):
        want = x.astype(np.float16)
    for level in levels:
        ops, state = kernels(level), KVState(1, 1, K_DIM, K_DIM, len(x), "f16")
        spans = ops.spans([state], [len(x)])
        ops.api.kv_append(ops.c, 0, spans, 1, ops.floats(x), ops.floats(x))
        assert state.k[0, 0].tobytes() == want.tobytes()
        assert state.v[0, 0].tobytes() == want.tobytes()
