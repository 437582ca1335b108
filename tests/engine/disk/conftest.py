"""States that are plain arrays, and tiers that are closed at the end of each test and must leave no thread behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lmhub.engine.disk import DiskTier
from lmhub.model import State

PATIENCE_S = 30.0


class RowState(State):
    """`width` bytes per position. Filled by `grow`, so that equal tokens have equal rows, as a real model's have.

    With `can_rewind=False` it is recurrent: what it holds of a position is in its checkpoints alone.
    """

    def __init__(self, capacity: int = 2048, width: int = 24, layout: str = "rows", can_rewind: bool = True):
        self.capacity, self.row_nbytes, self.layout, self.can_rewind = capacity, width, layout, can_rewind
        self.rows = np.zeros((capacity, width), np.uint8)
        self.n_tokens = 0
        self.memory = b""

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes

    def grow(self, tokens: NDArray[np.int32]) -> RowState:
        for token in tokens:
            seed = np.random.default_rng([self.n_tokens, int(token)])
            self.rows[self.n_tokens] = seed.integers(0, 256, self.row_nbytes, np.uint8)
            self.n_tokens += 1
        self.memory = bytes(tokens.astype(np.uint8)) if not self.can_rewind else b""
        return self

    def used(self) -> bytes:
        return self.rows[: self.n_tokens].tobytes() + self.memory

    def truncate(self, n_tokens: int) -> bool:
        if not self.can_rewind and 0 < n_tokens < self.n_tokens:
            return False
        self.n_tokens = min(self.n_tokens, n_tokens)
        self.memory = self.memory if n_tokens else b""
        return True

    def copy_prefix(self, other: State, n_tokens: int) -> bool:
        raise NotImplementedError

    def read_rows(self, start: int, stop: int) -> NDArray[np.uint8]:
        assert 0 <= start <= stop <= self.n_tokens
        return self.rows[start:stop].ravel()

    def write_rows(self, rows: NDArray[np.uint8]) -> None:
        new = rows.reshape(-1, self.row_nbytes)
        self.rows[self.n_tokens : self.n_tokens + len(new)] = new
        self.n_tokens += len(new)

    def checkpoint(self) -> bytes | None:
        return self.memory

    def restore(self, checkpoint: bytes, n_tokens: int) -> bool:
        assert self.n_tokens >= n_tokens or not self.row_nbytes
        self.memory, self.n_tokens = checkpoint, n_tokens
        return True


MakeState = Callable[..., RowState]
OpenTier = Callable[..., DiskTier]


@pytest.fixture
def make_state() -> MakeState:
    return RowState


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kv"


@pytest.fixture
def open_tier(folder: Path) -> Iterator[OpenTier]:
    """A tier over `folder`, once it has looked at all files."""
    threads_before = set(threading.enumerate())
    tiers: list[DiskTier] = []

    def make(identity: str = "model", path: Path = folder, **options: Any) -> DiskTier:
        tier = DiskTier(path, identity, **{"max_bytes": 1 << 30, "max_files": 1000, **options})
        tiers.append(tier)
        assert tier.scanned.wait(PATIENCE_S)
        return tier

    yield make
    for tier in tiers:
        tier.close(PATIENCE_S)
    assert set(threading.enumerate()) <= threads_before
