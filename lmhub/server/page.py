"""The chat page at `/`: static files of the package, read once, each with its ETag and a policy that admits no other.

No build step and no template: what a browser gets is what lies in `ui/`. Knows no model and no key; the page asks for a
key itself when the API wants one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from importlib.resources import files

from starlette.types import Receive, Scope, Send

from lmhub.server.endpoint import Answer
from lmhub.server.wire import send_head

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# Scripts, styles, images and connections of this server only; no inline code, no frames, no forms that leave, and no
# string may become markup (Trusted Types): the text of a model is text.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file of the page. `etag` changes with its bytes."""

    body: bytes
    media_type: str
    etag: str

    @property
    def headers(self) -> list[tuple[str, str]]:
        """What every answer with this file carries. A browser keeps it, and asks whether it still holds."""
        return [
            ("etag", self.etag),
            ("cache-control", "no-cache"),
            ("content-security-policy", POLICY),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
        ]


def page_routes() -> dict[str, Answer]:
    """The path of every file of the page, and what answers a GET to it."""
    found: dict[str, Answer] = {}
    for file in files("lmhub.server").joinpath("ui").iterdir():
        kind = TYPES.get(file.name.rpartition(".")[2])
        if kind is None:
            continue
        body = file.read_bytes()
        etag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        path = "/" if file.name == "index.html" else f"/ui/{file.name}"
        found[path] = partial(_send, StaticFile(body, kind, etag))
    return found


async def _send(file: StaticFile, scope: Scope, receive: Receive, send: Send) -> None:
    """The file, or 304 where the browser has these very bytes."""
    known = [value.decode("latin-1") for name, value in scope["headers"] if name == b"if-none-match"]
    if file.etag in (tag.strip().removeprefix("W/") for value in known for tag in value.split(",")):
        await send_head(send, 304, file.headers)
        await send({"type": "http.response.body", "body": b""})
        return
    about = [("content-type", file.media_type), ("content-length", str(len(file.body)))]
    await send_head(send, 200, [*about, *file.headers])
    await send({"type": "http.response.body", "body": file.body})
