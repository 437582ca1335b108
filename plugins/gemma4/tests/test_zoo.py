"""Gemma against stored logits of transformers and llama.cpp, on golden models beside the repository (else skipped).

The windows of these models are 16 positions; the prompts have up to 600.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lmhub.testing import drive
from lmhub.testing.golden import Golden
from lmhub.testing.zoo import FamilyZoo

FOLDERS = ("gemma3", "gemma4-e2b", "gemma4-31b", "gemma4-moe")


class TestGemmaZoo(FamilyZoo):
    plugin = "lmhub_gemma4"
    float32 = FOLDERS
    quantised = (
        *((folder, "q8_0") for folder in FOLDERS),
        *((folder, "q4_k_m") for folder in ("gemma3", "gemma4-moe", "gemma4-k256")),
    )
    invariant = (("gemma4-e2b", "q8_0"), ("gemma4-moe", "q4_k_m"), ("gemma3", "f32"))

    @pytest.mark.parametrize("kind", ["q8_0", "q4_k_m"])
    def test_experts_may_stay_in_the_file(self, zoo: Path, kind: str) -> None:
        path = zoo / "gemma4-moe" / f"model-{kind}.gguf"
        tokens = Golden(zoo / "gemma4-moe" / "golden.npz").tokens("rand40")
        packed, borrowed = (drive.load(self.plugin, path, self.n_ctx, borrow=one) for one in ("none", "experts"))
        assert drive.logits_of(borrowed, tokens).tobytes() == drive.logits_of(packed, tokens).tobytes()
