"""Server-sent events as a client reads them, and an HTTP client for an application that has no socket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx


def frames(text: str) -> Iterator[tuple[str | None, str]]:
    """(event name or None, data) of every event of a stream; comments are skipped.

    Raises ValueError for what a client would stumble over: a field other than event and data, a frame without its blank
    line, or data on several lines.
    """
    if text and not text.endswith("\n\n"):
        raise ValueError(f"the stream ends inside a frame: {text[-80:]!r}")
    for frame in text.split("\n\n")[:-1]:
        fields = [line.partition(": ")[::2] for line in frame.split("\n") if not line.startswith(":")]
        if not fields:
            continue
        named = dict(fields)
        if len(named) != len(fields) or not {"data"} <= set(named) <= {"event", "data"}:
            raise ValueError(f"not a frame of one data line and at most one event line: {frame!r}")
        yield named.get("event"), named["data"]


def app_client(app: Any) -> httpx.AsyncClient:
    """`async with app_client(create_app(hub, settings)) as client:` requests go straight to the ASGI application."""
    import httpx

    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")
