"""`benchmarks/peer.py`: its worker does what it is told. The other engine is not needed here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_a_worker_answers_every_task(tiny: Path) -> None:
    words = [sys.executable, str(BENCHMARKS / "peer_worker.py"), "lmhub", str(tiny), "--threads", "1", "--ctx", "200"]
    tasks = "prefill 150\ndecode 100 8\ndecode 0 8\ndecode 120 4\n"
    done = subprocess.run(words, input=tasks, capture_output=True, text=True, check=True)
    ready, *answers = map(json.loads, done.stdout.splitlines())
    assert ready["about"].startswith("lmhub ")
    assert ready["load_s"] > 0
    assert len(answers) == 4
    assert all(answer["seconds"] > 0 for answer in answers)


def test_a_peer_that_cannot_start_ends_the_run(tiny: Path) -> None:
    words = [sys.executable, str(BENCHMARKS / "peer.py"), "--peer", sys.executable, str(tiny), "--prefill", "8"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "No module named 'llama_cpp'" in done.stderr
    assert "llama.cpp ended with status 1; its message is above" in done.stderr
