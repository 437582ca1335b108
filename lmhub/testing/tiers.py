"""Asks a `DiskTier` and waits for its answer; reads and damages the files that it has written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmhub.engine.disk import DiskTier, Found
from lmhub.engine.disk.lmkv import read_header
from lmhub.model import State
from lmhub.testing.fake import PATIENCE_S as WAIT_S

Tokens = NDArray[np.int32]

__all__ = ["WAIT_S", "chunk_offsets", "files", "flip", "found", "joined", "loaded", "saved", "some_tokens"]


def some_tokens(n: int, seed: int = 0) -> Tokens:
    """`n` ids, the same for the same seed."""
    return np.random.default_rng(seed).integers(0, 150_000, n).astype(np.int32)


def joined(*parts: Tokens) -> Tokens:
    """One sequence."""
    return np.concatenate(parts)


def saved(tier: DiskTier, state: State, tokens: Tokens, n_stable: int = 0, **rest: Any) -> bool:
    """Whether the tier has saved it."""
    return tier.save(state, tokens, n_stable, **rest).result(WAIT_S)


def loaded(tier: DiskTier, found: Found, n: int, state: State) -> int:
    """How many of `n` positions the tier has brought back into `state`."""
    return tier.load(found, n, state).result(WAIT_S)


def found(tier: DiskTier, prompt: Tokens) -> Found:
    """What the tier has of the prompt, which must be something."""
    answer = tier.find(prompt)
    assert answer is not None
    return answer


def files(folder: Path) -> list[Path]:
    """Those of a tier, by name."""
    return sorted(folder.glob("kv-*.lmkv"))


def chunk_offsets(path: Path) -> list[int]:
    """Where the chunks of a file begin."""
    with open(path, "rb", buffering=0) as file:
        return [chunk.offset for chunk in read_header(file, path.stat().st_size)[0].chunks]


def flip(path: Path, at: int) -> None:
    """Turn one bit of a file over."""
    data = bytearray(path.read_bytes())
    data[at] ^= 16
    path.write_bytes(data)
