"""Every error that lmhub raises on purpose.

An error message is one sentence that names the thing, the limit and the fix. Each class knows the HTTP status and the
machine-readable `code` it is reported under, so that a dialect only has to frame it. Imports nothing but the standard
library.
"""

from __future__ import annotations


def quoted(value: object, limit: int = 60) -> str:
    """An untrusted value as it may stand in a message: its repr, printable, cut to `limit` characters."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


class LmhubError(Exception):
    """Root of the tree. `str(error)` is fit to be shown to a user as it stands."""

    status = 500
    kind = "server_error"
    code: str | None = None


class ModelFileError(LmhubError):
    """A model file is damaged, hostile, incomplete or of a kind that lmhub does not read."""


class UnsupportedModel(LmhubError):
    """The file is sound, but no installed family serves it, or it uses a feature that its family lacks."""


class PluginError(LmhubError):
    """A plugin is broken, conflicts with another one, or was built for another kernel API."""


class KernelError(LmhubError):
    """A native call failed; the message is the sentence that the C code left behind."""


class GenerationError(LmhubError):
    """One generation failed after it had started. Its neighbours are not affected."""


class RequestError(LmhubError):
    """The request cannot be honoured as it is. `param` is the path of the offending field, or None."""

    status = 400
    kind = "invalid_request_error"

    def __init__(self, message: str, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.param = param
        if code is not None:
            self.code = code


class PromptTooLong(RequestError):
    """The prompt does not leave room for one token in the context: it has `n_prompt` tokens, and `n_ctx` is the limit.

    Both are None where whoever raises this does not know them.
    """

    code = "context_length_exceeded"

    def __init__(
        self, message: str, param: str | None = None, *, n_prompt: int | None = None, n_ctx: int | None = None
    ):
        super().__init__(message, param)
        self.n_prompt = n_prompt
        self.n_ctx = n_ctx


class UnknownModel(RequestError):
    """The request names a model that is not served."""

    status = 404
    code = "model_not_found"


class AuthenticationError(RequestError):
    """The API key is missing or wrong."""

    status = 401
    code = "invalid_api_key"


class NotSupported(RequestError):
    """Something that this installation lacks would be needed; trying again does not help."""

    status = 501
    kind = "not_supported_error"


class QueueFull(LmhubError):
    """The waiting queue is at its bound. `retry_after_s` is a whole number of seconds."""

    status = 429
    kind = "rate_limit_error"
    code = "rate_limit_exceeded"

    def __init__(self, message: str, retry_after_s: int):
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ShuttingDown(LmhubError):
    """The server is stopping, or still loading, and takes no new work."""

    status = 503
    kind = "unavailable_error"


class RequestTimedOut(LmhubError):
    """A request ran for as long as it may without a single token."""

    status = 504
    kind = "timeout_error"
