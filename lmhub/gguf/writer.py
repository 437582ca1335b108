"""Writes GGUF files of version 3: test models, benchmark files, exported weights.

Tensors are streamed to the disk one after the other, so a file may be much larger than memory. Writes what it is told
and knows no architecture; `quant.py` turns float32 into the stored types.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

from lmhub.gguf.parse import DEFAULT_ALIGNMENT, MAGIC
from lmhub.gguf.types import GGMLType

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float32] | NDArray[np.uint8]
    Source = Array | Callable[[], Array]

# Names of the scalar value types: their number in the format and their struct code.
_SCALARS = {
    "uint8": (0, "B"),
    "int8": (1, "b"),
    "uint16": (2, "H"),
    "int16": (3, "h"),
    "uint32": (4, "I"),
    "int32": (5, "i"),
    "float32": (6, "f"),
    "bool": (7, "?"),
    "uint64": (10, "Q"),
    "int64": (11, "q"),
    "float64": (12, "d"),
}
_STRING, _ARRAY = 8, 9
_SLICE = 1 << 20
"""Elements that are encoded at a time."""


class GGUFWriter:
    """Collects metadata and tensors, and writes the file when the `with` block ends without an exception.

    ::

        with GGUFWriter(path, "qwen3") as out:
            out.add("qwen3.block_count", 2)
            out.add_tensor("output_norm.weight", np.ones(64, np.float32))
            out.add_tensor("token_embd.weight", make_rows, GGMLType.Q8_0, shape=(1000, 64))
    """

    def __init__(self, path: str | os.PathLike[str], architecture: str | None, alignment: int = DEFAULT_ALIGNMENT):
        self.path = Path(path)
        self.alignment = alignment
        self._metadata: dict[str, bytes] = {}
        self._tensors: dict[str, tuple[Source, GGMLType, tuple[int, ...]]] = {}
        if architecture is not None:
            self.add("general.architecture", architecture)
        if alignment != DEFAULT_ALIGNMENT:
            self.add("general.alignment", alignment, "uint32")

    def add(self, key: str, value: Any, kind: str | None = None) -> None:
        """Add metadata: a bool, int, float, str, or a list of these (of lists, too).

        `kind` names the stored type ("uint16", "float64", ...), for a list that of its elements; without it integers
        become uint32, or the first of int32, uint64, int64 that fits, and floats become float32.
        """
        if key in self._metadata:
            raise ValueError(f"the metadata key {key} has been added before")
        number, data = _encoded(value, kind)
        self._metadata[key] = struct.pack("<I", number) + data

    def add_tensor(
        self, name: str, source: Source, kind: GGMLType = GGMLType.F32, shape: tuple[int, ...] | None = None
    ) -> None:
        """Add a tensor: float32 values to be stored as `kind`, or uint8 bytes that already are of that kind.

        `source` may be a function that makes the array; it is called once, when the tensor's turn to be written comes.
        `shape` (slowest dimension first) can be left out for an array of float32.
        """
        if name in self._tensors:
            raise ValueError(f"the tensor {name} has been added before")
        if shape is None:
            if callable(source) or source.dtype.name != "float32":
                raise ValueError(f"the tensor {name} needs a shape: only that of a float32 array is known")
            shape = source.shape
        if (shape[-1] if shape else 1) % kind.block_elements:
            raise ValueError(f"the rows of {name} are not a multiple of the {kind.name} block of {kind.block_elements}")
        self._tensors[name] = (source, kind, shape)

    def write(self) -> None:
        """Write the file; it appears under its name only when it is complete."""
        part = self.path.with_name(self.path.name + ".part")
        try:
            with open(part, "wb") as out:
                out.write(self._header())
                for name, (source, kind, shape) in self._tensors.items():
                    self._pad(out)
                    start = out.tell()
                    _write_tensor(out, source() if callable(source) else source, kind)
                    if out.tell() - start != kind.row_bytes(math.prod(shape)):
                        raise ValueError(f"the array given for {name} does not fit its shape {shape}")
            os.replace(part, self.path)
        finally:
            part.unlink(missing_ok=True)

    def _header(self) -> bytes:
        out = [MAGIC, struct.pack("<IQQ", 3, len(self._tensors), len(self._metadata))]
        for key, data in self._metadata.items():
            out += [_string(key), data]
        offset = 0
        for name, (_, kind, shape) in self._tensors.items():
            dims = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
            out += [_string(name), dims, struct.pack("<IQ", kind.id, offset)]
            nbytes = kind.row_bytes(math.prod(shape))
            offset += -(-nbytes // self.alignment) * self.alignment
        return b"".join(out)

    def _pad(self, out: BinaryIO) -> None:
        out.write(bytes(-out.tell() % self.alignment))

    def __enter__(self) -> GGUFWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None:
            self.write()


def _write_tensor(out: BinaryIO, array: Array, kind: GGMLType) -> None:
    import numpy as np

    from lmhub.gguf.quant import quantize

    if array.dtype == np.uint8:
        out.write(array.reshape(-1).data)
        return
    flat = array.reshape(-1).astype(np.float32, copy=False)
    for start in range(0, len(flat), _SLICE):
        out.write(quantize(flat[start : start + _SLICE], kind).data)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _encoded(value: Any, kind: str | None) -> tuple[int, bytes]:
    """The number of the value's type, and its bytes."""
    if isinstance(value, str):
        return _STRING, _string(value)
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], str | list | tuple):
            items = [_encoded(item, kind) for item in value]
            return _ARRAY, struct.pack("<IQ", items[0][0], len(items)) + b"".join(data for _, data in items)
        number, code = _SCALARS[kind or _kind_of(value)]
        return _ARRAY, struct.pack(f"<IQ{len(value)}{code}", number, len(value), *value)
    number, code = _SCALARS[kind or _kind_of([value])]
    return number, struct.pack("<" + code, value)


def _kind_of(values: Sequence[bool | int | float]) -> str:
    """The stored type for scalars that come without one."""
    if all(isinstance(value, bool) for value in values) and values:
        return "bool"
    if any(isinstance(value, float) for value in values):
        return "float32"
    low, high = min(values, default=0), max(values, default=0)
    if low >= 0:
        return "uint32" if high < 1 << 32 else "uint64"
    return "int32" if low >= -(1 << 31) and high < 1 << 31 else "int64"
