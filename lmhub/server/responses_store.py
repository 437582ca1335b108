"""Finished responses that later requests may refer to, in memory, bounded in number, bytes and age.

What is kept is JSON as it stands: nothing here knows what an item means. Every client (see owner.py) has its own.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from lmhub.server.owner import OWNER

MAX_BYTES = 256 << 20
TTL_S = 3600.0


@dataclass(frozen=True, slots=True)
class Item:
    """One input or output item: its id, and its JSON."""

    id: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Kept:
    """One response: the body that GET answers, what the model was given, and what it answered."""

    id: str
    body: bytes
    input: tuple[Item, ...]
    output: tuple[Item, ...]
    owner: str = field(default_factory=OWNER.get)

    @property
    def nbytes(self) -> int:
        """What it weighs; items that several responses share count for each of them."""
        return len(self.body) + sum(len(item.data) for item in (*self.input, *self.output))


@dataclass(slots=True)
class _Entry:
    kept: Kept
    nbytes: int
    used: float
    items: dict[str, Item]


class ResponseStore:
    """The responses of the last hour, the least recently used dropped first. May be used from several threads."""

    def __init__(
        self,
        size: int,
        max_bytes: int = MAX_BYTES,
        ttl_s: float = TTL_S,
        clock: Callable[[], float] = time.monotonic,
    ):
        """`size`: responses at most; 0 keeps none."""
        self.size = size
        self._max_bytes, self._ttl_s, self._clock = max_bytes, ttl_s, clock
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # the least recently used first
        self._nbytes = 0
        self._lock = threading.Lock()

    def put(self, kept: Kept) -> None:
        """Keep a response, dropping others where there is no room; one that alone is too large is not kept."""
        entry = _Entry(kept, kept.nbytes, self._clock(), {item.id: item for item in (*kept.input, *kept.output)})
        if entry.nbytes > self._max_bytes:
            return
        with self._lock:
            self._drop(kept.id)
            self._entries[kept.id] = entry
            self._nbytes += entry.nbytes
            while len(self._entries) > self.size or self._nbytes > self._max_bytes:
                self._drop(next(iter(self._entries)))

    def find(self, id: str) -> Kept | None:
        """The response with this id, if it is kept and the client's own; it counts as used."""
        with self._lock:
            self._expire()
            entry = self._entries.get(id)
            if entry is None or entry.kept.owner != OWNER.get():
                return None
            self._use(entry)
            return entry.kept

    def item(self, id: str) -> Item | None:
        """The item with this id in any of the client's responses, the most recently used one first."""
        with self._lock:
            self._expire()
            for entry in reversed(self._entries.values()):
                if id in entry.items and entry.kept.owner == OWNER.get():
                    self._use(entry)
                    return entry.items[id]
            return None

    def delete(self, id: str) -> bool:
        """Forget a response; False if there was none."""
        if self.find(id) is None:
            return False
        with self._lock:
            self._drop(id)
        return True

    def _use(self, entry: _Entry) -> None:
        entry.used = self._clock()
        self._entries.move_to_end(entry.kept.id)

    def _expire(self) -> None:
        while self._entries:
            id, oldest = next(iter(self._entries.items()))
            if self._clock() - oldest.used <= self._ttl_s:
                return
            self._drop(id)

    def _drop(self, id: str) -> None:
        entry = self._entries.pop(id, None)
        if entry is not None:
            self._nbytes -= entry.nbytes
