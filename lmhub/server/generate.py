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
from dataclasses import replace
from functools import partial
from typing import Any, ParamSpec, TypeVar

from starlette.types import Receive, Scope, Send

from lmhub import __version__
from lmhub.dialect import Dialect, Encoder, ReplyHead
from lmhub.errors import GenerationError
from lmhub.hub import Hub, Served
from lmhub.loaded import LoadedModel
from lmhub.server.access import AccessLog
from lmhub.server.ahead import Heard, read_ahead
from lmhub.server.body import read_request
from lmhub.server.choices import merged
from lmhub.server.names import Names
from lmhub.server.resolve import resolved
from lmhub.server.state import ServerState
from lmhub.server.wire import SSE_HEADERS, draft_frame, send_head, send_json
from lmhub.settings import ServerSettings
from lmhub.types import ChatRequest, CompletionRequest, Draft, Event, Failure, GenerationRequest, Request

log = logging.getLogger("lmhub.server")

LARGE_BODY = 32 << 10  # bytes; parsing and tokenizing more than this would hold up everybody's streams

P = ParamSpec("P")
T = TypeVar("T")


class Generate:
    """Answers the POST requests of one dialect."""

    def __init__(self, hub: Hub, dialect: Dialect, settings: ServerSettings, state: ServerState, access: AccessLog):
        self._hub, self._dialect = hub, dialect
        self._settings, self._state, self._access = settings, state, access
        self._names = Names(hub, settings)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises LmhubError while nothing has been sent."""
        await self._admit(
            scope, receive, self._dialect.parse, lambda request, nbytes: self._reply(request, nbytes, scope, send)
        )

    async def count(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Say how many tokens the prompt of a request has. Raises LmhubError."""
        parse = self._dialect.parse_count or self._dialect.parse
        await self._admit(scope, receive, parse, lambda request, nbytes: self._count(request, nbytes, send))

    async def _admit(
        self,
        scope: Scope,
        receive: Receive,
        parse: Callable[[bytes], Request],
        work: Callable[[Request, int], Coroutine[Any, Any, None]],
    ) -> None:
        self._state.check()
        with self._state.admitted(self._settings.conns):
            body = await read_request(scope, receive, self._settings.max_body)
            request = await _aside(len(body) > LARGE_BODY, parse, body)
            await _while_connected(receive, work(request, len(body)))

    async def _count(self, request: Request, nbytes: int, send: Send) -> None:
        served = self._names.served(request.model)
        assert self._dialect.count is not None
        request = with_defaults(request, served.model, self._settings)
        n_tokens = await _aside(nbytes > LARGE_BODY, _count, request, served.model)
        await send_json(send, 200, self._dialect.count(n_tokens))

    async def _reply(self, request: Request, nbytes: int, scope: Scope, send: Send) -> None:
        served = self._names.served(request.model)
        id = self._dialect.id_prefix + secrets.token_hex(12)
        request = with_defaults(request, served.model, self._settings)
        generations = await self._prepare(served, request, nbytes, id)
        self._access.follow(scope, served.model.id, id, len(generations))
        prompts = tuple(one.prompt for one in generations)
        head = ReplyHead(
            id,
            served.model.id,
            int(time.time()),
            _fingerprint(served.model),
            request,
            prompts,
            _texts(request, served.model, prompts),
            generations,
        )
        ping_s = self._settings.ping_s if request.ping_s is None else request.ping_s
        events = merged(generations, partial(self._hub.generate, served), ping_s, self._state.cut)
        heard = Heard(self._dialect.keeps_reasoning)
        async with aclosing(events):
            if request.stream:
                await _stream(self._dialect.encoder(head), heard.listen(events), send)
            else:
                replies = await _all(heard.listen(events), len(generations))
                await send_json(send, 200, self._dialect.collect(head, replies))
        read_ahead(served, request, heard)

    async def _prepare(self, served: Served, request: Request, nbytes: int, id: str) -> tuple[GenerationRequest, ...]:
        """The plugins see the request on this thread; tokenizer and grammar compiler see a heavy one on another."""
        self._hub.validate(served, request)
        heavy = nbytes > LARGE_BODY or served.model.is_heavy(request)
        generations = await _aside(heavy, _prepared, request, served.model, id)
        return tuple(self._hub.process(served, one) for one in generations)


def _prepared(request: Request, model: LoadedModel, id: str) -> tuple[GenerationRequest, ...]:
    return model.prepare(resolved(request, model), id)


def _texts(request: Request, model: LoadedModel, prompts: tuple[tuple[int, ...], ...]) -> tuple[str, ...]:
    if not (isinstance(request, CompletionRequest) and request.echo_prompt):
        return ()
    return tuple(model.tokenizer.decode(ids, special=True) for ids in prompts)


def _count(request: Request, model: LoadedModel) -> int:
    return model.count(resolved(request, model))


def with_defaults(request: Request, model: LoadedModel, settings: ServerSettings) -> Request:
    """`request` with what this server, rather than the client or the model, decides."""
    if isinstance(request, ChatRequest) and request.reasoning and model.think is None and settings.lenient_reasoning:
        request = replace(request, reasoning=None, reasoning_budget=None)  # agents ask for effort whatever the model
    if settings.seed is not None and request.sampling.get("seed") is None:
        request = replace(request, sampling={**request.sampling, "seed": settings.seed})
    if request.max_tokens is None and settings.default_max_tokens:
        request = replace(request, max_tokens=settings.default_max_tokens)
    return request


async def _aside(heavy: bool, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` returns; run on another thread if it is heavy."""
    if heavy:
        return await asyncio.to_thread(work, *args, **kwargs)
    return work(*args, **kwargs)


async def _stream(encoder: Encoder, events: AsyncIterator[tuple[Event, int] | None], send: Send) -> None:
    """Send events as they come. A Failure before the head is raised, a later one is told in the stream."""
    started = False
    async for item in events:
        if item is not None and isinstance(item[0], Failure) and not started:
            raise item[0].error
        try:
            frame = encoder.ping() if item is None else draft_frame(*item) or encoder.event(*item)
        except Exception:
            if not started:
                raise
            log.exception("a dialect cannot encode %r", item)
            frame = encoder.event(Failure(GenerationError("the server failed to write this reply; its log says why")))
            await send({"type": "http.response.body", "body": frame})
            return
        if not started:
            await send_head(send, 200, SSE_HEADERS)
            started = True
        await send({"type": "http.response.body", "body": frame, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _all(events: AsyncIterator[tuple[Event, int] | None], n_choices: int) -> list[list[Event]]:
    """All events of each choice. Raises what a Failure holds."""
    seen: list[list[Event]] = [[] for _ in range(n_choices)]
    async for item in events:
        if item is None:
            continue
        event, choice = item
        if isinstance(event, Failure):
            raise event.error
        if not isinstance(event, Draft):
            seen[choice].append(event)
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
