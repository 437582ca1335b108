"""From one row of logits to one token: the Python face of `csrc/sample.c`, which does the work in one call.

Order: bias, mask, penalties, then temperature, top-k, top-p, min-p and the draw. The draw is a function of (seed,
index) alone, so that batching, retries and speculation cannot change a text. Keeps no state but scratch memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmhub.errors import GenerationError
from lmhub.native import ffi, lib
from lmhub.types import SamplingParams

_ALL_MASKED, _NON_FINITE = 1, 2
_NO_IDS, _NO_BIAS = np.empty(0, np.int32), np.empty(0, np.float32)
_NOT_NUMBERS = "The model produced logits that are not numbers (numerical failure); check its file."
LOWEST = -9999.0  # stands for the logarithm of zero


def uniform(seed: int, index: int) -> float:
    """The draw in [0, 1) that token `index` of a completion uses. `seed` is any 64-bit number."""
    return float(lib.lmk_uniform(seed, index))


@dataclass(frozen=True, slots=True)
class Score:
    """The natural logarithm of a token's probability, and the likeliest (token, logarithm) pairs of its place."""

    logprob: float
    top: tuple[tuple[int, float], ...]


def score(row: NDArray[np.float32], token: int, n_top: int) -> Score:
    """What `row`, float32 (n_vocab,) and as the model made it, says of `token` and of the `n_top` likeliest tokens.

    Ties go to the lower id; logarithms are finite, LOWEST at the least. Raises GenerationError for NaN and +inf.
    """
    n_top = min(n_top, lib.LMK_MAX_TOP, len(row))
    own, ids, values = ffi.new("double *"), ffi.new("int32_t[]", n_top), ffi.new("double[]", n_top)
    if lib.lmk_logprobs(ffi.from_buffer("float[]", row), len(row), token, n_top, own, ids, values):
        raise GenerationError(_NOT_NUMBERS)
    top = zip(ffi.unpack(ids, n_top), ffi.unpack(values, n_top), strict=True) if n_top else ()
    return Score(max(own[0], LOWEST), tuple((id, max(value, LOWEST)) for id, value in top))


class Sampler:
    """Draws tokens for rows of `n_vocab` logits. Use it from one thread at a time."""

    def __init__(self, n_vocab: int):
        self.n_vocab = n_vocab
        self._scratch = np.empty(12 * n_vocab, np.uint8)
        self._scratch_c = ffi.from_buffer(self._scratch)
        self._params = ffi.new("lmk_sampling *")
        self._token = ffi.new("int32_t *")

    def sample(
        self,
        row: NDArray[np.float32],
        params: SamplingParams,
        index: int,
        penalty_ids: NDArray[np.int32] = _NO_IDS,
        penalty_counts: NDArray[np.int32] = _NO_IDS,
        bias_ids: NDArray[np.int32] = _NO_IDS,
        bias: NDArray[np.float32] = _NO_BIAS,
        mask: NDArray[np.uint32] | None = None,
    ) -> int:
        """Token `index` (from 0) of a completion, from its logits `row`: float32 (n_vocab,), contiguous, left as it is.

        `penalty_ids` are the distinct ids of the penalty window and `penalty_counts` how often each occurs. `bias` is
        added to the logits of `bias_ids`; -100 and less bans them as long as anything else is left, -inf for good.
        `mask`, uint32 (ceil(n_vocab / 32),), has a bit set for every id that is allowed. Raises GenerationError when
        every id is excluded or a logit is NaN or +inf.
        """
        if row.shape != (self.n_vocab,) or row.dtype != np.float32:
            raise ValueError(f"a row must be float32 ({self.n_vocab},)")
        n_penalised, n_biased = len(penalty_ids), len(bias_ids)
        if n_penalised != len(penalty_counts) or n_biased != len(bias):
            raise ValueError("penalty ids and counts, and bias ids and values, must have one length each")
        if mask is not None and (mask.dtype != np.uint32 or len(mask) < (self.n_vocab + 31) // 32):
            raise ValueError(f"a mask must be uint32 ({(self.n_vocab + 31) // 32},)")
        p = self._params
        p.temperature, p.top_k, p.top_p, p.min_p = params.temperature, params.top_k, params.top_p, params.min_p
        p.repeat_penalty = params.repeat_penalty
        p.presence_penalty, p.frequency_penalty = params.presence_penalty, params.frequency_penalty
        status = lib.lmk_sample(
            ffi.from_buffer("float[]", row),
            self.n_vocab,
            p,
            ffi.NULL if mask is None else ffi.from_buffer("uint32_t[]", mask),
            ffi.from_buffer("int32_t[]", penalty_ids) if n_penalised else ffi.NULL,
            ffi.from_buffer("int32_t[]", penalty_counts) if n_penalised else ffi.NULL,
            n_penalised,
            ffi.from_buffer("int32_t[]", bias_ids) if n_biased else ffi.NULL,
            ffi.from_buffer("float[]", bias) if n_biased else ffi.NULL,
            n_biased,
            lib.lmk_uniform(params.seed, index),
            self._scratch_c,
            self._token,
        )
        if status == _ALL_MASKED:
            raise GenerationError("Every token is excluded at this point of the reply; loosen the constraints.")
        if status == _NON_FINITE:
            raise GenerationError(_NOT_NUMBERS)
        return int(self._token[0])
