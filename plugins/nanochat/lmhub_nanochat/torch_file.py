"""Reads `model_*.pt`: the state_dict that torch.save wrote, without torch. Tensors stay where they lie in the file.

The format: a ZIP file of stored entries, `NAME/data.pkl`, which says of every tensor where it begins in which storage,
and `NAME/data/KEY`, the storages. The file is untrusted: its pickle goes through `pickles.py`, and every tensor is held
to its storage, every storage to the file.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np

from lmhub.errors import ModelFileError, quoted
from lmhub.gguf import Copied, GGMLType, Part, Tensor
from lmhub.gguf.parse import MAX_TENSORS, Damaged, Header, TensorInfo, shown
from lmhub_nanochat.pickles import Made, Persistent, unpickled

MAX_PICKLE = 1 << 26  # bytes
MAX_DIMS = 8
TYPES = {
    "torch.FloatStorage": GGMLType.F32,
    "torch.BFloat16Storage": GGMLType.BF16,
    "torch.HalfStorage": GGMLType.F16,
    "torch.IntStorage": GGMLType.I32,
    "torch.LongStorage": GGMLType.I64,
}
REBUILD, PARAMETER = "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_parameter"
_LOCAL = struct.Struct("<4s22xHH")  # signature, then the lengths of name and extra field
_STORED = 30  # bytes of a local header without these two


@dataclass(frozen=True, slots=True)
class View:
    """A tensor in its storage: `offset` and `strides` are in elements, `start` and `nbytes` the storage's, in bytes."""

    name: str
    type: GGMLType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    start: int
    nbytes: int


def open_torch(path: Path) -> tuple[Part, dict[str, Tensor]]:
    """The file, mapped, and its tensors by name. Raises ModelFileError."""
    part = Part(path, lambda buf: Header(0, {}, (), 1))
    try:
        views = list(read_views(part.mapped()))
    except Damaged as damage:
        part.close()
        raise ModelFileError(f"{path.name}: {damage}; copy it from the training machine again.") from None
    return part, {view.name: _tensor(part, view) for view in views}


def read_views(buf: mmap) -> Iterator[View]:
    """Every tensor of the state_dict. Raises Damaged."""
    entries = _entries(buf)
    name = next((name for name in entries if name.endswith("/data.pkl") and name.count("/") == 1), None)
    if name is None:
        raise Damaged("it is a ZIP file without a pickle of torch's")
    start, nbytes = entries[name]
    if nbytes > MAX_PICKLE:
        raise Damaged(f"its pickle of {nbytes} bytes is longer than the {MAX_PICKLE} that lmhub reads")
    root = name.removesuffix("data.pkl")
    order = entries.get(f"{root}byteorder")
    if order is not None and buf[order[0] : order[0] + order[1]] != b"little":
        raise Damaged("it was written on a big-endian machine, and lmhub reads little-endian files only")
    state = unpickled(buf[start : start + nbytes], (REBUILD, PARAMETER, *TYPES))
    if not isinstance(state, dict) or len(state) > MAX_TENSORS:
        raise Damaged("it holds no state_dict")
    for key, value in state.items():
        yield _view(key, value, root, entries)


def _entries(buf: mmap) -> dict[str, tuple[int, int]]:
    """Where each entry's bytes lie: (start, bytes). The lengths of a local header are its own, not the directory's."""
    if buf[:2] != b"PK":
        raise Damaged("it is no ZIP file: torch before 1.6 wrote it, or it is no checkpoint (load and save it again)")
    try:
        with zipfile.ZipFile(_Mapped(buf)) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error, UnicodeDecodeError):
        raise Damaged("it is a ZIP file that is damaged or cut off") from None
    found = {}
    for info in infos:
        at, end = info.header_offset, info.header_offset + _STORED
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or not 0 <= at <= end <= len(buf):
            raise Damaged(f"its entry {shown(info.filename)} is packed or encrypted, or lies nowhere")
        signature, n_name, n_extra = _LOCAL.unpack_from(buf, at)
        start = end + n_name + n_extra
        if signature != b"PK\x03\x04" or start + info.file_size > len(buf):
            raise Damaged(f"its entry {shown(info.filename)} reaches beyond the file")
        if info.filename in found:
            raise Damaged(f"its entry {shown(info.filename)} occurs twice")
        found[info.filename] = start, info.file_size
    return found


class _Mapped(io.RawIOBase):
    """A mapping as a file that zipfile can seek in, without closing it."""

    def __init__(self, buf: mmap):
        super().__init__()
        self._buf, self._at = buf, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._buf)}[whence]
        if base + offset < 0:
            raise ValueError("negative seek")
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = len(self._buf) if size < 0 else min(self._at + size, len(self._buf))
        data = self._buf[self._at : end]
        self._at += len(data)
        return data


def _view(key: Any, value: Any, root: str, entries: dict[str, tuple[int, int]]) -> View:
    what = f"its tensor {quoted(key)}"
    if isinstance(value, Made) and value.name == PARAMETER and value.args:
        value = value.args[0]
    if not isinstance(key, str) or not isinstance(value, Made) or value.name != REBUILD or len(value.args) < 4:
        raise Damaged(f"{what} is no tensor")
    stored, offset, shape, strides = value.args[:4]
    storage = stored.id if isinstance(stored, Persistent) else None
    if not isinstance(storage, tuple) or len(storage) != 5 or storage[0] != "storage":
        raise Damaged(f"{what} has no storage")
    kind = TYPES.get(getattr(storage[1], "name", ""))
    at = entries.get(f"{root}data/{storage[2]}") if isinstance(storage[2], str) else None
    if kind is None or at is None:
        raise Damaged(f"{what} has a storage that is not there")
    if not _are_sizes(shape) or not _are_sizes(strides) or len(shape) != len(strides) or type(offset) is not int:
        raise Damaged(f"{what} has no shape")
    if 0 in shape or len(shape) > MAX_DIMS:
        raise Damaged(f"{what} has the shape {quoted(shape)}, which is none")
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    if offset < 0 or (last + 1) * kind.block_bytes > at[1]:
        raise Damaged(f"{what} reaches beyond its storage of {at[1]} bytes")
    return View(key, kind, shape, strides, offset, *at)


def _are_sizes(value: Any) -> bool:
    return isinstance(value, tuple) and all(type(one) is int and 0 <= one < 1 << 40 for one in value)


def _tensor(part: Part, view: View) -> Tensor:
    """The tensor where it lies; a copy where its elements are neither in a row nor aligned."""
    size, step = view.type.block_bytes, 1
    packed: list[int] = []
    for n in reversed(view.shape):
        packed.insert(0, step)
        step *= n
    start = view.start + view.offset * size
    in_a_row = all(n == 1 or have == want for n, have, want in zip(view.shape, view.strides, packed, strict=True))
    if in_a_row and start % size == 0:
        return Tensor(TensorInfo(view.name, view.type, view.shape, start, step * size), part)
    if step * size > view.nbytes:
        raise ModelFileError(
            f"{part.path.name}: its tensor {shown(view.name)} repeats its elements; save it contiguous."
        )
    raw = np.frombuffer(part.mapped(), np.uint8, view.nbytes, view.start)
    strides = (*(stride * size for stride in view.strides), 1)
    strided = np.lib.stride_tricks.as_strided(raw[view.offset * size :], (*view.shape, size), strides, writeable=False)
    copied = Copied(np.ascontiguousarray(strided).data.cast("B"))
    return Tensor(TensorInfo(view.name, view.type, view.shape, 0, step * size), copied)
