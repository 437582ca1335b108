"""What is shipped: the sdists hold every C file and the chat page, versions and names agree."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

import lmhub

ROOT = Path(__file__).parents[1]
PLUGINS = sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))
IGNORED = shutil.ignore_patterns(
    ".*", "build", "dist", "models", "*.egg-info", "*.so", "*.o", "__pycache__", "_native.c", "_kernels.c"
)

KINDS = ("*.c", "*.h", "*.py", "*.gguf")


def project(folder: Path) -> dict[str, object]:
    table: dict[str, object] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return table


@pytest.mark.parametrize("folder", [ROOT, *PLUGINS], ids=lambda path: path.name)
def test_sdist_holds_every_source_and_model(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "tree", ignore=IGNORED)
    code = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, tmp_path], cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with tarfile.open(tmp_path / done.stdout.split()[-1]) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    own = [copy / "lmhub"] if folder == ROOT else [copy]
    kinds = ("*.c", "*.h", "*.py", "*.html", "*.css", "*.js", "*.svg")
    needed = {str(path.relative_to(copy)) for top in own for kind in kinds for path in top.rglob(kind)}
    assert {name for name in needed if name.endswith(".c")}
    assert needed <= held, f"missing: {sorted(needed - held)}"


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda path: path.name)
def test_a_plugins_names_agree(folder: Path) -> None:
    table = project(folder)
    module = f"lmhub_{folder.name}"
    assert table["name"] == f"lmhub-{folder.name.replace('_', '-')}"
    assert table["entry-points"] == {"lmhub": {folder.name: module}}
    assert (folder / module / "__init__.py").is_file()
    assert (folder / "README.md").is_file()


def test_versions_agree() -> None:
    assert {str(project(folder)["version"]) for folder in [ROOT, *PLUGINS]} == {lmhub.__version__}
    for folder in PLUGINS:
        major, minor, _ = lmhub.__version__.split(".")
        assert f"lmhub>={major}.{minor},<{major}.{int(minor) + 1}" in project(folder)["dependencies"]  # type: ignore[operator]


def test_every_file_of_the_page_is_package_data() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["lmhub"]
    shipped = {path for pattern in patterns for path in (ROOT / "lmhub").glob(pattern)}
    page = set((ROOT / "lmhub" / "server" / "ui").iterdir())
    assert page and page <= shipped


def test_every_package_is_listed() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "lmhub").rglob("__init__.py")}
    assert listed == found
