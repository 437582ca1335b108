"""Compiles kernels through cffi: `kernels(module, source)` is all that a plugin's `_build.py` needs.

Runs at build time only, with the distribution's folder as working directory: setuptools does so, and for development
`python -m lmhub.build PACKAGE/_build.py` there compiles in place. Imports nothing of lmhub and no numpy, because the
core itself is built through it before it can be imported.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
from pathlib import Path

import cffi  # type: ignore[import-untyped, unused-ignore]

INCLUDE = Path(__file__).resolve().parent / "include"
FLAGS = (
    *("-O3", "-std=gnu11", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden"),
    *os.environ.get("LMHUB_CFLAGS", "").split(),
)
"""No contraction, so that every build and every level computes the same bits; no errno, so that sqrt and fma inline.
LMHUB_CFLAGS come last and win: `make asan` needs another level of optimisation.
"""


def cdef_of(header: str) -> str:
    """What cffi may read of a header's text: the part between its cdef marks, or all of it, without #include lines."""
    marked = re.search(r"/\* cdef: begin \*/(.*?)/\* cdef: end \*/", header, re.DOTALL)
    return re.sub(r"(?m)^\s*#\s*include\b.*$", "", marked[1] if marked else header)


def kernels(module: str, source: str) -> cffi.FFI:
    """The builder of extension `module` from one C file that includes `lmk.h`: `ffibuilder` of a plugin's `_build.py`.

    `source` is relative to the distribution's folder. The plain header of the same name beside it declares what Python
    may call. Every C file and header in that folder counts as a dependency, for rebuilding and for the sdist.
    """
    path = Path(source)
    header = path.with_suffix(".h")
    ffi = cffi.FFI()
    ffi.cdef(cdef_of((INCLUDE / "lmk.h").read_text()))
    ffi.cdef("int lmk_bind(uintptr_t table);")
    ffi.cdef(cdef_of(header.read_text()))
    ffi.set_source(
        module,
        f'#include "{path.name}"\n',
        include_dirs=[str(INCLUDE), str(path.parent)],
        depends=c_files(path.parent),
        extra_compile_args=list(FLAGS),
    )
    return ffi


def c_files(folder: Path) -> list[str]:
    """Every C source and header in a folder, as relative paths with forward slashes, sorted."""
    return sorted(p.as_posix() for p in folder.iterdir() if p.suffix in {".c", ".h"})


def main(build_file: str) -> None:
    """Compile the `ffibuilder` of a build file next to its Python package. The working directory must be its root."""
    builder: cffi.FFI = runpy.run_path(build_file)["ffibuilder"]
    print(os.path.relpath(builder.compile(tmpdir=".")))


if __name__ == "__main__":
    main(sys.argv[1])
