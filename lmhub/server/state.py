"""What the parts of a running server share: its phase, how many requests it handles, and the signal to cut them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from lmhub.errors import ShuttingDown
from lmhub.server.http_errors import Loading, Overloaded

Phase = Literal["loading", "ready", "draining"]


@dataclass(slots=True)
class ServerState:
    """Lives on the event loop's thread.

    `phase` moves from loading to ready to draining. `cut`, once set, ends every running reply with an in-band error.
    `idle` is set while no request is being handled.
    """

    phase: Phase = "loading"
    n_active: int = 0
    cut: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.idle.set()

    def check(self) -> None:
        """Raise unless new work is taken."""
        if self.phase == "loading":
            raise Loading("Loading model: this server is not ready yet, try again in a few seconds")
        if self.phase == "draining":
            raise shutting_down()

    @contextmanager
    def admitted(self, limit: int) -> Iterator[None]:
        """Count a request in and out. Raises Overloaded if `limit` of them are being handled."""
        if self.n_active >= limit:
            raise Overloaded(f"this server handles {limit} requests at once and all are taken; try again later")
        self.n_active += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.n_active -= 1
            if self.n_active == 0:
                self.idle.set()


def shutting_down() -> ShuttingDown:
    """The error of a request that meets, or is cut short by, a server that stops."""
    return ShuttingDown("the server is shutting down; send the request again once it is back")
