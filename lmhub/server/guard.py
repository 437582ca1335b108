"""Keeps web pages away from a server that listens on this machine only.

A page can point its own domain name at 127.0.0.1 (DNS rebinding): such a request carries that name as its Host. And it
can post `text/plain` anywhere without a preflight: such a request carries the page's Origin. Both are refused. Knows no
keys.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from lmhub.server.body import RawHeaders
from lmhub.server.http_errors import HostRefused

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
    """Refuses foreign Host and Origin headers while the server is bound to loopback; `bound` is the bind host."""

    def __init__(self, bound: str):
        self._armed = is_loopback(bound)

    def check(self, method: str, headers: RawHeaders) -> None:
        """Raise HostRefused for a request that a foreign web page may have sent."""
        if not self._armed:
            return
        fields = {name: value.decode("latin-1").strip() for name, value in headers}
        host = fields.get(b"host")  # absent in HTTP/1.0 and from hand-written clients
        if host and not is_loopback(_name(host)):
            raise HostRefused(
                "this server listens on the loopback address and the Host header names another machine; "
                "ask for 127.0.0.1 or localhost, or serve with --host 0.0.0.0 and an --api-key"
            )
        kind = fields.get(b"content-type", "").partition(";")[0].strip().lower()
        if method == "POST" and kind in _SIMPLE_TYPES and b"origin" in fields and not _is_local(fields[b"origin"]):
            raise HostRefused(
                "a web page of another origin sent this request without application/json as its content type, "
                "which needs no preflight; send application/json"
            )


def _name(host: str) -> str:
    """The host of `host[:port]`, without brackets and without a trailing dot."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".")


def _is_local(origin: str) -> bool:
    try:
        return is_loopback(urlsplit(origin).hostname or "")
    except ValueError:
        return False
