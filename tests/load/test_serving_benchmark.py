"""`benchmarks/serving.py` runs from end to end and tells every figure; what they are is not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lmhub.testing.tiny import decoder, write

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "serving.py"


@pytest.mark.load
def test_every_part_has_its_figures(tmp_path: Path) -> None:
    model = write(tmp_path / "tiny.gguf", decoder("qwen3", qk_norm=True, tied=True, n_ctx=8192))
    few = ["--rounds", "1", "--reply", "12", "--turns", "3", "--transcript", "3000", "--json"]
    done = subprocess.run(
        [sys.executable, SCRIPT, model, *few], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found["streams"]["lmhub"]) == {"1", "2", "4", "8", "16"}
    assert found["prefix"]["lmhub"]["second"]["read"] < 100 < found["prefix"]["lmhub"]["first"]["read"]
    assert found["prefix"]["eight_at_once"]["read"] < 2 * found["prefix"]["eight_at_once"]["prompt_tokens"]
    turns = found["agent"]["lmhub"]["turns"]
    assert len(turns) == 3 and turns[2]["read"] < turns[2]["prompt_tokens"] / 2
    assert found["spec"]["repetitive"]["ratio"] > 0 and found["spec"]["drafted"] > 0
    assert found["python"]["greedy"]["steps"] > 0
