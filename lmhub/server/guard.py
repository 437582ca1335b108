"""Keeps web pages away from a server that listens on this machine only.

A page can point its own domain name at 127.0.0.1 (DNS rebinding): such a request carries that name as its Host. And it
can post `text/plain` anywhere without a preflight: such a request carries the page's Origin. Both are refused. Knows no
keys.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from lmhub.server.body import RawHeaders
from lmhub.server.http_errors import BadFraming, HostRefused
from lmhub.settings import ServerSettings

_SIMPLE_TYPES = ("", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data")


def is_loopback(host: str) -> bool:
    """Whether `host`, a name or an address, means this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class HostGuard:
    """Refuses foreign Host and Origin headers while the server is bound to loopback, or hosts are allowed by name."""

    def __init__(self, settings: ServerSettings):
        self._armed = is_loopback(settings.host) or bool(settings.allow_host)
        self._hosts = {host.lower().rstrip(".") for host in (*settings.allow_host, settings.host)}
        self._origins = settings.cors_origin

    def check(self, method: str, headers: RawHeaders) -> None:
        """Raise HostRefused for a request that a foreign web page may have sent."""
        if not self._armed:
            return
        if sum(name == b"host" for name, _ in headers) > 1:
            raise BadFraming("the request has two Host headers; send one")
        fields = {name: value.decode("latin-1").strip() for name, value in headers}
        host = fields.get(b"host")  # absent in HTTP/1.0 and from hand-written clients
        if host and not self._is_allowed(_name(host)):
            raise HostRefused(
                "the Host header names a machine that this server does not answer for; ask for 127.0.0.1 or localhost, "
                "or serve with --allow-host NAME (containers need --allow-host host.docker.internal)"
            )
        kind = fields.get(b"content-type", "").partition(";")[0].strip().lower()
        if method == "POST" and kind in _SIMPLE_TYPES and not self._is_known(fields.get(b"origin")):
            raise HostRefused(
                "a web page of another origin sent this request without application/json as its content type, "
                "which needs no preflight; send application/json"
            )

    def _is_allowed(self, host: str) -> bool:
        return is_loopback(host) or host.lower() in self._hosts

    def _is_known(self, origin: str | None) -> bool:
        """Whether a page of this origin may post without asking first; None is no page."""
        if origin is None or "*" in self._origins or origin in self._origins:
            return True
        try:
            return self._is_allowed(urlsplit(origin).hostname or "")
        except ValueError:
            return False


def _name(host: str) -> str:
    """The host of `host[:port]`, without brackets and without a trailing dot."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".")
