"""What happens to every request before it is routed: its id, the host guard, preflights, and a plain path."""

from __future__ import annotations

import re
import secrets

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lmhub.server.envelopes import Envelopes
from lmhub.server.guard import HostGuard
from lmhub.server.http_errors import BadFraming, HeadTooLarge, HttpError
from lmhub.server.wire import send_error, send_head

HEAD_BYTES = 16 << 10  # of target, names and values

_CLIENT_ID = re.compile(rb"[!-~]{1,128}")


class Gate:
    """ASGI middleware around the router. Routes are matched without `/v1`; see `plain_path`."""

    def __init__(self, app: ASGIApp, guard: HostGuard, envelopes: Envelopes):
        self._app = app
        self._guard = guard
        self._envelopes = envelopes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer at once, or hand on with the plain path."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        send = _with_request_id(send, _request_id(scope))
        try:
            _check_size(scope)
            path = plain_path(scope["path"])
            self._guard.check(scope["method"], scope["headers"])
        except HttpError as error:
            await send_error(send, receive, error, self._envelopes.frame(scope["path"], error))
            return
        if scope["method"] == "OPTIONS":
            await send_head(send, 204, ())
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


def _with_request_id(send: Send, request_id: bytes) -> Send:
    """Both spellings: one SDK reads the first, another the second."""

    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            ids = [(b"request-id", request_id), (b"x-request-id", request_id)]
            message = {**message, "headers": [*message["headers"], *ids]}
        await send(message)

    return send_with_id
