"""`FamilyMutants`: breaks a family on purpose, one rule at a time, and demands that the oracle's comparison notices.

    class TestMarkovMutants(FamilyMutants):
        plugin, source = "lmhub_markov", "markov.c"
        models = {"dense": decoder("markov")}
        mutants = (Mutant("no scale", "1.0f / sqrtf((float)hd)", "1.0f"),)

Three kinds. `Mutant`s in the plugin are built from changed copies of its files: the wrapper that cffi writes when a
plugin is built includes the family's C file and is compiled again over each copy. `FileMutant`s are in what the plugin
reads: it gets a changed file, the oracle the right one. Those in the core's kernels are played by breaking the oracle.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest

import lmhub
from lmhub.family import LoadOptions
from lmhub.gguf import GGUFFile, open_gguf
from lmhub.model import Chunk
from lmhub.testing import drive
from lmhub.testing.cases import Cases, Named
from lmhub.testing.golden import NMSE_TOLERANCE, REL_TOLERANCE
from lmhub.testing.reference import nmse, relative_error, tensor
from lmhub.testing.rewrite import changed
from lmhub.testing.tiny import Tiny, write

Oracle = Callable[..., np.ndarray]


@dataclass(frozen=True)
class Mutant:
    """`old`, which must occur in the plugin's C file, becomes `new`. `file` names another one, or a header of lmhub's.

    `model` names the tiny model that shows the difference. A mutant whose `old` is "" is none.
    """

    name: str
    old: str
    new: str
    model: str = "dense"
    file: str = ""


UNCHANGED = Mutant("none", "", "")
EVERY = os.environ.get("LMHUB_MUTANTS") == "all"
"""Whether every `Mutant` is built (`make mutants`), not each fourth: a compiler takes most of a suite's time."""


@dataclass(frozen=True)
class FileMutant:
    """What the file of `model` says is changed: keys and tensors go, keys are replaced, and so are tensors.

    `change` is applied to the values of every tensor whose name ends with `ending`. Keys are without the architecture.
    """

    name: str
    model: str = "dense"
    drop: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    ending: str = ""
    change: Callable[[np.ndarray], np.ndarray] | None = None

    def applied(self, source: GGUFFile) -> GGUFFile:
        """The changed file."""
        arch, replace = source.architecture, {}
        if self.change is not None:
            names = [name for name in source.tensors if name.endswith(self.ending)]
            assert names, f"{self.name}: no tensor ends with {self.ending}"
            replace = {name: self.change(tensor(source, name)).astype(np.float32) for name in names}
        keys = {f"{arch}.{key}": value for key, value in self.metadata.items()}
        gone = (*self.drop, *(f"{arch}.{key}" for key in self.drop))
        return changed(source, drop=gone, replace=replace, metadata=keys)


class FamilyMutants(Cases):
    """Subclass with `plugin` and the attributes below; `oracle.py` stands beside it, as for the conformance suite."""

    source: ClassVar[str]
    """Its C file in `csrc/`."""
    models: ClassVar[Mapping[str, Tiny]]
    """Name -> a small model that shows differences."""
    mutants: ClassVar[Sequence[Mutant]]
    file_mutants: ClassVar[Sequence[FileMutant]] = ()
    mutations: ClassVar[Sequence[tuple[str, str]]] = ()
    """(what the oracle takes as `mutation`, model)."""
    n_ctx: ClassVar[int] = 128

    @classmethod
    def cases(cls) -> dict[str, Named]:
        built = (UNCHANGED, *(cls.mutants if EVERY else cls.mutants[::4]))
        return {
            "mutant": [(mutant.name, mutant) for mutant in built],
            "file_mutant": [(mutant.name, mutant) for mutant in cls.file_mutants],
            "mutation": [("-".join(mutation), mutation) for mutation in cls.mutations],
        }

    @pytest.fixture(scope="class")
    @classmethod
    def built(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mutants:
        """The plugin whose tests these are, to be built again."""
        return Mutants(request.path.parents[1], cls.plugin, cls.source, tmp_path_factory.mktemp("mutants"))

    @pytest.fixture(scope="class")
    @classmethod
    def files(cls, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
        root = tmp_path_factory.mktemp("models")
        return {name: write(root / f"{name}.gguf", tiny) for name, tiny in cls.models.items()}

    def test_mutants_of_the_plugin(
        self, mutant: Mutant, built: Mutants, files: Mapping[str, Path], oracle: Oracle
    ) -> None:
        [module] = built.build([mutant]).values()
        for name in files if mutant is UNCHANGED else (mutant.model,):
            file = open_gguf(files[name])
            model = module.load(file, LoadOptions(n_ctx=self.n_ctx, kv_dtype="f32"))
            tokens = drive.random_tokens(60, model.n_vocab)
            assert agrees(model, oracle(file, tokens), tokens) == (mutant is UNCHANGED)

    def test_mutants_of_what_is_read(self, file_mutant: FileMutant, files: Mapping[str, Path], oracle: Oracle) -> None:
        source = open_gguf(files[file_mutant.model])
        model = drive.load(self.plugin, file_mutant.applied(source), self.n_ctx)
        tokens = drive.random_tokens(60, model.n_vocab)
        assert not agrees(model, oracle(source, tokens), tokens)

    def test_mutants_of_the_oracle(self, mutation: tuple[str, str], files: Mapping[str, Path], oracle: Oracle) -> None:
        broken, name = mutation
        file, model = open_gguf(files[name]), drive.load(self.plugin, files[name], self.n_ctx)
        tokens = drive.random_tokens(60, model.n_vocab)
        assert agrees(model, oracle(file, tokens), tokens)
        assert not agrees(model, oracle(file, tokens, broken), tokens)


class Mutants:
    """The plugin in `project` with package `package`, whose C is `csrc/{source}`; what is built goes into `folder`."""

    def __init__(self, project: Path, package: str, source: str, folder: Path):
        self._project, self._package, self._source, self._folder = project, package, source, folder
        # First of all: cffi enters a mutant's library in sys.modules under the name of the plugin's own.
        importlib.import_module(f"{package}.model")
        # Before there are threads: sysconfig reads its variables when first asked, and not safely.
        self._compiler = [str(sysconfig.get_config_var("CC")).split()[0], "-shared", "-fPIC", "-O0"]
        self._compiler += [f"-I{lmhub.get_include()}", f"-I{sysconfig.get_path('include')}"]
        self._suffix = sysconfig.get_config_var("EXT_SUFFIX")
        self._numbers = itertools.count()
        code = "import sys, runpy; runpy.run_path(sys.argv[1])['ffibuilder'].emit_c_code(sys.argv[2])"
        words = [sys.executable, "-c", code, f"{package}/_build.py", str(folder / "_kernels.c")]
        here = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run(words, cwd=project, env=here, check=True)

    def build(self, mutants: Iterable[Mutant]) -> dict[str, ModuleType]:
        """Every mutant's `model` module by the mutant's name, two compiled at a time."""
        numbered = [
            (f"{self._package}_mutant_{at}", mutant) for mutant, at in zip(mutants, self._numbers, strict=False)
        ]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda one: self._compile(*one), numbered))
        return {mutant.name: self._imported(name) for name, mutant in numbered}

    def _compile(self, name: str, mutant: Mutant) -> None:
        """Lay out package `name` and compile its kernels."""
        package = self._folder / name
        package.mkdir()
        (package / self._source).write_text(self._text(f"csrc/{self._source}", mutant))
        if mutant.file.endswith(".h"):  # found before the right one: it lies beside the file that includes it
            (package / mutant.file).write_text(self._text(mutant.file, mutant))
        for path in (self._project / self._package).glob("*.py"):
            text = "" if path.stem == "__init__" else self._text(f"{self._package}/{path.name}", mutant)
            (package / path.name).write_text(text.replace(self._package, name))
        command = [*self._compiler, f"-I{package}", f"-I{self._project}/csrc", str(self._folder / "_kernels.c"), "-lm"]
        command += ["-o", f"{package}/_kernels{self._suffix}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{mutant.name}: {done.stderr[-2000:]}"

    def _text(self, file: str, mutant: Mutant) -> str:
        """A file of the plugin or a header of lmhub's, changed if it is the mutant's."""
        text = (Path(lmhub.get_include()) / file if file.endswith(".h") else self._project / file).read_text()
        if not mutant.old or file != (mutant.file or f"csrc/{self._source}"):
            return text
        assert mutant.old in text, f"{mutant.name}: {file} has changed, adapt the mutant"
        return text.replace(mutant.old, mutant.new)

    def _imported(self, name: str) -> ModuleType:
        """`name.model`, from the folder."""
        own = {module: sys.modules[module] for module in sys.modules if module.startswith(f"{self._package}._kernels")}
        for module, file in ((name, "__init__.py"), (f"{name}.model", "model.py")):
            path = self._folder / name / file
            spec = importlib.util.spec_from_file_location(module, path, submodule_search_locations=[str(path.parent)])
            assert spec is not None and spec.loader is not None
            sys.modules[module] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[module])
        sys.modules.update(own)  # cffi enters a library under the name that it was built for
        return sys.modules[f"{name}.model"]


def agrees(model: Any, want: np.ndarray, tokens: list[int]) -> bool:
    """Whether the logits of a prompt in cuts, and of its last row alone, are `want` to float32 accuracy."""
    got = drive.logits_of(model, tokens, cut=7)
    last = model.forward([Chunk(model.new_state(len(tokens)), tokens)])
    assert np.isfinite(got).all()
    worst = max(relative_error(got, want), relative_error(last, want[-1:]))
    return worst <= REL_TOLERANCE and nmse(got, want) <= NMSE_TOLERANCE
