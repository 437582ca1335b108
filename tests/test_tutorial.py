"""docs/tutorial.md, word by word: its commands and its code are executed in order, its quotations are what was written.

Only pip is played, so that the environment stays as it is: folders are put on the path with their entry points, C is
compiled. The real model is another file for the quick test; `make real-model` runs it with the real one.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lmhub.testing.tiny import tiny_gguf

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tutorial.md"
REAL = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
BLOCK = re.compile(r"^(?:<!-- (run|output|from (\S+)) -->\n)?```(\w+)\n(.*?)^```$", re.M | re.S)
PIP = """\
#!{python}
import pathlib, subprocess, sys, tomllib
folder = pathlib.Path(sys.argv[-1].partition("[")[0])
assert sys.argv[1] == "install" and "-e" in sys.argv
project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
info = folder / (project["name"].replace("-", "_") + "-0.1.0.dist-info")
info.mkdir(exist_ok=True)
(info / "METADATA").write_text("Metadata-Version: 2.1\\nName: " + project["name"] + "\\nVersion: 0.1.0\\n")
lines = [name + " = " + module for name, module in project["entry-points"]["lmhub"].items()]
(info / "entry_points.txt").write_text("[lmhub]\\n" + "\\n".join(lines) + "\\n")
if (folder / "setup.py").exists():
    [build] = folder.glob("lmhub_*/_build.py")
    subprocess.run([sys.executable, "-m", "lmhub.build", str(build.relative_to(folder))], cwd=folder, check=True)
"""


class Reader:
    """Someone who follows the page in `folder`."""

    def __init__(self, folder: Path):
        self.folder, self.said = folder, ""
        tools = folder / "bin"
        tools.mkdir()
        (tools / "pip").write_text(PIP.format(python=sys.executable))
        (tools / "pip").chmod(0o755)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = str(free.getsockname()[1])
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("LMHUB_", "PYTEST_"))}
        self._environment = {
            **kept,
            "PATH": os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(folder / "lmhub-tutorial-llama"),
            "PYTHONDONTWRITEBYTECODE": "1",  # step 7 changes a file and changes it back, faster than its date tells
            "OPENBLAS_NUM_THREADS": "1",
            "XDG_CACHE_HOME": str(folder / "cache"),
        }

    def follow(self, kind: str, source: str, language: str, text: str) -> None:
        """One block of the page."""
        if language == "bash":
            self.said = self._run("bash", "-eu", "-c", text.replace("8123", self._port))
        elif kind == "run":
            self._run(sys.executable, "-c", text)
        elif kind == "output":
            assert text.split() == self.said.split()
        elif source:
            written = (self.folder / "lmhub-tutorial-llama" / source).read_text()
            assert bare(text) in bare(written), f"{source} does not say:\n{text}"
        else:
            assert language in ("text", "console"), f"nobody would try this:\n{text}"

    def _run(self, *words: str) -> str:
        done = subprocess.run(
            words, cwd=self.folder, env=self._environment, capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, f"{words[-1]}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout


def bare(text: str) -> str:
    """Lines without indentation, which the page's formatter takes away, and without blank ones."""
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def read_through(folder: Path) -> list[str]:
    """Follow the whole page; what the commands about France printed."""
    reader, answers = Reader(folder), []
    for found in BLOCK.finditer(PAGE.read_text()):
        reader.follow(found[1] or "", found[2] or "", found[3], found[4])
        answers += [reader.said] if "capital of France" in found[4] else []
    return answers


def test_the_tutorial(tmp_path: Path) -> None:
    tiny_gguf("llama", tmp_path / REAL.name, tied=True, n_ctx=1024)
    assert len(read_through(tmp_path)) == 2


@pytest.mark.real_model
def test_the_tutorial_with_the_real_model(tmp_path: Path) -> None:
    if not REAL.exists():
        pytest.skip(f"{REAL.name} is not here; `make real-model` fetches it")
    (tmp_path / REAL.name).symlink_to(REAL)
    for answer in read_through(tmp_path):
        assert "Paris" in answer
