"""What can be wrong with an HTTP request before its body means anything. Dialects raise none of these."""

from __future__ import annotations

from lmhub.errors import RequestError, ShuttingDown


class HttpError(RequestError):
    """A refusal by the transport. `close`: the connection ends with the answer; `headers` go out with it."""

    close = False
    headers: tuple[tuple[str, str], ...] = ()


class BadFraming(HttpError):
    """The request's framing or target is ambiguous."""

    close = True


class HostRefused(HttpError):
    """The Host or Origin header names a machine that this server does not answer for (DNS rebinding)."""

    status = 403
    code = "host_not_allowed"
    close = True


class UnknownEndpoint(HttpError):
    """No route has this path."""

    status = 404


class MethodNotAllowed(HttpError):
    """The path exists, the method does not."""

    status = 405
    code = "method_not_allowed"

    def __init__(self, message: str, allow: str):
        super().__init__(message)
        self.headers = (("allow", allow),)


class BodyTimeout(HttpError):
    """The body did not arrive in time."""

    status = 408
    code = "request_timeout"
    close = True
    headers = (("x-should-retry", "false"),)


class LengthRequired(HttpError):
    """A POST says neither how long its body is nor that it comes in chunks."""

    status = 411
    code = "length_required"
    close = True


class BodyTooLarge(HttpError):
    """The body is larger than the limit."""

    status = 413
    code = "request_too_large"
    close = True


class HeadTooLarge(HttpError):
    """Target and headers are larger than the limit."""

    status = 431
    code = "headers_too_large"
    close = True


class UnsupportedMedia(HttpError):
    """The body is encoded in a way that is not read here."""

    status = 415
    code = "unsupported_media_type"
    close = True


class Overloaded(HttpError):
    """More requests at once than `--conns` allows."""

    status = 503
    kind = "unavailable_error"
    close = True
    headers = (("retry-after", "2"),)


class Loading(ShuttingDown):
    """The models are not in memory yet; asking again soon is right."""

    retry_after_s = 2
