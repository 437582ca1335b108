"""What followed each token last, whatever the conversation: one table for an engine, and chains through it as drafts.

In the manner of token recycling (arXiv:2408.08696), reduced to what paid: what was really said. The likeliest ids of
verified rows, which the paper keeps as well, cost a pass over all logits and brought no more guesses that were right.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise

NO_TOKEN = -1


class Recycling:
    """The successor of every token of the vocabulary."""

    def __init__(self, n_vocab: int):
        self._n_vocab = n_vocab
        self._next = array("i", [NO_TOKEN]) * n_vocab

    @property
    def nbytes(self) -> int:
        """Memory that it holds."""
        return self._next.itemsize * self._n_vocab

    def promote(self, tokens: Sequence[int]) -> None:
        """`tokens` were said in this order. Those outside of the vocabulary are skipped."""
        for token, following in pairwise(tokens):
            if 0 <= token < self._n_vocab and 0 <= following < self._n_vocab:
                self._next[token] = following

    def chain(self, token: int, n: int) -> tuple[int, ...]:
        """At most `n` tokens, each what followed the one before; `token` is before the first."""
        out: list[int] = []
        while len(out) < n and 0 <= token < self._n_vocab and (token := self._next[token]) != NO_TOKEN:
            out.append(token)
        return tuple(out)
