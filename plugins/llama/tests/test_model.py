"""What the plugin refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmhub.errors import LmhubError, UnsupportedModel
from lmhub.gguf import GGMLType, GGUFFile, open_gguf
from lmhub.testing import drive
from lmhub.testing.rewrite import rewrite
from lmhub.testing.tiny import decoder, write


@pytest.fixture
def plain(tmp_path: Path) -> GGUFFile:
    return open_gguf(write(tmp_path / "plain.gguf", decoder("llama")))


def load(path: Path) -> Any:
    return drive.load("lmhub_llama", path, 64)


def test_scalings_and_scales_of_others(plain: GGUFFile, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="longrope"):
        load(rewrite(plain, tmp_path / "other.gguf", metadata={"llama.rope.scaling.type": "longrope"}))
    with pytest.raises(UnsupportedModel, match=r"blk\.1\.ffn_up\.scale"):
        load(rewrite(plain, tmp_path / "other.gguf", replace={"blk.1.ffn_up.scale": np.ones(1, np.float32)}))


@pytest.mark.parametrize("factors", [np.zeros(16), np.full(16, np.inf), np.ones(15), np.ones((4, 4))])
def test_damaged_frequency_factors(plain: GGUFFile, tmp_path: Path, factors: np.ndarray) -> None:
    path = rewrite(plain, tmp_path / "damaged.gguf", replace={"rope_freqs.weight": factors.astype(np.float32)})
    with pytest.raises(LmhubError, match="rope_freqs"):
        load(path)


def test_experts_of_different_types(tmp_path: Path) -> None:
    """One tensor per expert is joined in memory, which takes one type."""
    names = [f"blk.{i}.ffn_{s}.{e}.weight" for i in range(2) for s in ("gate", "up", "down") for e in range(4)]
    tiny = decoder("llama", n_expert=4, n_ff=64).with_tensors(dict.fromkeys(names, (64, 64)), removed=("_exps.weight",))
    source = open_gguf(write(tmp_path / "old.gguf", tiny, GGMLType.F16))
    mixed = rewrite(source, tmp_path / "mixed.gguf", replace={"blk.1.ffn_up.2.weight": np.ones((64, 64), np.float32)})
    with pytest.raises(UnsupportedModel, match=r"blk\.1\.ffn_up\.0\.weight"):
        load(mixed)
