"""A forward pass in plain numpy, one row at a time: the first version of a family, before it has C.

A family says what one token does; this does the rest of `CausalLM`. One row at a time keeps the promise of row
invariance, which numpy's products of whole matrices would break: their sums depend on the number of rows. Knows no
architecture.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lmhub.errors import KernelError
from lmhub.forward import checked
from lmhub.kv import Layers, Rewindable, rows_in
from lmhub.model import CausalLM, Chunk, State
from lmhub.native import check, lib

F32 = NDArray[np.float32]


class RowState(Rewindable):
    """One sequence's keys `k` and values `v`, float32 `(n_layer, capacity, n_kv, dim)`."""

    def __init__(self, layers: Layers, capacity: int):
        if not 1 <= capacity <= 1 << 32:
            raise KernelError(f"A context of {capacity} positions is not possible; choose 1 to {1 << 32}.")
        n_layer, n_kv, k_dim, v_dim = layers
        self.n_tokens, self.capacity, self.layers = 0, capacity, layers
        self.k = np.zeros((n_layer, capacity, n_kv, k_dim), np.float32)
        self.v = np.zeros((n_layer, capacity, n_kv, v_dim), np.float32)
        self.row_nbytes = 4 * n_layer * n_kv * (k_dim + v_dim)
        self.layout = f"rowwise f32 {n_layer} {n_kv} {k_dim} {v_dim}"

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    def _take(self, other: RowState, n_tokens: int) -> None:
        self.k[:, :n_tokens], self.v[:, :n_tokens] = other.k[:, :n_tokens], other.v[:, :n_tokens]

    def read_rows(self, start: int, stop: int) -> NDArray[np.uint8]:
        """`State.read_rows`; within a layer's keys and within its values, the order is (position, kv head)."""
        self._must_hold(start, stop)
        both = (half[il, start:stop].reshape(-1) for il in range(self.layers.n_layer) for half in (self.k, self.v))
        return np.concatenate(list(both)).view(np.uint8)

    def write_rows(self, rows: NDArray[np.uint8]) -> None:
        """`State.write_rows`. Raises KernelError for what is not a whole number of rows as well."""
        n, at, values = rows_in(rows, self), 0, rows.view(np.float32)
        place = slice(self.n_tokens, self.n_tokens + n)
        for il in range(self.layers.n_layer):
            for half in (self.k, self.v):
                count = half[il, place].size
                half[il, place] = values[at : at + count].reshape(half[il, place].shape)
                at += count
        self.n_tokens += n


class RowModel(CausalLM):
    """A model of which a subclass says two things: `row` and `head`. `layers` is the shape of its KV cache."""

    def __init__(self, layers: Layers, *, n_vocab: int, n_ctx_train: int):
        self.layers, self.n_vocab, self.n_ctx_train = layers, n_vocab, n_ctx_train
        self._aborted = False

    @abstractmethod
    def row(self, token: int, at: int, state: RowState) -> F32:
        """Run the layers for the token at position `at`: the residual stream `(n_embd,)`.

        Stores the position's keys and values as `state.k[il, at]` and `state.v[il, at]`; those before it are there.
        """

    @abstractmethod
    def head(self, x: F32) -> F32:
        """Logits `(n_vocab,)` of what `row` gave."""

    def new_state(self, n_ctx: int) -> RowState:
        return RowState(self.layers, n_ctx)

    def forward(self, chunks: Sequence[Chunk]) -> F32:
        """`CausalLM.forward`. Raises RequestError before anything has run, GenerationError when it was aborted."""
        tokens = checked(chunks, self.n_vocab, self._fits)
        out: list[F32] = []
        for chunk, ids in zip(chunks, tokens, strict=True):
            assert isinstance(chunk.state, RowState)
            first = {"none": len(ids), "last": len(ids) - 1, "all": 0}[chunk.want]
            for index, token in enumerate(ids):
                if self._aborted:
                    self._aborted = False
                    check(lib.LMK_ABORTED)
                x = self.row(int(token), chunk.state.n_tokens + index, chunk.state)
                if index >= first:
                    out.append(self.head(x))
        for chunk, ids in zip(chunks, tokens, strict=True):
            chunk.state.n_tokens += len(ids)
        return np.stack(out) if out else np.empty((0, self.n_vocab), np.float32)

    def abort(self) -> None:
        self._aborted = True

    def _fits(self, state: State) -> bool:
        return isinstance(state, RowState) and state.layers == self.layers
