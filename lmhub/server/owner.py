"""Whose request is being answered, for what is kept between requests: one client never sees what another one left."""

from __future__ import annotations

from contextvars import ContextVar

OWNER: ContextVar[str] = ContextVar("OWNER", default="")  # a digest of the API key that was accepted; "" without keys
