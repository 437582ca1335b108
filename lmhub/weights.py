"""From a file's tensors to what kernels read: `Weights`, which every family's `load` goes through.

Checks shapes against the model's sizes, packs the types that have a packed layout, reports progress, keeps everything
alive, and knows at the end which tensors nobody asked for. Knows no architecture.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmhub.errors import ModelFileError, UnsupportedModel
from lmhub.family import Borrow
from lmhub.gguf import GGUFFile, Tensor
from lmhub.native import check, ffi, lib, pages

log = logging.getLogger("lmhub.weights")

SLICE_BYTES = 1 << 23
"""How much of a tensor is packed before its pages are given back: peak memory is the packed weights plus this."""
RUN_BYTES = 1 << 25
"""How much is packed in one call: at the end of each, the loader waits for whatever else runs in Python."""
AHEAD_BYTES = 1 << 26
"""How much of the file is asked for ahead of the tensor in work: page by page, a disk would never be busy."""
_ONE_EXPERT = re.compile(r"\.ffn_(gate|up|down)\.\d+\.")  # in files from before stacked experts


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """A weight as kernels see it: `c` is the core's `lmk_weight *`, valid as long as this object."""

    c: Any
    refs: tuple[Any, ...]

    @property
    def address(self) -> int:
        """The pointer as an integer."""
        return int(ffi.cast("uintptr_t", self.c))

    @property
    def packed_bytes(self) -> int:
        """Memory that the packed copy takes; 0 where kernels read the file's own bytes."""
        w = self.c
        return int(lib.lmk_packed_bytes(w.type, w.rows, w.cols, w.n_expert)) if w.packed else 0


class Weights:
    """The tensors of one file, taken one by one. `progress(done_bytes, total_bytes)` is called as they are.

    `borrow` names the weights that are left unpacked in the file: `LoadOptions.borrow`. Products are the same bits.
    """

    def __init__(
        self, file: GGUFFile, progress: Callable[[int, int], None] | None = None, borrow: Borrow = "none"
    ) -> None:
        self._file = file
        self._borrow = borrow
        self._progress = progress
        self._matrices: dict[str, Matrix] = {}
        self._tables: dict[str, Matrix] = {}
        self._arrays: dict[str, NDArray[np.float32]] = {}
        self._bound: list[Matrix | NDArray[Any]] = []
        self._total = sum(tensor.nbytes for tensor in file.tensors.values())
        self._done = 0
        self._order = {name: at for at, name in enumerate(file.tensors)}
        self._asked: set[str] = set()
        # One region for all: huge pages need 2 MiB in a row, and most tensors are about that size.
        self._pool = pages(sum(packed_bytes(tensor, borrow) for tensor in file.tensors.values()), huge=True)
        self._pool_used = 0
        self._waiting: list[tuple[Tensor, Matrix]] = []  # to be packed

    def has(self, name: str) -> bool:
        """Whether the file has that tensor."""
        return name in self._file.tensors

    def matrix(self, name: str, rows: int, cols: int, n_expert: int = 1) -> Matrix:
        """The weight `(rows, cols)`, or `(n_expert, rows, cols)` for more than one expert: for kernels, after `finish`.

        Asking twice gives the same object, so a tied head costs nothing. Raises ModelFileError when the tensor is
        missing or has another shape.
        """
        tensor = self._tensor(name, (rows, cols) if n_expert == 1 else (n_expert, rows, cols))
        if name not in self._matrices:
            self._matrices[name] = self._load(tensor, rows, cols, n_expert)
        return self._matrices[name]

    def table(self, name: str, rows: int, cols: int) -> Matrix:
        """Like `matrix`, for a weight whose rows are only looked up: it is read from the file, nothing is packed."""
        tensor = self._tensor(name, (rows, cols))
        if name not in self._matrices:
            self._tables[name] = self._mapped(tensor, rows, cols)
        return self._matrices.get(name) or self._tables[name]

    def row(self, name: str, cols: int) -> Matrix:
        """Like `matrix`, for a weight `(1, cols)`, which may be a vector in the file."""
        if len(self._file.tensor(name).shape) != 1:
            return self.matrix(name, 1, cols)
        tensor = self._tensor(name, (cols,))
        if name not in self._matrices:
            self._matrices[name] = self._load(tensor, 1, cols, 1)
        return self._matrices[name]

    def vector(self, name: str, n: int) -> NDArray[np.float32]:
        """The tensor `(n,)` as float32. Raises ModelFileError when it is missing or has another shape."""
        return self.array(name, n)

    def array(self, name: str, *shape: int) -> NDArray[np.float32]:
        """The tensor of that shape as float32, for what no kernel reads as a weight. Raises as `vector` does."""
        tensor = self._tensor(name, shape)
        if name not in self._arrays:
            values = np.empty(shape, np.float32)
            source, target = ffi.from_buffer(tensor.data), ffi.from_buffer("float[]", values)
            if lib.lmk_dequant_row(tensor.type.id, source, target, values.size):
                raise self._unreadable(tensor)
            tensor.release()
            self._report(tensor.nbytes)
            self._arrays[name] = values
        return self._arrays[name]

    @staticmethod
    def derived(values: NDArray[np.float32]) -> Matrix:
        """A weight `(rows, cols)` that the family has computed: contiguous, and read as it is."""
        c = ffi.new("lmk_weight *", {"type": 0, "n_expert": 1, "rows": values.shape[0], "cols": values.shape[1]})
        c.data = ffi.from_buffer(values)
        return Matrix(c, (values,))

    def optional_matrix(self, name: str, rows: int, cols: int, n_expert: int = 1) -> Matrix | None:
        """Like `matrix`, or None when the file has no such tensor."""
        return self.matrix(name, rows, cols, n_expert) if self.has(name) else None

    def optional_vector(self, name: str, n: int) -> NDArray[np.float32] | None:
        """Like `vector`, or None when the file has no such tensor."""
        return self.vector(name, n) if self.has(name) else None

    def stack(self, names: Sequence[str], rows: int, cols: int) -> Matrix:
        """Plain matrices of one type as the experts of a single weight, as files from before stacked tensors have them.

        Raises ModelFileError as `matrix` does, UnsupportedModel when their types differ.
        """
        tensors = [self._tensor(name, (rows, cols)) for name in names]
        if len({tensor.type for tensor in tensors}) > 1:
            raise UnsupportedModel(
                f"{self._file.path.name}: the experts {names[0]} to {names[-1]} have tensors of different types; "
                f"convert the model again, with stacked experts."
            )
        if names[0] not in self._matrices:
            self._matrices |= dict.fromkeys(names, self._stacked(tensors, rows, cols))
        return self._matrices[names[0]]

    def _stacked(self, tensors: Sequence[Tensor], rows: int, cols: int) -> Matrix:
        """Packed one behind the other; where they are not packed, copied as they are, since they must lie in a row."""
        c = ffi.new("lmk_weight *", {"type": tensors[0].type.id, "n_expert": len(tensors), "rows": rows, "cols": cols})
        if packed_bytes(tensors[0], self._borrow):
            parts = [self._load(tensor, rows, cols, 1) for tensor in tensors]
            c.packed = parts[0].c.packed
            return Matrix(c, (self._pool,))
        joined = pages(sum(tensor.nbytes for tensor in tensors))
        for at, tensor in enumerate(tensors):
            joined[at * tensor.nbytes : (at + 1) * tensor.nbytes] = tensor.data.tobytes()
            tensor.release()
            self._report(tensor.nbytes)
        c.data = ffi.from_buffer(joined)
        return Matrix(c, (joined,))

    def bind(self, ffi: Any, struct: Any, field: str, weight: Matrix | NDArray[Any] | None) -> None:
        """Store a weight in a field of a plugin's C struct, made by `ffi`: by value or as a pointer, as declared.

        None leaves the field as it is: zero, in a struct that `ffi.new` made. This object keeps the weight, and must
        outlive the struct.
        """
        if weight is None:
            return
        self._bound.append(weight)
        kind = ffi.typeof(struct)
        declared = dict((kind.item if kind.kind == "pointer" else kind).fields)[field].type
        if declared.kind == "struct":
            assert isinstance(weight, Matrix)
            ffi.memmove(ffi.addressof(struct, field), ffi.cast("char *", weight.address), ffi.sizeof(declared))
        else:
            address = weight.address if isinstance(weight, Matrix) else weight.ctypes.data
            setattr(struct, field, ffi.cast(declared, address))

    def finish(self, skip: Iterable[str] = ()) -> tuple[str, ...]:
        """Loading is over: what has been taken is packed. Logs and returns the names of tensors that nobody asked for
        and no `skip` pattern covers.

        Raises UnsupportedModel for an unused `*.scale` tensor: the weight beside it would be wrong without it.
        """
        self.pack()
        patterns = tuple(skip)
        used = self._matrices.keys() | self._tables.keys() | self._arrays.keys()
        unused = [name for name in self._file.tensors if name not in used]
        unused = [name for name in unused if not any(fnmatchcase(name, pattern) for pattern in patterns)]
        for name in unused:
            if name.endswith(".scale"):
                raise UnsupportedModel(
                    f"{self._file.path.name}: the tensor {name} scales a weight, which this model family does not do; "
                    f"use a file of another quantisation."
                )
        if unused:
            listed = ", ".join(unused[:8]) + (" and more" if len(unused) > 8 else "")
            log.warning("%s: %d tensors are not used by this family: %s", self._file.path.name, len(unused), listed)
        if self._progress is not None:
            self._progress(self._total, self._total)
        return tuple(unused)

    def nbytes_packed(self) -> int:
        """Memory of all packed copies."""
        return sum(matrix.packed_bytes for matrix in {id(one): one for one in self._matrices.values()}.values())

    def _tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self._file.tensor(name)
        if tensor.shape != shape:
            raise ModelFileError(
                f"{self._file.path.name}: the tensor {name} has the shape {tensor.shape}, and the model's sizes "
                f"ask for {shape}; convert the model again."
            )
        if lib.lmk_type_block(tensor.type.id) < 0:
            raise self._unreadable(tensor)
        return tensor

    def _unreadable(self, tensor: Tensor) -> UnsupportedModel:
        return UnsupportedModel(
            f"{self._file.path.name}: the tensor {tensor.name} of type {tensor.type.name} and shape {tensor.shape} is "
            f"nothing that a kernel reads; use a file of another quantisation."
        )

    def _load(self, tensor: Tensor, rows: int, cols: int, n_expert: int) -> Matrix:
        mapped, nbytes = self._mapped(tensor, rows, cols, n_expert), packed_bytes(tensor, self._borrow)
        if not nbytes:
            if not is_borrowed(tensor, self._borrow):
                self._ask_ahead(tensor)
            self._report(tensor.nbytes)
            return mapped
        mapped.c.packed = ffi.from_buffer(self._pool) + self._pool_used
        self._pool_used += nbytes
        self._waiting.append((tensor, mapped))
        return Matrix(mapped.c, (*mapped.refs, self._pool))

    def pack(self) -> None:
        """Pack what has been taken so far, in the order of the file; before, nothing may be multiplied with it."""
        waiting, self._waiting = sorted(self._waiting, key=lambda one: self._order[one[0].name]), []
        slices = [(tensor, one) for tensor, matrix in waiting for one in _slices(matrix.c, tensor.nbytes)]
        at = 0
        while at < len(slices):
            self._ask_ahead(slices[at][0])
            run, nbytes = [], 0
            while at < len(slices) and nbytes < RUN_BYTES:
                run.append(slices[at][1])
                nbytes += run[-1]["bytes"]
                at += 1
            check(lib.lmk_pack_slices(ffi.new("lmk_slice[]", run), len(run)))
            self._report(nbytes)

    def _ask_ahead(self, tensor: Tensor) -> None:
        """Have that tensor and the next ones in the file read while this one is worked on, each of them once."""
        left = tensor.nbytes + AHEAD_BYTES
        for one in islice(self._file.tensors.values(), self._order[tensor.name], None):
            if one.name not in self._asked and not is_borrowed(one, self._borrow):
                self._asked.add(one.name)
                one.prefetch()
            left -= one.nbytes
            if left <= 0:
                break

    @staticmethod
    def _mapped(tensor: Tensor, rows: int, cols: int, n_expert: int = 1) -> Matrix:
        """The weight as the file holds it."""
        data = tensor.data
        c = ffi.new("lmk_weight *", {"type": tensor.type.id, "n_expert": n_expert, "rows": rows, "cols": cols})
        c.data = ffi.from_buffer(data)
        return Matrix(c, (data,))

    def _report(self, nbytes: int) -> None:
        self._done += nbytes
        if self._progress is not None:
            self._progress(self._done, self._total)


def is_borrowed(tensor: Tensor, borrow: Borrow) -> bool:
    """Whether kernels read that tensor in the file. Experts that are single tensors are stacked, which is a copy, and
    those that every row goes to (`_shexp`) are as hot as any other weight."""
    if borrow == "all":
        return len(tensor.shape) > 1 and not _ONE_EXPERT.search(tensor.name)
    return borrow == "experts" and len(tensor.shape) > 2 and "_shexp." not in tensor.name


def packed_bytes(tensor: Tensor, borrow: Borrow = "none") -> int:
    """Memory that the packed copy of a tensor takes; 0 for types and shapes that are not packed, and borrowed ones."""
    if len(tensor.shape) < 2 or is_borrowed(tensor, borrow):
        return 0
    *experts, rows, cols = tensor.shape
    return int(lib.lmk_packed_bytes(tensor.type.id, rows, cols, math.prod(experts)))


def _slices(c: Any, nbytes: int) -> Iterator[dict[str, Any]]:
    """A weight that waits to be packed in pieces, each the fields of an `lmk_slice`."""
    group = 16
    row = nbytes // (c.n_expert * c.rows)
    per_expert = lib.lmk_packed_bytes(c.type, c.rows, c.cols, 1)
    packed_group = per_expert // -(-c.rows // group)
    step = max(SLICE_BYTES // (row * group), 1) * group
    data, packed = ffi.cast("char *", c.data), ffi.cast("char *", c.packed)
    for expert in range(c.n_expert):
        for first in range(0, c.rows, step):
            n = min(step, c.rows - first)
            w = {"type": c.type, "n_expert": 1, "rows": n, "cols": c.cols}
            w["data"] = data + (expert * c.rows + first) * row
            dst = packed + expert * per_expert + first // group * packed_group
            yield {"w": w, "dst": dst, "bytes": n * row}
