"""Compares a model with reference logits stored in a `golden.npz` (keys `P.tokens`, `P.logits`, `P.greedy`, ...).

The archives hold float32 logits of an independent implementation, and for quantised files two of them:
`P.KIND.dequant`, exact arithmetic on the expanded weights, and `P.KIND.llama`, another engine with 8-bit activations,
which shows what such an engine may be off by.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lmhub.model import CausalLM, Chunk
from lmhub.testing.drive import greedy, logits_of
from lmhub.testing.reference import nmse, relative_error

REL_TOLERANCE, NMSE_TOLERANCE = 1e-4, 1e-9


class Golden:
    """One archive. `prompts` names what it holds, the shortest first."""

    def __init__(self, path: Path):
        with np.load(path) as archive:
            self.arrays = {name: archive[name] for name in archive.files}
        names = [name.removesuffix(".tokens") for name in self.arrays if name.endswith(".tokens")]
        self.prompts = sorted(names, key=lambda name: len(self.arrays[f"{name}.tokens"]))

    def tokens(self, prompt: str) -> list[int]:
        """The prompt's ids."""
        return [int(one) for one in self.arrays[f"{prompt}.tokens"]]

    def check_exact(self, model: CausalLM, cut: int | None = None) -> None:
        """Every stored position of every prompt agrees to float32 accuracy."""
        for prompt in self.prompts:
            got = logits_of(model, self.tokens(prompt), cut)
            want = self.arrays.get(f"{prompt}.logits", self.arrays.get(f"{prompt}.logits_tail"))
            assert want is not None, f"the archive has no logits of {prompt}"
            self._check(prompt, got[-len(want) :], want)

    def check_greedy(self, model: CausalLM) -> None:
        """Greedy continuations agree, up to the first step whose two best logits lie closer than the tolerance."""
        for prompt in self.prompts:
            want, margin = self.arrays[f"{prompt}.greedy"], self.arrays[f"{prompt}.greedy_margin"]
            close = np.flatnonzero(margin < 2e-3)
            n = int(close[0]) if len(close) else len(want)
            assert greedy(model, self.tokens(prompt), n) == want[:n].tolist(), f"greedy continuation of {prompt}"

    def check_quantised(self, model: CausalLM, kind: str, slack: float = 1.25) -> None:
        """Over all prompts, no further from `.dequant` than `slack` times what the 8-bit engine is, in the median row.

        The median, because a rounded activation may select another expert and move single rows by several units.
        """
        ours, theirs = [], []
        for prompt in self.prompts:
            want = self.arrays[f"{prompt}.{kind}.dequant"]
            other = self.arrays[f"{prompt}.{kind}.llama"].astype(np.float32)
            got = logits_of(model, self.tokens(prompt))[-len(want) :]
            ours += list(np.abs(got - want).mean(axis=1))
            theirs += list(np.abs(other - want).mean(axis=1))
        limit = slack * float(np.median(theirs)) + 1e-3
        assert float(np.median(ours)) <= limit, f"{kind}: median error {np.median(ours):.4g}, limit {limit:.4g}"

    def check_cuts_and_neighbours(self, model: CausalLM, names: Sequence[str], n_ctx: int) -> None:
        """Row invariance, to the bit: prompts in pieces, and several in one step, give the logits of each alone."""
        prompts = [self.tokens(name) for name in names]
        alone = [logits_of(model, prompt) for prompt in prompts]
        for cut in (1, 3, 7):
            assert logits_of(model, prompts[1], cut).tobytes() == alone[1].tobytes(), f"{names[1]} in pieces of {cut}"
        states = [model.new_state(n_ctx) for _ in prompts]
        mixed = model.forward([Chunk(s, prompt, "all") for s, prompt in zip(states, prompts, strict=True)])
        assert mixed.tobytes() == np.concatenate(alone).tobytes(), "several prompts in one step"

    @staticmethod
    def _check(prompt: str, got: np.ndarray, want: np.ndarray) -> None:
        relative, squared = relative_error(got, want), nmse(got, want)
        assert relative <= REL_TOLERANCE, f"{prompt}: largest relative error {relative:.3g}"
        assert squared <= NMSE_TOLERANCE, f"{prompt}: normalised squared error {squared:.3g}"
