"""Opens a GGUF model: `open_gguf(path)` gives metadata and tensors, as views of a read-only memory mapping.

Joins split files and turns every kind of damage into one `ModelFileError` sentence. Knows no architecture, and imports
numpy only when a tensor's bytes are asked for, so that looking at a file stays cheap. `parse.py` reads the bytes.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from lmhub.errors import ModelFileError
from lmhub.gguf.parse import Damaged, Header, TensorInfo, parse, shown
from lmhub.gguf.types import GGMLType

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

T = TypeVar("T")

ASKED = 96 << 10
"""Bytes to ask the system for at once: of one request, Linux reads no more than its read-ahead, 128 KiB by default."""
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf\Z")


def _error(path: Path, what: str, fix: str) -> ModelFileError:
    return ModelFileError(f"{shown(str(path), 1024)}: {what}; {fix}.")


class Part:
    """One mapped file, whose header `read` finds: that of a GGUF file, or of another container of tensors.

    Views keep the mapping alive by themselves; `close` only drops the part's own hold on it. Raises ModelFileError.
    """

    def __init__(self, path: Path, read: Callable[[mmap.mmap], Header] = parse):
        self.path = path
        self.map: mmap.mmap | None
        self.map, self.stat = _map(path)
        self.nbytes = len(self.map)
        try:
            self.header: Header = read(self.map)
        except Damaged as damage:
            self.close()
            raise _error(path, str(damage), "download or convert the file again") from None

    def mapped(self) -> mmap.mmap:
        if self.map is None:
            raise ModelFileError(f"{shown(str(self.path), 1024)}: the file has been closed; open it again.")
        return self.map

    def close(self) -> None:
        if self.map is not None:
            with suppress(BufferError):  # a view is still in use: the mapping goes when the last one does
                self.map.close()
            self.map = None


def _map(path: Path) -> tuple[mmap.mmap, os.stat_result]:
    try:
        # Non-blocking, so that a named pipe is refused below instead of waited for.
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        reason = (error.strerror or "unknown error").lower()
        raise _error(path, f"it cannot be opened ({reason})", "check the path and its permissions") from None
    except ValueError:
        raise _error(path, "the path holds a NUL character", "check the path") from None
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise _error(path, "it is not a regular file", "give the path of a .gguf file")
        if info.st_size == 0:
            raise _error(path, "the file is empty", "download or convert it again")
        return mmap.mmap(fd, 0, access=mmap.ACCESS_READ), info
    except OSError as error:
        reason = (error.strerror or "unknown error").lower()
        raise _error(path, f"it cannot be mapped into memory ({reason})", "copy it to a local disk") from None
    finally:
        os.close(fd)


class Copied:
    """Bytes of a tensor that do not lie in their file as they are needed, copied into memory of their own."""

    def __init__(self, data: bytes | memoryview):
        self._map = mmap.mmap(-1, max(len(data), 1))  # shared, so that giving its pages back loses nothing
        self._map[: len(data)] = data

    def mapped(self) -> mmap.mmap:
        """The memory."""
        return self._map


class Tensor:
    """One tensor of a file: what it is, and where its bytes lie. `shape` has the slowest dimension first."""

    __slots__ = ("_info", "_part")

    def __init__(self, info: TensorInfo, part: Part | Copied):
        self._info = info
        self._part = part

    def called(self, name: str, n_rows: int | None = None) -> Tensor:
        """The same bytes under another name; with `n_rows`, only the first rows of a matrix."""
        shape = self.shape if n_rows is None else (n_rows, *self.shape[1:])
        nbytes = self.nbytes // self.shape[0] * shape[0] if shape else self.nbytes
        return Tensor(TensorInfo(name, self.type, shape, self.offset, nbytes), self._part)

    @property
    def part(self) -> Part | Copied:
        """Where its bytes lie."""
        return self._part

    @property
    def name(self) -> str:
        return self._info.name

    @property
    def type(self) -> GGMLType:
        return self._info.type

    @property
    def shape(self) -> tuple[int, ...]:
        return self._info.shape

    @property
    def nbytes(self) -> int:
        return self._info.nbytes

    @property
    def offset(self) -> int:
        """Where its bytes begin in the part that holds it."""
        return self._info.offset

    @property
    def path(self) -> Path | None:
        """The file that holds it; None where it was copied into memory."""
        return self._part.path if isinstance(self._part, Part) else None

    @property
    def n_elements(self) -> int:
        return self._info.nbytes // self._info.type.block_bytes * self._info.type.block_elements

    @property
    def data(self) -> NDArray[np.uint8]:
        """Read-only uint8[nbytes] on the mapping: no copy, a stable address, valid even after the file is closed."""
        import numpy as np

        return np.frombuffer(self._part.mapped(), np.uint8, self._info.nbytes, self._info.offset)

    def prefetch(self) -> None:
        """Ask the system to have this tensor's bytes in memory soon. Returns without waiting for them."""
        self._advise("MADV_WILLNEED", ASKED)

    def release(self) -> None:
        """Let the system drop this tensor's pages from memory. Reading `data` again brings them back from the file."""
        self._advise("MADV_DONTNEED", max(self._info.nbytes, 1))

    def _advise(self, name: str, step: int) -> None:
        if hasattr(mmap, name):
            begin, end = self._info.offset // mmap.PAGESIZE * mmap.PAGESIZE, self._info.offset + self._info.nbytes
            step = -(-step // mmap.PAGESIZE) * mmap.PAGESIZE + mmap.PAGESIZE
            for start in range(begin, end, step):
                self._part.mapped().madvise(getattr(mmap, name), start, min(step, end - start))

    def __repr__(self) -> str:
        return f"<Tensor {shown(self.name)} {self.type.name} {self.shape}>"


@dataclass(frozen=True, slots=True)
class TypeShare:
    """How much of a file one tensor type makes up."""

    n_tensors: int
    n_params: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What `lmhub show` says about the tensors. `types` maps a type's name to its share, the largest first."""

    n_tensors: int
    n_params: int
    nbytes: int
    types: Mapping[str, TypeShare]


class GGUFFile:
    """An open model of one or more files. Use it as a context manager, or call `close`.

    `metadata` is that of the first part, arrays as lists. `tensors` maps names to tensors of all parts, in file order.
    A plugin that reads another layout (the hook `lmhub_open`) gives `path`, the `metadata` that a GGUF file of the
    model would have, and its `tensors`, which lie in `parts` or in memory.
    """

    def __init__(
        self,
        parts: list[Part],
        *,
        path: Path | None = None,
        metadata: dict[str, Any] | None = None,
        tensors: dict[str, Tensor] | None = None,
    ):
        self._parts = parts
        first = parts[0]
        self.path = path or first.path
        self.paths = tuple(part.path for part in parts)
        self.stats = tuple(part.stat for part in parts)  # of the files that are mapped, whatever the paths mean by now
        self.version = first.header.version
        self.alignment = first.header.alignment
        self.metadata = first.header.metadata if metadata is None else metadata
        self.nbytes = sum(part.nbytes for part in parts)
        self.tensors = tensors_of(parts) if tensors is None else tensors

    @property
    def architecture(self) -> str:
        """The value of `general.architecture`."""
        return self.require("general.architecture", str)

    def get(self, key: str, default: Any = None) -> Any:
        """The raw value of a metadata key, whatever its type."""
        return self.metadata.get(key, default)

    def require(self, key: str, kind: type[T]) -> T:
        """The value of a key that must be there, as int, float, bool, str or list. `ModelFileError` if it is not.

        A float may be stored as an integer; nothing else is converted.
        """
        if key not in self.metadata:
            raise _error(self.path, f"the metadata key {shown(key)} is missing", "convert the model again")
        value = self.metadata[key]
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            what = f"the metadata key {shown(key)} holds {type(value).__name__} where {kind.__name__} is expected"
            raise _error(self.path, what, "convert the model again")
        return value

    def optional(self, key: str, kind: type[T], default: T) -> T:
        """Like `require`, but an absent key gives `default`."""
        return self.require(key, kind) if key in self.metadata else default

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name. `ModelFileError` if it is missing."""
        if name not in self.tensors:
            raise _error(self.path, f"the tensor {shown(name)} is missing", "convert the model again")
        return self.tensors[name]

    def facts(self) -> Facts:
        """Parameter count and quantisation mix, from the directory alone."""
        groups: dict[str, list[Tensor]] = {}
        for tensor in self.tensors.values():
            groups.setdefault(tensor.type.name, []).append(tensor)
        shares = [
            (name, TypeShare(len(group), sum(t.n_elements for t in group), sum(t.nbytes for t in group)))
            for name, group in groups.items()
        ]
        shares.sort(key=lambda share: (-share[1].nbytes, share[0]))
        n_params = sum(share.n_params for _, share in shares)
        nbytes = sum(share.nbytes for _, share in shares)
        return Facts(len(self.tensors), n_params, nbytes, MappingProxyType(dict(shares)))

    def close(self) -> None:
        """Give the files back. Views that were handed out stay valid until they are dropped."""
        for part in self._parts:
            part.close()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<GGUFFile {self.path.name} of {len(self.tensors)} tensors>"


def tensors_of(parts: Sequence[Part]) -> dict[str, Tensor]:
    """The tensors of all parts by name, in the order of the files. Raises ModelFileError for one that two have."""
    tensors: dict[str, Tensor] = {}
    for part in parts:
        for info in part.header.tensors:
            if info.name in tensors:
                what = f"the tensor {shown(info.name)} is in another part as well"
                raise _error(part.path, what, "download all parts of the same model again")
            tensors[info.name] = Tensor(info, part)
    return tensors


def open_gguf(path: str | os.PathLike[str]) -> GGUFFile:
    """Map a GGUF file of version 2 or 3, or all parts of a split one when any part is given. Nothing is copied.

    Raises `ModelFileError`, one sentence that names the file, what is wrong with it and what to do.
    """
    given = Part(Path(path))
    parts = [given]
    try:
        count = given.header.metadata.get("split.count", 1)
        if type(count) is not int or count < 0:
            raise _error(given.path, "its split.count is not a number of parts", "download the file again")
        if count > 1:
            parts = _all_parts(given, count)
        return GGUFFile(parts)
    except BaseException:
        for part in parts:
            part.close()
        raise


def _all_parts(given: Part, count: int) -> list[Part]:
    """Every part in order. `given` is one of them, already open."""
    match = _PART.search(given.path.name)
    if match is None or int(match[2]) != count:
        what = f"it is one of {count} parts of a model, but its name does not say which"
        raise _error(given.path, what, f"rename the parts to NAME-00001-of-{count:05}.gguf and so on")
    stem = given.path.name[: match.start()]
    paths = [given.path.with_name(f"{stem}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        named = ", ".join(shown(name, 255) for name in missing[:8]) + (" and more" if len(missing) > 8 else "")
        what = f"{len(missing)} of the model's {count} parts are missing ({named})"
        raise _error(given.path, what, "put all parts into the same folder")
    parts: list[Part] = []
    try:
        for index, path in enumerate(paths):
            part = given if path == given.path else Part(path)
            parts.append(part)
            _check_part(part, index, count)
        total = parts[0].header.metadata.get("split.tensors.count")
        found = sum(len(part.header.tensors) for part in parts)
        if total is not None and total != found:
            what = f"its parts hold {found} tensors instead of {total}"
            raise _error(parts[0].path, what, "download all parts of the same model again")
    except BaseException:
        for part in parts:
            part.close()
        raise
    return parts


def _check_part(part: Part, index: int, count: int) -> None:
    metadata = part.header.metadata
    if metadata.get("split.count") != count or metadata.get("split.no") != index:
        what = f"its split.no and split.count do not say that it is part {index + 1} of {count}"
        raise _error(part.path, what, "download this part again, under its own name")
