"""One step of the engine: schedule -> run -> commit. A stepper turns slots into commits, and knows nothing else.

`CausalStepper` advances models that predict the next token. Any object with the same `step` can take its place, for
instance one that denoises blocks and commits many tokens at once, or none.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lmhub.engine.slots import Slot
from lmhub.errors import GenerationError, LmhubError
from lmhub.model import CausalLM, Chunk
from lmhub.types import SamplingParams

log = logging.getLogger("lmhub.engine")


@dataclass(frozen=True, slots=True)
class Commit:
    """What a step made final for one slot: tokens, or the error that ends it."""

    slot: Slot
    tokens: tuple[int, ...] = ()
    error: LmhubError | None = None


class Stepper(Protocol):
    """Advances running slots."""

    def step(self, slots: Sequence[Slot]) -> list[Commit]:
        """Run the model once over `slots`; a slot that has nothing final yet has no commit. Never raises."""
        ...


class Sample(Protocol):
    """Draws a token, as `lmhub.sampling.Sampler.sample` does."""

    def __call__(
        self,
        row: NDArray[np.float32],
        params: SamplingParams,
        index: int,
        penalty_ids: NDArray[np.int32],
        penalty_counts: NDArray[np.int32],
        suppressed: NDArray[np.int32],
    ) -> int: ...


@dataclass(frozen=True, slots=True)
class Share:
    """One slot's part of a step: its next `n` pending tokens."""

    slot: Slot
    n: int

    @property
    def is_last(self) -> bool:
        """Whether nothing is pending behind it, so that its last row predicts a new token."""
        return self.n == self.slot.n_pending

    def chunk(self) -> Chunk:
        """The model's view of it."""
        start = self.slot.state.n_tokens
        return Chunk(self.slot.state, self.slot.tokens[start : start + self.n], "last" if self.is_last else "none")


class CausalStepper:
    """One token for every decoding slot and a bounded piece of the waiting prompts, in a single `forward`.

    Decoding slots always take part, so a long prompt slows them by at most `prefill_chunk` rows per step.
    """

    def __init__(self, model: CausalLM, sample: Sample, prefill_chunk: int):
        self._model = model
        self._sample = sample
        self._prefill_chunk = prefill_chunk

    def step(self, slots: Sequence[Slot]) -> list[Commit]:
        """See Stepper."""
        shares = schedule(slots, self._prefill_chunk)
        return list(self._run(shares))

    def _run(self, shares: Sequence[Share]) -> Iterator[Commit]:
        """Forward `shares` together and commit; if that fails, each alone, so that only the guilty slot ends."""
        wanted = [share for share in shares if share.is_last]
        before = [share.slot.state.n_tokens for share in shares]
        try:
            logits = self._model.forward([share.chunk() for share in shares])
            rows = list(zip(wanted, logits, strict=True))
        except GenerationError as error:  # aborted on purpose
            yield from (Commit(share.slot, error=error) for share in shares)
        except Exception as error:
            intact = before == [share.slot.state.n_tokens for share in shares]
            if len(shares) > 1 and intact:
                for share in shares:
                    yield from self._run([share])
            else:
                reported = as_error(error, "the model's forward pass")
                yield from (Commit(share.slot, error=reported) for share in shares)
        else:
            for share, row in rows:
                yield self._commit(share.slot, row)

    def _commit(self, slot: Slot, row: NDArray[np.float32]) -> Commit:
        request = slot.request
        try:
            if request.processors:
                row = row.copy()
                for process in request.processors:
                    process(row, slot.tokens)
            ids, counts = slot.penalties.arrays()
            token = self._sample(row, request.sampling, slot.n_completion, ids, counts, slot.suppressed)
        except Exception as error:
            return Commit(slot, error=as_error(error, "sampling"))
        slot.commit(token)
        return Commit(slot, (token,))


def schedule(slots: Sequence[Slot], prefill_chunk: int) -> list[Share]:
    """Every decoding slot with its one token, then `prefill_chunk` rows spread over the slots with more to do.

    The rows are shared evenly, and what a short prompt does not need goes to the longer ones: every prompt advances
    in every step, and a short one is through soon although a long one came first.
    """
    shares = [Share(slot, 1) for slot in slots if slot.n_pending == 1]
    prefilling = sorted((slot for slot in slots if slot.n_pending > 1), key=lambda slot: slot.n_pending)
    left = prefill_chunk
    for place, slot in enumerate(prefilling):
        rows = min(slot.n_pending, left // (len(prefilling) - place))
        if rows:
            shares.append(Share(slot, rows))
        left -= rows
    return shares


def as_error(error: Exception, where: str) -> LmhubError:
    """`error` if it is meant for users, else a GenerationError that says where it happened; the log has the rest."""
    if isinstance(error, LmhubError):
        return error
    log.error("%s failed", where, exc_info=error)
    return GenerationError(f"{where} failed with {type(error).__name__}: {error}"[:500])
