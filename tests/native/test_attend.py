"""The KV cache and attention: float64, and the same bits however a sequence is cut and whatever runs beside it.

A cache is named by its dtype, or by dtype and size where it is not the usual one of these tests: "f16/wide".
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lmhub.kv import KVState

N_KV, K_DIM, V_DIM = 2, 40, 24
DIMS = {"f32": (K_DIM, V_DIM), "f16": (K_DIM, V_DIM), "f16/wide": (128, 96), "q8_0": (64, 32)}
ROUNDING = 3e-4
"""What the integers of f16 and q8_0 caches may be off by, relative to the result."""


def oracle(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, window: int, bias: np.ndarray | None = None
) -> np.ndarray:
    """One sequence from its beginning: q (n, H, d), k (n, KV, d), v (n, KV, e) -> (n, H, e), in float64.

    bias (n, H, extent): what a score gets, the row's own position last.
    """
    n, heads = q.shape[0], q.shape[1] // k.shape[1]
    k, v = (np.repeat(a.astype(np.float64), heads, axis=1) for a in (k, v))
    scores = np.einsum("ihd,jhd->hij", q.astype(np.float64), k) * scale
    i, j = np.arange(n)[:, None], np.arange(n)
    if bias is not None:
        at = bias.shape[-1] - 1 - (i - j)
        seen = (at >= 0) & (at < bias.shape[-1])
        scores += np.where(seen, np.take_along_axis(bias.transpose(1, 0, 2), np.where(seen, at, 0)[None], -1), 0)
    hidden = (j > i) | ((j <= i - window) if window else False)
    scores = np.where(hidden, -np.inf, scores)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hij,jhe->ihe", p / p.sum(-1, keepdims=True), v)


def blocks(x: np.ndarray) -> np.ndarray:
    """float32 (..., dim) as the blocks of a q8_0 cache, spelled out: (..., dim / 32) of a scale and 32 integers."""
    x = x.reshape(*x.shape[:-1], -1, 32)
    out = np.zeros(x.shape[:-1], [("scale", np.float16), ("q", np.int8, (32,))])
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        scale = (np.abs(x).max(-1) / np.float32(127)).astype(np.float16)
        usable = np.isfinite(scale) & (scale > 0)
        q = np.rint(np.clip(x / scale[..., None].astype(np.float32), -127, 127))
    out["scale"] = np.where(np.isfinite(scale), scale, np.float16("nan"))
    out["q"][usable] = q[usable]
    return out


def stored(x: np.ndarray, dtype: str) -> np.ndarray:
    """What a cache of that type makes of x, float32 (..., dim), apart from the rounding to integers."""
    if dtype == "q8_0":
        b = blocks(x)
        return (b["scale"][..., None].astype(np.float32) * b["q"]).reshape(x.shape)
    return x


def sequence(
    rng: np.random.Generator, n: int, n_head: int, dtype: str = "f16"
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    k_dim, v_dim = DIMS[dtype]
    q, k = rng.standard_normal((n, n_head, k_dim), np.float32), rng.standard_normal((n, N_KV, k_dim), np.float32)
    return q * 2, k, rng.standard_normal((n, N_KV, v_dim), np.float32)


def new_state(capacity: int, dtype: str) -> KVState:
    """What was never written must never be read, so it is NaN: bytes of 255 are in floats, halves and exponents."""
    state = KVState(1, N_KV, *DIMS[dtype], capacity, dtype.partition("/")[0])
    np.frombuffer(state.memory, np.uint8)[:] = 255
    return state


def run(ops: Any, dtype: str, qkv: Any, cuts: list[int], window: int, bias: np.ndarray | None = None) -> np.ndarray:
    """The whole sequence in chunks of the given lengths, the last one repeated as needed."""
    q, k, v = qkv
    n, state, out = len(q), new_state(len(q), dtype), []
    cuts = list(cuts)
    while state.n_tokens < n:
        a = state.n_tokens
        b = min(a + (cuts.pop(0) if len(cuts) > 1 else cuts[0]), n)
        parts = [x[a:b].copy() for x in (q, k, v)]
        own = None if bias is None else bias[a:b].copy()
        out.append(ops.append_and_attend([state], [b - a], *parts, 0.2, window, own))
    return np.concatenate(out)


def assert_close(got: np.ndarray, want: np.ndarray, dtype: str) -> None:
    if dtype == "f32":
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-6)
        return
    size = np.sqrt(np.square(want).mean())
    assert np.sqrt(np.square(got - want).mean()) <= ROUNDING * size
    assert np.abs(got - want).max() <= 20 * ROUNDING * size


@pytest.mark.parametrize("dtype", list(DIMS))
@pytest.mark.parametrize("n_head", [2, 6])
@pytest.mark.parametrize("window", [0, 1, 5, 64, 100])
def test_attention_is_softmax_and_does_not_depend_on_the_cuts(
    dtype: str, n_head: int, window: int, levels: tuple[str, ...], kernels: Any, rng: np.random.Generator
) -> None:
    qkv = sequence(rng, 200, n_head, dtype)
    q, k, v = qkv
    want = oracle(q, stored(k, dtype), stored(v, dtype), 0.2, window)
    found = []
    for level in levels:
        ops = kernels(level)
        whole = run(ops, dtype, qkv, [200], window)
        assert_close(whole, want, dtype)
        for cuts in ([1], [64, 64], [63, 2, 70], [7]):
            assert run(ops, dtype, qkv, cuts, window).tobytes() == whole.tobytes()
        found.append(whole)
    assert all(y.tobytes() == found[0].tobytes() for y in found)


@pytest.mark.parametrize("dtype", list(DIMS))
@pytest.mark.parametrize("n_head", [2, 6])
@pytest.mark.parametrize(("extent", "window"), [(1, 0), (24, 0), (100, 100), (70, 30), (500, 0)])
def test_a_bias_by_distance(
    dtype: str, n_head: int, extent: int, window: int, levels: tuple[str, ...], kernels: Any, rng: np.random.Generator
) -> None:
    """Shorter than what rows see, as long as their window, and reaching before the first position."""
    q, k, v = sequence(rng, 300, n_head, dtype)
    bias = 2 * rng.standard_normal((300, n_head, extent), np.float32)
    want, found = oracle(q, stored(k, dtype), stored(v, dtype), 0.2, window, bias), []
    for level in levels:
        ops = kernels(level)
        found += [run(ops, dtype, (q, k, v), cuts, window, bias) for cuts in ([300], [1], [63, 2, 70], [200])]
    assert_close(found[0], want, dtype)
    assert all(y.tobytes() == found[0].tobytes() for y in found)


@pytest.mark.parametrize("dtype", list(DIMS))
def test_sequences_of_a_step_do_not_see_each_other(
    dtype: str, ops: Any, rng: np.random.Generator, thread_counts: Any
) -> None:
    lengths, chunks = [3, 130, 64, 0], [1, 70, 1, 9]
    parts = [sequence(rng, past + n, 4, dtype) for past, n in zip(lengths, chunks, strict=True)]

    def warm() -> list[KVState]:
        states = []
        for past, (q, k, v) in zip(lengths, parts, strict=True):
            state = new_state(past + 80, dtype)
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


@pytest.mark.parametrize("dtype", ["f32", "f16/wide", "q8_0"])
def test_threads_and_the_size_of_tasks_do_not_show(
    dtype: str, ops: Any, rng: np.random.Generator, thread_counts: Any
) -> None:
    qkv, found = sequence(rng, 430, 6, dtype), []
    for _ in thread_counts():
        found += [run(ops, dtype, qkv, [430], 0).tobytes(), run(ops, dtype, qkv, [230, 1, 199], 0).tobytes()]
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_large_scores_neither_overflow_nor_vanish(dtype: str, ops: Any) -> None:
    q, k = np.full((3, N_KV, K_DIM), 100.0, np.float32), np.zeros((3, N_KV, K_DIM), np.float32)
    k[1], k[2] = 100.0, -100.0
    v = np.arange(3, dtype=np.float32)[:, None, None] * np.ones((3, N_KV, V_DIM), np.float32)
    y = ops.append_and_attend([new_state(3, dtype)], [3], q, k, v, 1.0)
    np.testing.assert_allclose(y[:, 0, 0], [0.0, 1.0, 1.0], rtol=3e-7)


def test_the_longest_keys_do_not_overflow(levels: tuple[str, ...], kernels: Any) -> None:
    """All elements as large as they can be for their unit, of equal sign, in 1024 dimensions: scores of 1 and -1."""
    n = 20
    q = np.full((n, 1, 1024), 1.992, np.float32)
    k, v = q.astype(np.float16).astype(np.float32), np.ones((n, 1, 32), np.float32)
    k[1::2] *= -1
    v[1::2] *= -1
    scale = 1 / float(np.float32(1.992) * k[0, 0, 0] * 1024)
    for level in levels:
        y = kernels(level).append_and_attend([KVState(1, 1, 1024, 32, n, "f16")], [n], q, k, v, scale)
        assert y[-1, 0, 0] == pytest.approx(np.tanh(1), rel=1e-3)


@pytest.mark.parametrize("n_head", [2, 32])
@pytest.mark.parametrize("dtype", ["f16", "f16/wide", "q8_0"])
def test_values_of_very_different_size(
    dtype: str, n_head: int, levels: tuple[str, ...], kernels: Any, rng: np.random.Generator
) -> None:
    """Zeros that most of the weight is on, and values from the smallest halves to large ones, in single positions."""
    q, k, v = sequence(rng, 100, n_head, dtype)
    v *= 10.0 ** rng.uniform(-5, 3, (100, 1, 1)).astype(np.float32)
    v[0], v[70], k[3] = 0.0, 0.0, 0.0
    k[0] *= 4
    want, found = oracle(q, stored(k, dtype), stored(v, dtype), 0.2, 0), []
    for level in levels:
        found.append(run(kernels(level), dtype, (q, k, v), [100], 0))
        assert np.abs(found[-1] - want).max() <= 1e-3 * np.abs(v).max()
        first = np.abs(v[:2]).max()
        assert np.abs(found[-1][1] - want[1]).max() <= 1e-3 * first
    assert all(y.tobytes() == found[0].tobytes() for y in found)


@pytest.mark.parametrize("dtype", ["f16", "f16/wide", "q8_0"])
@pytest.mark.parametrize("what", ["query", "key", "value"])
def test_what_is_not_finite_shows_where_it_is_seen_and_only_there(
    dtype: str, what: str, levels: tuple[str, ...], kernels: Any, rng: np.random.Generator
) -> None:
    q, k, v = sequence(rng, 130, 4, dtype)
    wrong = [a.copy() for a in (q, k, v)]
    wrong[["query", "key", "value"].index(what)][70, 1, 5] = np.inf if what == "value" else np.nan
    for level in levels:
        good, bad = (run(kernels(level), dtype, qkv, [130], 40) for qkv in ((q, k, v), wrong))
        seen = np.zeros(good.shape[:2], bool)
        if what == "query":
            seen[70, 1] = True
        else:
            seen[70:110, 2:] = True  # kv head 1, and a window of 40
        assert np.isnan(bad[seen]).all()
        assert bad[~seen].tobytes() == good[~seen].tobytes()


@pytest.mark.parametrize("dtype", ["f16/wide", "q8_0"])
def test_threads_that_share_a_long_sequence_do_not_show(
    dtype: str, ops: Any, rng: np.random.Generator, thread_counts: Any
) -> None:
    """More threads than kv heads: each takes a part of the positions."""
    n = 2500
    q, k, v = sequence(rng, n, 4, dtype)
    heads = [a[: n - 3].copy() for a in (k, v)]
    tails = [np.concatenate([a[n - 3 :], a[:2]]) for a in (q, k, v)]
    for window in (0, 1200):
        found = []
        for _ in thread_counts():
            states = [new_state(n, dtype), new_state(n, dtype)]
            ops.api.kv_append(ops.c, 0, ops.spans(states[:1], [n - 3]), 1, *(ops.floats(a) for a in heads))
            states[0].n_tokens = n - 3
            found.append(ops.append_and_attend(states, [3, 2], *tails, 0.04, window))
        assert all(y.tobytes() == found[0].tobytes() for y in found)
        first = n - window if window else 0
        keys, values = (np.repeat(stored(a, dtype)[first:].astype(np.float64), 2, 1) for a in (k, v))
        p = np.exp(np.einsum("hd,jhd->jh", q[-1], keys) * 0.04)
        assert_close(found[0][2], np.einsum("jh,jhe->he", p / p.sum(0), values), dtype)


def integers(x: np.ndarray, keys: bool) -> np.ndarray:
    """Vectors float32 (..., dim) as bytes of rows of an f16 cache, spelled out: exponent, high bytes, low bytes."""
    bits, base, least, zero = (13, 128, 16, 127) if keys else (14, 256, 102, 101)
    e = (np.abs(x).max(-1).view(np.uint32) + 0x10400) >> 23
    usable = (e >= least) & (e < 160)
    with np.errstate(invalid="ignore", over="ignore"):
        unit = np.ldexp(1.0, e.astype(np.int32) - 127 - bits)[..., None]
        n = np.where(usable[..., None], np.rint(np.where(usable[..., None], x, 0) / unit), 0).astype(np.int32)
    high = (n + base // 2) // base
    assert np.abs(high).max() <= 127
    planes = [np.where(usable, e, np.where(e >= 160, 255, zero))[..., None], high, n - base * high]
    return np.concatenate([part.astype(np.uint8) for part in planes], -1)


@pytest.mark.parametrize("step", [1, 30, 64, 999])
def test_the_cache_stores_integers_of_sixteen_bits(
    step: int, levels: tuple[str, ...], kernels: Any, rng: np.random.Generator
) -> None:
    """All magnitudes, ties, mantissas at the limit, zeros, and what is too small, too large or not a number."""
    n = 300
    k, v = (rng.standard_normal((n, 2, dim), np.float32) for dim in (K_DIM, 100))
    for x in (k, v):
        np.multiply(x, 10.0 ** rng.uniform(-20, 20, (n, 1, 1)).astype(np.float32), out=x)
        x[:40] = rng.integers(-8000, 8000, x[:40].shape) / np.float32(2)
        x[40:60] = rng.uniform(1.98, 2.0, x[40:60].shape)
        x[60], x[61], x[62, 0, 1], x[63, 1, 17], x[64, 0, 2] = 0.0, -0.0, np.nan, np.inf, -np.inf
        x[70:160] = np.ldexp(rng.uniform(1, 2, x[70:160].shape), np.arange(-45, 45)[:, None, None])
        x[160], x[161], x[162] = 1e-37, 3e38, 2.0**33
    for level in levels:
        ops, state = kernels(level), KVState(1, 2, K_DIM, 100, n, "f16")
        np.frombuffer(state.memory, np.uint8)[:] = 7
        while state.n_tokens < n:
            a, b = state.n_tokens, min(state.n_tokens + step, n)
            parts = [x[a:b].copy() for x in (k, v)]
            ops.api.kv_append(ops.c, 0, ops.spans([state], [b - a]), 1, *(ops.floats(part) for part in parts))
            state.n_tokens = b
        want = integers(k, True).tobytes() + integers(v, False).tobytes()
        assert state.read_rows(0, n).tobytes() == want


@pytest.mark.parametrize(("past", "n"), [(0, 64), (0, 16), (5, 59), (5, 40), (30, 100)])
@pytest.mark.parametrize("dims", [(6, 20), (128, 64)])
def test_many_rows_at_once_leave_the_memory_that_one_at_a_time_leaves(
    dims: tuple[int, int], past: int, n: int, levels: tuple[str, ...], kernels: Any, rng: np.random.Generator
) -> None:
    """Whole tiles and parts of them; what lies before and behind stays. With and without what is not finite or zero."""
    k, v = (rng.standard_normal((n, 2, dim), np.float32) for dim in dims)
    k[3, 0], k[9, 1, 2], v[5, 0, 3], v[8, 1] = 0.0, np.nan, np.inf, 1e-20
    found = []
    for level in levels:
        for step in (n, 1):
            ops, state = kernels(level), KVState(1, 2, *dims, 192, "f16")
            memory = np.frombuffer(state.memory, np.uint8)
            memory[:] = np.arange(memory.size) % 251
            for a in range(0, n, step):
                state.n_tokens = past + a
                parts = [x[a : a + step].copy() for x in (k, v)]
                ops.api.kv_append(ops.c, 0, ops.spans([state], [step]), 1, *(ops.floats(part) for part in parts))
            found.append(bytes(state.memory))
    assert all(left == found[0] for left in found)


def test_the_cache_stores_blocks_of_eight_bits(levels: tuple[str, ...], kernels: Any, rng: np.random.Generator) -> None:
    """All magnitudes, ties, zeros, scales that are too small or too large for a half, and what is not a number."""
    x = rng.standard_normal((3000, 1, 64), np.float32) * 10.0 ** rng.uniform(-12, 9, (3000, 1, 1)).astype(np.float32)
    x[:500] = rng.integers(-254, 255, (500, 1, 64)) / np.float32(2)
    x[:500, :, ::32] = 127.0
    x[500], x[501], x[502, 0, 1], x[503, 0, 40], x[504, 0, 2] = 0.0, -0.0, np.nan, np.inf, -np.inf
    x[505:600] = x[505:506] / np.abs(x[505]).max() * np.linspace(1e-6, 2e-5, 95, dtype=np.float32)[:, None, None]
    want = blocks(x)
    assert {0, 127} <= set(np.abs(want["q"]).max(-1).ravel().tolist()) and np.isnan(want["scale"]).any()
    for level in levels:
        ops, state = kernels(level), KVState(1, 1, 64, 64, len(x), "q8_0")
        spans = ops.spans([state], [len(x)])
        ops.api.kv_append(ops.c, 0, spans, 1, ops.floats(x), ops.floats(x))
        state.n_tokens = len(x)
        assert state.read_rows(0, len(x)).tobytes() == 2 * want.tobytes()
