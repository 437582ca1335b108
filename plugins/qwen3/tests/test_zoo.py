"""Qwen3 against stored logits of transformers and llama.cpp, on golden models beside the repository (else skipped)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lmhub.model import Chunk
from lmhub.testing.golden import Golden
from lmhub.testing.zoo import FamilyZoo

K256 = ("iq4_nl", "iq4_xs", "q2_k", "q3_k_m", "q4_0", "q4_1", "q4_k_m", "q5_0", "q5_1", "q5_k_m", "q6_k")


class TestQwen3Zoo(FamilyZoo):
    plugin = "lmhub_qwen3"
    float32 = ("qwen3", "qwen3-untied", "qwen3-yarn", "qwen3moe")
    quantised = (
        ("qwen3", "q8_0"),
        ("qwen3", "q4_k_m"),
        ("qwen3-untied", "q8_0"),
        *(("qwen3-k256", kind) for kind in K256),
        ("qwen3moe", "q8_0"),
        ("qwen3moe-k256", "q4_k_m"),
    )
    invariant = (("qwen3", "f32"), ("qwen3", "q4_k_m"), ("qwen3moe", "q8_0"))

    def test_a_real_vocabulary(self, zoo: Path) -> None:
        """Q8_0 with 151936 tokens: the stored 64 largest logits, with the tolerance of 8-bit activations."""
        model = self.load(zoo, "qwen3-realvocab", "q8_0")
        golden = Golden(zoo / "qwen3-realvocab" / "golden.npz")
        for prompt in golden.prompts:
            ids, want = golden.arrays[f"{prompt}.top_ids"], golden.arrays[f"{prompt}.top_logits"]
            state = model.new_state(self.n_ctx)
            for at, token in enumerate(golden.tokens(prompt)[:40]):
                row = model.forward([Chunk(state, [token])])[0]
                assert np.abs(row[ids[at]] - want[at]).mean() < 0.3, f"{prompt}, position {at}"
                assert len(set(np.argsort(-row)[:10]) & set(ids[at][:64].tolist())) >= 9
