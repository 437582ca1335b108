"""One step of the engine: plan -> run -> commit. A stepper turns slots into commits, and knows nothing else.

`CausalStepper` advances models that predict the next token. Any object with the same `step` can take its place, for
instance one that denoises blocks and commits many tokens at once, or none.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from lmhub.engine.rates import StepTimes
from lmhub.engine.schedule import Budget, Prefills, Share
from lmhub.engine.slots import Slot
from lmhub.errors import GenerationError, LmhubError
from lmhub.model import CausalLM
from lmhub.settings import EngineSettings
from lmhub.types import Event, SamplingParams

if TYPE_CHECKING:
    from lmhub.engine.drafts import Seat, Speculator
    from lmhub.sampling import Score

log = logging.getLogger("lmhub.engine")

DRAFT_ROWS = 16  # of guessed tokens in a step, for each reply in it

Mask = Future["NDArray[np.uint32] | None"]


@dataclass(frozen=True, slots=True)
class Commit:
    """What a step brought for one slot: the events of the tokens that became final, or the error that ends it."""

    slot: Slot
    events: Sequence[Event] = ()
    error: LmhubError | None = None


@dataclass(slots=True)
class StepCounts:
    """Counters since the start, in steps, tokens and seconds. `forward_s` is the model's part of `step_s`."""

    steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    forward_s: float = 0.0
    step_s: float = 0.0
    failing: int = 0  # steps in a row in which the model failed


class Stepper(Protocol):
    """Advances running slots."""

    counts: StepCounts

    def step(self, slots: Sequence[Slot]) -> list[Commit]:
        """Run the model once over `slots`, which are ready. Never raises."""
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


class CausalStepper:
    """A token or more for every decoding slot and a bounded piece of the waiting prompts, in a single `forward`.

    What a constraint allows depends on earlier tokens only, and is worked out on a second thread while the model runs.
    Guessed tokens go along as further rows; each row is sampled as it would be without them, and as long as that gives
    the token that had been guessed, the next row counts as well.
    """

    def __init__(
        self,
        model: CausalLM,
        sample: Sample,
        settings: EngineSettings,
        times: StepTimes,
        *,
        speculator: Speculator | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ):
        """`speculator` guesses tokens ahead; without one there is no speculation."""
        self.counts = StepCounts()
        self._model, self._sample = model, sample
        self._times, self._speculator, self._clock = times, speculator, clock
        chunk = max(settings.prefill_chunk, settings.batch)
        self._budget, self._prefills = Budget(times, settings.latency_s, chunk), Prefills(chunk)
        self._has_failed = False  # in the step that is running
        self._aside = ThreadPoolExecutor(1, "lmhub-masks")  # its thread starts with the first mask

    def step(self, slots: Sequence[Slot]) -> list[Commit]:
        """See Stepper."""
        begun = self._clock()
        self._has_failed = False
        commits = list(self._run(self._plan(slots)))
        self.counts.failing = self.counts.failing + 1 if self._has_failed else 0
        self.counts.steps += 1
        self.counts.step_s += self._clock() - begun
        return commits

    def close(self) -> None:
        """See Stepper."""
        self._aside.shutdown()

    # --- what the step is made of ------------------------------------------------------------------------------------

    def _plan(self, slots: Sequence[Slot]) -> list[Share]:
        decoding = [slot for slot in slots if slot.n_pending == 1]
        reading = [slot for slot in slots if slot.n_pending > 1]
        shares = [Share(slot, 1, draft) for slot, draft in zip(decoding, self._drafts(decoding), strict=True)]
        n_decode = sum(1 + len(share.draft) for share in shares)
        budget = self._budget.prefill(n_decode, is_ahead=all(slot.is_ahead for slot in slots))
        return [*shares, *self._prefills.deal(reading, budget)]

    def _drafts(self, decoding: Sequence[Slot]) -> list[tuple[int, ...]]:
        """A guess for each slot, most often none."""
        if self._speculator is None or not decoding:
            return [()] * len(decoding)
        try:
            seats = [_seat(slot) for slot in decoding]
            limit, within_s = len(decoding) * (1 + DRAFT_ROWS), self._budget.target_s(len(decoding))
            drafts = self._speculator.plan(seats, row_limit=limit, within_s=within_s)
            return [
                draft[: max(seat.room, 0)] if seat.drafting is not None else ()
                for seat, draft in zip(seats, drafts, strict=True)
            ]
        except Exception:  # of a constraint, say; whose fault it is shows when its next token is chosen
            log.exception("tokens could not be guessed; the step goes on without")
            return [()] * len(decoding)

    # --- running it --------------------------------------------------------------------------------------------------

    def _run(self, shares: Sequence[Share]) -> Iterator[Commit]:
        """Forward `shares` together and commit; if that fails, each half by itself: only the guilty slot shall end."""
        before = [share.slot.n_past for share in shares]
        plans = [(share, share.n_rows, share.is_last) for share in shares]
        masks = {id(share.slot): self._mask(share.slot) for share in shares if share.is_last}
        begun = self._clock()
        try:
            logits = self._model.forward([share.chunk() for share in shares])
            n_rows = sum(n for _, n, _ in plans)
            if len(logits) != n_rows:
                raise ValueError(f"it gave {len(logits)} rows of logits instead of {n_rows}")
        except Exception as error:
            _settle(masks.values())
            intact = before == [share.slot.n_past for share in shares]
            if isinstance(error, GenerationError) or not intact or len(shares) == 1:
                was_aborted = isinstance(error, GenerationError)  # see CausalLM.forward
                self._has_failed = self._has_failed or not was_aborted
                reported = as_error(error, "the model's forward pass")
                for share in shares:
                    share.slot.is_sound = was_aborted and intact
                    yield Commit(share.slot, error=reported)
            else:
                half = len(shares) // 2
                yield from self._run(shares[:half])
                yield from self._run(shares[half:])
            return
        # A reply's rows that are read once more cost what guessed ones do.
        n_prefill = sum(share.n for share in shares if share.n > 1 + DRAFT_ROWS or not share.slot.n_completion)
        n_decode = sum(share.n + len(share.draft) for share in shares) - n_prefill
        self.counts.forward_s += self._clock() - begun
        self.counts.prefill_tokens += n_prefill
        end = 0
        for share, n, is_last in plans:
            rows, end = logits[end : end + n], end + n
            if n:
                mask = masks.get(id(share.slot)) if is_last else None
                yield from self._commit(share, rows, mask, is_last)
        seconds = self._clock() - begun
        self._times.observe(n_decode, n_prefill, seconds)
        if self._speculator is not None and not n_prefill:
            self._speculator.stepped(n_decode, seconds)

    def _mask(self, slot: Slot) -> Mask | None:
        constraint = slot.request.constraint
        return None if constraint is None else self._aside.submit(constraint.mask)

    def _commit(self, share: Share, rows: NDArray[np.float32], mask: Mask | None, is_last: bool) -> Iterator[Commit]:
        slot, reply = share.slot, share.slot.generation.reply
        events: list[Event] = []
        try:
            has_read = not slot.n_completion and is_last
            if slot.request.score_prompt and not slot.n_completion:
                self._score_prompt(slot, rows)
                rows = rows[-1:]
            if not is_last:
                return
            if has_read:
                slot.decoding_s = time.monotonic()
                if slot.request.score_prompt:
                    events.append(reply.scored(slot.prompt_scores))
            if reply.budget:
                self._draw_all(slot, rows, share.draft, mask)
            events += reply.take()
        except Exception as error:
            yield Commit(slot, error=as_error(error, "continuing the reply"))
        else:
            yield Commit(slot, events)

    def _draw_all(self, slot: Slot, rows: NDArray[np.float32], draft: Sequence[int], first_mask: Mask | None) -> None:
        """Accept tokens from `rows` as long as each is what had been guessed for the next one."""
        reply = slot.generation.reply
        start = len(slot.tokens)
        try:
            mask = None if first_mask is None else first_mask.result()
            for row, guess in zip(rows, (*draft, None), strict=True):
                if len(slot.tokens) > start and slot.request.constraint is not None:
                    mask = slot.request.constraint.mask()
                n_before = len(slot.tokens)
                token, score = self._draw(slot, row, mask)
                slot.accept(token, score)
                if token != guess or reply.reason is not None or len(slot.tokens) > n_before + 1:
                    break
        finally:
            self._settle_drafts(slot, start, draft)

    def _settle_drafts(self, slot: Slot, start: int, draft: Sequence[int]) -> None:
        """Forget the rows of guesses that were wrong, and tell who guessed."""
        state = slot.state
        assert state is not None
        n_new = len(slot.tokens) - start
        n_right = 0
        while n_right < min(len(draft), n_new) and draft[n_right] == slot.tokens[start + n_right]:
            n_right += 1
        if draft and not state.truncate(min(start + n_right, len(slot.tokens) - 1)):
            state.step_back()  # and read what was right once more, in the next step
        self.counts.decode_tokens += n_new
        if (drafting := slot.drafting) is not None:
            before = drafting.n_drafted, drafting.n_accepted
            try:
                drafting.committed(slot.tokens[start:], len(draft))
            except Exception:
                log.exception("the reply goes on without guesses, which failed")
                slot.drafting = slot.index = None
            n_drafted, n_accepted = drafting.n_drafted - before[0], drafting.n_accepted - before[1]
            slot.n_drafted, slot.n_accepted = slot.n_drafted + n_drafted, slot.n_accepted + n_accepted
            self.counts.drafted += n_drafted
            self.counts.accepted += n_accepted

    def _draw(self, slot: Slot, row: NDArray[np.float32], mask: NDArray[np.uint32] | None) -> tuple[int, Score | None]:
        """The next token and, where it is wanted, its log probability, which is that of the row as it came."""
        request, edited = slot.request, row
        if request.processors:
            edited = row.copy()
            for process in request.processors:
                process(edited, slot.tokens)
        ids, counts = slot.penalties.arrays()
        token = self._sample(edited, request.sampling, slot.n_completion, ids, counts, slot.bias_ids, slot.bias, mask)
        return token, None if request.logprobs is None else _score(row, token, request.logprobs)

    def _score_prompt(self, slot: Slot, rows: NDArray[np.float32]) -> None:
        """Row i of a chunk says what the model thought of the token behind it."""
        first = slot.n_past - len(rows) + 1
        for row, token in zip(rows, slot.request.prompt[first : first + len(rows)], strict=False):
            slot.prompt_scores.append(_score(row, token, slot.request.logprobs or 0))


def _seat(slot: Slot) -> Seat:
    """What the speculator has to know of a slot for the next step."""
    from lmhub.engine.drafts import Seat

    state, reply = slot.state, slot.generation.reply
    assert state is not None
    room = min(state.capacity - state.n_tokens - 1, reply.budget - reply.n_tokens - 1)
    drafting = slot.drafting if slot.n_completion else None  # the first token comes as the prompt was read
    return Seat(drafting, room, reply.in_reasoning, slot.request.constraint, slot.request.eog)


def _score(row: NDArray[np.float32], token: int, n_top: int) -> Score:
    from lmhub.sampling import score  # the engine itself runs without native code

    return score(row, token, n_top)


def _settle(masks: Iterable[Mask | None]) -> None:
    """Wait until no constraint is in use any more."""
    wait([mask for mask in masks if mask is not None])


def as_error(error: Exception, where: str) -> LmhubError:
    """`error` if it is meant for users, else a GenerationError that says where it happened; the log has the rest."""
    if isinstance(error, LmhubError):
        return error
    log.error("%s failed", where, exc_info=error)
    return GenerationError(f"{where} failed with {type(error).__name__}; the log has the rest")  # which may name files
