"""One step of the engine: schedule -> run -> commit. A stepper turns slots into commits, and knows nothing else.

`CausalStepper` advances models that predict the next token. Any object with the same `step` can take its place, for
instance one that denoises blocks and commits many tokens at once, or none.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from lmhub.engine.slots import Slot
from lmhub.errors import GenerationError, LmhubError
from lmhub.model import CausalLM, Chunk, Want
from lmhub.types import SamplingParams

if TYPE_CHECKING:
    from lmhub.sampling import Score

log = logging.getLogger("lmhub.engine")

Mask = Future["NDArray[np.uint32] | None"]


@dataclass(frozen=True, slots=True)
class Commit:
    """What a step made final for one slot: tokens, or the error that ends it.

    `scores` are those of the tokens, where log probabilities were asked for. `has_read`: the prompt was read up to its
    end in this step.
    """

    slot: Slot
    tokens: tuple[int, ...] = ()
    scores: tuple[Score, ...] = ()
    has_read: bool = False
    error: LmhubError | None = None


class Stepper(Protocol):
    """Advances running slots."""

    def step(self, slots: Sequence[Slot]) -> list[Commit]:
        """Run the model once over `slots`; a slot that has nothing final yet has no commit. Never raises."""
        ...

    def close(self) -> None:
        """Release what `step` used. Called once, after the last step."""
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
        bias_ids: NDArray[np.int32],
        bias: NDArray[np.float32],
        mask: NDArray[np.uint32] | None,
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

    @property
    def n_rows(self) -> int:
        """How many rows of logits it gets."""
        return self.n if self.slot.scores_prompt else int(self.is_last)

    def chunk(self) -> Chunk:
        """The model's view of it."""
        start = self.slot.state.n_tokens
        want: Want = "all" if self.slot.scores_prompt else "last" if self.is_last else "none"
        return Chunk(self.slot.state, self.slot.tokens[start : start + self.n], want)


class CausalStepper:
    """One token for every decoding slot and a bounded piece of the waiting prompts, in a single `forward`.

    Decoding slots always take part, so a long prompt slows them by at most `prefill_chunk` rows per step. What a
    constraint allows depends on earlier tokens only, and is worked out on a second thread while the model runs.
    """

    def __init__(self, model: CausalLM, sample: Sample, prefill_chunk: int):
        self._model = model
        self._sample = sample
        self._prefill_chunk = prefill_chunk
        self._aside = ThreadPoolExecutor(1, "lmhub-masks")  # its thread starts with the first mask

    def step(self, slots: Sequence[Slot]) -> list[Commit]:
        """See Stepper."""
        shares = schedule(slots, self._prefill_chunk)
        return list(self._run(shares))

    def close(self) -> None:
        """See Stepper."""
        self._aside.shutdown()

    def _run(self, shares: Sequence[Share]) -> Iterator[Commit]:
        """Forward `shares` together and commit; if that fails, each alone, so that only the guilty slot ends."""
        before = [share.slot.state.n_tokens for share in shares]
        plans = [(share.slot, share.n_rows, share.is_last) for share in shares]
        masks = {id(share.slot): self._mask(share.slot) for share in shares if share.is_last}
        try:
            logits = self._model.forward([share.chunk() for share in shares])
            n_rows = sum(n for _, n, _ in plans)
            if len(logits) != n_rows:
                raise ValueError(f"it gave {len(logits)} rows of logits instead of {n_rows}")
        except Exception as error:
            _settle(masks.values())
            intact = before == [share.slot.state.n_tokens for share in shares]
            if len(shares) > 1 and intact and not isinstance(error, GenerationError):  # of that kind: aborted
                for share in shares:
                    yield from self._run([share])
            else:
                reported = as_error(error, "the model's forward pass")
                yield from (Commit(share.slot, error=reported) for share in shares)
        else:
            end = 0
            for slot, n, is_last in plans:
                rows, end = logits[end : end + n], end + n
                if n:
                    yield from self._commit(slot, rows, masks.get(id(slot)) if is_last else None, is_last)

    def _mask(self, slot: Slot) -> Mask | None:
        constraint = slot.request.constraint
        return None if constraint is None else self._aside.submit(constraint.mask)

    def _commit(self, slot: Slot, rows: NDArray[np.float32], mask: Mask | None, is_last: bool) -> Iterator[Commit]:
        try:
            has_read = not slot.n_completion and is_last
            if slot.request.score_prompt and not slot.n_completion:
                self._score_prompt(slot, rows)
            if not is_last:
                return
            if has_read:
                slot.decoding_s = time.monotonic()
            if not slot.generation.reply.budget:
                yield Commit(slot, has_read=True)
                return
            token, scores = self._draw(slot, rows[-1], mask.result() if mask is not None else None)
            slot.commit(token)
        except Exception as error:
            yield Commit(slot, error=as_error(error, "sampling"))
        else:
            yield Commit(slot, (token,), scores, has_read)

    def _draw(
        self, slot: Slot, row: NDArray[np.float32], mask: NDArray[np.uint32] | None
    ) -> tuple[int, tuple[Score, ...]]:
        """The next token and, where they are wanted, its log probabilities, which are those of the row as it came."""
        request, edited = slot.request, row
        if request.processors:
            edited = row.copy()
            for process in request.processors:
                process(edited, slot.tokens)
        ids, counts = slot.penalties.arrays()
        token = self._sample(edited, request.sampling, slot.n_completion, ids, counts, slot.bias_ids, slot.bias, mask)
        return token, () if request.logprobs is None else (_score(row, token, request.logprobs),)

    def _score_prompt(self, slot: Slot, rows: NDArray[np.float32]) -> None:
        """Row i of a chunk says what the model thought of the token behind it."""
        first = slot.state.n_tokens - len(rows) + 1
        for row, token in zip(rows, slot.request.prompt[first : first + len(rows)], strict=False):
            slot.prompt_scores.append(_score(row, token, slot.request.logprobs or 0))


def _score(row: NDArray[np.float32], token: int, n_top: int) -> Score:
    from lmhub.sampling import score  # the engine itself runs without native code

    return score(row, token, n_top)


def _settle(masks: Iterable[Mask | None]) -> None:
    """Wait until no constraint is in use any more."""
    wait([mask for mask in masks if mask is not None])


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
    return GenerationError(f"{where} failed with {type(error).__name__}; the log has the rest")  # which may name files
