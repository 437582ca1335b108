"""Puts the routes together: dialects from the hub, models, health. Knows no single dialect and no socket."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lmhub.dialect import Dialect
from lmhub.errors import LmhubError, PluginError
from lmhub.hub import Hub
from lmhub.server import builtin
from lmhub.server.auth import KeyCheck
from lmhub.server.endpoint import Answer, Endpoint
from lmhub.server.envelopes import Envelopes
from lmhub.server.gate import Gate
from lmhub.server.generate import PING_S, Generate
from lmhub.server.guard import HostGuard
from lmhub.server.health import ALIVE_PATHS, READY_PATHS, Health
from lmhub.server.http_errors import HttpError, MethodNotAllowed, UnknownEndpoint
from lmhub.server.models import Models
from lmhub.server.state import ServerState
from lmhub.server.wire import error_headers, openai_error
from lmhub.settings import ServerSettings

log = logging.getLogger("lmhub.server")


def create_app(
    hub: Hub, settings: ServerSettings, state: ServerState | None = None, *, ping_s: float = PING_S
) -> Starlette:
    """The HTTP application of `hub`. Every route is served with and without `/v1` (see gate.py).

    Without a `state` the models must have been loaded, and the application is ready as soon as it is started; it may be
    mounted in any ASGI server, and its lifespan calls the start-up and shutdown hooks. `ping_s`: seconds of silence
    after which a stream gets a ping. Raises PluginError when two dialects claim one route.
    """
    state = state or ServerState(phase="ready")
    dialects = _dialects(hub)
    envelopes = Envelopes(dialects)
    key, no_key = KeyCheck(settings.api_key), KeyCheck(None)
    health, models = Health(hub, state), Models(hub, state)

    def get(path: str, answer: Answer, check: KeyCheck = key) -> Route:
        return Route(path, Endpoint(answer, openai_error, check), methods=["GET"])

    routes = [get(path, health.ready, no_key) for path in READY_PATHS]
    routes += [get(path, health.alive, no_key) for path in ALIVE_PATHS]
    routes += [get("/models", models.list), get("/models/{id:path}", models.one)]
    for dialect in dialects:
        generate = Generate(hub, dialect, settings, state, ping_s)
        endpoint = Endpoint(generate.answer, dialect.error, key)
        routes += [Route(route, endpoint, methods=["POST"]) for route in dialect.routes]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Gate, guard=HostGuard(settings.host), envelopes=envelopes)],
        lifespan=lambda app: _lifespan(hub),
        exception_handlers={404: _on(envelopes, _unknown), 405: _on(envelopes, _wrong_method)},
    )
    app.router.redirect_slashes = False  # the gate has dealt with slashes
    return app


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


def _dialects(hub: Hub) -> list[Dialect]:
    """All dialects that plugins and the core bring. Raises PluginError when two claim one route."""
    if not hub.plugins.manager.has_plugin("builtin"):
        hub.plugins.register(builtin, "builtin")
    found: list[Dialect] = []
    owners: dict[str, str] = {}
    for plugin, dialects in hub.plugins.call_each("lmhub_dialects"):
        for dialect in dialects:
            for route in dialect.routes:
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
        body = envelopes.frame(request.scope["path"], described)
        headers = dict(error_headers(described))
        return Response(body, described.status, headers, media_type="application/json")

    return handler
