"""The file format LMKV, version 1: the rows of one sequence, the tokens they belong to, checkpoints, all checksummed.

    0    8  magic
    8    4  u32: length H of the header
    12   4  u32: CRC-32 of the header
    16   H  header: JSON, padded with blanks so that 16 + H is a multiple of 4096
    ..      tokens: u32 each, then the u32 CRC-32 of them
    ..      chunks: 256 rows each as `State.read_rows` gives them, the last one shorter; each starts at a multiple of 64
    ..      checkpoints, aligned likewise
    end-16  u64: length of the file; 8 bytes: end mark

All numbers are little-endian. A file is data that anybody may have damaged: every number is compared with the file's
size before anything of that size is made, and whatever does not fit ends in `Damaged`. Knows no folder and no state.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

MAGIC = b"LMKV\x00\x01\r\n"  # a transfer that meddles with line ends or the eighth bit damages it
END = b"LMKVEND\n"
VERSION = 1
CHUNK_ROWS = 256
MAX_ROWS = 1 << 24
MAX_ROW_NBYTES = 1 << 26
MAX_STATES = 64
MAX_HEADER = 4 << 20
MAX_TEXT = 4096  # characters of the identity and of the layout
MIN_FILE = 32

_PAGE = 4096
_ALIGN = 64
_START = struct.Struct("<8sII")
_TRAILER = struct.Struct("<Q8s")
_CRC = struct.Struct("<I")
_LARGEST = (1 << 53) - 1  # of any number in the header

_Count = Annotated[int, Meta(ge=0, le=MAX_ROWS)]
_Offset = Annotated[int, Meta(ge=0, le=_LARGEST)]
_Crc = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
_Text = Annotated[str, Meta(max_length=MAX_TEXT)]
_Bytes = bytes | bytearray | memoryview


class Damaged(Exception):
    """What is wrong with a file, as a clause."""


class Unknown(Exception):
    """The file may be sound, but a later version wrote it."""


class Rows(Struct, frozen=True, array_like=True, gc=False):
    """A chunk: `n` rows from row `first` on, and where they lie."""

    first: _Count
    n: _Count
    offset: _Offset
    nbytes: _Offset
    crc32: _Crc


class Blob(Struct, frozen=True, array_like=True, gc=False):
    """A checkpoint, taken when `position` tokens were committed, and where it lies."""

    position: _Count
    offset: _Offset
    nbytes: _Offset
    crc32: _Crc


class Prefix(Struct, frozen=True):
    """Rows that no token produced. This version writes none."""

    rows: _Count


class Header(Struct, frozen=True, kw_only=True):
    """What a file says of itself. Keys that are not listed here are ignored; all that are must be there.

    `identity` names model, tokenizer and numerics, `layout` is `State.layout`. `rewind`: the rows alone are enough, and
    any number of them may be taken; otherwise only `states` give positions to go on from. `created` is in Unix seconds.
    """

    v: int
    identity: _Text
    layout: _Text
    row_nbytes: Annotated[int, Meta(ge=0, le=MAX_ROW_NBYTES)]
    n_rows: _Count
    n_tokens: _Count
    n_stable: _Count
    prefix: Prefix
    rewind: bool
    chunks: Annotated[tuple[Rows, ...], Meta(max_length=MAX_ROWS // CHUNK_ROWS)]
    states: Annotated[tuple[Blob, ...], Meta(max_length=MAX_STATES)]
    created: float
    writer: _Text


class _Version(Struct):
    v: _Offset
    prefix: Prefix = Prefix(0)


# --- writing ---------------------------------------------------------------------------------------------------------


def plan(
    *,
    identity: str,
    layout: str,
    row_nbytes: int,
    n_tokens: int,
    n_stable: int,
    rewind: bool,
    states: Sequence[tuple[int, bytes]],
    created: float,
    writer: str,
) -> tuple[Header, int, int]:
    """The header of a file to be written, its checksums still missing; the header's length; the file's length."""

    def header(tokens_at: int) -> tuple[Header, int]:
        at = tokens_at + 4 * n_tokens + 4
        chunks, blobs = [], []
        for first in range(0, n_tokens if row_nbytes else 0, CHUNK_ROWS):
            n = min(CHUNK_ROWS, n_tokens - first)
            at = _up(at, _ALIGN)
            chunks.append(Rows(first, n, at, n * row_nbytes, 0xFFFFFFFF))
            at += n * row_nbytes
        for position, blob in states:
            at = _up(at, _ALIGN)
            blobs.append(Blob(position, at, len(blob), 0xFFFFFFFF))
            at += len(blob)
        made = Header(
            v=VERSION,
            identity=identity,
            layout=layout,
            row_nbytes=row_nbytes,
            n_rows=n_tokens,
            n_tokens=n_tokens,
            n_stable=n_stable,
            prefix=Prefix(0),
            rewind=rewind,
            chunks=tuple(chunks),
            states=tuple(blobs),
            created=created,
            writer=writer,
        )
        return made, at + _TRAILER.size

    # The header's length depends on the digits of the offsets, and these on the length: reckon with too many digits.
    draft, end = header(0)
    digits = len(str(end + MAX_HEADER)) * (len(draft.chunks) + len(draft.states))
    tokens_at = _up(_START.size + len(msgspec.json.encode(draft)) + digits, _PAGE)
    made, end = header(tokens_at)
    return made, tokens_at - _START.size, end


def write(
    file: io.FileIO,
    planned: tuple[Header, int, int],
    tokens: NDArray[np.int32],
    read_rows: Callable[[int, int], NDArray[np.uint8]],
    states: Sequence[tuple[int, bytes]],
    go_on: Callable[[], bool],
) -> Header | None:
    """Write what was planned into the empty `file`; the header as it was written, or None when `go_on` said stop."""
    header, n_header, size = planned
    ids = tokens.astype("<u4").tobytes()
    _write_at(file, _START.size + n_header, ids + _CRC.pack(zlib.crc32(ids)))
    chunks = []
    for chunk in header.chunks:
        if not go_on():
            return None
        rows = read_rows(chunk.first, chunk.first + chunk.n)
        _write_at(file, chunk.offset, rows.data)
        chunks.append(msgspec.structs.replace(chunk, crc32=zlib.crc32(rows.data)))
    blobs = []
    for blob, (_, data) in zip(header.states, states, strict=True):
        _write_at(file, blob.offset, data)
        blobs.append(msgspec.structs.replace(blob, crc32=zlib.crc32(data)))
    _write_at(file, size - _TRAILER.size, _TRAILER.pack(size, END))
    header = msgspec.structs.replace(header, chunks=tuple(chunks), states=tuple(blobs))
    text = msgspec.json.encode(header).ljust(n_header)
    _write_at(file, 0, _START.pack(MAGIC, n_header, zlib.crc32(text)) + text)
    return header


def _write_at(file: io.FileIO, offset: int, data: _Bytes) -> None:
    """Bytes that are skipped are zero."""
    file.seek(offset)
    left = memoryview(data)
    while left:
        left = left[file.write(left) or 0 :]


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


# --- reading ---------------------------------------------------------------------------------------------------------


def read_header(file: io.FileIO, size: int) -> tuple[Header, int]:
    """The header of a file of `size` bytes, checked whole, and where the tokens lie. Raises Damaged and Unknown."""
    if size < MIN_FILE:
        raise Damaged(f"it has {size} bytes")
    magic, n_header, crc = _START.unpack(_read_at(file, 0, _START.size))
    length, end = _TRAILER.unpack(_read_at(file, size - _TRAILER.size, _TRAILER.size))
    if magic != MAGIC:
        raise Damaged("it does not begin with the format's mark")
    if end != END or length != size:
        raise Damaged("its end is missing")
    if n_header > min(MAX_HEADER, size - MIN_FILE) or (_START.size + n_header) % _PAGE:
        raise Damaged(f"its header of {n_header} bytes is impossible")
    text = _read_at(file, _START.size, n_header)
    if zlib.crc32(text) != crc:
        raise Damaged("its header does not match the checksum")
    header = _decoded(text)
    tokens_at = _START.size + n_header
    _check(header, tokens_at, size)
    return header, tokens_at


def _decoded(text: bytes) -> Header:
    try:
        version = msgspec.json.decode(text, type=_Version)
        if version.v != VERSION or version.prefix.rows:
            raise Unknown(f"it is of version {version.v} with {version.prefix.rows} rows before the tokens")
        return msgspec.json.decode(text, type=Header)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Damaged(f"its header is wrong ({str(error)[:200]})") from None


def _check(header: Header, tokens_at: int, size: int) -> None:
    """Every part must lie in the file, behind the one before it, and the chunks must be all rows in order."""
    n = header.n_tokens
    if header.n_rows != n or not n > 0 or header.n_stable > n:
        raise Damaged("its numbers of tokens and rows contradict each other")
    free, last = tokens_at + 4 * n + 4, size - _TRAILER.size
    if free > last:
        raise Damaged("its tokens reach beyond its end")
    first = 0
    for chunk in header.chunks:
        if chunk.first != first or chunk.n != min(CHUNK_ROWS, n - first) or chunk.n == 0:
            raise Damaged("its chunks are not all rows in order")
        if chunk.nbytes != chunk.n * header.row_nbytes:
            raise Damaged("a chunk is not as long as its rows")
        first += chunk.n
    if first != (n if header.row_nbytes else 0):
        raise Damaged("its chunks are not all rows")
    position = 0
    for blob in header.states:
        if not position < blob.position <= n:
            raise Damaged("its checkpoints are not in order")
        position = blob.position
    if not header.rewind and not header.states:
        raise Damaged("there is no checkpoint to go on from")
    parts: tuple[Rows | Blob, ...] = (*header.chunks, *header.states)
    for part in parts:
        if part.offset % _ALIGN or part.offset < free or part.nbytes > last - part.offset:
            raise Damaged("a chunk or checkpoint lies in a wrong place")
        free = part.offset + part.nbytes


def read_tokens(file: io.FileIO, header: Header, tokens_at: int) -> bytes:
    """The tokens as they are stored, u32 each. Raises Damaged."""
    data = _read_at(file, tokens_at, 4 * header.n_tokens + _CRC.size)
    if zlib.crc32(memoryview(data)[: -_CRC.size]) != _CRC.unpack_from(data, 4 * header.n_tokens)[0]:
        raise Damaged("its tokens do not match the checksum")
    return data[: -_CRC.size]


def read_rows(file: io.FileIO, chunk: Rows, buffer: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The chunk's rows, in the first bytes of `buffer`. Raises Damaged."""
    rows = buffer[: chunk.nbytes]
    _read_into(file, chunk.offset, rows.data)
    if zlib.crc32(rows.data) != chunk.crc32:
        raise Damaged(f"its rows from {chunk.first} on do not match the checksum")
    return rows


def read_blob(file: io.FileIO, blob: Blob) -> bytes:
    """A checkpoint. Raises Damaged."""
    data = _read_at(file, blob.offset, blob.nbytes)
    if zlib.crc32(data) != blob.crc32:
        raise Damaged(f"its checkpoint at {blob.position} does not match the checksum")
    return data


def _read_at(file: io.FileIO, offset: int, nbytes: int) -> bytes:
    data = bytearray(nbytes)
    _read_into(file, offset, data)
    return bytes(data)


def _read_into(file: io.FileIO, offset: int, out: bytearray | memoryview) -> None:
    file.seek(offset)
    left = memoryview(out)
    while left:
        n = file.readinto(left)
        if not n:
            raise Damaged("it ends too early")
        left = left[n:]
