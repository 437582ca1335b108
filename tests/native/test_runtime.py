"""The runtime behind the kernels: step memory, abort, threads, levels, binding, the version of the table."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import lmhub
from lmhub import native
from lmhub.errors import GenerationError, KernelError, PluginError
from lmhub.gguf.types import GGMLType

TABLE_HASH = {
    (1, 0): "dc950845672d7213439ace1456b8f153fe72cd6acc5fc3fcb77d85118e2b115b",
    (1, 1): "b50264b53699d370532cbb6228a543da83f9d357a645ce22b096f21d4c768259",
    (1, 2): "f64b17f110f3fb438fa1f9e05a4b93c0e5c15d02bf1b5fc1afac73de125271fd",
    (1, 3): "b2d314446b02fc5c93643c5dfaf476250134c7baa9ba8c053700338f88fd788d",
    (1, 5): "6943d1302143bc49085c8fdc56f34ead9ecc1094934ee3914a32241000fdf11f",
    (1, 6): "f77397b1c7b615111e722705fb57a0e44a63172c5a878b520867cabdb34ac5d2",
    (1, 7): "e044833e7d4dadb75f28d614556632ea592f0bedb66f9ab7831bdd6a0b138bd3",
}
"""Append a line when the table changes together with its version; never edit one."""

FOREIGN = ("avx2", "x86-64") if platform.machine() in ("aarch64", "arm64") else ("neon", "arm64")
"""A level of another architecture, and the architecture's name."""


def run_python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False
    )


# --- the table --------------------------------------------------------------------------------------------------------


def test_the_table_changes_only_together_with_its_version() -> None:
    with open(lmhub.get_include() + "/lmk.h", encoding="utf-8") as file:
        text = file.read()
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    declared = re.findall(r"typedef struct lmk_\w+ \{.*?\} lmk_\w+;", text, re.DOTALL)
    assert len(declared) == 7
    digest = hashlib.sha256(" ".join(" ".join(declared).split()).encode()).hexdigest()
    assert TABLE_HASH[native.ABI] == digest, (
        "lmk.h changed: raise LMK_ABI_MINOR (appended) or LMK_ABI_MAJOR, note the hash"
    )


def test_every_member_of_the_table_is_filled(kernels: Any) -> None:
    ops = kernels(None)
    names = [name for name, _ in ops.ffi.typeof("lmk_api").fields]
    assert all(getattr(ops.api, name) != ops.ffi.NULL for name in names)
    assert (ops.api.abi_major, ops.api.abi_minor) == native.ABI
    assert ops.api.size == ops.ffi.sizeof("lmk_api")
    assert ops.ffi.string(ops.api.isa).decode() == native.isa()


@pytest.mark.parametrize(("major", "minor", "status"), [(1, 4, -2), (2, 0, -1)])
def test_a_plugin_of_another_table_is_refused_with_both_versions(major: int, minor: int, status: int) -> None:
    plugin = SimpleNamespace(LMK_ABI_MAJOR=major, LMK_ABI_MINOR=minor, lmk_bind=lambda table: status)
    with pytest.raises(PluginError) as error:
        native.bind(plugin, "lmhub-nothing")
    assert str(error.value) == (
        f"lmhub-nothing (not installed) was built for kernel API {major}.{minor}; lmhub {lmhub.__version__} provides "
        f"{native.ABI[0]}.{native.ABI[1]}. Upgrade lmhub or reinstall lmhub-nothing."
    )


def test_statuses_become_errors() -> None:
    native.check(0)
    with pytest.raises(GenerationError, match="aborted"):
        native.check(native.lib.LMK_ABORTED)
    assert native.lib.lmk_set_threads(-1) == -1
    with pytest.raises(KernelError, match="-1 threads were asked for; lmhub runs 1 to 256"):
        native.check(-1)


# --- step memory ------------------------------------------------------------------------------------------------------


def test_memory_is_aligned_disjoint_and_comes_back(kernels: Any) -> None:
    ops = kernels(None)
    address = [int(ops.ffi.cast("uintptr_t", ops.api.alloc(ops.c, n))) for n in (1, 100, 0, 3_000_000, 64)]
    assert all(a % 64 == 0 for a in address)
    assert len(set(address)) == 5
    mark = ops.api.mark(ops.c)
    first = ops.api.alloc(ops.c, 1000)
    ops.api.alloc(ops.c, 5_000_000)
    ops.api.release(ops.c, mark)
    assert ops.api.mark(ops.c) == mark
    assert ops.api.alloc(ops.c, 1000) == first
    ops.context.end_step()
    assert ops.api.mark(ops.c) == 0


def test_a_steady_loop_allocates_nothing(ops: Any, rng: np.random.Generator) -> None:
    def weight(rows: int, cols: int) -> Any:
        return ops.weight(8, rng.integers(0, 60, (rows, GGMLType.Q8_0.row_bytes(cols)), np.uint8), rows, cols)

    up, down = weight(512, 128), weight(128, 512)

    def step(n: int) -> None:
        mark = ops.api.mark(ops.c)
        for _ in range(3):
            inner = ops.api.mark(ops.c)
            x, y = (ops.ffi.cast("float *", ops.api.alloc(ops.c, n * 512 * 4)) for _ in range(2))
            ops.ffi.memmove(x, np.ones(n * 128, np.float32), n * 512)
            native.check(ops.api.linear(ops.c, y, up, x, n))
            native.check(ops.api.linear(ops.c, x, down, y, n))
            ops.api.release(ops.c, inner)
        ops.api.release(ops.c, mark)

    step(400)
    step(400)
    before = ops.context.stats()
    for n in (400, 1, 1, 1, 64, 1):
        step(n)
    assert ops.context.stats() == before
    assert 1 << 20 < before[1] < 1 << 22


def test_an_absurd_allocation_is_an_error(kernels: Any) -> None:
    ops = kernels(None)
    for nbytes in (1 << 62, 2**64 - 1):
        assert ops.api.alloc(ops.c, nbytes) == ops.ffi.NULL
        with pytest.raises(KernelError, match="bytes"):
            native.check(-1)


def test_abort_is_seen_once(kernels: Any) -> None:
    ops = kernels(None)
    assert ops.api.aborted(ops.c) == 0
    ops.context.abort()
    assert ops.api.aborted(ops.c) == 1
    assert ops.api.aborted(ops.c) == 0


# --- threads ----------------------------------------------------------------------------------------------------------


def test_the_number_of_threads_can_be_set(thread_counts: Any) -> None:
    assert [native.threads() for _ in thread_counts()] == [1, 2, 5]
    native.set_threads(0)
    assert 1 <= native.threads() <= len(os.sched_getaffinity(0))
    with pytest.raises(KernelError, match="257 threads were asked for"):
        native.set_threads(257)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads are bound to CPUs on Linux only")
def test_pinned_workers_have_a_cpu_each() -> None:
    code = """
import os
from lmhub import native
cpus = len(os.sched_getaffinity(0))
def free():
    native.memory_bandwidth(cpus, 1 << 23)
    return sum(len(os.sched_getaffinity(int(task))) == cpus for task in os.listdir("/proc/self/task"))
before = free()
native.pin(True)
assert free() == before - (cpus - 1 if cpus > 1 else 0)
native.pin(False)
assert free() == before
native.set_threads(cpus + 1)
try:
    native.pin(True)
except native.KernelError as error:
    assert "cannot have a CPU each" in str(error)
else:
    raise SystemExit("more threads than CPUs were bound")
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_several_contexts_share_the_pool(kernels: Any, rng: np.random.Generator, thread_counts: Any) -> None:
    data = rng.standard_normal((700, 300), np.float32)
    x = rng.standard_normal((60, 300), np.float32)
    want = kernels(None).linear(kernels(None).weight(0, data.view(np.uint8), 700, 300), x).tobytes()
    wrong: list[int] = []

    def model(at: int) -> None:
        ops = kernels(None)
        w = ops.weight(0, data.view(np.uint8), 700, 300)
        wrong.extend(at for _ in range(30) if ops.linear(w, x).tobytes() != want)

    def resize() -> None:
        for n in (1, 4, 2, 6, 3) * 6:
            native.set_threads(n)

    for _ in thread_counts():
        workers = [threading.Thread(target=model, args=(at,)) for at in range(4)] + [threading.Thread(target=resize)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert not wrong


def test_a_forked_child_can_compute() -> None:
    code = """
import os, numpy as np
from lmhub import native
native.set_threads(3)
assert native.memory_bandwidth(3, 1 << 23) > 0
pid = os.fork()
assert native.memory_bandwidth(3, 1 << 23) > 0
if pid == 0: os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr


# --- levels -----------------------------------------------------------------------------------------------------------


def test_lmk_isa_forces_a_level(level: str) -> None:
    done = run_python("from lmhub import native; print(native.isa(), '|', native.isa_reason())", LMK_ISA=level)
    assert done.stdout.strip() == f"{level} | {level} was asked for by LMK_ISA", done.stderr


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (FOREIGN[0], f"The instruction-set level '{FOREIGN[0]}' cannot be used: this is not an {FOREIGN[1]} machine;"),
        ("sse9", "'sse9' is not an instruction-set level; LMK_ISA takes ref, avx2, avx512, amx, neon or i8mm."),
    ],
)
def test_a_level_that_is_not_there_is_an_error(name: str, sentence: str) -> None:
    done = run_python("from lmhub import native; native.table()", LMK_ISA=name)
    assert done.returncode == 1
    assert f"KernelError: {sentence}" in done.stderr.splitlines()[-1]
    with pytest.raises(KernelError, match=re.escape(sentence)):
        native.Context(name)


def test_the_reason_is_a_clause() -> None:
    assert native.isa() in {"ref", "avx2", "avx512", "amx", "neon", "i8mm"}
    assert native.isa_reason() and "\n" not in native.isa_reason()
