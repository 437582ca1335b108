"""States at rest with the tokens that they hold, and how far each can be taken back. Knows no slots and no pool."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from lmhub.engine.slots import Ids
from lmhub.engine.thinning import thin
from lmhub.model import State

if TYPE_CHECKING:
    from lmhub.engine.drafts import DraftIndex

Checkpoints = list[tuple[int, bytes]]  # (tokens, what `State.checkpoint` gave), ascending


@dataclass(slots=True, eq=False)
class Parked:
    """A state that waits for work, and the ids that it holds: int32 (state.n_tokens,)."""

    state: State
    tokens: Ids
    n_stable: int
    checkpoints: Checkpoints = field(default_factory=list)
    index: DraftIndex | None = None  # what speculation knows of the sequence
    is_spare: bool = False  # kept beyond the slots, in the memory that `kv_ram` grants

    @property
    def used(self) -> int:
        """Bytes that it takes: its rows, what it remembers beside them, and its checkpoints."""
        rows = len(self.tokens) * self.state.row_nbytes
        return rows + self.state.fixed_nbytes + sum(len(blob) for _, blob in self.checkpoints)


def common(one: Ids, other: Ids) -> int:
    """How many leading ids are equal."""
    n = min(len(one), len(other))
    different = np.flatnonzero(one[:n] != other[:n])
    return int(different[0]) if len(different) else n


def reachable(state: State, checkpoints: Checkpoints, n: int) -> tuple[int, bytes | None]:
    """How many of the first `n` tokens the state can go back to, and by which checkpoint."""
    if state.can_rewind or n == state.n_tokens:
        return n, None
    at = [one for one in checkpoints if one[0] <= n]
    return at[-1] if at else (0, None)


def rewind(state: State, n: int, checkpoint: bytes | None) -> bool:
    """Go back to the first `n` tokens, as `reachable` has found."""
    if checkpoint is not None:
        return state.restore(checkpoint, n)
    return state.truncate(n) or state.n_tokens == n


def copy_rows(state: State, donor: State, n: int, checkpoint: bytes | None) -> bool:
    """Fill the empty `state` with the donor's first `n` tokens, as `reachable` has found."""
    if checkpoint is None:
        return state.copy_prefix(donor, n)
    state.write_rows(donor.read_rows(0, n))
    return state.restore(checkpoint, n)


def note(state: State, checkpoints: Checkpoints) -> None:
    """Add a checkpoint of where `state` is, unless there is one."""
    if checkpoints and checkpoints[-1][0] >= state.n_tokens:
        return
    blob = state.checkpoint()
    if blob is not None:
        checkpoints.append((state.n_tokens, blob))
        thin(checkpoints)
