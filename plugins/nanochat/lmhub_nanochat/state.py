"""The memory of one sequence where embeddings take a share of the one before (smear): keys, values, and token ids.

A step needs the token before its first one, also right behind a cut, a copy or rows from disk; so each position keeps
its id beside its keys and values.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lmhub.errors import KernelError
from lmhub.family import KVDtype
from lmhub.forward import Geometry
from lmhub.kv import KVState, Layers
from lmhub.model import State

ID_BYTES = 4


class TokenState(State):
    """A `KVState` and the id of each of its positions. Saved rows are those of the cache, with the ids behind all."""

    def __init__(self, kv: KVState):
        self.kv = kv
        self.capacity = kv.capacity
        self.layers = kv.layers
        self.layout = f"{kv.layout}+id"
        self.row_nbytes = kv.row_nbytes + ID_BYTES
        self._ids = np.zeros(kv.capacity, np.int32)

    @property
    def n_tokens(self) -> int:
        """Committed positions."""
        return self.kv.n_tokens

    @n_tokens.setter
    def n_tokens(self, n_tokens: int) -> None:
        self.kv.n_tokens = n_tokens

    @property
    def address(self) -> int:
        """As `KVState.address`."""
        return self.kv.address

    @property
    def nbytes(self) -> int:
        return self.kv.nbytes + self._ids.nbytes

    @property
    def newest(self) -> int:
        """The id of the last position; 0 where there is none."""
        return int(self._ids[self.n_tokens - 1]) if self.n_tokens else 0

    def note(self, start: int, ids: NDArray[np.integer] | list[int]) -> None:
        """The tokens from position `start` on are `ids`."""
        self._ids[start : start + len(ids)] = ids

    def truncate(self, n_tokens: int) -> bool:
        return self.kv.truncate(n_tokens)

    def copy_prefix(self, other: State, n_tokens: int) -> bool:
        if not isinstance(other, TokenState):
            self.n_tokens = 0
            return False
        if not self.kv.copy_prefix(other.kv, n_tokens):
            return False
        self._ids[:n_tokens] = other._ids[:n_tokens]
        return True

    def trim(self) -> None:
        self.kv.trim()

    def read_rows(self, start: int, stop: int) -> NDArray[np.uint8]:
        """`State.read_rows`, then the ids as int32."""
        return np.concatenate([self.kv.read_rows(start, stop), self._ids[start:stop].view(np.uint8)])

    def write_rows(self, rows: NDArray[np.uint8]) -> None:
        """`State.write_rows`. Raises KernelError for what is not a whole number of rows as well."""
        n, rest = divmod(rows.nbytes, self.row_nbytes)
        if rest or rows.dtype != np.uint8:
            raise KernelError(f"{rows.nbytes} bytes are not rows of {self.row_nbytes}; they come from another cache.")
        start, end = self.n_tokens, n * self.kv.row_nbytes
        self.kv.write_rows(rows[:end])
        self.note(start, rows[end:].copy().view("<i4"))


class TokenGeometry(Geometry):
    """The geometry of `TokenState`s."""

    def __init__(self, dtype: KVDtype, layers: Layers):
        super().__init__(dtype, layers)

    def state(self, n_ctx: int) -> TokenState:  # type: ignore[override]
        """An empty one of `n_ctx` positions. Raises KernelError when that is not possible."""
        kv = super().state(n_ctx)
        assert isinstance(kv, KVState)
        return TokenState(kv)

    def fits(self, state: State) -> bool:
        """Whether C may write this model's keys and values there."""
        return isinstance(state, TokenState) and super().fits(state.kv)

    def _nbytes(self, n_ctx: int) -> int:
        return super()._nbytes(n_ctx) + ID_BYTES * n_ctx
