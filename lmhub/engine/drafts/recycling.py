"""What tends to follow a token, whatever the conversation: one table for an engine, and chains through it as drafts.

In the manner of token recycling (arXiv:2408.08696): the likeliest ids of every row that a model computed are kept as
the successors of the token that the row was computed for, and what was really said goes to the front.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lmhub.native import ffi, lib

WIDTH = int(lib.LMK_SUCCESSORS)
NO_TOKEN = int(lib.LMK_NO_TOKEN)


class Recycling:
    """Successors of every token: int32 (n_vocab, WIDTH), likeliest first, NO_TOKEN where there is none."""

    def __init__(self, n_vocab: int):
        self._n_vocab = n_vocab
        self.successors = np.full((n_vocab, WIDTH), NO_TOKEN, np.int32)
        self._c = ffi.from_buffer("int32_t[]", self.successors)
        self._out = ffi.new("int32_t[]", WIDTH)

    @property
    def nbytes(self) -> int:
        """Memory that it holds."""
        return self.successors.nbytes

    def update(self, tokens: Sequence[int], rows: NDArray[np.float32]) -> None:
        """`rows`, float32 (len(tokens), n_vocab) and contiguous, are the logits behind each of `tokens`."""
        if rows.shape != (len(tokens), self._n_vocab) or rows.dtype != np.float32:
            raise ValueError(f"rows must be float32 ({len(tokens)}, {self._n_vocab})")
        ids = ffi.new("int32_t[]", [*tokens])
        lib.lmk_successors_update(self._c, self._n_vocab, ids, ffi.from_buffer("float[]", rows), len(tokens))

    def promote(self, tokens: Sequence[int]) -> None:
        """`tokens` were said in this order: each but the first is now the likeliest one behind the one before it."""
        lib.lmk_successors_promote(self._c, self._n_vocab, ffi.new("int32_t[]", [*tokens]), len(tokens))

    def chain(self, token: int, n: int) -> tuple[int, ...]:
        """At most `n` (<= WIDTH) tokens, each the likeliest behind the one before; `token` is before the first."""
        n_found = lib.lmk_successors_chain(self._c, self._n_vocab, token, self._out, min(n, WIDTH))
        return tuple(ffi.unpack(self._out, n_found))


def top_ids(row: NDArray[np.float32], n: int = WIDTH) -> tuple[int, ...]:
    """The ids of the `n` (<= WIDTH) largest of `row`, best first, ties by lower id; NaN and -inf do not count."""
    out = ffi.new("int32_t[]", n)
    lib.lmk_top_ids(ffi.from_buffer("float[]", row), len(row), out, n)
    return tuple(id for id in ffi.unpack(out, n) if id != NO_TOKEN)
