"""`lmhub new-family`: what it writes works at once, in numpy and in C, and is clean; what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import lmhub
from lmhub.cli import create_cli
from lmhub.cli.new_family import TEMPLATE
from lmhub.plugins import Plugins

ROOT = Path(__file__).parents[2]


def invoke(*words: object) -> tuple[int, str]:
    """Exit status and output of `lmhub new-family ...`, with the installed plugins."""
    plugins = Plugins()
    plugins.load_entry_points()
    done = CliRunner().invoke(create_cli(plugins), ["new-family", *map(str, words)])
    return done.exit_code, done.output


def run(*words: object, cwd: Path) -> str:
    """What a program prints; it must end well."""
    here = {**os.environ, "PYTHONPATH": str(cwd), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([str(word) for word in words], cwd=cwd, env=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A family as it was written, C included."""
    made = tmp_path_factory.mktemp("families") / "lmhub-two-words"
    for more in ((), ("--kernels",)):
        status, said = invoke("two-words", "--dir", made, *more)
        assert status == 0, said
        assert "Next:\n  pip install" in said
    return made


def test_its_tests_pass(folder: Path) -> None:
    """Only a few of them: tests/test_tutorial.py runs all, in numpy and in C."""
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "untied and (oracle or cuts or named) or reply")
    assert " passed" in run(sys.executable, *words, cwd=folder)


def test_it_is_clean(folder: Path) -> None:
    ruff = Path(sys.executable).with_name("ruff")
    run(ruff, "check", "--no-cache", ".", cwd=folder)
    run(ruff, "format", "--no-cache", "--check", ".", cwd=folder)
    compiler = str(sysconfig.get_config_var("CC")).split()[0]
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{lmhub.get_include()}"]
    run(compiler, *flags, "csrc/two_words.c", cwd=folder)


def test_its_names_agree(folder: Path) -> None:
    table = tomllib.loads((folder / "pyproject.toml").read_text())
    assert table["project"]["name"] == "lmhub-two-words"
    assert table["project"]["entry-points"]["lmhub"] == {"two_words": "lmhub_two_words"}
    texts = [path.read_text() for path in folder.rglob("*") if path.suffix in {".py", ".c", ".h", ".toml", ".md"}]
    assert not [text for text in texts if "new_family" in text or "new-family" in text or "NewFamily" in text]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "oracle.py").write_text("mine")
    status, said = invoke("parrot", "--dir", tmp_path)
    assert status == 2
    assert "oracle.py exists already" in said
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["oracle.py"]


@pytest.mark.parametrize("name", ["", "Parrot", "2fast", "a--b", "a-", "a_b", "../up", "a b", "x" * 25, "pärrot"])
def test_names_that_cannot_be(name: str, tmp_path: Path) -> None:
    status, said = invoke(name, "--dir", tmp_path / "made")
    assert status == 2
    assert "cannot name a family" in said
    assert not (tmp_path / "made").exists()


def test_architectures_that_are_served(tmp_path: Path) -> None:
    status, said = invoke("llama", "--dir", tmp_path / "made")
    assert status == 2
    assert "the architecture llama is served by lmhub-llama already" in said


def test_kernels_come_second(tmp_path: Path) -> None:
    status, said = invoke("parrot", "--dir", tmp_path, "--kernels")
    assert status == 2
    assert "make it first: lmhub new-family parrot" in said


def test_every_file_of_the_template_is_package_data() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["lmhub"]
    shipped = {path for pattern in patterns for path in (ROOT / "lmhub").glob(pattern)}
    files = {path for path in TEMPLATE.rglob("*") if path.is_file()}
    assert files and files <= shipped
