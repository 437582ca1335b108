"""The record with which an HTTP dialect registers, and the shape of its two pure halves.

A dialect turns bytes into a ChatRequest, and events into bytes. It knows neither sockets nor models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from lmhub.errors import LmhubError
from lmhub.types import ChatRequest, Event


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """What every frame of a reply repeats. `created` is in Unix seconds."""

    id: str
    model: str
    created: int
    fingerprint: str
    request: ChatRequest


class Encoder(Protocol):
    """Encodes one streamed reply."""

    def event(self, event: Event) -> bytes:
        """The frames for one event; the first call also yields what opens a stream, the last one what closes it."""
        ...

    def ping(self) -> bytes:
        """A frame that keeps the connection alive and that clients skip."""
        ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """An HTTP dialect. `routes` are POST paths without the `/v1` prefix, under which they are served as well.

    `id_prefix` starts its reply ids. `parse` raises RequestError; `collect` builds the body of a reply that is not
    streamed from all its events, the last of which is a Finish; `error` frames a failure that comes before the first
    byte.
    """

    name: str
    routes: tuple[str, ...]
    id_prefix: str
    parse: Callable[[bytes], ChatRequest]
    encoder: Callable[[ReplyHead], Encoder]
    collect: Callable[[ReplyHead, Sequence[Event]], bytes]
    error: Callable[[LmhubError], bytes]
    doc: str = ""
