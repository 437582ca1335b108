"""A server under load, with clients that hang up, read slowly and send nonsense, and with restarts in between.

Every request ends in its exact answer, in a well-formed error, or because its client left; and the server holds no more
at the end than it did before. The clients follow a script that is drawn from a seed. The small edition runs with every
`make test`, the whole one with `make load`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

from lmhub.hub import Hub
from lmhub.server.app import create_app
from lmhub.settings import EngineSettings, ServerSettings
from lmhub.testing.sse import app_client, frames

CTX = 512
ENDED = ("[DONE]", "message_stop")
Kind = Literal["whole", "stream", "hang up", "leave at once", "slow", "bad", "half"]
KINDS: tuple[Kind, ...] = (
    "whole",
    "whole",
    "stream",
    "stream",
    "stream",
    "hang up",
    "leave at once",
    "slow",
    "bad",
    "half",
)
CHAT, TEXT, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
PATIENCE_S = 120.0
WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "then", "it", "was", "not", "there", "any", "more", "so", "home")
BAD: tuple[tuple[str, bytes], ...] = (
    (CHAT, b'{"messages": ['),
    (CHAT, b'{"messages": []}'),
    (CHAT, b'{"messages": "hi", "stream": true}'),
    (CHAT, json.dumps({"messages": [{"role": "user", "content": "long " * 2000}]}).encode()),
    (CHAT, json.dumps({"messages": [{"role": "user", "content": "x"}], "temperature": "hot"}).encode()),
    (TEXT, b'{"prompt": [999999], "max_tokens": 1}'),
    (TEXT, b"\xff\xfe"),
    (MESSAGES, b'{"messages": [{"role": "user", "content": "x"}]}'),
)


@dataclass(frozen=True)
class Planned:
    """One request of the script. `body` is None for nonsense, which `number` picks; elsewhere it says when to leave."""

    kind: Kind
    number: int
    path: str = CHAT
    body: str = ""


@dataclass(frozen=True)
class Answer:
    """What a client made of a reply."""

    text: str
    finish: str | None
    n_tokens: int | None
    logprobs: tuple[tuple[str, float], ...] = ()


def script(n: int, seed: int) -> list[Planned]:
    """`n` requests. Bodies come back, and go on from each other, so that prefixes of every length are shared."""
    rng = random.Random(seed)
    bodies = [body(rng) for _ in range(max(12, n // 8))]
    out = []
    for _ in range(n):
        kind = rng.choice(KINDS)
        path, text = rng.choice(bodies)
        out.append(Planned(kind, rng.randrange(100), path, text))
    return out


def body(rng: random.Random) -> tuple[str, str]:
    """A path and a body for it that always gets the same answer."""
    system = " ".join(WORDS[i % len(WORDS)] for i in range(rng.choice((0, 3, 30, 60))))
    user = " ".join(rng.choices(WORDS, k=rng.randrange(1, 12)))
    fields: dict[str, Any] = {
        "max_tokens": rng.choice((1, 8, 40, 90)),
        "temperature": rng.choice((0.0, 0.0, 0.7, 1.0)),
        "seed": rng.randrange(1000),
    }
    path = rng.choice((CHAT, CHAT, CHAT, TEXT, MESSAGES))
    if path == TEXT:
        return path, json.dumps({"prompt": f"{system} {user}", "logprobs": 1, **fields})
    if path == MESSAGES:
        del fields["seed"]
        fields["temperature"] = 0.0
        return path, json.dumps({"model": "m", "system": system or "s", "messages": turns(rng, user), **fields})
    head = [{"role": "system", "content": system}] if system else []
    fields |= rng.choice(({}, {"logprobs": True, "top_logprobs": 1}, {"stop": ["he", "qu"]}, {"ignore_eos": True}))
    return path, json.dumps({"messages": [*head, *turns(rng, user)], **fields})


def turns(rng: random.Random, user: str) -> list[dict[str, str]]:
    """A conversation of one or more turns."""
    out = [{"role": "user", "content": user}]
    for _ in range(rng.choice((0, 0, 1, 2))):
        out += [{"role": "assistant", "content": "so it was"}, {"role": "user", "content": rng.choice(WORDS)}]
    return out


# --- reading answers -------------------------------------------------------------------------------------------------


def whole(path: str, data: Any) -> Answer:
    """A reply that came in one piece."""
    if path == MESSAGES:
        text = "".join(block.get("text", "") + block.get("thinking", "") for block in data["content"])
        return Answer(text, data["stop_reason"], data["usage"]["output_tokens"])
    [choice] = data["choices"]
    n = data["usage"]["completion_tokens"]
    if path == TEXT:
        return Answer(choice["text"], choice["finish_reason"], n, logprobs_of(choice))
    message = choice["message"]
    text = (message.get("reasoning_content") or "") + (message["content"] or "")
    return Answer(text, choice["finish_reason"], n, logprobs_of(choice))


def streamed(path: str, data: Sequence[str]) -> Answer:
    """A reply that came in pieces, or its beginning. Raises Refused for an error among them."""
    text, finish, n = "", None, None
    logprobs: tuple[tuple[str, float], ...] = ()
    for event in (json.loads(one) for one in data if one != "[DONE]"):
        if "error" in event:
            raise Refused(event)
        if path == MESSAGES:
            delta = event.get("delta") or {}
            text += delta.get("text", "") + delta.get("thinking", "")
            finish = delta.get("stop_reason") or finish
            n = event["usage"]["output_tokens"] if event["type"] == "message_delta" else n
            continue
        n = event["usage"]["completion_tokens"] if event.get("usage") else n
        for choice in event["choices"]:
            delta = choice.get("delta") or {}
            text += choice.get("text") or delta.get("reasoning_content") or delta.get("content") or ""
            finish = choice["finish_reason"] or finish
            logprobs += logprobs_of(choice)
    return Answer(text, finish, n, logprobs)


def logprobs_of(choice: Any) -> tuple[tuple[str, float], ...]:
    """(token, log probability) of every token that is told."""
    told = choice.get("logprobs") or {}
    if "content" in told:
        return tuple((one["token"], one["logprob"]) for one in told["content"] or ())
    return tuple(zip(told.get("tokens", ()), told.get("token_logprobs", ()), strict=True))


class Refused(Exception):
    """The server ended a stream with an error, as it should where it cannot go on."""


class Turned(Exception):
    """The request came at a moment when there was nobody to take it."""


# --- the answers that are right --------------------------------------------------------------------------------------


async def references(model: Path, planned: Sequence[Planned]) -> dict[tuple[str, str], Answer]:
    """The answer to each body, alone on an engine of its own."""
    out: dict[tuple[str, str], Answer] = {}
    for path, text in {(one.path, one.body) for one in planned}:
        hub = Hub()
        hub.load(model, EngineSettings(ctx=CTX, batch=1, spec=False))
        try:
            async with app_client(create_app(hub, ServerSettings())) as client:
                answer = await client.post(path, content=text)
                assert answer.status_code == 200, answer.text
                out[path, text] = whole(path, answer.json())
        finally:
            hub.close()
    return out


# --- clients ---------------------------------------------------------------------------------------------------------


class Load:
    """Many clients that take requests off one script."""

    def __init__(self, server: Any, right: dict[tuple[str, str], Answer], n_clients: int):
        self.server = server
        self.counts: Counter[str] = Counter()
        self.hits: Counter[str] = Counter()  # of prompts on what was kept, in all lives of the server
        self._right = right
        self._n_clients = n_clients
        self._up = asyncio.Event()
        self._up.set()
        self._progress = asyncio.Condition()
        self._n_done = 0
        self._n_active = 0
        self._n_slow = 0

    async def run(self, planned: Sequence[Planned], restarts: Sequence[int] = ()) -> None:
        """Work through the script; before the requests at `restarts` the server is stopped and started again."""
        todo = iter(enumerate(planned))

        async def client() -> None:
            async with httpx.AsyncClient(base_url=self.server.url, timeout=PATIENCE_S) as http:
                for at, one in todo:
                    if at in restarts:
                        await self._restart()
                    self._n_active += 1
                    await self._through(http, one)
                    self._n_active -= 1
                    async with self._progress:
                        self._n_done += 1
                        self._progress.notify_all()

        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._n_clients):
                tasks.create_task(client())

    async def _restart(self) -> None:
        self._up.clear()
        await self.stop()
        await self.server.start()
        self._up.set()
        self.counts["restarts"] += 1

    async def stop(self) -> None:
        """Note what it did, and stop the server as its operator would."""
        self.hits += await self.server.hits()
        assert await self.server.stop() == 0

    async def _through(self, http: httpx.AsyncClient, one: Planned) -> None:
        """Until it has an answer: it comes again where the server was just restarting."""
        for _ in range(20):
            try:
                outcome = await self._ask(http, one)
            except (Turned, httpx.ConnectError):
                self.counts["came again"] += 1
                await self._up.wait()
            except Refused:
                self.counts["ended by an error"] += 1
                assert self.counts["restarts"] or not self._up.is_set(), "nobody stopped the server"
                return
            else:
                self.counts[outcome] += 1
                return
        raise AssertionError(f"{one} never got an answer")

    async def _ask(self, http: httpx.AsyncClient, one: Planned) -> str:
        if one.kind == "bad":
            path, content = BAD[one.number % len(BAD)]
            async with self._open(http, path, content) as answer:
                said = json.loads(await answer.aread())
            assert 400 <= answer.status_code < 500 and said["error"]["message"], said
            return "refused"
        if one.kind == "half":
            await self._half(one)
            return "hung up"
        right = self._right[one.path, one.body]
        if one.kind == "whole":
            async with self._open(http, one.path, one.body.encode()) as answer:
                data = json.loads(await answer.aread())
            assert answer.status_code == 200, data
            assert whole(one.path, data) == right, one
            return "exact"
        return await self._stream(http, one, right)

    async def _stream(self, http: httpx.AsyncClient, one: Planned, right: Answer) -> str:
        content = json.dumps({**json.loads(one.body), "stream": True, **usage_wish(one.path)}).encode()
        leave = {"hang up": 1 + one.number % 7, "leave at once": 0}.get(one.kind)
        text = ""
        async with self._open(http, one.path, content) as answer:
            assert answer.status_code == 200, await answer.aread()
            n_pieces = 0
            pieces = answer.aiter_text()
            while leave is None or n_pieces < leave:
                if one.kind == "slow" and n_pieces < 5:
                    await self._others(one.number % 4)
                piece = await anext(pieces, None)
                if piece is None:
                    break
                text += piece
                n_pieces += 1
        is_over = any(end in text[-200:] for end in ENDED)
        got = streamed(one.path, [data for _, data in frames(text[: text.rfind("\n\n") + 2])])
        if leave is None or is_over:
            assert is_over, f"a stream without an end: {text[-300:]}"
            assert got == right, one
            return "exact, read slowly" if one.kind == "slow" else "exact"
        assert right.text.startswith(got.text) and got.logprobs == right.logprobs[: len(got.logprobs)], one
        return "hung up"

    @asynccontextmanager
    async def _open(self, http: httpx.AsyncClient, path: str, content: bytes) -> AsyncIterator[httpx.Response]:
        """A request. One whose connection the server had closed before it began to answer was never taken."""
        headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
        request = http.build_request("POST", path, content=content, headers=headers)
        try:
            answer = await http.send(request, stream=True)
        except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError) as error:
            assert not self._up.is_set() or self.counts["restarts"], error
            raise Turned from None
        try:
            if answer.status_code == 503:
                assert json.loads(await answer.aread())["error"]["message"]
                raise Turned
            yield answer
        finally:
            await answer.aclose()

    async def _half(self, one: Planned) -> None:
        """A client that dies while it sends."""
        try:
            _, wire = await asyncio.open_connection("127.0.0.1", self.server.port)
        except OSError:
            raise Turned from None
        head = f"POST {one.path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(one.body)}\r\n\r\n"
        wire.write(head.encode() + one.body.encode()[: one.number])
        wire.close()

    async def _others(self, n: int) -> None:
        """Read nothing until `n` more requests of others are through, or everybody else reads nothing as well."""
        target = self._n_done + n
        self._n_slow += 1
        async with self._progress:
            self._progress.notify_all()
            await self._progress.wait_for(lambda: self._n_done >= target or self._n_slow >= self._n_active)
        self._n_slow -= 1


def usage_wish(path: str) -> dict[str, Any]:
    """What makes a stream tell its usage."""
    return {} if path == MESSAGES else {"stream_options": {"include_usage": True}}


# --- the tests -------------------------------------------------------------------------------------------------------


async def under_load(make: Callable[..., Any], model: Path, folder: Path, n: int, n_clients: int) -> Load:
    """Two restarts in the script, then the same load twice more: between these two the server may not have grown."""
    planned = script(n, seed=n)
    right = await references(model, planned)
    server = make(
        "--ctx", str(CTX), "--batch", "4", "--queue", "100", "--conns", "100", "--kv-cache-dir", str(folder),
        "--kv-slots", "6", "--kv-ram", "1",
    )  # fmt: skip
    await server.start()
    load = Load(server, right, n_clients)
    await load.run(planned, restarts=(n // 3, 2 * n // 3))
    prints = []
    for _ in range(2):
        await load.run(planned[: n // 2])
        prints.append(await server.at_rest())
    await load.stop()
    counts = load.counts
    print(f"\n{dict(counts)}\nprefixes: {dict(load.hits)}\n{prints}", file=sys.stderr)
    assert counts["restarts"] == 2
    assert sum(counts.values()) - counts["came again"] - counts["restarts"] == n + 2 * (n // 2)
    before, after = prints
    aside = min(
        32, (os.cpu_count() or 1) + 4
    )  # the event loop's pool for heavy work makes its threads as it needs them
    assert after.threads <= before.threads + aside and after.files <= before.files
    assert after.rss_kb - before.rss_kb < 8 << 10
    assert "Traceback" not in server.log.read_text()
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".tmp")]
    return load


def test_a_small_load(server: Callable[..., Any], tiny_chat: Path, tmp_path: Path) -> None:
    (tmp_path / "kv").mkdir()
    counts = asyncio.run(under_load(server, tiny_chat, tmp_path / "kv", n=60, n_clients=8)).counts
    assert counts["exact"] and counts["hung up"] and counts["refused"] and counts["exact, read slowly"]


@pytest.mark.load
def test_a_heavy_load(server: Callable[..., Any], tiny_chat: Path, tmp_path: Path) -> None:
    (tmp_path / "kv").mkdir()
    load = asyncio.run(under_load(server, tiny_chat, tmp_path / "kv", n=500, n_clients=32))
    assert all(load.hits[source] for source in ("none", "slot", "copy", "ram", "disk")), load.hits
