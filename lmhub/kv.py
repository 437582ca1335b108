"""The state of families whose memory is a KV cache and nothing else: `KVState`, behind the C struct `lmk_kv`.

Knows no model. The kernels read and write the cache; this owns the memory, which commits page by page as it fills.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lmhub.errors import KernelError
from lmhub.model import State
from lmhub.native import ffi, pages

_DTYPES: dict[str, tuple[int, np.dtype[np.floating]]] = {  # GGML type id, numpy type
    "f32": (0, np.dtype(np.float32)),
    "f16": (1, np.dtype(np.float16)),
}


class KVState(State):
    """One sequence's keys and values over `n_layer` attention layers of one geometry.

    `k` and `v` are arrays (n_layer, n_kv, capacity, dim) of the cache's dtype; rows from `n_tokens` on hold anything.
    """

    def __init__(self, n_layer: int, n_kv: int, k_dim: int, v_dim: int, capacity: int, dtype: str = "f16"):
        nbytes = self.nbytes_for(n_layer, n_kv, k_dim, v_dim, capacity, dtype)
        type_id, kind = _DTYPES[dtype]
        self.n_tokens = 0
        self.capacity = capacity
        self._memory = pages(nbytes)
        n_keys = n_layer * n_kv * capacity * k_dim
        flat = np.frombuffer(self._memory, kind, nbytes // kind.itemsize)
        self.k: NDArray[np.floating] = flat[:n_keys].reshape(n_layer, n_kv, capacity, k_dim)
        self.v: NDArray[np.floating] = flat[n_keys:].reshape(n_layer, n_kv, capacity, v_dim)
        self.c = ffi.new(
            "lmk_kv *",
            {
                "k": ffi.cast("void *", self.k.ctypes.data),
                "v": ffi.cast("void *", self.v.ctypes.data),
                "dtype": type_id,
                "n_layer": n_layer,
                "n_kv": n_kv,
                "k_dim": k_dim,
                "v_dim": v_dim,
                "capacity": capacity,
            },
        )

    @staticmethod
    def nbytes_for(n_layer: int, n_kv: int, k_dim: int, v_dim: int, capacity: int, dtype: str = "f16") -> int:
        """Bytes of a cache of that geometry, by arithmetic alone. KernelError for a dtype other than f16 and f32."""
        if dtype not in _DTYPES:
            raise KernelError(f"A KV cache of type {dtype!r} is not possible; choose f16 or f32.")
        return n_layer * n_kv * capacity * (k_dim + v_dim) * _DTYPES[dtype][1].itemsize

    @property
    def address(self) -> int:
        """The `lmk_kv *` as an integer, for a plugin to cast into its own ffi. Valid as long as this object."""
        return int(ffi.cast("uintptr_t", self.c))

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    def truncate(self, n_tokens: int) -> bool:
        self.n_tokens = min(self.n_tokens, n_tokens)
        return True

    def copy_prefix(self, other: State, n_tokens: int) -> bool:
        self.n_tokens = 0
        if not isinstance(other, KVState) or n_tokens > min(other.n_tokens, self.capacity):
            return False
        for mine, theirs in ((self.k, other.k), (self.v, other.v)):
            if mine.dtype != theirs.dtype or mine.shape[:2] != theirs.shape[:2] or mine.shape[3] != theirs.shape[3]:
                return False
        self.k[:, :, :n_tokens] = other.k[:, :, :n_tokens]
        self.v[:, :, :n_tokens] = other.v[:, :, :n_tokens]
        self.n_tokens = n_tokens
        return True
