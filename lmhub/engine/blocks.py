"""The stepper of diffusion models: prompts are read, canvases denoised, and what has settled is committed as a block.

    pending tokens --encode--> state --denoise, some passes--> a settled canvas --commit--> pending tokens of the next

A step is one causal pass over pending tokens and one pass over the canvases of all replies, whatever stage each of them
is in. A reply is called off between two passes. Its last block is never encoded, for nothing comes behind it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from lmhub.engine.rates import StepTimes
from lmhub.engine.schedule import Budget, Prefills, Share
from lmhub.engine.slots import Slot
from lmhub.engine.steppers import Commit, StepCounts, as_error
from lmhub.errors import GenerationError, LmhubError
from lmhub.model import BlockLM
from lmhub.settings import EngineSettings
from lmhub.types import Event

T = TypeVar("T")


class BlockStepper:
    """Advances replies pass by pass. See `steppers.Stepper`."""

    def __init__(
        self,
        model: BlockLM,
        settings: EngineSettings,
        times: StepTimes,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.counts = StepCounts()
        self._model, self._times, self._clock = model, times, clock
        chunk = max(settings.prefill_chunk, model.block_size)
        self._budget, self._prefills = Budget(times, settings.latency_s, chunk), Prefills(chunk)
        self._has_failed = False  # in the step that is running

    def step(self, slots: Sequence[Slot]) -> list[Commit]:
        """See Stepper."""
        begun = self._clock()
        self._has_failed = False
        denoising = [slot for slot in slots if not slot.n_pending]
        commits = [*self._read([slot for slot in slots if slot.n_pending]), *self._denoise(denoising)]
        self.counts.failing = self.counts.failing + 1 if self._has_failed else 0
        self.counts.steps += 1
        self.counts.step_s += self._clock() - begun
        return commits

    def close(self) -> None:
        """See Stepper."""

    # --- prompts and committed blocks --------------------------------------------------------------------------------

    def _read(self, slots: Sequence[Slot]) -> Iterator[Commit]:
        if not slots:
            return
        budget = self._budget.prefill(0, is_ahead=all(slot.is_ahead for slot in slots))
        shares = self._prefills.deal(slots, budget)
        begun = self._clock()
        for share, error in self._tried(self._encode, shares):
            slot = share.slot
            if error is not None:
                slot.is_sound = isinstance(error, GenerationError)  # aborted; see BlockLM.encode
                yield Commit(slot, error=error)
            elif not slot.n_pending:
                if not slot.n_completion:
                    slot.decoding_s = time.monotonic()
                if slot.is_ahead:
                    yield Commit(slot)
        seconds = self._clock() - begun
        self.counts.forward_s += seconds
        self.counts.prefill_tokens += sum(share.n for share in shares if not share.slot.n_completion)
        self._times.observe(0, sum(share.n for share in shares), seconds)

    def _encode(self, shares: Sequence[Share]) -> None:
        self._model.encode([share.chunk() for share in shares])

    # --- canvases ----------------------------------------------------------------------------------------------------

    def _denoise(self, slots: Sequence[Slot]) -> Iterator[Commit]:
        ready: list[Slot] = []
        for slot in slots:
            try:
                if self._has_canvas(slot):
                    ready.append(slot)
                else:
                    yield Commit(slot, slot.generation.reply.cut())
            except Exception as error:  # of a wish that makes no sense, or of a parser
                yield Commit(slot, error=as_error(error, "beginning a block"))
        if not ready:
            return
        begun = self._clock()
        outcomes = list(self._tried(self._pass, ready))
        self.counts.forward_s += self._clock() - begun
        for slot, failure in outcomes:
            try:
                yield Commit(slot, error=failure) if failure is not None else Commit(slot, self._events(slot))
            except Exception as error:
                yield Commit(slot, error=as_error(error, "continuing the reply"))

    def _has_canvas(self, slot: Slot) -> bool:
        """Give it one if it has none. False where the context has no room for another block."""
        assert slot.state is not None
        if slot.canvas is None and slot.n_past + self._model.block_size <= slot.state.capacity:
            request = slot.request
            wish = replace(
                request.denoising or self._model.denoising,
                seed=request.sampling.seed,
                greedy=request.sampling.temperature == 0,
            )
            bias = dict(zip(slot.bias_ids.tolist(), slot.bias.tolist(), strict=True))
            slot.canvas = self._model.canvas(wish, slot.n_blocks, bias)
        return slot.canvas is not None

    def _pass(self, slots: Sequence[Slot]) -> None:
        self._model.denoise([(slot.state, slot.canvas) for slot in slots if slot.state and slot.canvas])

    def _events(self, slot: Slot) -> list[Event]:
        """What a pass brought: nothing, a draft if drafts are wanted, or a block."""
        canvas, reply = slot.canvas, slot.generation.reply
        assert canvas is not None
        tokens = canvas.draft.tolist()
        if not canvas.is_settled:
            return [reply.sketched(tokens)] if slot.request.drafts else []
        slot.canvas = None
        slot.n_blocks += 1
        for token in tokens:
            n_before = len(slot.tokens)
            slot.accept(token)
            self.counts.decode_tokens += len(slot.tokens) - n_before
            if reply.reason is not None or len(slot.tokens) > n_before + 1:
                break  # over, or its reasoning was closed: what the block has behind that is no part of the reply
        return reply.take()

    # --- both --------------------------------------------------------------------------------------------------------

    def _tried(self, work: Callable[[Sequence[T]], None], items: Sequence[T]) -> Iterator[tuple[T, LmhubError | None]]:
        """Do `work` with all items; if that fails, with each half: only the guilty one shall end."""
        try:
            work(items)
        except Exception as error:
            if isinstance(error, GenerationError) or len(items) == 1:
                was_aborted = isinstance(error, GenerationError)
                self._has_failed = self._has_failed or not was_aborted
                reported = as_error(error, "the model's pass")
                yield from ((item, reported) for item in items)
            else:
                half = len(items) // 2
                yield from self._tried(work, items[:half])
                yield from self._tried(work, items[half:])
        else:
            yield from ((item, None) for item in items)
