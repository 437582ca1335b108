"""Failures in the envelope of the Anthropic API. Knows no route."""

from __future__ import annotations

from typing import Any

from lmhub.errors import LmhubError, PromptTooLong, RequestError
from lmhub.server.request_id import REQUEST_ID
from lmhub.server.wire import to_json

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def anthropic_error_object(error: LmhubError) -> dict[str, Any]:
    """The envelope. Its type follows from the status; the field is named in the message, as there is no other place."""
    told = {"type": _TYPES.get(error.status, "invalid_request_error"), "message": _message(error)}
    return {"type": "error", "error": told, "request_id": REQUEST_ID.get()}


def anthropic_error(error: LmhubError) -> bytes:
    """A failure as the body of an answer."""
    return to_json(anthropic_error_object(error))


def _message(error: LmhubError) -> str:
    if isinstance(error, PromptTooLong) and error.n_prompt is not None:
        # Word for word what agents look for before they shorten their history.
        return f"prompt is too long: {error.n_prompt} tokens > {error.n_ctx} maximum"
    message = str(error)
    if isinstance(error, RequestError) and error.param is not None and error.param not in message:
        return f"{error.param}: {message}"
    return message
