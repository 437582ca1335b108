"""The life of one request: admit, read, parse, prepare, generate, answer. Knows dialects by their record only.

The head of a stream goes out with its first event (or first ping), so that whatever fails earlier is a plain JSON error
with its real status. A client that goes away cancels its generation, wherever that stands.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, ParamSpec, TypeVar

from starlette.types import Receive, Scope, Send

from lmhub import __version__
from lmhub.dialect import Dialect, Encoder, ReplyHead
from lmhub.errors import GenerationError
from lmhub.hub import Hub, Served
from lmhub.loaded import LoadedModel
from lmhub.server.body import check_headers, read_body
from lmhub.server.feed import watched
from lmhub.server.state import ServerState
from lmhub.server.wire import SSE_HEADERS, send_head, send_json
from lmhub.settings import ServerSettings
from lmhub.types import ChatRequest, Event, Failure, GenerationRequest

log = logging.getLogger("lmhub.server")

PING_S = 15.0
LARGE_BODY = 32 << 10  # bytes; parsing and tokenizing more than this would hold up everybody's streams

P = ParamSpec("P")
T = TypeVar("T")


class Generate:
    """Answers the POST requests of one dialect."""

    def __init__(self, hub: Hub, dialect: Dialect, settings: ServerSettings, state: ServerState, ping_s: float):
        self._hub, self._dialect = hub, dialect
        self._settings, self._state, self._ping_s = settings, state, ping_s

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises LmhubError while nothing has been sent."""
        self._state.check()
        with self._state.admitted(self._settings.conns):
            check_headers(scope["headers"], self._settings.max_body)
            body = await read_body(receive, self._settings.max_body)
            request = await _aside(len(body), self._dialect.parse, body)
            await _while_connected(receive, self._reply(request, len(body), send))

    async def _reply(self, request: ChatRequest, nbytes: int, send: Send) -> None:
        served = self._hub.acquire(request.model)
        id = self._dialect.id_prefix + secrets.token_hex(12)
        generation = await self._prepare(served, request, nbytes, id)
        head = ReplyHead(id, served.model.id, int(time.time()), _fingerprint(served.model), request)
        events = watched(self._hub.generate(served, generation), self._ping_s, self._state.cut)
        async with aclosing(events):
            if request.stream:
                await _stream(self._dialect.encoder(head), events, send)
            else:
                await send_json(send, 200, self._dialect.collect(head, await _all(events)))

    async def _prepare(self, served: Served, request: ChatRequest, nbytes: int, id: str) -> GenerationRequest:
        """The plugins see the request on this thread; the tokenizer sees a large one on another."""
        self._hub.validate(served, request)
        generation = await _aside(nbytes, served.model.prepare, request, id)
        return self._hub.process(served, generation)


async def _aside(nbytes: int, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` returns; run on another thread if it is about a large body."""
    if nbytes > LARGE_BODY:
        return await asyncio.to_thread(work, *args, **kwargs)
    return work(*args, **kwargs)


async def _stream(encoder: Encoder, events: AsyncIterator[Event | None], send: Send) -> None:
    """Send events as they come. A Failure before the head is raised, a later one is told in the stream."""
    started = False
    async for event in events:
        if isinstance(event, Failure) and not started:
            raise event.error
        try:
            frame = encoder.ping() if event is None else encoder.event(event)
        except Exception:
            if not started:
                raise
            log.exception("a dialect cannot encode %r", event)
            frame = encoder.event(Failure(GenerationError("the server failed to write this reply; its log says why")))
            await send({"type": "http.response.body", "body": frame})
            return
        if not started:
            await send_head(send, 200, SSE_HEADERS)
            started = True
        await send({"type": "http.response.body", "body": frame, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _all(events: AsyncIterator[Event | None]) -> list[Event]:
    """All events. Raises what a Failure holds."""
    seen: list[Event] = []
    async for event in events:
        if isinstance(event, Failure):
            raise event.error
        if event is not None:
            seen.append(event)
    return seen


async def _while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work`, cancelled as soon as the client is gone. A server's `send` does not tell, so `receive` has to."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.wait({task, gone})
    if not task.cancelled():
        task.result()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _fingerprint(model: LoadedModel) -> str:
    """Changes with whatever may change the tokens of a seeded reply: this program, the file, its quantisation."""
    facts = f"{__version__} {model.id} {model.nbytes} {model.n_params} {model.quantization}"
    return "fp_" + hashlib.sha256(facts.encode()).hexdigest()[:12]
