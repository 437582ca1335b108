"""Finds stop strings in the bytes of a reply, one byte at a time, so that no split of the reply can change the answer.

An Aho-Corasick automaton: its state is the longest suffix of the text so far that begins some stop string. That
suffix is exactly what must be held back, so the hold-back is the depth of the state. Knows nothing of tokens,
channels or characters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from lmhub.errors import RequestError

MAX_STOP_BYTES = 256


class StopScanner:
    """Watches one reply for `stops`. The first byte that completes one decides; of several, the longest is reported."""

    def __init__(self, stops: Sequence[str]):
        """Raises RequestError for an empty string and for one of more than MAX_STOP_BYTES bytes of UTF-8."""
        self._next: list[dict[int, int]] = [{}]  # state -> byte -> state
        self._depth = [0]  # bytes that lead to the state from the root
        self._found: list[str | None] = [None]  # the longest stop string that is complete in the state
        for stop in stops:
            self._add(stop)
        self._fail = [0] * len(self._next)  # state -> its longest proper suffix that is a state as well
        self._link()
        self._state = 0
        self._held = bytearray()

    def feed(self, data: bytes) -> tuple[bytes, str | None]:
        """The bytes that can no longer belong to a stop string, and the one that fired, if any did.

        Once one has fired, what follows it is dropped and the scanner must not be fed again.
        """
        if len(self._next) == 1:
            return data, None
        for byte in data:
            self._held.append(byte)
            self._state = self._step(self._state, byte)
            found = self._found[self._state]
            if found is not None:
                return bytes(self._held[: -len(found.encode())]), found
        cut = len(self._held) - self._depth[self._state]
        released = bytes(self._held[:cut])
        del self._held[:cut]
        return released, None

    def flush(self) -> bytes:
        """What was held back, which turned out not to be a stop string; the scanner starts afresh."""
        held = bytes(self._held)
        self._held.clear()
        self._state = 0
        return held

    def _step(self, state: int, byte: int) -> int:
        while state and byte not in self._next[state]:
            state = self._fail[state]
        return self._next[state].get(byte, 0)

    def _add(self, stop: str) -> None:
        try:
            data = stop.encode()
        except UnicodeEncodeError:
            raise RequestError(
                "a stop string holds half of a surrogate pair; send complete characters", "stop"
            ) from None
        if not data:
            raise RequestError("a stop string is empty; leave it out or give it at least one character", "stop")
        if len(data) > MAX_STOP_BYTES:
            raise RequestError(
                f"a stop string has {len(data)} bytes, the limit is {MAX_STOP_BYTES}; shorten it", "stop"
            )
        state = 0
        for byte in data:
            if byte not in self._next[state]:
                self._next[state][byte] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._found.append(None)
            state = self._next[state][byte]
        self._found[state] = stop

    def _link(self) -> None:
        """Fill in the failure links, breadth first, and let a state report what its suffixes complete."""
        todo = deque(self._next[0].values())
        while todo:
            state = todo.popleft()
            if self._found[state] is None:
                self._found[state] = self._found[self._fail[state]]
            for byte, child in self._next[state].items():
                self._fail[child] = self._step(self._fail[state], byte)
                todo.append(child)
