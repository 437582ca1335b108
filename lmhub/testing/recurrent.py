"""A fake model whose states cannot rewind: what they hold beside their rows is kept and brought back as a whole only.

Its replies are those of `Letters` but for that memory: one that was restored wrongly, or at the wrong place, changes
what is said.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmhub.model import Chunk, State
from lmhub.testing.fake import FakeState, Tokens
from lmhub.testing.turns import Letters


class Recurrent(FakeState):
    """Rows that can be cut, copied and saved, and a memory of all tokens so far that can only be kept whole."""

    can_rewind = False
    layout = "recurrent"

    def __init__(self, n_ctx: int):
        super().__init__(n_ctx)
        self.memory = 0
        self.n_restored = 0

    def remember(self, tokens: Sequence[int]) -> None:
        """The memory has seen `tokens` as well."""
        for token in tokens:
            self.memory = zlib.crc32(b"%d," % token, self.memory)

    def truncate(self, n_tokens: int) -> bool:
        """To nothing only."""
        if 0 < n_tokens < self.n_tokens:
            return False
        if not n_tokens:
            self.memory = 0
            super().truncate(0)
        return True

    def copy_prefix(self, other: State, n_tokens: int) -> bool:
        """Of all that the other one holds only."""
        assert isinstance(other, Recurrent)
        self.truncate(0)
        if n_tokens != other.n_tokens:
            return False
        self.memory = other.memory
        return super().copy_prefix(other, n_tokens)

    def checkpoint(self) -> bytes:
        """The memory."""
        return self.memory.to_bytes(4, "little")

    def restore(self, checkpoint: bytes, n_tokens: int) -> bool:
        """The memory as it was; rows are cut."""
        assert self.n_tokens >= n_tokens, "the rows before a checkpoint must be there"
        super().truncate(n_tokens)
        self.memory = int.from_bytes(checkpoint, "little")
        self.n_restored += 1
        return True


class RecurrentModel(Letters):
    """Its logits depend on the rows and on the memory; only those behind the last token of a chunk can be wanted."""

    _memory = 0  # behind the tokens of the row that is asked for

    def new_state(self, n_ctx: int) -> FakeState:
        """An empty one, also kept in `states`."""
        self.states.append(Recurrent(n_ctx))
        return self.states[-1]

    def _advance(self, chunk: Chunk) -> list[Any]:
        state = chunk.state
        assert isinstance(state, Recurrent)
        state.remember(chunk.tokens)
        self._memory = state.memory
        return super()._advance(chunk)

    def row(self, tokens: Tokens, n_prompt: int) -> NDArray[np.float32]:
        """Noise that another memory would change."""
        return super().row((*tokens, self._memory & 0x7FFF, self._memory >> 17), n_prompt)
