"""Qwen3.5 against stored logits of transformers and llama.cpp, on golden models, skipped where there are none."""

from __future__ import annotations

from pathlib import Path

from lmhub.testing.drive import logits_of
from lmhub.testing.golden import Golden
from lmhub.testing.zoo import FamilyZoo


class TestQwen35Zoo(FamilyZoo):
    plugin = "lmhub_qwen35"
    float32 = ("qwen35", "qwen35-tied", "qwen35moe")
    quantised = (*((folder, "q8_0") for folder in float32), ("qwen35-k256", "q4_k_m"))
    invariant = (("qwen35", "f32"), ("qwen35-k256", "q4_k_m"), ("qwen35moe", "q8_0"))

    def test_blocks_that_predict_further_tokens_are_skipped(self, zoo: Path) -> None:
        plain, more = (self.load(zoo, "qwen35", kind) for kind in ("q8_0", "mtp-q8_0"))
        tokens = Golden(zoo / "qwen35" / "golden.npz").tokens("rand40")
        assert logits_of(more, tokens).tobytes() == logits_of(plain, tokens).tobytes()
