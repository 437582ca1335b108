"""Norms, activations, sums, rotations and exp against float64, and bit for bit across levels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lmhub import native

LENGTHS = (1, 15, 16, 17, 64, 100, 1024)


def same_bits(found: list[np.ndarray]) -> bool:
    return all(y.tobytes() == found[0].tobytes() for y in found)


@pytest.mark.parametrize("dim", LENGTHS)
def test_rms_norm(dim: int, levels: tuple[str, ...], kernels: Any, rng: np.random.Generator) -> None:
    x, w = rng.standard_normal((5, dim), np.float32) * 3, rng.uniform(0.5, 1.5, dim).astype(np.float32)
    found = [kernels(level).rms_norm(x, w, 1e-6) for level in levels]
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-6) * w
    np.testing.assert_allclose(found[0], want, rtol=1e-5)
    assert same_bits(found)


@pytest.mark.parametrize("dim", LENGTHS)
def test_silu_mul(dim: int, levels: tuple[str, ...], kernels: Any, rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 2 * dim), np.float32) * 8
    found = [kernels(level).silu_mul(x) for level in levels]
    gate, up = x[:, :dim].astype(np.float64), x[:, dim:].astype(np.float64)
    np.testing.assert_allclose(found[0], gate / (1 + np.exp(-gate)) * up, rtol=1e-6, atol=1e-30)
    assert same_bits(found)


@pytest.mark.parametrize("dim", LENGTHS)
def test_sigmoid_mul(dim: int, levels: tuple[str, ...], kernels: Any, rng: np.random.Generator) -> None:
    x, gate = rng.standard_normal((3, dim), np.float32), rng.standard_normal((3, 2 * dim), np.float32) * 8
    gate[0, 0], gate[1, 0] = 200.0, -200.0
    found = [kernels(level).sigmoid_mul(x, gate) for level in levels]
    want = x / (1 + np.exp(-gate[:, :dim].astype(np.float64)))
    np.testing.assert_allclose(found[0], want, rtol=1e-6, atol=1e-30)
    assert same_bits(found)


def test_the_softmax_of_routing_shows_exp_within_two_ulp(levels: tuple[str, ...], kernels: Any) -> None:
    """Routing among (x, 0) gives the weights exp(x) / (exp(x) + 1) and 1 / (exp(x) + 1); their ratio is exp(x)."""
    x = np.concatenate([np.linspace(-80, 0, 4001), [-1e-8, -1e-30, -1e-42]]).astype(np.float32)
    logits = np.stack([x, np.zeros_like(x)], 1)
    found = [kernels(level).route(logits, 2)[2] for level in levels]
    ratio = found[0][:, 0].astype(np.float64) / found[0][:, 1]
    # 2 ulp, and the roundings of the division
    np.testing.assert_allclose(ratio, np.exp(x.astype(np.float64)), rtol=5e-7)
    assert same_bits(found)


def test_silu_holds_at_the_ends_of_the_range(ops: Any) -> None:
    gate = np.array([[np.inf, 1e30, 200.0, 88.8, -88.8, -104.0, -200.0, -1e30, 0.0, -0.0]], np.float32)
    y = ops.silu_mul(np.concatenate([gate, np.ones_like(gate)], 1))
    assert np.array_equal(y[0, :4], gate[0, :4])
    assert (np.abs(y[0, 4:]) < 1e-30).all()
    assert np.isnan(ops.silu_mul(np.array([[np.nan, 1.0]], np.float32))).all()


@pytest.mark.parametrize("dim", LENGTHS)
def test_gelu_mul(dim: int, levels: tuple[str, ...], kernels: Any, rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 2 * dim), np.float32) * 4
    found = [kernels(level).gelu_mul(x) for level in levels]
    gate, up = x[:, :dim].astype(np.float64), x[:, dim:].astype(np.float64)
    # As the logistic function of twice tanh's argument, which keeps its digits where tanh is close to -1.
    want = gate / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up
    np.testing.assert_allclose(found[0], want, rtol=2e-5, atol=1e-30)  # of exp: the argument's rounding times itself
    assert np.abs(found[0] - want).max() <= 1e-6 * np.abs(want).max()
    assert same_bits(found)


def test_gelu_holds_at_the_ends_of_the_range(ops: Any) -> None:
    gate = np.array([[np.inf, 1e30, 200.0, 15.0, -15.0, -104.0, -1e30, 0.0, -0.0]], np.float32)
    y = ops.gelu_mul(np.concatenate([gate, np.ones_like(gate)], 1))
    assert np.array_equal(y[0, :4], gate[0, :4])
    assert (np.abs(y[0, 4:]) < 1e-30).all()
    assert np.isnan(ops.gelu_mul(np.array([[np.nan, 1.0]], np.float32))).all()


@pytest.mark.parametrize("n", LENGTHS)
def test_softcap(n: int, levels: tuple[str, ...], kernels: Any, rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, n), np.float32) * 40
    found = [kernels(level).softcap(x, 30.0) for level in levels]
    np.testing.assert_allclose(found[0], 30 * np.tanh(x.astype(np.float64) / 30), atol=30 * 3e-7, rtol=0)
    assert same_bits(found)


def test_softcap_holds_at_the_ends_and_over_threads(ops: Any, rng: np.random.Generator, thread_counts: Any) -> None:
    ends = np.array([np.inf, 1e30, -1e30, -np.inf, 0.0, np.nan], np.float32)
    np.testing.assert_array_equal(ops.softcap(ends, 30.0), np.array([30, 30, -30, -30, 0, np.nan], np.float32))
    x = rng.standard_normal(50_001, np.float32) * 40
    once = np.concatenate([ops.softcap(x[i : i + 1000], 15.0) for i in range(0, len(x), 1000)])
    for _ in thread_counts():
        assert ops.softcap(x, 15.0).tobytes() == once.tobytes()


def test_add_and_add_bias(ops: Any, rng: np.random.Generator, thread_counts: Any) -> None:
    x, y = rng.standard_normal((300, 1000), np.float32), rng.standard_normal((300, 1000), np.float32)
    bias = rng.standard_normal(1000, np.float32)
    for _ in thread_counts():
        total = y.copy()
        ops.api.add(ops.c, ops.floats(total), ops.floats(x), x.size)
        ops.api.add_bias(ops.c, ops.floats(total), ops.floats(bias), 300, 1000)
        assert np.array_equal(total, y + x + bias)


def angles(ops: Any, spans: list[tuple[int, int]], inv_freq: np.ndarray, magnitude: float) -> np.ndarray:
    """`spans` as (n_past, n) -> (n, n_pairs, 2)"""
    c_spans, row = ops.ffi.new("lmk_span[]", len(spans)), 0
    for span, (n_past, n) in zip(c_spans, spans, strict=True):
        span.n_past, span.row, span.n = n_past, row, n
        row += n
    cs = np.full((row, len(inv_freq), 2), np.nan, np.float32)
    frequencies = ops.ffi.cast("double *", inv_freq.ctypes.data)
    ops.api.rope_angles(ops.c, ops.floats(cs), c_spans, len(spans), frequencies, len(inv_freq), magnitude)
    return cs


def test_angles_come_from_the_absolute_position_in_double(ops: Any) -> None:
    inv_freq = 1e6 ** (-np.arange(32) / 32)
    cs = angles(ops, [(131000, 3), (0, 40)], inv_freq, 1.25)
    positions = np.concatenate([np.arange(131000, 131003), np.arange(40)])[:, None] * inv_freq
    np.testing.assert_allclose(cs, 1.25 * np.stack([np.cos(positions), np.sin(positions)], -1), atol=1e-7)
    assert angles(ops, [(131001, 1)], inv_freq, 1.25).tobytes() == cs[1:2].tobytes()


@pytest.mark.parametrize("pairing", [0, 1], ids=["halves", "pairs"])
@pytest.mark.parametrize(("n_pairs", "head_dim"), [(5, 16), (8, 16), (40, 90), (64, 128), (100, 256)])
def test_norm_and_rope_in_one_pass(
    pairing: int,
    n_pairs: int,
    head_dim: int,
    levels: tuple[str, ...],
    kernels: Any,
    rng: np.random.Generator,
    thread_counts: Any,
) -> None:
    n, n_head = 70, 3
    x, w = rng.standard_normal((n, n_head * head_dim), np.float32), rng.uniform(0.5, 1.5, head_dim).astype(np.float32)
    cs = rng.standard_normal((n, n_pairs, 2), np.float32)
    found = []
    for level in levels:
        ops = kernels(level)
        want = ops.rope(ops.rms_norm(x.reshape(-1, head_dim), w, 1e-6).reshape(x.shape), cs, n_head, pairing)
        for _ in thread_counts():
            found.append(ops.norm_rope(x, w, 1e-6, cs, n_head, pairing))
            assert found[-1].tobytes() == want.tobytes(), level
    assert same_bits(found)


@pytest.mark.parametrize("pairing", [0, 1], ids=["halves", "pairs"])
@pytest.mark.parametrize("n_pairs", [8, 5])
def test_rope(pairing: int, n_pairs: int, levels: tuple[str, ...], kernels: Any, rng: np.random.Generator) -> None:
    n, n_head, head_dim = 6, 3, 16
    x = rng.standard_normal((n, n_head * head_dim), np.float32)
    cs = rng.standard_normal((n, n_pairs, 2), np.float32)
    found = [kernels(level).rope(x, cs, n_head, pairing) for level in levels]
    heads = x.reshape(n, n_head, head_dim).astype(np.float64)
    want = heads.copy()
    c, s = cs[:, None, :, 0], cs[:, None, :, 1]
    a = slice(0, n_pairs) if pairing == 0 else slice(0, 2 * n_pairs, 2)
    b = slice(n_pairs, 2 * n_pairs) if pairing == 0 else slice(1, 2 * n_pairs, 2)
    want[..., a] = heads[..., a] * c - heads[..., b] * s
    want[..., b] = heads[..., a] * s + heads[..., b] * c
    np.testing.assert_allclose(found[0].reshape(want.shape), want, rtol=1e-5, atol=1e-6)
    assert np.array_equal(found[0].reshape(want.shape)[..., 2 * n_pairs :], heads[..., 2 * n_pairs :])
    assert same_bits(found)


def test_rows_do_not_depend_on_neighbours_or_threads(ops: Any, rng: np.random.Generator, thread_counts: Any) -> None:
    x, w = rng.standard_normal((400, 200), np.float32), rng.standard_normal(200, np.float32)
    norm = np.concatenate([ops.rms_norm(x[i : i + 1], w, 1e-5) for i in range(len(x))])
    silu = np.concatenate([ops.silu_mul(x[i : i + 1]) for i in range(len(x))])
    for _ in thread_counts():
        assert ops.rms_norm(x, w, 1e-5).tobytes() == norm.tobytes()
        assert ops.silu_mul(x).tobytes() == silu.tobytes()


def test_bandwidth_is_measured() -> None:
    assert native.memory_bandwidth(1, 1 << 24) > 0.1
