"""The host of numpy forward passes: its states, and that a step is stopped between rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lmhub.errors import GenerationError, KernelError
from lmhub.kv import Layers
from lmhub.model import Chunk
from lmhub.rowwise import F32, RowModel, RowState


class Counter(RowModel):
    """Its keys are positions, its values tokens; the likeliest next token is the sum of all so far."""

    def __init__(self) -> None:
        super().__init__(Layers(2, 1, 4, 2), n_vocab=100, n_ctx_train=64)
        self.ran: list[int] = []

    def row(self, token: int, at: int, state: RowState) -> F32:
        self.ran.append(token)
        if token == 99:
            self.abort()
        state.k[:, at], state.v[:, at] = at, token
        return state.v[0, : at + 1, 0, :1].sum(axis=0)

    def head(self, x: F32) -> F32:
        logits = np.zeros(self.n_vocab, np.float32)
        logits[int(x[0])] = 1.0
        return logits


def sums(rows: np.ndarray) -> list[int]:
    return rows.argmax(axis=1).tolist()


def test_rows_see_what_is_before_them() -> None:
    model = Counter()
    one, two = model.new_state(8), model.new_state(8)
    assert sums(model.forward([Chunk(one, [3, 4, 5], "all"), Chunk(two, [7], "none")])) == [3, 7, 12]
    assert sums(model.forward([Chunk(two, [1]), Chunk(one, [1])])) == [8, 13]
    assert model.forward([]).shape == (0, 100)


def test_rows_travel() -> None:
    model = Counter()
    source, target = model.new_state(8), model.new_state(6)
    model.forward([Chunk(source, [3, 4, 5])])
    target.write_rows(source.read_rows(0, 2))
    assert target.n_tokens == 2 and source.row_nbytes * 8 == source.nbytes
    assert sums(model.forward([Chunk(target, [10])])) == [17]
    assert target.read_rows(0, 2).tobytes() == source.read_rows(0, 2).tobytes()
    with pytest.raises(KernelError, match="not rows"):
        target.write_rows(np.zeros(7, np.uint8))
    with pytest.raises(KernelError, match="do not fit"):
        target.write_rows(np.concatenate([source.read_rows(0, 3)] * 2))
    with pytest.raises(KernelError, match="read fewer"):
        source.read_rows(0, 4)


def test_copies_of_others_are_refused() -> None:
    state: Any = Counter().new_state(8)
    assert not state.copy_prefix(RowState(Layers(1, 1, 4, 2), 8), 0)
    with pytest.raises(KernelError, match="0 positions"):
        Counter().new_state(0)


def test_an_aborted_step_leaves_the_states() -> None:
    model = Counter()
    state = model.new_state(8)
    with pytest.raises(GenerationError):
        model.forward([Chunk(state, [1, 99, 2, 3])])
    assert (model.ran, state.n_tokens) == ([1, 99], 0)
    assert sums(model.forward([Chunk(state, [5])])) == [5]
