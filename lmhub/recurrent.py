"""The state of families that remember more than keys and values: `RecurrentState`, a cache and a memory of fixed size.

A recurrent layer folds every token into its memory, so that this can be kept and brought back as a whole only. A step
writes the memory anew beside the one that it reads, and the state goes over to it once the step has succeeded: one that
fails leaves everything as it was. Knows no model: what the floats mean is the family's affair.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmhub.kv import KVGroups, KVState
from lmhub.model import State
from lmhub.native import ffi, pages


class RecurrentState(State):
    """One sequence's `cache`, and `n_floats` float32 beside it, which are zeros while no token has been seen.

    `address` is that of the cache's `lmk_kv`, in front of which a family's C finds the memory: `lmk_memory_of(span)`.
    """

    can_rewind = False
    can_step_back = True

    def __init__(self, cache: KVState | KVGroups, n_floats: int):
        self.cache, self.n_floats = cache, n_floats
        self.layers = cache.layers
        self.capacity = cache.capacity
        self.row_nbytes = cache.row_nbytes
        self.fixed_nbytes = 2 * 4 * n_floats
        self.layout = f'{{"cache":{cache.layout},"memory":{n_floats}}}'
        self._memories = [pages(4 * n_floats, huge=True) for _ in range(2)]  # the one in use, the next step's
        n_caches, sizes = len(self.layers), (ffi.sizeof("lmk_memory"), ffi.sizeof("lmk_kv"))
        self._c = ffi.new("char[]", sizes[0] + n_caches * sizes[1])
        ffi.memmove(self._c + sizes[0], ffi.cast("lmk_kv *", cache.address), n_caches * sizes[1])
        self._n_before: int | None = None  # tokens before the last step, if nothing else has happened since
        self._show()

    @property
    def n_tokens(self) -> int:
        """Committed positions, of the cache and of the memory."""
        return self.cache.n_tokens

    @n_tokens.setter
    def n_tokens(self, n_tokens: int) -> None:
        self.cache.n_tokens = n_tokens

    @property
    def address(self) -> int:
        """As `KVState.address`, of the first cache."""
        return int(ffi.cast("uintptr_t", self._c)) + int(ffi.sizeof("lmk_memory"))

    @property
    def nbytes(self) -> int:
        return self.cache.nbytes + self.fixed_nbytes

    @property
    def memory(self) -> NDArray[np.float32]:
        """What is remembered of the committed tokens, (n_floats,): a view, valid until the next step."""
        return np.frombuffer(self._memories[0], np.float32, self.n_floats)

    def advance(self, n_tokens: int) -> None:
        self._n_before = self.n_tokens
        self.cache.n_tokens += n_tokens
        self._memories.reverse()
        self._show()

    def step_back(self) -> bool:
        if self._n_before is None:
            return False
        self.cache.truncate(self._n_before)
        self._n_before = None
        self._memories.reverse()
        self._show()
        return True

    def truncate(self, n_tokens: int) -> bool:
        if n_tokens >= self.n_tokens:
            return True
        if n_tokens > 0:
            return False
        self._n_before = None
        return self.cache.truncate(0)

    def copy_prefix(self, other: State, n_tokens: int) -> bool:
        if other is self and n_tokens == self.n_tokens:
            return True
        self.truncate(0)
        if not isinstance(other, RecurrentState) or other.layout != self.layout or n_tokens not in (0, other.n_tokens):
            return False
        self._n_before = None
        if not self.cache.copy_prefix(other.cache, n_tokens):
            return False
        self.memory[:] = other.memory
        return True

    def trim(self) -> None:
        self.cache.trim()

    def read_rows(self, start: int, stop: int) -> NDArray[np.uint8]:
        """`State.read_rows`: of the cache. Without the memory at their end they are of no use: see `checkpoint`."""
        return self.cache.read_rows(start, stop)

    def write_rows(self, rows: NDArray[np.uint8]) -> None:
        """`State.write_rows`: into the cache. The memory is wrong until `restore`."""
        self._n_before = None
        self.cache.write_rows(rows)

    def checkpoint(self) -> bytes:
        """The memory."""
        return self.memory.tobytes()

    def restore(self, checkpoint: bytes, n_tokens: int) -> bool:
        if len(checkpoint) != 4 * self.n_floats or not 0 < n_tokens <= self.n_tokens:
            self.truncate(0)
            return False
        self._n_before = None
        self.memory[:] = np.frombuffer(checkpoint, np.float32)
        return self.cache.truncate(n_tokens)

    def _show(self) -> None:
        """Tell C where both memories are."""
        c: Any = ffi.cast("lmk_memory *", self._c)
        c.past, c.next = (ffi.cast("float *", ffi.from_buffer(memory)) for memory in self._memories)
