"""The API keys: three headers in which clients send one, and a comparison that takes as long for every guess."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Iterator

from lmhub.errors import AuthenticationError
from lmhub.server.owner import OWNER

_BEARER = re.compile(rb"bearer +(.*)", re.IGNORECASE | re.DOTALL)


class KeyCheck:
    """Checks requests against `keys`; without any every request passes, whatever it sends."""

    def __init__(self, keys: Iterable[str]):
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raise AuthenticationError unless one of the headers carries a key; a stale one beside it does no harm.

        From here on OWNER says whose request it is.
        """
        if not self._digests:
            OWNER.set("")
            return
        # Digests have one length, so the comparison says nothing about the length of the key either.
        given = [hashlib.sha256(key).digest() for key in _presented(headers)]
        matches = [digest for one in given for digest in self._digests if hmac.compare_digest(one, digest)]
        if not matches:
            raise AuthenticationError(
                "this server wants its API key, as `Authorization: Bearer KEY` or `x-api-key: KEY`; "
                + ("the key in this request is another one" if given else "this request has none")
            )
        OWNER.set(matches[0].hex())


def _presented(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    for name, value in headers:
        if name in (b"x-api-key", b"api-key"):
            yield value.strip()
        elif name == b"authorization" and (match := _BEARER.fullmatch(value.strip())):
            yield match[1]
