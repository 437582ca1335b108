"""Bytes and headers that every answer shares: JSON, server-sent events, the OpenAI error envelope. Knows no route."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qs

import msgspec
from starlette.types import Receive, Scope, Send

from lmhub.errors import LmhubError, QueueFull, RequestError, ShuttingDown
from lmhub.server.body import discard
from lmhub.server.http_errors import HttpError, Loading
from lmhub.types import Draft, Event

Headers = Iterable[tuple[str, str]]

SSE_HEADERS = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),  # a buffering proxy would hold the stream back
)
SSE_PING = b": ping\n\n"  # a comment: every SDK skips it, none skips an empty data event
SSE_DONE = b"data: [DONE]\n\n"


def to_json(value: Any) -> bytes:
    """`value` as compact UTF-8 JSON without raw newlines."""
    return msgspec.json.encode(value)


def sse(value: Any) -> bytes:
    """One data-only event that holds `value` as JSON."""
    return b"data: " + to_json(value) + b"\n\n"


def draft_frame(event: Event, choice: int) -> bytes:
    """A Draft as a comment, which every SDK skips; of any other event nothing."""
    if not isinstance(event, Draft):
        return b""
    return b": draft " + to_json({"choice": choice, "text": event.text}) + b"\n\n"


def openai_error_object(error: LmhubError) -> dict[str, Any]:
    """The envelope of every OpenAI dialect. All four keys are always there."""
    param = error.param if isinstance(error, RequestError) else None
    return {"error": {"message": str(error), "type": error.kind, "param": param, "code": error.code}}


def openai_error(error: LmhubError) -> bytes:
    """A failure as the body of an OpenAI answer."""
    return to_json(openai_error_object(error))


def error_headers(error: LmhubError) -> list[tuple[str, str]]:
    """What tells a client whether and when to ask again. SDKs retry every 5xx unless `x-should-retry` says no."""
    headers: list[tuple[str, str]] = []
    if isinstance(error, HttpError):
        headers += error.headers
        headers += [("connection", "close")] if error.close else []
    if isinstance(error, QueueFull | Loading):
        headers.append(("retry-after", str(error.retry_after_s)))
    elif isinstance(error, ShuttingDown):
        headers.append(("x-should-retry", "false"))
    if error.status == 401:
        headers.append(("www-authenticate", "Bearer"))
    if error.status == 501:
        headers.append(("x-should-retry", "false"))
    return headers


def query(scope: Scope, name: str) -> str | None:
    """The first value of a field of the request's query, if it has one."""
    values = parse_qs(scope["query_string"].decode("latin-1")).get(name)
    return values[0] if values else None


async def send_head(send: Send, status: int, headers: Headers) -> None:
    """Send status line and headers."""
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    await send({"type": "http.response.start", "status": status, "headers": raw})


async def send_json(send: Send, status: int, body: bytes, headers: Headers = ()) -> None:
    """Send a complete JSON answer."""
    await send_head(send, status, _json_headers(body, headers))
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, receive: Receive, error: LmhubError, body: bytes) -> None:
    """Send a failure, framed as `body`. Where it ends the connection, first take in what the client is still sending:
    closing with unread bytes resets the connection, and the client would see the reset instead of the answer.
    """
    await send_head(send, error.status, _json_headers(body, error_headers(error)))
    if isinstance(error, HttpError) and error.close:
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await discard(receive)
        body = b""
    await send({"type": "http.response.body", "body": body})


def _json_headers(body: bytes, more: Headers) -> list[tuple[str, str]]:
    return [("content-type", "application/json"), ("content-length", str(len(body))), *more]
