"""Puts the routes together: dialects from the hub, models, health. Knows no single dialect and no socket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from lmhub.dialect import Dialect, Page
from lmhub.errors import LmhubError, PluginError
from lmhub.hub import Hub
from lmhub.server.absent import ABSENT, Absent
from lmhub.server.access import AccessLog
from lmhub.server.auth import KeyCheck
from lmhub.server.body import read_request
from lmhub.server.builtin import Builtin
from lmhub.server.cors import Cors
from lmhub.server.endpoint import Answer, Endpoint
from lmhub.server.envelopes import Envelopes
from lmhub.server.gate import Answered, Gate
from lmhub.server.generate import Generate
from lmhub.server.guard import HostGuard
from lmhub.server.health import ALIVE_PATHS, READY_PATHS, Health
from lmhub.server.http_errors import HttpError, MethodNotAllowed, UnknownEndpoint
from lmhub.server.introspection import Introspection
from lmhub.server.metrics import Metrics
from lmhub.server.models import Models
from lmhub.server.names import Names
from lmhub.server.openapi import description
from lmhub.server.page import page_routes
from lmhub.server.state import ServerState
from lmhub.server.status import Status
from lmhub.server.tokens import TokenService
from lmhub.server.wire import error_headers, send_json, to_json
from lmhub.settings import ServerSettings

log = logging.getLogger("lmhub.server")


def create_app(
    hub: Hub, settings: ServerSettings, state: ServerState | None = None, *, ping_s: float | None = None
) -> Starlette:
    """The HTTP application of `hub`. Every route is served with and without `/v1` (see gate.py).

    Without a `state` the models must have been loaded, and the application is ready as soon as it is started; it may be
    mounted in any ASGI server, and its lifespan calls the start-up and shutdown hooks. `ping_s` replaces the setting.
    Raises PluginError when two dialects claim one route.
    """
    state = state or ServerState(phase="ready")
    settings = settings if ping_s is None else replace(settings, ping_s=ping_s)
    dialects = _dialects(hub, settings)
    envelopes = Envelopes(dialects)
    metrics = Metrics(hub)
    register(hub, metrics, "metrics")
    access = AccessLog()
    register(hub, access, "access")
    routes = _routes(hub, settings, state, dialects, envelopes, metrics, access)
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(
                Gate,
                guard=HostGuard(settings),
                envelopes=envelopes,
                cors=Cors(settings.cors_origin),
                answered=Answered(routes, metrics),
                access=access,
            )
        ],
        lifespan=lambda app: _lifespan(hub),
        exception_handlers={404: _on(envelopes, _unknown), 405: _on(envelopes, _wrong_method)},
    )
    app.router.redirect_slashes = False  # the gate has dealt with slashes
    return app


def register(hub: Hub, plugin: object, name: str) -> None:
    """Register one of the server's own plugins, in the place of that of another application over the same hub."""
    if hub.plugins.manager.has_plugin(name):
        hub.plugins.manager.unregister(name=name)
    hub.plugins.register(plugin, name)


def _routes(
    hub: Hub,
    settings: ServerSettings,
    state: ServerState,
    dialects: Sequence[Dialect],
    envelopes: Envelopes,
    metrics: Metrics,
    access: AccessLog,
) -> list[Route]:
    key, no_key = KeyCheck(settings.api_keys), KeyCheck(())

    def route(method: str, path: str, answer: Answer, check: KeyCheck = key) -> Route:
        return Route(path, Endpoint(answer, envelopes, check, metrics.failed), methods=[method])

    names = Names(hub, settings)
    health, models, about = Health(hub, state), Models(hub, names, state), Introspection(names, state)
    routes = [route("GET", path, answer, no_key) for path, answer in (page_routes() if settings.ui else {}).items()]
    routes += [route("GET", path, health.ready, no_key) for path in READY_PATHS]
    routes += [route("GET", path, health.alive, no_key) for path in ALIVE_PATHS]
    routes += [route("GET", "/models", models.list), route("GET", "/models/{id:path}", models.one)]
    routes.append(route("GET", "/lmhub/status", Status(hub, state, metrics).show))
    routes += [route("GET", "/props", about.props), route("GET", "/slots", about.slots)]
    described = to_json(description(dialects))
    routes.append(route("GET", "/openapi.json", partial(_document, described)))
    if settings.metrics:
        routes.append(route("GET", "/metrics", metrics.show, no_key if settings.metrics_open else key))
    for dialect in dialects:
        generate = Generate(hub, dialect, settings, state, access)
        routes += [route("POST", path, generate.answer) for path in dialect.routes]
        routes += [route("POST", path, generate.count) for path in dialect.count_routes]
    routes += [route(method, path, Absent(reason).answer) for (method, path), reason in ABSENT.items()]
    for dialect in dialects:
        routes += [route(page.method, page.path, partial(_page, page, state)) for page in dialect.pages]
        if "/chat/completions" in dialect.routes:
            for path, work in TokenService(names, dialect, settings).routes.items():
                routes.append(route("POST", path, partial(_work, work, settings, state)))
    return routes


async def _document(body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
    await send_json(send, 200, body)


async def _work(work: Callable[[bytes], bytes], settings: ServerSettings, state: ServerState, *asgi: Any) -> None:
    """Answer with what `work` makes of the body, on another thread."""
    scope, receive, send = asgi
    state.check()
    with state.admitted(settings.conns):
        body = await read_request(scope, receive, settings.max_body)
        await send_json(send, 200, await asyncio.to_thread(work, body))


async def _page(page: Page, state: ServerState, scope: Scope, receive: Receive, send: Send) -> None:
    state.check()
    query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
    await send_json(send, 200, page.answer(scope["path_params"], query))


@asynccontextmanager
async def _lifespan(hub: Hub) -> AsyncIterator[None]:
    call_startup(hub)
    yield
    call_shutdown(hub)


def call_startup(hub: Hub) -> None:
    """Tell the plugins that requests are about to come."""
    hub.plugins.call_each("lmhub_startup", hub=hub)


def call_shutdown(hub: Hub) -> None:
    """Tell the plugins that it is over. What they raise is logged."""
    try:
        hub.plugins.call_each("lmhub_shutdown", hub=hub)
    except LmhubError:
        log.exception("a plugin failed at shutdown")


def _dialects(hub: Hub, settings: ServerSettings) -> list[Dialect]:
    """All dialects that plugins and the core bring. Raises PluginError when two claim one route."""
    register(hub, Builtin(settings), "builtin")
    found: list[Dialect] = []
    owners: dict[str, str] = {}
    for plugin, dialects in hub.plugins.call_each("lmhub_dialects"):
        for dialect in dialects:
            for route in (*dialect.routes, *dialect.count_routes):
                if route in owners:
                    both = f"plugins {owners[route]} and {plugin} both serve POST {route}"
                    raise PluginError(f"{both}; leave one out with --block {plugin}")
                owners[route] = plugin
            found.append(dialect)
    return found


def _unknown(request: Request, error: HTTPException) -> HttpError:
    return UnknownEndpoint(f"unknown endpoint {request.method} {_asked(request)}; chat is at POST /v1/chat/completions")


def _wrong_method(request: Request, error: HTTPException) -> HttpError:
    allow = (error.headers or {}).get("Allow", "GET")
    return MethodNotAllowed(f"{_asked(request)} takes {allow}, not {request.method}", allow)


def _asked(request: Request) -> str:
    """The path as the client spelled it, which the gate has replaced in `path`."""
    raw: bytes = request.scope["raw_path"]
    return raw.decode("latin-1")[:200]


def _on(
    envelopes: Envelopes, describe: Callable[[Request, HTTPException], HttpError]
) -> Callable[[Request, Exception], Response]:
    """A Starlette exception handler that frames what `describe` makes of the router's refusal."""

    def handler(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        described: LmhubError = describe(request, error)
        body = envelopes.of(request.scope["path"], request.scope["headers"])(described)
        headers = dict(error_headers(described))
        return Response(body, described.status, headers, media_type="application/json")

    return handler
