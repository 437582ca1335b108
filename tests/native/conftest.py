"""Fixtures of the kernel tests: the public table of every level that this machine has, called through numpy arrays.

`levels` are the names; `kernels(level)` gives a `Kernels` whose methods are the ops of lmk.h. The table itself is the
one that plugins get; only the context differs. Test modules import nothing of each other, so what they share is here.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Sequence
from typing import Any

import cffi
import numpy as np
import pytest
from numpy.typing import NDArray

import lmhub
from lmhub import native
from lmhub.errors import KernelError

Floats = NDArray[np.float32]
ARM64 = platform.machine() in ("aarch64", "arm64")
LEVELS = ("ref", "neon", "i8mm") if ARM64 else ("ref", "avx2", "avx512", "amx")


def header() -> str:
    with open(lmhub.get_include() + "/lmk.h", encoding="utf-8") as file:
        return file.read()


def _table_ffi() -> cffi.FFI:
    text = header()
    ffi = cffi.FFI()
    marked = re.search(r"/\* cdef: begin \*/(.*?)/\* cdef: end \*/", text, re.DOTALL)
    struct = re.search(r"typedef void \(\*lmk_range_fn\).*?\} lmk_api;", text, re.DOTALL)
    assert marked and struct
    ffi.cdef(marked[1] + struct[0])
    return ffi


FFI = _table_ffi()
API = FFI.cast("lmk_api *", native.table())


class Kernels:
    """The ops at one level. Arrays in, new arrays out; keeps what it points C at alive for the length of a call."""

    def __init__(self, level: str | None):
        self.level = level
        self.context = native.Context(level)
        self.c = FFI.cast("lmk_ctx *", self.context.address)
        self.api = API
        self.ffi = FFI

    def floats(self, array: Floats) -> Any:
        assert array.dtype == np.float32 and array.flags.c_contiguous
        return FFI.cast("float *", array.ctypes.data)

    def weight(
        self, kind: int, data: NDArray[np.uint8], rows: int, cols: int, n_expert: int = 1, pack: bool = True
    ) -> Any:
        """An `lmk_weight *` with everything it points to; packed where the type has a packed layout."""
        w = native.ffi.new("lmk_weight *", {"type": kind, "n_expert": n_expert, "rows": rows, "cols": cols})
        w.data = native.ffi.cast("void *", data.ctypes.data)
        nbytes = native.lib.lmk_packed_bytes(kind, rows, cols, n_expert)
        memory = native.pages(nbytes, huge=True)
        if nbytes and pack:
            target = native.ffi.from_buffer(memory)
            native.check(native.lib.lmk_pack(w, target))
            w.packed = target
        cast = FFI.cast("lmk_weight *", int(native.ffi.cast("uintptr_t", w)))
        KEEP[cast] = (w, data, memory)
        return cast

    def linear(self, w: Any, x: Floats) -> Floats:
        y = np.full((len(x), w.rows), np.nan, np.float32)
        native.check(API.linear(self.c, self.floats(y), w, self.floats(x), len(x)))
        return y

    def linear_many(self, ws: Sequence[Any], x: Floats) -> list[Floats]:
        ys = [np.full((len(x), w.rows), np.nan, np.float32) for w in ws]
        pointers = FFI.new("float *[]", [self.floats(y) for y in ys])
        native.check(
            API.linear_many(self.c, pointers, FFI.new("lmk_weight *[]", list(ws)), len(ws), self.floats(x), len(x))
        )
        return ys

    def linear_add(self, y: Floats, w: Any, bias: Floats | None, x: Floats) -> Floats:
        y = y.copy()
        to, b = self.floats(y), FFI.NULL if bias is None else self.floats(bias)
        native.check(API.linear_add(self.c, to, w, b, self.floats(x), len(x)))
        return y

    def linear_gated(self, gate: Any, up: Any, activation: int, x: Floats) -> Floats:
        y = np.full((len(x), gate.rows), np.nan, np.float32)
        native.check(API.linear_gated(self.c, self.floats(y), gate, up, activation, self.floats(x), len(x)))
        return y

    def get_rows(self, w: Any, ids: Sequence[int]) -> Floats:
        y = np.full((len(ids), w.cols), np.nan, np.float32)
        native.check(API.get_rows(self.c, self.floats(y), w, FFI.new("int32_t[]", ids), len(ids)))
        return y

    def route(self, logits: Floats, k: int) -> tuple[Any, NDArray[np.int32], Floats]:
        """(the lmk_route, expert (n, k), weight (n, k))"""
        n, n_expert = logits.shape
        expert, weight = np.full((n, k), -1, np.int32), np.full((n, k), np.nan, np.float32)
        r = FFI.new("lmk_route *", {"n": n, "k": k})
        r.expert, r.weight = FFI.cast("int32_t *", expert.ctypes.data), self.floats(weight)
        KEEP[r] = (expert, weight)
        native.check(API.route(self.c, r, self.floats(logits), n_expert))
        return r, expert, weight

    def linear_experts(self, w: Any, x: Floats, r: Any, per_slot: bool) -> Floats:
        y = np.full((r.n * r.k, w.rows), np.nan, np.float32)
        native.check(API.linear_experts(self.c, self.floats(y), w, self.floats(x), int(per_slot), r))
        return y

    def linear_experts_many(self, ws: Sequence[Any], x: Floats, r: Any, per_slot: bool) -> list[Floats]:
        ys = [np.full((r.n * r.k, w.rows), np.nan, np.float32) for w in ws]
        to, weights = FFI.new("float *[]", [self.floats(y) for y in ys]), FFI.new("lmk_weight *[]", list(ws))
        native.check(API.linear_experts_many(self.c, to, weights, len(ws), self.floats(x), int(per_slot), r))
        return ys

    def linear_experts_gated(self, gate: Any, up: Any, activation: int, x: Floats, r: Any, per_slot: bool) -> Floats:
        y = np.full((r.n * r.k, gate.rows), np.nan, np.float32)
        to = self.floats(y)
        native.check(API.linear_experts_gated(self.c, to, gate, up, activation, self.floats(x), int(per_slot), r))
        return y

    def moe_sum(self, y: Floats, slots: Floats, r: Any) -> Floats:
        y = y.copy()
        API.moe_sum(self.c, self.floats(y), self.floats(slots), r, y.shape[1])
        return y

    def rms_norm(self, x: Floats, w: Floats, eps: float) -> Floats:
        y = np.empty_like(x)
        API.rms_norm(self.c, self.floats(y), self.floats(x), self.floats(w), len(x), x.shape[1], eps)
        return y

    def silu_mul(self, gate_up: Floats) -> Floats:
        """(n, 2 dim) -> (n, dim): silu of the first half times the second"""
        n, dim = len(gate_up), gate_up.shape[1] // 2
        y, base = np.empty((n, dim), np.float32), self.floats(gate_up)
        API.silu_mul(self.c, self.floats(y), base, base + dim, n, dim, 2 * dim)
        return y

    def gelu_mul(self, gate_up: Floats) -> Floats:
        """(n, 2 dim) -> (n, dim): gelu of the first half times the second"""
        n, dim = len(gate_up), gate_up.shape[1] // 2
        y, base = np.empty((n, dim), np.float32), self.floats(gate_up)
        API.gelu_mul(self.c, self.floats(y), base, base + dim, n, dim, 2 * dim)
        return y

    def sigmoid_mul(self, x: Floats, gate: Floats) -> Floats:
        """x (n, dim) times the logistic function of the first dim columns of gate (n, ...)"""
        y = x.copy()
        API.sigmoid_mul(self.c, self.floats(y), self.floats(gate), *x.shape, gate.shape[1])
        return y

    def softcap(self, x: Floats, cap: float) -> Floats:
        y = x.copy()
        API.softcap(self.c, self.floats(y), y.size, cap)
        return y

    def rope(self, x: Floats, cs: Floats, n_head: int, pairing: int) -> Floats:
        """x (n, n_head * head_dim), cs (n, n_pairs, 2)"""
        y = x.copy()
        head_dim = x.shape[1] // n_head
        API.rope(self.c, self.floats(y), self.floats(cs), len(x), n_head, head_dim, cs.shape[1], pairing)
        return y

    def norm_rope(self, x: Floats, w: Floats, eps: float, cs: Floats, n_head: int, pairing: int) -> Floats:
        y = x.copy()
        to, angles, norm = self.floats(y), self.floats(cs), self.floats(w)
        API.norm_rope(self.c, to, norm, eps, angles, len(x), n_head, len(w), cs.shape[1], pairing)
        return y

    def spans(self, states: Sequence[Any], counts: Sequence[int]) -> Any:
        """`lmk_span[]` that appends counts[i] rows to states[i], whose n_tokens is where they go."""
        spans, row = FFI.new("lmk_span[]", len(states)), 0
        for span, state, n in zip(spans, states, counts, strict=True):
            span.kv = FFI.cast("lmk_kv *", state.address)
            span.n_past, span.row, span.n = state.n_tokens, row, n
            row += n
        return spans

    def append_and_attend(
        self,
        states: Sequence[Any],
        counts: Sequence[int],
        q: Floats,
        k: Floats,
        v: Floats,
        scale: float,
        window: int = 0,
        bias: Floats | None = None,
    ) -> Floats:
        """q (n, n_head, k_dim), k (n, n_kv, k_dim), v (n, n_kv, v_dim) -> (n, n_head, v_dim); advances the states.

        bias (n, n_head, extent)
        """
        spans = self.spans(states, counts)
        y = np.full((len(q), q.shape[1], v.shape[2]), np.nan, np.float32)
        API.kv_append(self.c, 0, spans, len(counts), self.floats(k), self.floats(v))
        attention = (self.c, self.floats(y), self.floats(q), 0, spans, len(counts), q.shape[1], scale, window)
        if bias is None:
            API.attend(*attention)
        else:
            API.attend_biased(*attention, self.floats(bias), bias.shape[2])
        for state, n in zip(states, counts, strict=True):
            state.n_tokens += n
        return y

    def short_conv(
        self, states: Sequence[Any], counts: Sequence[int], x: Floats, w: Floats, silu: int, offset: int
    ) -> Floats:
        """w (taps, dim), x (n, at least dim) -> (n, dim); writes the states' next memories."""
        y = np.full((len(x), w.shape[1]), np.nan, np.float32)
        spans = self.spans(states, counts)
        API.short_conv(
            self.c,
            self.floats(y),
            self.floats(x),
            x.shape[1],
            self.floats(w),
            *w.shape,
            silu,
            offset,
            spans,
            len(counts),
        )
        return y

    def delta_rule(
        self, states: Sequence[Any], counts: Sequence[int], rows: dict[str, Floats], offset: int, grouped: bool = False
    ) -> Floats:
        """q, k (n, n_k, k_dim), v (n, n_v, v_dim), decay, beta (n, n_v) -> (n, n_v, v_dim); writes the next memories.

        The outputs are halved.
        """
        (_, n_k, k_dim), (_, n_v, v_dim) = rows["q"].shape, rows["v"].shape
        y = np.full(rows["v"].shape, np.nan, np.float32)
        sizes = {"n_k": n_k, "n_v": n_v, "k_dim": k_dim, "v_dim": v_dim, "ld_qk": n_k * k_dim, "ld_v": n_v * v_dim}
        d = FFI.new("lmk_delta *", {**sizes, "grouped": grouped, "scale": 0.5})
        for name, values in rows.items():
            setattr(d, name, self.floats(values))
        API.delta_rule(self.c, self.floats(y), d, offset, self.spans(states, counts), len(counts))
        return y


KEEP: dict[Any, Any] = {}
"""Memory that C structs of the current test point to."""


def available() -> tuple[str, ...]:
    def present(level: str) -> bool:
        try:
            native.Context(level)
        except KernelError:
            return False
        return True

    return tuple(level for level in LEVELS if present(level))


@pytest.fixture(scope="session")
def levels() -> tuple[str, ...]:
    """The levels of this machine, the reference first."""
    return available()


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest, levels: tuple[str, ...]) -> str:
    """Each level in turn; skipped where the machine lacks it."""
    if request.param not in levels:
        pytest.skip(f"this machine has no {request.param}")
    return str(request.param)


@pytest.fixture
def kernels() -> Any:
    """`kernels(level)`: the ops of that level; None for the one in use."""
    yield Kernels
    KEEP.clear()


@pytest.fixture
def ops(level: str, kernels: Callable[[str], Kernels]) -> Kernels:
    """The ops of each level in turn."""
    return kernels(level)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture
def thread_counts() -> Any:
    """Thread counts to run under; the number is restored afterwards."""
    before = native.threads()

    def each() -> Any:
        for n in (1, 2, 5):
            native.set_threads(n)
            yield n

    yield each
    native.set_threads(before)
