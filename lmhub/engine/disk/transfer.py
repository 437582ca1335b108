"""Moves rows between a state and a file: `save` writes a new file, `load` fills an empty state from one.

A state gets nothing that has not been checked against its checksum. Knows no threads and no budget.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from lmhub import __version__
from lmhub.engine.disk.catalog import Entry, key_of
from lmhub.engine.disk.folder import Folder
from lmhub.engine.disk.lmkv import Blob, Damaged, Header, plan, read_blob, read_rows, write
from lmhub.engine.thinning import CHECKPOINTS, thin
from lmhub.model import State

Checkpoint = tuple[int, bytes]  # position, and what `State.checkpoint` gave there


class Stopped(Exception):
    """There was no time left to go on."""


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """What is to be saved: the first `len(tokens)` positions of `state`, which nobody changes meanwhile.

    `checkpoints` are in order and lie within the tokens; a state that can rewind needs none.
    """

    state: State
    tokens: NDArray[np.int32]
    n_stable: int
    checkpoints: tuple[Checkpoint, ...]

    @property
    def reach(self) -> int:
        """How many of the tokens a state can be brought back to."""
        if self.state.can_rewind:
            return len(self.tokens)
        return self.checkpoints[-1][0] if self.checkpoints else 0

    def planned(self, identity: str, now_s: float) -> tuple[Header, int, int]:
        """What its file will look like: see `lmkv.plan`."""
        return plan(
            identity=identity,
            layout=self.state.layout,
            row_nbytes=self.state.row_nbytes,
            n_tokens=len(self.tokens),
            n_stable=min(self.n_stable, len(self.tokens)),
            rewind=self.state.can_rewind,
            states=self.checkpoints,
            created=now_s,
            writer=f"lmhub {__version__}",
        )


def save(
    folder: Folder, name: str, record: Record, planned: tuple[Header, int, int], go_on: Callable[[], bool]
) -> Entry:
    """Write the file. Raises OSError, and Stopped when `go_on`, which is asked between chunks, says no."""
    with folder.create(name) as file:
        header = write(file, planned, record.tokens, record.state.read_rows, record.checkpoints, go_on)
        if header is None:
            raise Stopped
    return Entry(name, planned[2], header, key_of(record.tokens))


def with_older(record: Record, entries: Sequence[Entry], folder: Folder) -> Record:
    """The record with the checkpoints of files that hold a beginning of it, which it may make superfluous.

    A state that came from a file brought one checkpoint with it, and a later prompt may want to go back further.
    """
    if record.state.can_rewind:
        return record
    places: dict[int, bytes | tuple[Entry, Blob]] = {}
    for entry in entries:
        assert entry.header is not None
        places |= {blob.position: (entry, blob) for blob in entry.header.states}
    kept = sorted((places | dict(record.checkpoints)).items())
    while len(kept) > max(CHECKPOINTS, len(record.checkpoints)):
        thin(kept)
    read = [(at, one if isinstance(one, bytes) else _older(*one, folder)) for at, one in kept]
    return replace(record, checkpoints=tuple((at, blob) for at, blob in read if blob is not None))


def _older(entry: Entry, blob: Blob, folder: Folder) -> bytes | None:
    """A checkpoint of another file; None if it cannot be read."""
    try:
        with folder.open(entry.name) as (file, _):
            return read_blob(file, blob)
    except (OSError, Damaged):
        return None


@dataclass(slots=True)
class Loaded:
    """`n` tokens are in the state, for which `nbytes` were read. `sound`: rows known to be so, None if all may be."""

    n: int = 0
    nbytes: int = 0
    sound: int | None = None
    damage: str = ""


def load(file: io.FileIO, size: int, entry: Entry, n: int, state: State, go_on: Callable[[], bool]) -> Loaded:
    """Bring the empty `state` to at most `n` of the entry's tokens: to fewer where rows are damaged or do not fit.

    Raises OSError; the state may then hold anything, as it may where it can neither rewind nor restore.
    """
    header = entry.header
    assert header is not None
    loaded = Loaded()
    if size != entry.nbytes:
        loaded.sound, loaded.damage = 0, "its size has changed"
        return loaded
    if (header.layout, header.row_nbytes, header.rewind) != (state.layout, state.row_nbytes, state.can_rewind):
        return loaded
    wanted = entry.reach(min(n, state.capacity, header.n_tokens))
    n_rows = _rows(file, header, wanted, state, go_on, loaded)
    if state.can_rewind:
        state.truncate(min(n_rows, wanted))
        loaded.n = state.n_tokens
    else:
        loaded.n = _restore(file, header, min(n_rows, wanted), state, loaded)
    return loaded


def _rows(file: io.FileIO, header: Header, wanted: int, state: State, go_on: Callable[[], bool], loaded: Loaded) -> int:
    """Append the chunks that hold the first `wanted` rows; how many sound rows are there then."""
    if not header.row_nbytes:
        return wanted
    n = 0
    buffer = np.empty(max(chunk.nbytes for chunk in header.chunks), np.uint8)
    for chunk in header.chunks:
        # A chunk is written whole or not at all: only the state knows how to cut the bytes of its rows.
        if n >= wanted or n + chunk.n > state.capacity or not go_on():
            break
        try:
            rows = read_rows(file, chunk, buffer)
        except Damaged as damage:
            loaded.sound, loaded.damage = n, str(damage)
            break
        state.write_rows(rows)
        loaded.nbytes += chunk.nbytes
        n += chunk.n
    return n


def _restore(file: io.FileIO, header: Header, n: int, state: State, loaded: Loaded) -> int:
    """Go back to the newest sound checkpoint within the first `n` tokens, whose rows are in place."""
    for blob in reversed([one for one in header.states if one.position <= n]):
        try:
            data = read_blob(file, blob)
        except Damaged as damage:
            loaded.sound, loaded.damage = blob.position - 1, str(damage)
            continue
        loaded.nbytes += blob.nbytes
        return blob.position if state.restore(data, blob.position) else 0
    state.truncate(0)
    return 0


def shortened(entry: Entry, n: int) -> Entry | None:
    """What is left of an entry whose first `n` rows alone are sound; None if that is nothing."""
    header = entry.header
    assert header is not None
    states: tuple[Blob, ...] = tuple(blob for blob in header.states if blob.position <= n)
    if not n or (not header.rewind and not states):
        return None
    chunks = tuple(chunk for chunk in header.chunks if chunk.first < n)
    rest = msgspec.structs.replace(
        header, n_rows=n, n_tokens=n, n_stable=min(header.n_stable, n), chunks=chunks, states=states
    )
    return Entry(entry.name, entry.nbytes, rest, entry.key[: 4 * n])
