"""The state of families whose memory is a KV cache and nothing else: `KVState`, behind the C struct `lmk_kv`, and
`KVGroups`, several of them, for models whose layers are not all alike. What recurrent layers remember beside it is
recurrent.py's.

Knows no model and no file, nor how a cache lies in memory: csrc/blocks.h says so, the kernels read and write it, and
csrc/cache.c moves its rows. This owns the memory, which commits as it fills, and holds every position to its bounds
before C sees it.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmhub.errors import KernelError
from lmhub.model import State
from lmhub.native import ffi, lib, pages


class Element(NamedTuple):
    """A KV dtype: its GGML type, and the values that it takes together. An f16 cache holds integers of 16 bits."""

    type_id: int
    n_values: int


ELEMENTS = {"f16": Element(1, 1), "f32": Element(0, 1), "q8_0": Element(8, 32)}
MAX_KEY = 1024
"""Dimensions of a key up to which the integer products of attention (csrc/attend_float.h) fit their 32 bits."""

MAX_POSITIONS = 1 << 32
"""Far beyond any memory; sizes in bytes stay within C's 64 bits."""

FORMAT = 2
"""Of the bytes of rows; goes up when they change."""

_BEHIND = 4096  # bytes that the kernels may read behind the last block


class Layers(NamedTuple):
    """Attention layers that are alike: how many there are, their key and value heads, and the dimensions of these."""

    n_layer: int
    n_kv: int
    k_dim: int
    v_dim: int


class Rewindable(State):
    """A state of rows alone, which can be cut back to any position; equal layouts say that rows can be exchanged."""

    layout: str
    capacity: int

    @abstractmethod
    def _take(self, other: Any, n_tokens: int) -> None:
        """Copy the first rows of `other`, which has the same layout and that many."""

    def truncate(self, n_tokens: int) -> bool:
        self.n_tokens = min(self.n_tokens, n_tokens)
        return True

    def copy_prefix(self, other: State, n_tokens: int) -> bool:
        if other is self:
            return n_tokens <= self.n_tokens and self.truncate(n_tokens)
        self.n_tokens = 0
        if not isinstance(other, Rewindable) or other.layout != self.layout:
            return False
        if not 0 <= n_tokens <= min(other.n_tokens, self.capacity):
            return False
        self._take(other, n_tokens)
        self.n_tokens = n_tokens
        return True

    def _must_hold(self, start: int, stop: int) -> None:
        """Raises KernelError for rows that are not all there."""
        if not 0 <= start <= stop <= self.n_tokens:
            raise KernelError(f"Rows [{start}, {stop}) are not all in a cache of {self.n_tokens}; read fewer.")


class KVState(Rewindable):
    """One sequence's keys and values over `n_layer` attention layers of one geometry.

    Memory comes in steps of 64 positions of all layers, and where the system has them in huge pages of 2 MiB, so that a
    sequence holds at most 63 positions and two pages more than it uses, and never more than `nbytes`.
    """

    def __init__(self, n_layer: int, n_kv: int, k_dim: int, v_dim: int, capacity: int, dtype: str = "f16"):
        self._nbytes = self.nbytes_for(n_layer, n_kv, k_dim, v_dim, capacity, dtype)
        type_id, heads = ELEMENTS[dtype].type_id, n_layer * n_kv
        self.n_tokens = 0
        self.capacity = capacity
        self.layers = (Layers(n_layer, n_kv, k_dim, v_dim),)
        self.row_nbytes = heads * sum(lib.lmk_kv_row_bytes(type_id, dim) for dim in (k_dim, v_dim))
        self.layout = _layout(n_layer, n_kv, k_dim, v_dim, dtype)
        self.memory = pages(self._nbytes + _BEHIND, huge=True)
        base = ffi.cast("char *", ffi.from_buffer(self.memory))
        self.c = ffi.new(
            "lmk_kv *",
            {
                "k": base,
                "v": base + heads * lib.lmk_kv_bytes(type_id, k_dim, 1, capacity),
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
        """Bytes of a cache of that geometry, by arithmetic alone. KernelError for what is not possible."""
        if dtype not in ELEMENTS:
            raise KernelError(f"A KV cache of type {dtype!r} is not possible; choose f16, f32 or q8_0.")
        element = ELEMENTS[dtype]
        for dim in (k_dim, v_dim):
            if dim % element.n_values:
                raise KernelError(
                    f"A {dtype} KV cache wants head dimensions that are multiples of {element.n_values}, "
                    f"and this model has one of {dim}; choose f16."
                )
        if dtype != "f32" and k_dim > MAX_KEY:
            raise KernelError(
                f"A {dtype} KV cache takes keys of up to {MAX_KEY} dimensions, and this model has {k_dim}; choose f32."
            )
        if not 1 <= capacity <= MAX_POSITIONS:
            raise KernelError(
                f"A KV cache of {capacity} positions is not possible; use a context of 1 to {MAX_POSITIONS}."
            )
        keys, values = (lib.lmk_kv_bytes(element.type_id, dim, i, capacity) for dim, i in ((k_dim, 1), (v_dim, 0)))
        return n_layer * n_kv * int(keys + values)

    @property
    def address(self) -> int:
        """The `lmk_kv *` as an integer, for a plugin to cast into its own ffi. Valid as long as this object."""
        return int(ffi.cast("uintptr_t", self.c))

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def _take(self, other: KVState, n_tokens: int) -> None:
        lib.lmk_kv_copy(self.c, other.c, n_tokens)

    def trim(self) -> None:
        lib.lmk_kv_trim(self.c, self.n_tokens)

    def read_rows(self, start: int, stop: int) -> NDArray[np.uint8]:
        """`State.read_rows`; within a layer's keys and within its values, the order is (position, kv head).

        A vector of an f16 cache is its exponent, then the high bytes of its integers, then the low ones.
        """
        self._must_hold(start, stop)
        rows = np.empty((stop - start) * self.row_nbytes, np.uint8)
        lib.lmk_kv_read(self.c, start, stop - start, ffi.from_buffer(rows))
        return rows

    def write_rows(self, rows: NDArray[np.uint8]) -> None:
        """`State.write_rows`. Raises KernelError for what is not a whole number of rows as well."""
        n = rows_in(rows, self)
        lib.lmk_kv_write(self.c, self.n_tokens, n, ffi.from_buffer(rows))
        self.n_tokens += n


class KVGroups(State):
    """One sequence's keys and values where layers differ in geometry: one `KVState` for each group that is alike.

    `address` is that of an array of `lmk_kv`, one for each of `groups`: a family's C finds group i at `span->kv + i`.
    """

    def __init__(self, groups: Sequence[KVState]):
        self.groups = tuple(groups)
        self.layers = tuple(layers for group in groups for layers in group.layers)
        self.capacity = min(group.capacity for group in groups)
        self.row_nbytes = sum(group.row_nbytes for group in groups)
        self.layout = f"[{','.join(group.layout for group in groups)}]"
        self._c = ffi.new("lmk_kv[]", [group.c[0] for group in groups])

    @property
    def n_tokens(self) -> int:
        """Committed positions: those of every group."""
        return self.groups[0].n_tokens

    @n_tokens.setter
    def n_tokens(self, n_tokens: int) -> None:
        for group in self.groups:
            group.n_tokens = n_tokens

    @property
    def address(self) -> int:
        """As `KVState.address`, of the first group."""
        return int(ffi.cast("uintptr_t", self._c))

    @property
    def nbytes(self) -> int:
        return sum(group.nbytes for group in self.groups)

    def truncate(self, n_tokens: int) -> bool:
        self.n_tokens = min(self.n_tokens, n_tokens)
        return True

    def copy_prefix(self, other: State, n_tokens: int) -> bool:
        if not isinstance(other, KVGroups) or other.layout != self.layout:
            self.n_tokens = 0
            return False
        done = [mine.copy_prefix(group, n_tokens) for mine, group in zip(self.groups, other.groups, strict=True)]
        return all(done)

    def trim(self) -> None:
        for group in self.groups:
            group.trim()

    def read_rows(self, start: int, stop: int) -> NDArray[np.uint8]:
        """`State.read_rows`: all of the first group's layers, then the next one's."""
        return np.concatenate([group.read_rows(start, stop) for group in self.groups])

    def write_rows(self, rows: NDArray[np.uint8]) -> None:
        """`State.write_rows`, raising as `KVState.write_rows` does."""
        n, at = rows_in(rows, self), 0
        for group in self.groups:
            group.write_rows(rows[at : at + n * group.row_nbytes])
            at += n * group.row_nbytes


def rows_in(rows: NDArray[Any], state: State) -> int:
    """How many rows these bytes are. Raises KernelError where they are not that state's, or do not fit behind it."""
    n, rest = divmod(rows.nbytes, state.row_nbytes)
    if rest or rows.dtype != np.uint8 or not rows.flags.c_contiguous:
        raise KernelError(f"{rows.nbytes} bytes are not rows of {state.row_nbytes}; they come from another cache.")
    if state.n_tokens + n > state.capacity:
        raise KernelError(
            f"{n} rows do not fit behind {state.n_tokens} in a cache of {state.capacity}; use a larger context."
        )
    return n


def _layout(n_layer: int, n_kv: int, k_dim: int, v_dim: int, dtype: str) -> str:
    """Canonical JSON: equal texts mean that rows can be exchanged."""
    geometry = {"n_layer": n_layer, "n_kv": n_kv, "k_dim": k_dim, "v_dim": v_dim, "dtype": dtype}
    geometry["order"] = "layer, k|v, row, kv_head, dim"
    geometry["format"] = FORMAT
    return json.dumps(geometry, sort_keys=True, separators=(",", ":"))
