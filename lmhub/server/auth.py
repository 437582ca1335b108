"""The API key. One key, three headers in which clients send it, one comparison that takes as long for every guess."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Iterator

from lmhub.errors import AuthenticationError

_BEARER = re.compile(rb"bearer +(.*)", re.IGNORECASE | re.DOTALL)


class KeyCheck:
    """Checks requests against `key`; with None every request passes, whatever it sends."""

    def __init__(self, key: str | None):
        self._digest = None if key is None else hashlib.sha256(key.encode()).digest()

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raise AuthenticationError unless one of the headers carries the key; a stale one beside it does no harm."""
        if self._digest is None:
            return
        # Digests have one length, so the comparison says nothing about the length of the key either.
        matches = [hmac.compare_digest(hashlib.sha256(key).digest(), self._digest) for key in _presented(headers)]
        if not any(matches):
            raise AuthenticationError(
                "this server wants its API key, as `Authorization: Bearer KEY` or `x-api-key: KEY`; "
                + ("the key in this request is another one" if matches else "this request has none")
            )


def _presented(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    for name, value in headers:
        if name in (b"x-api-key", b"api-key"):
            yield value.strip()
        elif name == b"authorization" and (match := _BEARER.fullmatch(value.strip())):
            yield match[1]
