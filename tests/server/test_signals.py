"""Signals to a server process: the first one drains it, the second one ends it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
PATIENCE_S = 30.0  # a test that waits longer than this hangs, and fails
BODY = {"messages": [{"role": "user", "content": "hi"}], "stream": True}

# A model that says a few letters and then thinks about the next one for ever.
PROGRAM = """
import sys
from lmhub.hub import Hub
from lmhub.server.run import serve
from lmhub.settings import EngineSettings, ServerSettings
from lmhub.testing.fake import FakeModel, Gate
from lmhub.testing.serving import fake_loaded

gate, hub = Gate(), Hub(entry_points=False)
gate.let(3)

def load():
    if sys.argv[2] == "stuck":
        print("loading", flush=True)
        Gate().hold(lambda: False)
    hub.serve(fake_loaded(FakeModel(b"x" * 400, gate=gate)), EngineSettings(batch=1))

serve(hub, ServerSettings(port=0, grace_s=float(sys.argv[1])), load, lambda address: print(address, flush=True))
print("ended", flush=True)
"""


class Process:
    """The program above, running; `line` is the first line that it printed."""

    def __init__(self, grace_s: float, how: str = "ready"):
        self.running = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(grace_s), how],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.running.stdout
        self.line = self.running.stdout.readline().strip()

    def end(self) -> tuple[int, str, str]:
        """Exit status, the rest of stdout, and stderr."""
        out, err = self.running.communicate(timeout=PATIENCE_S)
        return self.running.returncode, out, err


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    """A list for the processes of a test; what is still running behind it is killed."""
    started: list[Process] = []
    yield started
    for one in started:
        one.running.kill()
        one.running.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_ends_streams_cleanly_and_exits_with_0(
    processes: list[Process], number: signal.Signals
) -> None:
    processes.append(process := Process(grace_s=2.0))
    with httpx.stream("POST", process.line + "/v1/chat/completions", json=BODY) as response:
        lines = response.iter_lines()
        assert "assistant" in next(lines)
        process.running.send_signal(number)
        rest = [line for line in lines if line]  # httpx raises unless the last chunk is there
    assert "shutting down" in rest[-1] and '"error"' in rest[-1]
    assert process.end() == (0, "ended\n", "")


def test_without_work_the_first_signal_ends_it_at_once(processes: list[Process]) -> None:
    processes.append(process := Process(grace_s=600.0))
    process.running.terminate()
    assert process.end() == (0, "ended\n", "")


def test_a_signal_while_loading_ends_it(processes: list[Process]) -> None:
    processes.append(process := Process(grace_s=600.0, how="stuck"))
    assert process.line == "loading"
    process.running.terminate()
    assert process.end() == (0, "ended\n", "")


def test_the_second_signal_exits_at_once(processes: list[Process]) -> None:
    processes.append(process := Process(grace_s=600.0))
    with httpx.stream("POST", process.line + "/v1/chat/completions", json=BODY) as response:
        lines = response.iter_lines()  # kept: the connection is closed when it goes
        assert "assistant" in next(lines)
        process.running.terminate()
        health = httpx.get(process.line + "/health")
        while health.status_code == 200:
            health = httpx.get(process.line + "/health")
        assert health.json() == {"status": "draining"}
        process.running.terminate()
        assert process.end()[0] == 128 + signal.SIGTERM
