"""Llama against stored logits of transformers and llama.cpp, on golden models beside the repository (else skipped)."""

from __future__ import annotations

from lmhub.testing.zoo import FamilyZoo


class TestLlamaZoo(FamilyZoo):
    plugin = "lmhub_llama"
    float32 = ("llama", "llama3-rope", "llama-spm")
    quantised = (("llama", "q8_0"), ("llama3-rope", "q8_0"), ("llama-spm", "q8_0"), ("llama-k256", "q4_k_m"))
    # The zoo's weights are BF16 numbers.
    copies = tuple(("llama-spm", kind) for kind in ("f16", "bf16", "f32-00001-of-00003", "f32-00003-of-00003"))
    invariant = (("llama", "f32"), ("llama3-rope", "q8_0"), ("llama-spm", "bf16"))
    prompts = ("rand5", "text", "rand40")
