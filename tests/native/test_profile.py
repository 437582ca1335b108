"""Timing ops, and the probes of the arithmetic units. How fast anything is, is not asserted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lmhub
from lmhub import native
from lmhub.testing.tiny import tiny_gguf

OPS = ("get_rows", "attend")  # the first and the last of 1.0; in between, and behind, everything is an op


def ops(ffi: Any) -> list[str]:
    names = [name for name, _ in ffi.typeof("lmk_api").fields]
    return names[names.index(OPS[0]) :]


def pointers(kernels: Any) -> dict[str, int]:
    return {name: int(kernels.ffi.cast("uintptr_t", getattr(kernels.api, name))) for name in ops(kernels.ffi)}


def test_every_op_is_timed_while_profiling_and_none_after(kernels: Any) -> None:
    table = kernels(None)
    before = pointers(table)
    with native.profile():
        during = pointers(table)
    assert [name for name in before if before[name] == during[name]] == [], "give each new op a wrapper in profile.c"
    assert pointers(table) == before


def test_what_an_op_is_said_to_have_done(kernels: Any) -> None:
    table = kernels(None)
    w = table.weight(0, np.zeros(4 * 48 * 64, np.uint8), 48, 64)
    x = np.ones((3, 64), np.float32)
    with native.profile() as times:
        assert times == []
        table.linear(w, x)
        table.linear(w, x[:1])
    [one] = times
    assert (one.op, one.type, one.n_expert, one.rows, one.cols) == ("linear", 0, 1, 48, 64)
    assert (one.calls, one.n) == (2, 4)
    assert one.bytes == 2 * 4 * 48 * 64
    assert one.operations == 2 * 4 * 48 * 64
    assert one.seconds > 0


def test_weights_that_share_their_rows_share_the_time(kernels: Any) -> None:
    table = kernels(None)
    ws = [table.weight(0, np.zeros(4 * rows * 32, np.uint8), rows, 32) for rows in (48, 16)]
    with native.profile() as times:
        table.linear_many(ws, np.ones((2, 32), np.float32))
    assert [(one.op, one.rows, one.n, one.operations) for one in times] == [
        ("linear_many", 48, 2, 2 * 48 * 32 * 2),
        ("linear_many", 16, 2, 2 * 16 * 32 * 2),
    ]
    assert times[0].seconds == pytest.approx(3 * times[1].seconds)


def test_each_profile_starts_from_nothing(kernels: Any) -> None:
    table = kernels(None)
    w = table.weight(0, np.zeros(4 * 16 * 32, np.uint8), 16, 32)
    x = np.ones((1, 32), np.float32)
    with native.profile():
        table.linear(w, x)
    table.linear(w, x)
    with native.profile() as times:
        pass
    assert times == []


def test_results_are_the_same_bits(tmp_path: Path) -> None:
    path = tiny_gguf("qwen3moe", tmp_path / "m.gguf", qk_norm=True, n_expert=4, n_expert_used=2)
    with lmhub.open(path) as model:
        plain = model.logits(list(range(40))).copy()
        with native.profile() as times:
            timed = model.logits(list(range(40)))
        assert plain.tobytes() == timed.tobytes()
    by_op: dict[str, list[native.OpTime]] = {}
    for one in times:
        by_op.setdefault(one.op, []).append(one)
    [attention] = by_op["attend"]
    assert attention.calls == 2  # layers
    assert attention.bytes == 2 * 40 * 2 * 2 * (1 + 32 * 2)
    assert attention.operations == 2 * 2 * 6 * (32 + 32) * (40 * 41 // 2)
    experts = [*by_op["linear_experts_gated"], *by_op["linear_experts"]]
    assert len(experts) == 2  # gate and up, which have one shape; down
    assert all(one.n == one.calls * 40 * 2 and one.bytes > 0 for one in experts)


def test_more_shapes_than_are_told_apart_are_added_up(kernels: Any) -> None:
    table = kernels(None)
    x = np.ones((1, 32), np.float32)
    weights = [table.weight(0, np.zeros(4 * rows * 32, np.uint8), rows, 32) for rows in range(1, 141)]
    with native.profile() as times:
        for w in weights:
            table.linear(w, x)
    assert len(times) == 128
    assert times[-1].op == "others"
    assert sum(one.calls for one in times) == 140


def peaks_at(level: str) -> set[tuple[str, str]]:
    code = (
        "from lmhub import native; print(*(f'{u}={p.instruction}' for u, p in native.peaks(1).items() if p.rate > 0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "LMK_ISA": level}, capture_output=True, text=True, check=True
    )
    return {(one.partition("=")[0], one.partition("=")[2]) for one in done.stdout.split()}


def test_a_level_has_the_units_of_its_own_level(levels: tuple[str, ...]) -> None:
    expected = {
        "ref": {("f32", "fma"), ("int8", "imul")},
        "avx2": {("f32", "vfmadd"), ("int8", "vpmaddubsw")},
        "avx512": {("f32", "vfmadd"), ("int8", "vpdpbusd")},
        "amx": {("f32", "vfmadd"), ("int8", "tdpbusd"), ("bf16", "tdpbf16ps")},
        "neon": {("f32", "fmla"), ("int8", "sdot")},
        "i8mm": {("f32", "fmla"), ("int8", "smmla")},
    }
    for level in levels:
        assert peaks_at(level) == expected[level]


def test_a_probe_that_does_not_exist() -> None:
    assert native.lib.lmk_probe_at(1000) == native.ffi.NULL
    with pytest.raises(native.KernelError, match="no probe 1000"):
        native.check(int(native.lib.lmk_probe_run(1000, 1)))
