"""How a block comes about: a schedule of temperatures, a rule which positions to keep, a rule when to stop.

The entropy-bounded sampler of DiffusionGemma: after each pass the positions of least entropy keep a token, all others
become noise again. Nothing is kept for good before the whole block is; what a pass keeps, the next one may drop.
Knows no weights: a pass is what somebody else makes of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmhub.errors import KernelError
from lmhub.model import Canvas
from lmhub.types import Denoising

F64 = NDArray[np.float64]
Ids = NDArray[np.int32]


def temperature(wish: Denoising, n_left: int) -> float:
    """Of the pass after which `n_left` - 1 may follow: `t_max` at first, one step above `t_min` at last."""
    return wish.t_min + (wish.t_max - wish.t_min) * n_left / wish.steps


def accepted(entropy: F64, bound: float) -> NDArray[np.bool_]:
    """Which positions are kept: in the order of their entropy, while those before come to no more than `bound`."""
    order = np.argsort(entropy, kind="stable")
    ascending = entropy[order]
    kept = np.empty(len(entropy), np.bool_)
    kept[order] = np.cumsum(ascending) - ascending <= bound
    return kept


class Noise:
    """The random numbers of one pass: a function of the seed, the block and the pass, and of nothing else."""

    def __init__(self, seed: int, block: int, n_passes: int, size: int, n_vocab: int):
        raw = np.random.Philox(key=seed, counter=[0, 0, block, n_passes]).random_raw(2 * size)
        self.uniform: F64 = (raw[:size] >> np.uint64(11)).astype(np.float64) * 2.0**-53
        """float64 `(size,)` in [0, 1)"""
        self.tokens: Ids = ((raw[size:] >> np.uint64(32)) * np.uint64(n_vocab) >> np.uint64(32)).astype(np.int32)
        """int32 `(size,)`: any token of the vocabulary"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a pass makes of a canvas: its next `tokens`, of which `kept` are no noise, and the likeliest ones."""

    tokens: Ids
    best: Ids
    kept: NDArray[np.bool_]
    is_settled: bool


class EntropyBound(Canvas):
    """A canvas of `size` positions. `tokens` is what the next pass sees, `soft` what it expected of the last one."""

    def __init__(self, wish: Denoising, number: int, size: int, n_vocab: int, bias: Mapping[int, float]):
        """Raises KernelError for wishes that make no sense."""
        if wish.steps < 1 or not 0.0 < wish.t_min <= wish.t_max:
            raise KernelError("A canvas needs at least one pass and temperatures above zero; check the request.")
        self.wish, self.number, self.size, self.n_vocab = wish, number, size, n_vocab
        self.bias_ids = np.array(list(bias), np.int32)
        self.bias = np.array(list(bias.values()), np.float32)
        self.tokens = self.noise().tokens
        self.draft = self.tokens
        self.soft: NDArray[np.float32] | None = None  # (size, n_embd); None before the first pass
        self._history: list[bytes] = []

    def noise(self) -> Noise:
        """Of the pass that comes next; that of no pass yet is where the canvas comes from."""
        return Noise(self.wish.seed, self.number, self.n_passes, self.size, self.n_vocab)

    @property
    def temperature(self) -> float:
        """Of the pass that comes next."""
        return temperature(self.wish, self.wish.steps - self.n_passes)

    def judged(self, best: Ids, drawn: Ids, entropy: F64, renoise: Ids) -> Outcome:
        """What comes of a pass that found these likeliest and drawn tokens and entropies; `renoise` fills the rest."""
        wish = self.wish
        kept = accepted(entropy, wish.entropy_bound)
        tokens = np.where(kept, best if wish.greedy else drawn, renoise).astype(np.int32)
        before = self._history[len(self._history) - wish.stability :]
        is_stable = len(self._history) >= wish.stability and all(one == best.tobytes() for one in before)
        is_sure = is_stable and float(entropy.mean()) < wish.confidence
        return Outcome(tokens, best, kept, is_sure or self.n_passes + 1 == wish.steps)

    def advance(self, outcome: Outcome, soft: NDArray[np.float32] | None) -> None:
        """A pass is over. `soft` is what the next one is told of it, None where there is none."""
        self.tokens, self.draft, self.is_settled, self.soft = outcome.tokens, outcome.best, outcome.is_settled, soft
        self.n_passes += 1
        self._history = [*self._history, outcome.best.tobytes()][-max(self.wish.stability, 1) :]
