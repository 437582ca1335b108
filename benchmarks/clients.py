"""Servers as processes of their own, and streamed replies with the times at which their pieces came.

Starts lmhub's server, and the peer's (`python -m llama_cpp.server`) with an interpreter that has it; each on a free
port, stopped by its process id. Knows nothing of what is measured.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

START_S = 300.0  # a server that is not ready by then has failed
STOP_S = 30.0
REPLY_S = 1800.0  # the longest silence within a reply: twenty thousand tokens on a slow machine
LMHUB = [sys.executable, "-m", "lmhub"]


class ServerFailed(Exception):
    """A server did not start or did not answer. The message holds the end of what it wrote."""


class Server:
    """A server process, running as long as the `with` block; `name` is what tables call it."""

    def __init__(self, name: str, words: Sequence[str], port: int):
        self.name = name
        self.url = f"http://127.0.0.1:{port}"
        self._words = words
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in __exit__
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Server:
        env = {name: value for name, value in os.environ.items() if not name.startswith("LMHUB_")}
        self._process = subprocess.Popen(
            self._words, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, text=True, env=env
        )
        try:
            self._wait()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _wait(self) -> None:
        """Until it lists its model. Raises ServerFailed."""
        assert self._process is not None
        until = time.monotonic() + START_S
        while time.monotonic() < until and self._process.poll() is None:
            try:
                if httpx.get(self.url + "/v1/models", timeout=5).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        self._log.seek(0)
        raise ServerFailed(f"{self.name} did not start:\n{self._log.read()[-2000:]}")

    def metrics(self) -> dict[str, float]:
        """The samples of its /metrics by name, added up over their labels; none where there is no such page."""
        answer = httpx.get(self.url + "/metrics", timeout=30)
        out: dict[str, float] = {}
        for line in answer.text.splitlines() if answer.status_code == 200 else []:
            if line and not line.startswith("#"):
                name, value = line.partition("{")[0].split(" ")[0], line.rsplit(" ", 1)[1]
                out[name] = out.get(name, 0.0) + float(value)
        return out

    def n_tokens(self, text: str) -> int:
        """How many tokens `text` is, by lmhub's /tokenize."""
        answer = httpx.post(self.url + "/tokenize", json={"content": text}, timeout=60).raise_for_status()
        return len(answer.json()["tokens"])


def lmhub_server(model: Path, *flags: object, name: str = "lmhub") -> Server:
    """`lmhub serve` with these flags."""
    port = free_port()
    return Server(name, [*LMHUB, "serve", str(model), "--port", str(port), *map(str, flags)], port)


def peer_server(python: str, model: Path, ctx: int, threads: int) -> Server:
    """llama-cpp-python's server. It runs one request at a time: by default a new one would cut off the running one."""
    port = free_port()
    options = {
        "model": model, "port": port, "n_ctx": ctx, "n_threads": threads, "n_threads_batch": threads,
        "interrupt_requests": "false", "verbose": "false",
    }  # fmt: skip
    flags = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    return Server("llama-cpp-python", [python, "-m", "llama_cpp.server", *flags], port)


def has_flag(flag: str) -> bool:
    """Whether `lmhub serve` knows that flag."""
    env = os.environ | {"COLUMNS": "200"}
    done = subprocess.run([*LMHUB, "serve", "--help"], capture_output=True, text=True, check=True, env=env)
    return flag in done.stdout.split()


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Reply:
    """A streamed reply; times in seconds on one clock. Counts are None where the server is silent about them."""

    text: str
    n_reply: int
    n_prompt: int | None
    n_cached: int | None
    sent: float
    arrivals: tuple[float, ...]  # of its pieces

    @property
    def first_s(self) -> float:
        """Time to first token."""
        return self.arrivals[0] - self.sent

    @property
    def end(self) -> float:
        """When its last piece came."""
        return self.arrivals[-1]

    @property
    def rate(self) -> float:
        """Tokens per second behind the first one."""
        return (self.n_reply - 1) / (self.end - self.arrivals[0]) if self.n_reply > 1 else 0.0

    @property
    def n_read(self) -> int | None:
        """Tokens of the prompt that had to be forwarded."""
        return None if self.n_prompt is None or self.n_cached is None else self.n_prompt - self.n_cached


class Client:
    """Streams chats from one server over as many connections as needed."""

    def __init__(self, server: Server):
        self.server = server
        self._http = httpx.AsyncClient(
            base_url=server.url,
            timeout=httpx.Timeout(REPLY_S, connect=30),
            limits=httpx.Limits(max_connections=None),
        )

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._http.aclose()

    async def chat(self, messages: Sequence[Mapping[str, str]], max_tokens: int, **fields: Any) -> Reply:
        """One chat; `fields` go into the body. Raises ServerFailed."""
        body = {
            "model": "any", "messages": list(messages), "max_tokens": max_tokens, "stream": True,
            "stream_options": {"include_usage": True}, "ignore_eos": True, **fields,
        }  # fmt: skip
        sent = time.perf_counter()
        arrivals: list[float] = []
        pieces: list[str] = []
        usage: dict[str, Any] = {}
        reason = None
        async with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                said = (await response.aread()).decode(errors="replace")
                raise ServerFailed(f"{self.server.name} answered {response.status_code}: {said[:500]}")
            async for line in response.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise ServerFailed(f"{self.server.name}: {event['error']}")
                usage = event.get("usage") or usage
                for choice in event["choices"]:
                    delta = choice["delta"]
                    if piece := delta.get("content") or delta.get("reasoning_content"):
                        arrivals.append(time.perf_counter())
                        pieces.append(piece)
                    reason = choice.get("finish_reason") or reason
        # Without usage: a reply that its budget ended has that many tokens, and one piece is one token otherwise.
        n_reply = usage.get("completion_tokens", max_tokens if reason == "length" else len(pieces))
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        done = time.perf_counter()
        return Reply("".join(pieces), n_reply, usage.get("prompt_tokens"), cached, sent, tuple(arrivals or [done]))

    async def chats(self, chats: Sequence[Sequence[Mapping[str, str]]], max_tokens: int, **fields: Any) -> list[Reply]:
        """All of them at once."""
        return await asyncio.gather(*(self.chat(messages, max_tokens, **fields) for messages in chats))
