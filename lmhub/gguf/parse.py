"""From the first bytes of a GGUF file to its metadata and tensor directory. The format: ggml's docs/gguf.md, 2 and 3.

Works on any read-only buffer and knows nothing of paths, mappings or split files. The file is untrusted: every count
and length is compared with the bytes that remain before anything of that size is made, arrays share one budget of
elements, and whatever does not fit ends in `Damaged`. Strings must be UTF-8; public vocabularies are, because
byte-level tokenizers store their tokens in a printable alphabet and SentencePiece spells bytes as `<0x0A>`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from mmap import mmap
from typing import Any

from lmhub.gguf.types import BY_ID, REMOVED, GGMLType

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
# Bounds on what a file may ask for, so that a hostile one is refused within a second or two. Public models stay far
# below: the largest vocabularies have 1.3 million array elements, unfused mixtures 20,000 tensors.
MAX_ELEMENTS = 1 << 22
"""Array elements in all metadata together; an array within an array counts as 16."""
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 17
MAX_DEPTH = 8
"""Arrays within arrays within arrays."""
MAX_NAME = 65535
MAX_DIMS = 4
MANY = 1 << 10
"""Strings that the kernels' help is worth."""

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY, _BOOL = 8, 9, 7
# The least number of bytes that one array element can occupy: what a count is checked against.
_LEAST = {kind: struct.calcsize("<" + code) for kind, code in _SCALARS.items()} | {_STRING: 8, _ARRAY: 12}

_U32 = struct.Struct("<I").unpack_from
_U64 = struct.Struct("<Q").unpack_from


class Damaged(Exception):
    """What is wrong with the bytes, as a clause without the file's name; `reader.py` makes the sentence."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One directory entry. `shape` has the slowest dimension first; `offset` counts from the start of the buffer."""

    name: str
    type: GGMLType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Header:
    version: int
    metadata: dict[str, Any]
    tensors: tuple[TensorInfo, ...]
    alignment: int


def shown(name: str, limit: int = 64) -> str:
    """An untrusted name, fit for one line of a message."""
    text = name if len(name) <= limit else name[: limit - 3] + "..."
    return text if text.isprintable() else repr(text)


class _Cursor:
    """A position in the buffer. Every method either advances past a whole item or raises `Damaged`."""

    def __init__(self, buf: mmap | bytes):
        self.buf = buf
        self.size = len(buf)
        self.pos = 0
        self.elements_left = MAX_ELEMENTS

    def take(self, nbytes: int, what: str) -> int:
        """Claim the next `nbytes` bytes and return where they start."""
        start = self.pos
        if nbytes > self.size - start:
            raise Damaged(f"it ends within {what} (needs {nbytes} bytes at offset {start}, the file has {self.size})")
        self.pos = start + nbytes
        return start

    def u32(self, what: str) -> int:
        value: int = _U32(self.buf, self.take(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = _U64(self.buf, self.take(8, what))[0]
        return value

    def string(self, what: str, limit: int | None = None) -> str:
        length = self.u64("the length of " + what)
        if limit is not None and length > limit:
            raise Damaged(f"{what} is {length} bytes long, more than the {limit} that are allowed")
        start = self.take(length, what)
        try:
            return str(self.buf[start : self.pos], "utf-8")
        except UnicodeDecodeError:
            raise Damaged(f"{what} is not UTF-8 text") from None

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.scalars(kind, 1, what)[0]
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            return self.array(what, depth)
        raise Damaged(f"{what} has the unknown value type {kind}")

    def scalars(self, kind: int, count: int, what: str) -> tuple[Any, ...]:
        start = self.take(count * _LEAST[kind], what)
        if kind == _BOOL and any(self.buf[start : self.pos].translate(None, b"\0\1")):
            raise Damaged(f"{what} holds a truth value that is neither 0 nor 1")
        return struct.unpack_from(f"<{count}{_SCALARS[kind]}", self.buf, start)

    def array(self, what: str, depth: int) -> list[Any]:
        if depth >= MAX_DEPTH:
            raise Damaged(f"{what} nests arrays deeper than {MAX_DEPTH} levels")
        kind = self.u32("the element type of " + what)
        count = self.u64("the length of " + what)
        if kind not in _LEAST:
            raise Damaged(f"{what} has the unknown element type {kind}")
        if count > (self.size - self.pos) // _LEAST[kind]:
            raise Damaged(f"{what} claims {count} elements, more than the rest of the file can hold")
        self.elements_left -= count * 16 if kind == _ARRAY else count
        if self.elements_left < 0:
            raise Damaged(f"{what} brings the metadata above {MAX_ELEMENTS} array elements")
        if kind == _STRING:
            return self.strings(count, what)
        if kind == _ARRAY:
            return [self.array(what, depth + 1) for _ in range(count)]
        return list(self.scalars(kind, count, what))

    def strings(self, count: int, what: str) -> list[str]:
        """`count` strings. What matters for the time to open a file: vocabularies and merges are 300,000 of them."""
        if count < MANY or (found := self._joined(count)) is None:
            return self._one_by_one(count, what)
        end, text = found
        self.pos = end
        return text.split("\0")[:-1]

    def _joined(self, count: int) -> tuple[int, str] | None:
        """Where the next `count` strings end, and all of them, a NUL behind each; None if that is not to be had."""
        from lmhub.native import ffi, lib

        with ffi.from_buffer(self.buf) as data:  # released at once: a mapping in use cannot be closed
            end = lib.lmk_strings_end(data, self.size, self.pos, count)
            if end < 0:
                return None
            joined = bytearray(end - self.pos - 7 * count)
            if lib.lmk_strings_join(data, self.pos, count, ffi.from_buffer(joined), len(joined)):
                return None
        try:
            return end, joined.decode()
        except UnicodeDecodeError:
            return None

    def _one_by_one(self, count: int, what: str) -> list[str]:
        """`count` strings, or `Damaged` for the first that is not one."""
        buf, size, pos, unpack = self.buf, self.size, self.pos, _U64
        last = size - 8
        out: list[str] = []
        append = out.append
        for index in range(count):
            if pos > last:
                raise Damaged(f"it ends within element {index} of {what}")
            end = pos + 8 + unpack(buf, pos)[0]
            if end > size:
                raise Damaged(f"element {index} of {what} reaches beyond the end of the file")
            try:
                append(str(buf[pos + 8 : end], "utf-8"))
            except UnicodeDecodeError:
                raise Damaged(f"element {index} of {what} is not UTF-8 text") from None
            pos = end
        self.pos = pos
        return out


def parse(buf: mmap | bytes) -> Header:
    """Read and check the whole header, or raise `Damaged`. Each tensor lies in the buffer then, aligned and alone."""
    cursor = _Cursor(buf)
    version = _version(cursor)
    n_tensors = cursor.u64("the header")
    n_keys = cursor.u64("the header")
    # An entry is at least a name's length, a type and a value; a tensor's one also an offset.
    for count, least, limit, what in ((n_keys, 13, MAX_KEYS, "keys"), (n_tensors, 24, MAX_TENSORS, "tensors")):
        if count > (cursor.size - cursor.pos) // least:
            raise Damaged(f"it claims {count} {what}, more than a file of {cursor.size} bytes can hold")
        if count > limit:
            raise Damaged(f"it claims {count} {what}, more than the {limit} that lmhub reads")
    metadata = _metadata(cursor, n_keys)
    alignment = _alignment(metadata)
    entries = [_entry(cursor) for _ in range(n_tensors)]
    start = -(-cursor.pos // alignment) * alignment
    entries = list(_with_wide_blocks(entries, alignment, cursor.size - start))
    return Header(version, metadata, _directory(entries, start, alignment, cursor.size), alignment)


def _version(cursor: _Cursor) -> int:
    magic = bytes(cursor.buf[: min(4, cursor.size)])
    if magic != MAGIC:
        raise Damaged(f"it is not a GGUF file (it begins with {magic!r} instead of {MAGIC!r})")
    cursor.pos = 4
    version = cursor.u32("the header")
    if version in (2, 3):
        return version
    if version & 0xFFFF == 0 and version:
        raise Damaged("it is a big-endian GGUF file, and lmhub reads little-endian ones only")
    raise Damaged(f"it is a GGUF file of version {version}, and lmhub reads versions 2 and 3")


def _metadata(cursor: _Cursor, n_keys: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(n_keys):
        key = cursor.string(f"the name of metadata key {index}", MAX_NAME)
        what = "the metadata key " + shown(key)
        if key in metadata:
            raise Damaged(what + " occurs twice")
        metadata[key] = cursor.value(cursor.u32("the type of " + what), what)
    return metadata


def _alignment(metadata: dict[str, Any]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 8 or alignment & (alignment - 1) or alignment > 1 << 30:
        raise Damaged("its general.alignment is not a power of two between 8 and 2^30")
    return alignment


def _entry(cursor: _Cursor) -> TensorInfo:
    """One directory entry, its offset still relative to the data section."""
    name = cursor.string("the name of a tensor", MAX_NAME)
    what = "the tensor " + shown(name)
    n_dims = cursor.u32("the entry of " + what)
    if n_dims > MAX_DIMS:
        raise Damaged(f"{what} has {n_dims} dimensions, more than the {MAX_DIMS} that are allowed")
    dims = [cursor.u64("the entry of " + what) for _ in range(n_dims)]
    number = cursor.u32("the entry of " + what)
    offset = cursor.u64("the entry of " + what)
    kind = BY_ID.get(number)
    if kind is None:
        if number in REMOVED:
            raise Damaged(f"{what} has type {number} ({REMOVED[number]}), which the format has given up")
        raise Damaged(f"{what} has the unknown type {number}")
    row = dims[0] if dims else 1
    if row % kind.block_elements:
        raise Damaged(f"{what} has rows of {row}, not a multiple of the {kind.name} block of {kind.block_elements}")
    n_blocks = row // kind.block_elements
    for dim in dims[1:]:
        n_blocks *= dim
    if n_blocks == 0:
        raise Damaged(what + " has a dimension of 0")
    return TensorInfo(name, kind, tuple(reversed(dims)), offset, n_blocks * kind.block_bytes)


def _with_wide_blocks(entries: list[TensorInfo], alignment: int, size: int) -> Iterator[TensorInfo]:
    """The entries; those of Q2_0 as PQ2_0, blocks of 128, in files from before the number meant blocks of 64.

    Only the room that tensors take tells the layouts apart. All of a file have the same: that of 64 where either fits,
    and where neither does.
    """

    def wide(entry: TensorInfo) -> TensorInfo:
        n_blocks, rest = divmod(entry.nbytes, 2 * GGMLType.Q2_0.block_bytes)
        return entry if rest else replace(entry, type=GGMLType.PQ2_0, nbytes=n_blocks * GGMLType.PQ2_0.block_bytes)

    def fits(entry: TensorInfo) -> bool:
        room = ends[entry.offset] - entry.offset
        return room in (entry.nbytes, -(-entry.nbytes // alignment) * alignment)

    found = [entry for entry in entries if entry.type is GGMLType.Q2_0]
    if not found:
        yield from entries
        return
    offsets = sorted({entry.offset for entry in entries})
    ends = dict(zip(offsets, [*offsets[1:], size], strict=True))
    is_wide = not all(map(fits, found)) and all(fits(wide(entry)) and entry.shape[-1] % 128 == 0 for entry in found)
    for entry in entries:
        yield wide(entry) if is_wide and entry.type is GGMLType.Q2_0 else entry


def _directory(entries: list[TensorInfo], start: int, alignment: int, size: int) -> tuple[TensorInfo, ...]:
    """The entries with absolute offsets, in the order of the file's directory, once they are known to be sound."""
    names: set[str] = set()
    for entry in entries:
        what = "the tensor " + shown(entry.name)
        if entry.name in names:
            raise Damaged(what + " occurs twice")
        names.add(entry.name)
        if entry.offset % alignment:
            raise Damaged(f"{what} lies at offset {entry.offset}, not a multiple of the alignment {alignment}")
        end = start + entry.offset + entry.nbytes
        if end > size:
            raise Damaged(f"{what} ends at byte {end}, but the file has {size} bytes")
    free, before = 0, ""
    for entry in sorted(entries, key=lambda e: e.offset):
        if entry.offset < free:
            raise Damaged(f"the tensors {shown(before)} and {shown(entry.name)} overlap")
        free, before = entry.offset + entry.nbytes, entry.name
    return tuple(TensorInfo(e.name, e.type, e.shape, start + e.offset, e.nbytes) for e in entries)
