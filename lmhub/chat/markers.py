"""Finds markers in a reply: by token id where a marker is one token, in the bytes where it is not.

Output is a sequence of atoms, marker names and bytes, that does not depend on how the reply was split. Bytes which
merely spell a marker that has a token of its own stay bytes. Knows nothing of what the markers mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

Marker = Literal["think", "/think", "call", "/call", "bare"]


class MarkerScanner:
    """Splits one reply at `markers`, a mapping of names to their texts."""

    def __init__(self, markers: Mapping[Marker, str], token_id: Callable[[str], int | None]):
        """`token_id` gives the id of the token that spells a text, None if there is none."""
        ids = {name: token_id(text) for name, text in markers.items()}
        self._by_id: dict[int, Marker] = {id: name for name, id in ids.items() if id is not None}
        self._spelt: dict[Marker, bytes] = {name: markers[name].encode() for name, id in ids.items() if id is None}
        self._held = b""

    def is_token(self, name: Marker) -> bool:
        """Whether the marker is a token of its own."""
        return name in self._by_id.values()

    def feed(self, token: int, piece: bytes) -> Iterator[Marker | bytes]:
        """What `token` completes: markers by name, and the bytes between them."""
        marker = self._by_id.get(token)
        if marker is not None:
            yield from self.finish()
            yield marker
        elif not self._spelt:
            if piece:
                yield piece
        else:
            yield from self._scan(self._held + piece)

    def finish(self) -> Iterator[Marker | bytes]:
        """What was held because it might have become a marker."""
        held, self._held = self._held, b""
        if held:
            yield held

    def _scan(self, data: bytes) -> Iterator[Marker | bytes]:
        while found := self._first(data):
            at, name = found
            if at:
                yield data[:at]
            yield name
            data = data[at + len(self._spelt[name]) :]
        n_held = max(_overlap(data, text) for text in self._spelt.values())
        self._held = data[len(data) - n_held :]
        if n_held < len(data):
            yield data[: len(data) - n_held]

    def _first(self, data: bytes) -> tuple[int, Marker] | None:
        found = [(data.find(text), -len(text), name) for name, text in self._spelt.items() if text in data]
        return (min(found)[0], min(found)[2]) if found else None


def _overlap(data: bytes, text: bytes) -> int:
    """The length of the longest end of `data` that is a beginning of `text`, but not all of it."""
    for length in range(min(len(data), len(text) - 1), 0, -1):
        if data.endswith(text[:length]):
            return length
    return 0
