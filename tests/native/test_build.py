"""The build helper: what cffi may read of a header, and a plugin that is compiled, bound and called."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import lmhub
from lmhub.build import c_files, cdef_of

HEADER = """\
typedef struct { int32_t rows; } toy_model;
int toy_rows(const toy_model *m, lmk_ctx *c);
int64_t toy_visits(lmk_ctx *c, int64_t n, int64_t grain);
"""
SOURCE = """\
#include "lmk.h"
#include "toy.h"

int toy_rows(const toy_model *m, lmk_ctx *c)
{
    float *y = lmk->alloc(c, 64);
    return y ? m->rows : lmk->fail("no memory");
}

typedef struct { lmk_ctx *c; int64_t grain; _Atomic int64_t visits; } visits;

static void inner(void *arg, int64_t begin, int64_t end, int thread)
{
    visits *v = arg;
    v->visits += thread < 0 ? 1000000 : end - begin;
}

static void outer(void *arg, int64_t begin, int64_t end, int thread)
{
    visits *v = arg;
    (void)thread;
    for (int64_t i = begin; i < end; i++) lmk->parallel_for(v->c, i, v->grain, inner, v);
}

int64_t toy_visits(lmk_ctx *c, int64_t n, int64_t grain)
{
    visits v = { .c = c, .grain = grain };
    lmk->parallel_for(c, n, grain, outer, &v);
    return v.visits;
}
"""
USE = """
from lmhub import native
from toy._kernels import ffi, lib
native.bind(lib, "toy")
context = native.Context()
print(lib.toy_rows(ffi.new("toy_model *", [7]), ffi.cast("lmk_ctx *", context.address)))
for threads in (1, 2, 7):
    native.set_threads(threads)
    for n, grain in ((0, 1), (1, 1), (100, 1), (100, 7), (100, 1000), (100, 0)):
        assert lib.toy_visits(ffi.cast("lmk_ctx *", context.address), n, grain) == n * (n - 1) // 2
"""


def test_the_marked_part_is_what_cffi_reads() -> None:
    assert cdef_of("#ifndef A\n/* cdef: begin */\nint f(void);\n/* cdef: end */\n#endif") == "\nint f(void);\n"
    assert cdef_of('#include "lmk.h"\n#include <stdint.h>\nint f(void);\n').strip() == "int f(void);"


def test_every_source_of_the_core_is_listed() -> None:
    folder = Path(lmhub.__file__).parent / "csrc"
    names = {Path(path).name for path in c_files(folder)}
    assert {"core.h", "native.h", "linear.c", "dequant.c", "iq_grids.h"} <= names
    assert names == {path.name for path in folder.iterdir() if path.suffix in {".c", ".h"}}


def test_a_plugin_is_built_bound_and_called(tmp_path: Path) -> None:
    """Its loops visit every index once, nested ones too, whatever the threads and the grain."""
    for folder in ("csrc", "toy"):
        (tmp_path / folder).mkdir()
    (tmp_path / "csrc/toy.h").write_text(HEADER)
    (tmp_path / "csrc/toy.c").write_text(SOURCE)
    (tmp_path / "toy/__init__.py").write_text("")
    build = 'from lmhub.build import kernels\nffibuilder = kernels("toy._kernels", "csrc/toy.c")\n'
    (tmp_path / "toy/_build.py").write_text(build)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(lmhub.__file__).parents[1])])}

    def run(*args: str) -> str:
        done = subprocess.run(
            [sys.executable, *args], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("-m", "lmhub.build", "toy/_build.py").splitlines()[-1].startswith("toy")
    assert run("-c", USE).strip() == "7"
