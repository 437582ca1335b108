"""From one row of logits to one token: the Python face of `csrc/sample.c`, which does the work in one call.

Order: suppression, penalties, then temperature, top-k, top-p, min-p and the draw. The draw is a function of (seed,
index) alone, so that batching, retries and speculation cannot change a text. Keeps no state but scratch memory.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lmhub.errors import GenerationError
from lmhub.native import ffi, lib
from lmhub.types import SamplingParams

_ALL_MASKED, _NON_FINITE = 1, 2
_NONE = np.empty(0, np.int32)


def uniform(seed: int, index: int) -> float:
    """The draw in [0, 1) that token `index` of a completion uses. `seed` is any 64-bit number."""
    return float(lib.lmk_uniform(seed, index))


class Sampler:
    """Draws tokens for rows of `n_vocab` logits. Use it from one thread at a time."""

    def __init__(self, n_vocab: int):
        self.n_vocab = n_vocab
        self._scratch = np.empty(12 * n_vocab, np.uint8)
        self._scratch_c = ffi.from_buffer(self._scratch)
        self._forbidden = np.empty(0, np.float32)
        self._params = ffi.new("lmk_sampling *")
        self._token = ffi.new("int32_t *")

    def sample(
        self,
        row: NDArray[np.float32],
        params: SamplingParams,
        index: int,
        penalty_ids: NDArray[np.int32] = _NONE,
        penalty_counts: NDArray[np.int32] = _NONE,
        suppressed: NDArray[np.int32] = _NONE,
    ) -> int:
        """Token `index` (from 0) of a completion, from its logits `row`: float32 (n_vocab,), contiguous, left as it is.

        `penalty_ids` are the distinct ids of the penalty window and `penalty_counts` how often each occurs; ids in
        `suppressed` are never drawn. Raises GenerationError when every id is excluded or a logit is NaN or +inf.
        """
        if row.shape != (self.n_vocab,) or row.dtype != np.float32 or len(penalty_ids) != len(penalty_counts):
            raise ValueError(f"a row must be float32 ({self.n_vocab},), and penalty ids and counts of one length")
        if len(self._forbidden) < len(suppressed):
            self._forbidden = np.full(len(suppressed), -np.inf, np.float32)
        p = self._params
        p.temperature, p.top_k, p.top_p, p.min_p = params.temperature, params.top_k, params.top_p, params.min_p
        p.repeat_penalty = params.repeat_penalty
        p.presence_penalty, p.frequency_penalty = params.presence_penalty, params.frequency_penalty
        status = lib.lmk_sample(
            ffi.from_buffer("float[]", row),
            self.n_vocab,
            p,
            ffi.NULL,
            ffi.from_buffer("int32_t[]", penalty_ids),
            ffi.from_buffer("int32_t[]", penalty_counts),
            len(penalty_ids),
            ffi.from_buffer("int32_t[]", suppressed),
            ffi.from_buffer("float[]", self._forbidden),
            len(suppressed),
            uniform(params.seed, index),
            self._scratch_c,
            self._token,
        )
        if status == _ALL_MASKED:
            raise GenerationError("Every token is excluded at this point of the reply; loosen the constraints.")
        if status == _NON_FINITE:
            raise GenerationError("The model produced logits that are not numbers (numerical failure); check its file.")
        return int(self._token[0])
