"""What happens to every request before it is routed: its id, the host guard, preflights, and a plain path.

Behind it, its line in the access log.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lmhub.server.access import AccessLog
from lmhub.server.cors import Cors
from lmhub.server.envelopes import Envelopes
from lmhub.server.guard import HostGuard
from lmhub.server.http_errors import BadFraming, HeadTooLarge, HttpError
from lmhub.server.metrics import Metrics
from lmhub.server.request_id import REQUEST_ID
from lmhub.server.wire import send_error, send_head

HEAD_BYTES = 16 << 10  # of target, names and values

_CLIENT_ID = re.compile(rb"[!-~]{1,128}")


class Answered:
    """Tells the metrics of every answer, under the route that it came from; what is no route counts as "other"."""

    def __init__(self, routes: Sequence[Route], metrics: Metrics):
        self._paths = {route.path for route in routes}
        self._metrics = metrics

    def watch(self, path: str, send: Send) -> Send:
        """`send`, which counts the answer when it begins."""

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.answered(self._route(path), message["status"])
            await send(message)

        return watched

    def _route(self, path: str) -> str:
        try:
            path = plain_path(path)
        except BadFraming:
            return "other"
        return path if path in self._paths else "other"


class Gate:
    """ASGI middleware around the router. Routes are matched without `/v1`; see `plain_path`."""

    def __init__(
        self,
        app: ASGIApp,
        guard: HostGuard,
        envelopes: Envelopes,
        cors: Cors,
        answered: Answered,
        access: AccessLog,
    ):
        self._app = app
        self._guard = guard
        self._envelopes = envelopes
        self._cors = cors
        self._answered = answered
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer at once, or hand on with the plain path."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        REQUEST_ID.set(request_id.decode())
        entry = self._access.open(scope)
        if entry is None:
            await self._answer(scope, receive, send, request_id)
            return
        try:
            await self._answer(scope, receive, self._access.watch(entry, send), request_id)
        finally:
            await self._access.close(entry)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, request_id: bytes) -> None:
        headers = scope["headers"]
        ids = [(b"request-id", request_id), (b"x-request-id", request_id)]  # SDKs read the one or the other
        send = self._answered.watch(scope["path"], send)
        send = _with_headers(send, [*ids, *self._cors.of(headers)])
        try:
            _check_size(scope)
            path = plain_path(scope["path"])
            self._guard.check(scope["method"], headers)
        except HttpError as error:
            await send_error(send, receive, error, self._envelopes.of(_guessed_path(scope), headers)(error))
            return
        if scope["method"] == "OPTIONS":
            await send_head(send, 204, self._cors.preflight(headers))
            await send({"type": "http.response.body", "body": b""})
            return
        await self._app({**scope, "path": path}, receive, send)


def plain_path(path: str) -> str:
    """`path` without doubled and trailing slashes and without `/v1`, once or twice: base URLs are often clumsy.

    Raises BadFraming for a path that climbs.
    """
    path = re.sub(r"^https?://[^/]*", "", path)  # the absolute form that proxies send
    parts = [part for part in path.split("/") if part]
    if ".." in parts:
        raise BadFraming("the path contains '..'; send the path of the endpoint itself")
    for _ in range(2):
        if parts[:1] == ["v1"]:
            del parts[0]
    return "/" + "/".join(parts)


def _check_size(scope: Scope) -> None:
    """The HTTP parser bounds only a head that arrives in pieces. Raises HeadTooLarge."""
    size = len(scope["raw_path"]) + len(scope["query_string"])
    if size + sum(len(name) + len(value) for name, value in scope["headers"]) > HEAD_BYTES:
        raise HeadTooLarge(f"the request's target and headers exceed {HEAD_BYTES} bytes, the limit; send fewer")


def _request_id(scope: Scope) -> bytes:
    """The client's own id if it sent a printable one, so that its log and ours can be joined; else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _CLIENT_ID.fullmatch(value):
            return bytes(value)
    return b"req_" + secrets.token_hex(12).encode()


def _guessed_path(scope: Scope) -> str:
    try:
        return plain_path(scope["path"])
    except BadFraming:
        return str(scope["path"])


def _with_headers(send: Send, more: list[tuple[bytes, bytes]]) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *more]}
        await send(message)

    return send_with_headers
