"""A server of its own for a load, which can be stopped, started again on the same port, and looked at from outside."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from lmhub.testing.tiny import decoder, write

LMHUB = [sys.executable, "-m", "lmhub"]
PATIENCE_S = 60.0  # a test that waits longer than this hangs, and fails


@dataclass(frozen=True)
class Footprint:
    """What a process holds: resident kilobytes, open files and sockets, threads."""

    rss_kb: int
    files: int
    threads: int


class Server:
    """`lmhub serve MODEL` on one port through several lives."""

    def __init__(self, model: Path, log: Path, flags: tuple[str, ...]):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        self.process: subprocess.Popen[str] | None = None
        self._words = [*LMHUB, "serve", str(model), "--port", str(self.port), *flags]

    async def start(self) -> None:
        """Until it is ready."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("LMHUB_")}
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                self._words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, text=True, env=env
            )
        async with httpx.AsyncClient() as client, asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    if (await client.get(self.url + "/health")).status_code == 200:
                        return
                except httpx.TransportError:
                    await asyncio.sleep(0)
                assert self.process.poll() is None, self.log.read_text()[-3000:]

    async def stop(self) -> int:
        """Ask it to end; its exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait, PATIENCE_S)

    async def at_rest(self) -> Footprint:
        """What it holds as soon as nothing runs and nothing waits.

        Looked at while the connection that asks is open: whether the server has closed its side of one that has just
        ended would be a matter of luck.
        """
        async with httpx.AsyncClient() as client, asyncio.timeout(PATIENCE_S):
            while True:
                page = (await client.get(self.url + "/metrics")).text
                gauges = [line for line in page.splitlines() if line.startswith("lmhub_requests_")]
                assert gauges, page
                if all(line.endswith(" 0.0") for line in gauges):
                    return self._footprint()

    async def hits(self) -> Counter[str]:
        """How many prompts of this life went on from what was kept, by where that was."""
        async with httpx.AsyncClient() as client:
            page = (await client.get(self.url + "/metrics")).text
        found = re.findall(r'^lmhub_kv_hits_total\{.*source="(\w+)".*\} (\S+)$', page, re.MULTILINE)
        return Counter({source: int(float(n)) for source, n in found})

    def _footprint(self) -> Footprint:
        assert self.process is not None
        proc = Path(f"/proc/{self.process.pid}")
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        files = len(list((proc / "fd").iterdir()))
        return Footprint(int(status["VmRSS"].split()[0]), files, int(status["Threads"]))

    def close(self) -> None:
        """Make sure that nothing is left."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="session")
def tiny_chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a chat template."""
    path = tmp_path_factory.mktemp("load") / "tiny.gguf"
    return write(path, decoder("qwen3", qk_norm=True, tied=True, n_ctx=1024))


@pytest.fixture
def server(tiny_chat: Path, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Make a server: `server("--ctx", "512")`. It is not started yet, and is killed behind the test."""
    made: list[Server] = []

    def make(*flags: str) -> Server:
        made.append(Server(tiny_chat, tmp_path / f"log-{len(made)}", flags))
        return made[-1]

    yield make
    for one in made:
        one.close()
