"""The id of the HTTP request that is being answered, for the envelopes that hold it."""

from __future__ import annotations

from contextvars import ContextVar

REQUEST_ID: ContextVar[str] = ContextVar("REQUEST_ID", default="req_unknown")
