"""`benchmarks/loading.py`: it starts a server, sees it ready, and says what that took. How long, is not asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "loading.py"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_report(tiny: Path) -> None:
    words = [sys.executable, str(SCRIPT), str(tiny), "--rounds", "1", "--flags", "--ctx 64", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    [found] = json.loads(done.stdout)
    assert found["bytes"] == tiny.stat().st_size
    for cache in ("cold", "warm"):
        one = found[cache]
        assert one["ready_s"] > one["read_s"] > 0
        assert one["peak"] > 1e7
        assert one["cpu_s"] > 0
        assert one["first_s"] > 0 and one["second_s"] > 0
    assert "tiny.gguf" in done.stderr
