"""Builds `lmhub._native`, the core extension, from every C file in `csrc/`.

setuptools runs this file with the repository root as working directory and without lmhub importable, so `build.py` is
loaded by path. `python -m lmhub.build lmhub/_native_build.py` compiles in place.
"""

import runpy
from pathlib import Path

import cffi  # type: ignore[import-untyped, unused-ignore]

_build = runpy.run_path(str(Path(__file__).resolve().parent / "build.py"))
_CSRC = Path("lmhub/csrc")
_LMK = Path("lmhub/include/lmk.h")

ffibuilder = cffi.FFI()
ffibuilder.cdef(_build["cdef_of"](_LMK.read_text()))
for header in ("native.h", "drafts.h"):
    ffibuilder.cdef(_build["cdef_of"]((_CSRC / header).read_text()))
ffibuilder.set_source(
    "lmhub._native",
    '#define LMK_CORE\n#include "native.h"\n#include "drafts.h"\n',
    sources=[path for path in _build["c_files"](_CSRC) if path.endswith(".c")],
    include_dirs=[str(_LMK.parent), str(_CSRC)],
    depends=[path for path in _build["c_files"](_CSRC) if path.endswith(".h")] + [_LMK.as_posix()],
    extra_compile_args=[*_build["FLAGS"], "-pthread"],
    extra_link_args=["-pthread"],
    libraries=["m"],
)
