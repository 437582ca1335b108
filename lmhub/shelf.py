"""Experts that are read from the file when they are needed, and no more of them than a budget kept in memory: `Shelf`.

The kernels read unpacked experts where they lie in the mapping of the file, and csrc/shelf.c tells the system which of
them it shall have in memory. What a product gives is the same either way. Knows no architecture: experts are the
tensors whose names say so.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmhub.native import check, ffi, lib

if TYPE_CHECKING:
    from lmhub.gguf import GGUFFile, Tensor

_LAYER = re.compile(r"^blk\.(\d+)\.ffn_\w+_exps\.weight$")


@dataclass(frozen=True, slots=True)
class ShelfNumbers:
    """What a shelf has done. `used` and `hits` count experts of one weight in one step; `read` are bytes."""

    budget: int
    held: int
    used: int
    hits: int
    read: int


class Shelf:
    """The routed experts of one file, which stays open meanwhile; `budget` bytes of them are kept in memory."""

    def __init__(self, file: GGUFFile, budget: int):
        """Raises KernelError when there is no memory for it."""
        self._c = ffi.gc(lib.lmk_shelf_new(budget), lib.lmk_shelf_free)
        self._fds: dict[str, int] = {}
        self.nbytes = 0
        for name, tensor in file.tensors.items():
            if (layer := _LAYER.match(name)) and tensor.path is not None:
                self._add(tensor, int(layer[1]), str(tensor.path))

    def _add(self, tensor: Tensor, layer: int, path: str) -> None:
        if path not in self._fds:
            self._fds[path] = os.open(path, os.O_RDONLY)
        n_expert, base = tensor.shape[0], ffi.from_buffer(tensor.data)
        check(
            lib.lmk_shelf_add(self._c, base, n_expert, tensor.nbytes // n_expert, layer, self._fds[path], tensor.offset)
        )
        tensor.release()
        self.nbytes += tensor.nbytes

    def numbers(self) -> ShelfNumbers:
        """As of this moment; from any thread."""
        out = ffi.new("lmk_shelf_numbers *")
        lib.lmk_shelf_stats(self._c, out)
        return ShelfNumbers(out.budget, out.held, out.used, out.hits, out.read)

    def close(self) -> None:
        """Forget the experts, while no step runs. The mapping is as any other then."""
        ffi.release(self._c)
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()
