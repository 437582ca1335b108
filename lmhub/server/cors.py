"""Which web pages may read the answers (`--cors-origin`). Without an origin no answer carries a CORS header."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lmhub.server.body import RawHeaders

_ALLOWED = ["Content-Type", "Authorization", "x-api-key", "anthropic-version", "anthropic-beta"]
_NAME = re.compile(r"[A-Za-z0-9-]+")


class Cors:
    """The CORS headers of `origins`; "*" admits every page."""

    def __init__(self, origins: Sequence[str]):
        self._origins = frozenset(origins)

    def of(self, headers: RawHeaders) -> list[tuple[bytes, bytes]]:
        """What every answer to a request with these headers carries."""
        if not self._origins:
            return []
        exposed = (b"access-control-expose-headers", b"request-id, x-request-id, retry-after")
        if "*" in self._origins:
            return [(b"access-control-allow-origin", b"*"), exposed]
        vary = (b"vary", b"Origin")
        origin = _field(headers, b"origin")
        if not self._has(origin):
            return [vary]
        return [(b"access-control-allow-origin", origin.encode("latin-1")), exposed, vary]

    def preflight(self, headers: RawHeaders) -> list[tuple[str, str]]:
        """What the answer to a preflight carries besides."""
        if not self._has(_field(headers, b"origin")):
            return []
        asked = [name.strip() for name in _field(headers, b"access-control-request-headers").split(",")]
        names = [*_ALLOWED, *(name for name in asked if _NAME.fullmatch(name) and name not in _ALLOWED)]
        out = [
            ("access-control-allow-methods", "GET, POST, DELETE, OPTIONS"),
            ("access-control-allow-headers", ", ".join(names)),
            ("access-control-max-age", "600"),
        ]
        if _field(headers, b"access-control-request-private-network") == "true":
            out.append(("access-control-allow-private-network", "true"))
        return out

    def _has(self, origin: str) -> bool:
        return "*" in self._origins or origin in self._origins


def _field(headers: RawHeaders, wanted: bytes) -> str:
    return next((value.decode("latin-1") for name, value in headers if name == wanted), "")
