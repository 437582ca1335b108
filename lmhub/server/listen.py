"""The listening socket, in a file of its own: a server's port is opened before the server is imported."""

from __future__ import annotations

import socket

from lmhub.errors import LmhubError


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises LmhubError with the reason."""
    if not 0 <= port < 1 << 16:  # some resolvers take it modulo 65536
        raise LmhubError(f"cannot listen on port {port}: ports end at 65535; choose another --port")
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, proto)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(1024)
        except BaseException:
            listener.close()
            raise
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise LmhubError(f"cannot listen on {host}:{port}: {reason}; choose another --host or --port") from None
    return listener
