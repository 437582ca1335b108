"""The tokens that the repetition penalties look back on, counted as they come and go.

The sampler wants two flat arrays (distinct ids and their counts); this keeps them current in constant time per token,
so that a window over a whole long context costs no more than the default one of 64.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lmhub.types import SamplingParams

_EMPTY = np.empty(0, np.int32)


def penalises(params: SamplingParams) -> bool:
    """Whether `params` ask for any penalty at all."""
    neutral = params.repeat_penalty == 1.0 and params.presence_penalty == 0.0 and params.frequency_penalty == 0.0
    return not neutral and params.repeat_last_n != 0


class PenaltyWindow:
    """The last `params.repeat_last_n` tokens (-1: all) of prompt and reply, as distinct ids and counts."""

    def __init__(self, params: SamplingParams, prompt: Sequence[int], budget: int):
        """`budget` is the number of tokens that may still be pushed."""
        self._active = penalises(params)
        self._last_n = params.repeat_last_n if params.repeat_last_n > 0 else len(prompt) + budget
        if not self._active:
            return
        recent = prompt[-self._last_n :]
        ids, counts = np.unique(np.asarray(recent, np.int32), return_counts=True)
        self._tokens = deque(recent)
        self._n = len(ids)
        room = min(self._last_n, len(recent) + budget) + 1  # a token comes in before the oldest one goes
        self._ids, self._counts = np.zeros(room, np.int32), np.zeros(room, np.int32)
        self._ids[: self._n], self._counts[: self._n] = ids, counts
        self._place = {int(token): place for place, token in enumerate(ids)}

    def push(self, token: int) -> None:
        """Let `token` in and, once the window is full, the oldest one out."""
        if not self._active:
            return
        self._tokens.append(token)
        place = self._place.get(token)
        if place is None:
            place = self._place[token] = self._n
            self._ids[place], self._counts[place] = token, 0
            self._n += 1
        self._counts[place] += 1
        if len(self._tokens) > self._last_n:
            self._drop(self._tokens.popleft())

    def _drop(self, token: int) -> None:
        place = self._place[token]
        self._counts[place] -= 1
        if self._counts[place]:
            return
        self._n -= 1
        last = int(self._ids[self._n])
        self._ids[place], self._counts[place] = last, self._counts[self._n]
        self._place[last] = place
        del self._place[token]

    def arrays(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Distinct ids and their counts, int32, valid until the next push; empty when nothing is penalised."""
        if not self._active:
            return _EMPTY, _EMPTY
        return self._ids[: self._n], self._counts[: self._n]
