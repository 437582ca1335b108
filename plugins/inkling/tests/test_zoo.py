"""Inkling against stored logits of transformers, on a golden model beside the repository (else skipped).

Its window is 16 positions, biases reach 24, and queries grow from position 20 on; the prompts have up to 600.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lmhub.testing.drive import logits_of
from lmhub.testing.golden import Golden
from lmhub.testing.zoo import FamilyZoo


class TestInklingZoo(FamilyZoo):
    plugin = "lmhub_inkling"
    float32 = ("inkling",)
    quantised = ()  # no engine with 8-bit activations has been seen to run it
    invariant = (("inkling", "f32"), ("inkling", "q8_0"))

    def test_rounded_activations_cost_about_what_rounded_weights_do(self, zoo: Path) -> None:
        """In the median row: a rounded activation may take another expert."""
        golden, model = Golden(zoo / "inkling" / "golden.npz"), self.load(zoo, "inkling", "q8_0")
        ours, theirs = [], []
        for prompt in ("rand40", "rand130", "text"):
            want = golden.arrays[f"{prompt}.q8_0.dequant"]
            got = logits_of(model, golden.tokens(prompt))[-len(want) :]
            ours += list(np.abs(got - want).mean(axis=1))
            theirs += list(np.abs(golden.arrays[f"{prompt}.logits"][-len(want) :] - want).mean(axis=1))
        assert np.median(ours) <= 1.5 * np.median(theirs), f"{np.median(ours):.4g}, against {np.median(theirs):.4g}"
