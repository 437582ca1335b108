"""Reading a request body: which bodies are read at all, how much of them, for how long. Knows no JSON.

Compressed bodies are unpacked as far as the limit; the limit is one of what comes out.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable

from starlette.types import Receive, Scope

from lmhub.errors import RequestError
from lmhub.server.http_errors import BadFraming, BodyTimeout, BodyTooLarge, LengthRequired, UnsupportedMedia

READ_S = 60.0  # how long a body may take to arrive
DISCARD_S = 2.0  # how long an unwanted body is taken in, so that its sender reads the refusal
DISCARD_BYTES = 64 << 20

# Content encodings, and the window sizes that zlib tries for them: some clients send deflate without its zlib header.
_WINDOWS: dict[str, tuple[int, ...]] = {"": (), "identity": (), "gzip": (31,), "x-gzip": (31,), "deflate": (15, -15)}

RawHeaders = Iterable[tuple[bytes, bytes]]


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


def check_headers(headers: RawHeaders, limit: int) -> None:
    """Refuse, by its headers, a body that would not be read. `limit` is in bytes. Raises HttpError."""
    fields = {name: value.decode("latin-1") for name, value in headers}
    length, chunked = fields.get(b"content-length"), b"transfer-encoding" in fields
    if length is None and not chunked:
        raise LengthRequired("the request has neither a Content-Length nor a chunked body; send its length")
    if length is not None and chunked:
        raise BadFraming("the request has both Content-Length and Transfer-Encoding; send one of them")
    if length is not None and int(length) > limit:  # the HTTP parser let only digits through
        raise _too_large(limit)
    encoding = fields.get(b"content-encoding", "identity").strip().lower()
    if encoding not in _WINDOWS:
        raise UnsupportedMedia(f"content-encoding {encoding[:40]!r} is not read here; send gzip, deflate or neither")
    _check_media_type(fields.get(b"content-type", ""))


def _check_media_type(value: str) -> None:
    """Clients label JSON with all sorts of types, so only what cannot be JSON in UTF-8 is refused."""
    kind, *parameters = (part.strip().lower() for part in value.split(";"))
    if kind.startswith("multipart/"):
        raise UnsupportedMedia(f"content-type {kind[:40]!r} is not read here; send application/json")
    for name, _, charset in (parameter.partition("=") for parameter in parameters):
        if name.strip() == "charset" and charset.strip(' "') not in ("utf-8", "utf8", "us-ascii"):
            raise UnsupportedMedia(f"charset {charset[:40]!r} is not read here; send UTF-8")


async def read_request(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The body of a request, unpacked, at most `limit` bytes. Raises HttpError, ClientGone."""
    check_headers(scope["headers"], limit)
    body = await read_body(receive, limit)
    encoding = next((value for name, value in scope["headers"] if name == b"content-encoding"), b"")
    windows = _WINDOWS[encoding.decode("latin-1").strip().lower()]
    return await asyncio.to_thread(unpack, body, windows, limit) if windows else body


def unpack(body: bytes, windows: tuple[int, ...], limit: int) -> bytes:
    """`body` decompressed with the first of these window sizes that fits. Raises BodyTooLarge, RequestError."""
    for window in windows:
        decoder = zlib.decompressobj(window)
        try:
            out = decoder.decompress(body, limit + 1)
        except zlib.error:
            continue
        if len(out) > limit:
            error = _too_large(limit)
            error.close = False  # nothing is left to be read
            raise error
        if decoder.eof:
            return out
    raise RequestError("the request body is not what its content-encoding says; send it uncompressed")


async def read_body(receive: Receive, limit: int, timeout_s: float = READ_S) -> bytes:
    """The whole body, at most `limit` bytes. Raises BodyTooLarge, BodyTimeout, ClientGone."""
    pieces, size = [], 0
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise ClientGone
                piece = message.get("body", b"")
                size += len(piece)
                if size > limit:
                    raise _too_large(limit)
                pieces.append(piece)
                if not message.get("more_body", False):
                    return b"".join(pieces)
    except TimeoutError:
        raise BodyTimeout(f"the request body did not arrive within {timeout_s:g} s") from None


async def discard(receive: Receive, limit: int = DISCARD_BYTES, timeout_s: float = DISCARD_S) -> None:
    """Take in and drop what is left of a body, within bounds."""
    try:
        async with asyncio.timeout(timeout_s):
            while limit > 0:
                message = await receive()
                limit -= len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
    except TimeoutError:
        return


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the request body is larger than {limit} bytes, the limit of this server; send less")
