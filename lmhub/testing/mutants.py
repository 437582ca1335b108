"""Builds a plugin's model module with one line broken on purpose, for tests that demand that somebody notices.

The wrapper that cffi writes when a plugin is built includes the family's C file: it is compiled again for each mutant,
over a changed copy. Mutants of the plugin's Python share the compiled module.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import lmhub
from lmhub.model import Chunk
from lmhub.testing import drive
from lmhub.testing.golden import NMSE_TOLERANCE, REL_TOLERANCE
from lmhub.testing.reference import nmse, relative_error


@dataclass(frozen=True)
class Mutant:
    """`old`, which must occur in the plugin's C file (or in its `file`), becomes `new`.

    `model` names the tiny model that shows the difference. A mutant whose `old` is "" is none.
    """

    name: str
    old: str
    new: str
    model: str = "dense"
    file: str = ""


class Mutants:
    """The plugin in `project` with package `package`, whose C is `csrc/{source}`; what is built goes into `folder`."""

    def __init__(self, project: Path, package: str, source: str, folder: Path):
        self._project, self._package, self._source, self._folder = project, package, source, folder
        # Before there are threads: sysconfig reads its variables when first asked, and not safely.
        self._compiler = [str(sysconfig.get_config_var("CC")).split()[0], "-shared", "-fPIC", "-O0"]
        self._compiler += [f"-I{lmhub.get_include()}", f"-I{sysconfig.get_path('include')}"]
        self._suffix = sysconfig.get_config_var("EXT_SUFFIX")
        code = "import sys, runpy; runpy.run_path(sys.argv[1])['ffibuilder'].emit_c_code(sys.argv[2])"
        words = [sys.executable, "-c", code, f"{package}/_build.py", str(folder / "_kernels.c")]
        here = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run(words, cwd=project, env=here, check=True)

    def build(self, mutants: Iterable[Mutant]) -> dict[str, ModuleType]:
        """Every mutant's `model` module by the mutant's name, two compiled at a time."""
        numbered = [(f"{self._package}_mutant_{at}", mutant) for at, mutant in enumerate(mutants)]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda one: self._compile(*one), numbered))
        return {mutant.name: self._imported(name) for name, mutant in numbered}

    def _compile(self, name: str, mutant: Mutant) -> None:
        """Lay out package `name` and compile its kernels."""
        package = self._folder / name
        package.mkdir()
        (package / self._source).write_text(self._text(f"csrc/{self._source}", mutant))
        for path in (self._project / self._package).glob("*.py"):
            text = "" if path.stem == "__init__" else self._text(f"{self._package}/{path.name}", mutant)
            (package / path.name).write_text(text.replace(self._package, name))
        command = [*self._compiler, f"-I{package}", f"-I{self._project}/csrc", str(self._folder / "_kernels.c"), "-lm"]
        command += ["-o", f"{package}/_kernels{self._suffix}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{mutant.name}: {done.stderr[-2000:]}"

    def _text(self, file: str, mutant: Mutant) -> str:
        """A file of the plugin, changed if it is the mutant's."""
        text = (self._project / file).read_text()
        if not mutant.old or file != (mutant.file or f"csrc/{self._source}"):
            return text
        assert mutant.old in text, f"{mutant.name}: {file} has changed, adapt the mutant"
        return text.replace(mutant.old, mutant.new)

    def _imported(self, name: str) -> ModuleType:
        """`name.model`, from the folder."""
        for module, file in ((name, "__init__.py"), (f"{name}.model", "model.py")):
            path = self._folder / name / file
            spec = importlib.util.spec_from_file_location(module, path, submodule_search_locations=[str(path.parent)])
            assert spec is not None and spec.loader is not None
            sys.modules[module] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[module])
        return sys.modules[f"{name}.model"]


def agrees(model: Any, want: np.ndarray, tokens: list[int]) -> bool:
    """Whether the logits of a prompt in cuts, and of its last row alone, are `want` to float32 accuracy."""
    got = drive.logits_of(model, tokens, cut=7)
    last = model.forward([Chunk(model.new_state(len(tokens)), tokens)])
    assert np.isfinite(got).all()
    worst = max(relative_error(got, want), relative_error(last, want[-1:]))
    return worst <= REL_TOLERANCE and nmse(got, want) <= NMSE_TOLERANCE
