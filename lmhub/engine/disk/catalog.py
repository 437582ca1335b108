"""What is in the folder: which file holds the longest beginning of a prompt, and which files go when room is needed.

Tokens are kept as big-endian bytes, in order: the files that share most with a prompt then stand next to where the
prompt would stand, so that finding them takes two comparisons, however many there are. Pure memory; any thread may ask.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from lmhub.engine.disk.lmkv import CHUNK_ROWS, Header
from lmhub.engine.thinning import CHECKPOINTS

_NEIGHBOURS = 16  # files that are looked at on either side, where the nearest one has no checkpoint that fits

_Number = Annotated[float, Meta(ge=0, le=1e15)]


class _Index(msgspec.Struct):
    """What survives in `index.json`: the clock, and when and with which score each file was used last."""

    v: int
    clock: _Number
    files: dict[str, tuple[_Number, _Number]]


@dataclass(eq=False, slots=True)
class Entry:
    """A file. `header` is None where another model or a later version wrote it: then it only takes up room.

    `key` holds its tokens, `used_s` when it was last of use, in Unix seconds; what has the lowest `score` goes first.
    """

    name: str
    nbytes: int
    header: Header | None = None
    key: bytes = b""
    used_s: float = 0.0
    score: float = 0.0

    def reach(self, n: int) -> int:
        """How many of its first `n` tokens a state can be brought back to."""
        assert self.header is not None
        if self.header.rewind:
            return n
        return max((blob.position for blob in self.header.states if blob.position <= n), default=0)

    def to_read(self, n: int) -> int:
        """Bytes that have to be read for its first `n` tokens: whole chunks, and a checkpoint where one is needed."""
        assert self.header is not None
        chunks = self.header.chunks[: -(-n // CHUNK_ROWS)]
        states = () if self.header.rewind else self.header.states
        return sum(part.nbytes for part in chunks) + sum(blob.nbytes for blob in states if blob.position == n)


def key_of(tokens: NDArray[np.int32]) -> bytes:
    """Tokens as bytes that sort as the tokens do."""
    return tokens.astype(">u4").tobytes()


class Catalog:
    """All entries, within a budget of bytes and of files.

    What goes is chosen by GreedyDual: a file's score is the clock at its last use plus the tokens it saves per byte,
    and the clock stands at the score of the file that went last. (What a token costs is left out: that is the same for
    all files that compete, which are of one model. Those of other models go before all of them.)
    """

    def __init__(self, max_bytes: int, max_files: int):
        self._max_bytes, self._max_files = max_bytes, max_files
        self._lock = threading.Lock()
        self._all: dict[str, Entry] = {}
        self._sorted: list[Entry] = []  # those with a header, by key
        self._nbytes = 0
        self._clock = 0.0
        self._past: dict[str, tuple[float, float]] = {}  # of the index that was read: used_s, score
        self._layout: str | None = None

    # --- asking ------------------------------------------------------------------------------------------------------

    def __contains__(self, name: str) -> bool:
        return name in self._all

    @property
    def counts(self) -> tuple[int, int]:
        """Entries that can be used, and bytes of all."""
        return len(self._sorted), self._nbytes

    def get(self, name: str) -> Entry | None:
        """The entry that has this name now."""
        return self._all.get(name)

    def find(self, key: bytes) -> tuple[Entry, int] | None:
        """The entry that brings a state furthest into the tokens of `key`, and how far; of equals, that used last."""
        with self._lock:
            at = bisect_left(self._sorted, key, key=_key)
            before = self._sorted[max(at - _NEIGHBOURS, 0) : at][::-1]
            behind = self._sorted[at : at + _NEIGHBOURS]
        best: tuple[int, float, Entry] | None = None
        for side in (before, behind):
            for entry in side:
                n = _common(entry.key, key)
                if best is not None and n < best[0]:
                    break  # what stands further away has even less in common
                reached = entry.reach(n)
                if reached and (best is None or (reached, entry.used_s) > best[:2]):
                    best = (reached, entry.used_s, entry)
        return (best[2], best[0]) if best is not None else None

    def covering(self, key: bytes, n: int) -> Entry | None:
        """An entry that begins with all of `key` and brings a state to at least `n` of its tokens."""
        with self._lock:
            at = bisect_left(self._sorted, key, key=_key)
            behind = self._sorted[at : at + _NEIGHBOURS]
        for entry in behind:
            if not entry.key.startswith(key):
                break
            if entry.reach(len(key) // 4) >= n:
                return entry
        return None

    def beginnings(self, key: bytes) -> list[Entry]:
        """The entries whose tokens are a beginning of `key`, the shortest first."""
        with self._lock:
            at = bisect_left(self._sorted, key, key=_key)
            return [one for one in self._sorted[:at] if key.startswith(one.key)]

    def superseded(self, by: Entry) -> list[Entry]:
        """The entries that are good for nothing that `by` is not good for: their tokens are a beginning of its own.

        With as many checkpoints as a sequence may have, it has taken over those of theirs that were worth it.
        """
        assert by.header is not None
        is_full = len(by.header.states) >= CHECKPOINTS
        shorter = [one for one in self.beginnings(by.key) if one is not by]
        return [one for one in shorter if is_full or by.reach(len(one.key) // 4) >= one.reach(len(one.key) // 4)]

    # --- changing ----------------------------------------------------------------------------------------------------

    def add(self, entry: Entry, used_s: float) -> None:
        """Put in a new entry, used last at `used_s`, or when the index says. One of another layout is of no use."""
        with self._lock:
            past = self._past.pop(entry.name, None)
            if entry.header is not None and self._layout not in (None, entry.header.layout):
                entry.header, entry.key = None, b""
            entry.used_s, entry.score = past if past is not None else (used_s, self._clock + _density(entry))
            self._put(entry)

    def replace(self, old: Entry, new: Entry | None) -> None:
        """Take out an entry, and put in what is left of it."""
        with self._lock:
            if self._all.get(old.name) is old:
                self._take(old)
                if new is not None:
                    new.used_s, new.score = old.used_s, old.score
                    self._put(new)

    def touch(self, entry: Entry, now_s: float) -> None:
        """It has been of use."""
        with self._lock:
            entry.used_s, entry.score = now_s, self._clock + _density(entry)

    def use_layout(self, layout: str) -> None:
        """States are of this layout from now on: entries of others are as good as those of other models."""
        with self._lock:
            if layout == self._layout:
                return
            self._layout = layout
            for entry in [one for one in self._sorted if one.header is not None and one.header.layout != layout]:
                self._take(entry)
                self._put(Entry(entry.name, entry.nbytes, None, b"", entry.used_s, entry.score))

    def victims(self, nbytes: int = 0, n_files: int = 0, leaving: Collection[Entry] = ()) -> list[Entry]:
        """Which entries have to go for a new file of `nbytes`, the cheapest first. `leaving` will go anyway."""
        with self._lock:
            staying = [one for one in self._all.values() if one not in leaving]
            over_bytes = sum(one.nbytes for one in staying) + nbytes - self._max_bytes
            over_files = len(staying) + n_files - self._max_files
            staying.sort(key=_order)
            chosen = []
            for entry in staying:
                if over_bytes <= 0 and over_files <= 0:
                    break
                chosen.append(entry)
                over_bytes -= entry.nbytes
                over_files -= 1
            return chosen

    def evict(self, entry: Entry) -> None:
        """Take out a victim. What it was worth is what others must be worth from now on."""
        with self._lock:
            if self._all.get(entry.name) is entry:
                self._take(entry)
                if entry.header is not None:
                    self._clock = max(self._clock, entry.score)

    # --- the index ---------------------------------------------------------------------------------------------------

    def load_index(self, data: bytes) -> None:
        """Take over what an index says of the files that are still to be added."""
        try:
            index = msgspec.json.decode(data, type=_Index)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return
        if index.v == 1:
            with self._lock:
                self._clock = max(self._clock, index.clock)
                self._past = {name: past for name, past in index.files.items() if name not in self._all}

    def dump_index(self) -> bytes:
        """What `load_index` takes."""
        with self._lock:
            files = self._past | {one.name: (one.used_s, one.score) for one in self._all.values()}
            return msgspec.json.encode(_Index(1, self._clock, files))

    def forget_past(self) -> None:
        """All files have been added: what the index says of others is of no use."""
        with self._lock:
            self._past = {}

    # --- within the lock ---------------------------------------------------------------------------------------------

    def _put(self, entry: Entry) -> None:
        self._all[entry.name] = entry
        self._nbytes += entry.nbytes
        if entry.header is not None:
            self._sorted.insert(bisect_left(self._sorted, entry.key, key=_key), entry)

    def _take(self, entry: Entry) -> None:
        del self._all[entry.name]
        self._nbytes -= entry.nbytes
        if entry.header is not None:
            at = bisect_left(self._sorted, entry.key, key=_key)
            while self._sorted[at] is not entry:  # another one with the same tokens
                at += 1
            del self._sorted[at]


def _key(entry: Entry) -> bytes:
    return entry.key


def _order(entry: Entry) -> tuple[bool, float, float]:
    """What comes first goes first: files of no use to this model, then the lowest scores; of equals, the oldest use."""
    is_ours = entry.header is not None
    return is_ours, entry.score if is_ours else 0.0, entry.used_s


def _density(entry: Entry) -> float:
    """Tokens that it saves per byte."""
    return len(entry.key) / 4 / max(entry.nbytes, 1)


def _common(one: bytes, other: bytes) -> int:
    """How many leading tokens are equal."""
    n = min(len(one), len(other)) // 4
    if one[: 4 * n] == other[: 4 * n]:
        return n
    a, b = np.frombuffer(one, np.uint32, n), np.frombuffer(other, np.uint32, n)
    return int(np.argmax(a != b))
