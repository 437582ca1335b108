"""The engine of one loaded model, as its callers see it: submit a request, read its events, stop.

    submit -> Inbox (bounded queue) -> Worker thread: admit -> step -> commit -> Reply -> events -> Generation

The worker owns the model, its states and the sampler; nobody else touches them. The engine knows no HTTP, no dialect
and no family. Several engines may live in one process. A server that shares the process with a busy event loop may
lower `sys.setswitchinterval`; the engine leaves such global settings alone.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from lmhub.engine.blocks import BlockStepper
from lmhub.engine.generation import RESUME, Generation
from lmhub.engine.inbox import Inbox
from lmhub.engine.pool import SlotPool
from lmhub.engine.rates import StepTimes
from lmhub.engine.reply import Pieces, Reply
from lmhub.engine.slots import SlotStats
from lmhub.engine.steppers import CausalStepper, Sample, Stepper
from lmhub.engine.worker import Worker
from lmhub.errors import PromptTooLong, RequestError
from lmhub.model import BlockLM, CausalLM
from lmhub.settings import EngineSettings
from lmhub.types import Event, GenerationRecord, GenerationRequest, SamplingParams

if TYPE_CHECKING:
    from lmhub.engine.disk import DiskStats, DiskTier
    from lmhub.engine.drafts import Speculator
    from lmhub.shelf import Shelf

log = logging.getLogger("lmhub.engine")

T = TypeVar("T")
JOIN_S = 30.0  # how long a step that ignores `abort` may hold up the end


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot. `steps` and what follows count from the engine's start.

    `prompt_tokens` and `completion_tokens` are of generations that ran and ended; `prefill_tokens` were forwarded for
    prompts, `decode_tokens` came out of the sampler. `step_s` is the time spent in steps, `forward_s` the model's part
    of it. `hits` and `reused` count generations and prompt tokens by where the cached part came from (`types.Source`).
    `slots` has an entry for each running sequence. `healthy` is False while the model fails step after step.
    """

    stopping: bool
    healthy: bool
    queued: int
    running: int
    paused: int
    batch: int
    queue: int
    kv_slots: int
    parked: int
    steps: int
    finished: int
    prompt_tokens: int
    completion_tokens: int
    prefill_tokens: int
    decode_tokens: int
    step_s: float
    forward_s: float
    hits: Mapping[str, int]
    reused: Mapping[str, int]
    evicted: int
    drafted: int
    accepted: int
    disk: DiskStats | None
    slots: tuple[SlotStats, ...]


class Engine:
    """Runs generations on `model`, at most `settings.batch` at once, while at most `settings.queue` more wait."""

    def __init__(
        self,
        model: CausalLM | BlockLM,
        *,
        tokenizer: Pieces,
        n_ctx: int,
        settings: EngineSettings = EngineSettings(),  # noqa: B008 - frozen
        model_id: str = "",
        family: str = "",
        disk: DiskTier | None = None,
        shelf: Shelf | None = None,
        on_finished: Callable[[GenerationRecord], None] | None = None,
        sample: Sample | None = None,
    ):
        """Starts the worker thread. The engine closes `disk`, where sequences survive it, when it stops.

        `on_finished` is called on the worker thread, once per generation, before its last event is delivered; what it
        raises is logged. `sample` replaces the native sampler. `shelf` is asked what the model's experts do.
        """
        speculator = None
        if settings.spec and isinstance(model, CausalLM):
            from lmhub.engine.drafts import Speculator

            speculator = Speculator(model.n_vocab)
        self._model, self._tokenizer, self._n_ctx = model, tokenizer, n_ctx
        self._settings, self._disk = settings, disk
        self._model_id, self._family = model_id, family
        self._on_finished = on_finished
        self._inbox = Inbox(settings.batch, settings.queue)
        times = StepTimes()
        self._pool = SlotPool(model, n_ctx, settings, times, disk=disk, speculator=speculator, wake=self._inbox.wake)
        self._stepper = _stepper(model, sample, settings, times, speculator)
        self._worker = Worker(self._inbox, self._pool, self._stepper, settings, self._report, shelf=shelf)
        self._thread = threading.Thread(target=self._work, name=f"lmhub-engine {model_id}".strip(), daemon=True)
        self._thread.start()

    def submit(self, request: GenerationRequest, *, loop: asyncio.AbstractEventLoop | None = None) -> Generation:
        """Put `request` at the end of the queue. Its events go to coroutines of `loop`, or to a blocking iterator.

        Raises PromptTooLong or RequestError if it can never run, QueueFull, ShuttingDown.
        """
        budget = min(request.max_tokens, self._room(request))
        resume_below = max(1, int(self._settings.pipe_max * RESUME))
        generation = Generation(request, Reply(request, self._tokenizer, budget), self._inbox.wake, loop, resume_below)
        self._inbox.put(generation)
        return generation

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Event]:
        """Submit `request` at the first `anext` and yield its events. Raises like `submit`.

        Closing the iterator, or cancelling the task that waits for it, cancels the generation.
        """
        generation = self.submit(request, loop=asyncio.get_running_loop())
        async with aclosing(generation.aevents()) as events:
            async for event in events:
                yield event

    def read_ahead(self, prompt: Sequence[int]) -> None:
        """Read `prompt` once there is nothing else to do, so that a request which begins with it finds it in a slot.

        It gives way to every request. What cannot be read, for want of room or of sense, is left alone.
        """
        if not 1 < len(prompt) < self._n_ctx or min(prompt) < 0 or max(prompt) >= self._model.n_vocab:
            return
        request = GenerationRequest("", tuple(prompt), SamplingParams(), 0, frozenset())
        self._inbox.put_ahead(Generation(request, Reply(request, self._tokenizer, 0), self._inbox.wake))

    def call(self, task: Callable[[], T]) -> Future[T]:
        """Run `task` on the worker thread between two steps, where the model may be used. Raises ShuttingDown."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(task())
            except Exception as error:
                future.set_exception(error)

        self._inbox.put_task(run)
        return future

    def stats(self) -> EngineStats:
        """Where the engine stands; never waits for a step."""
        queued, running = self._inbox.counts()
        totals, steps, pool = self._worker.totals, self._stepper.counts, self._pool
        slots = self._worker.slots
        return EngineStats(
            stopping=self._inbox.closed,
            healthy=self._worker.is_healthy,
            queued=queued,
            running=running,
            paused=sum(slot.is_paused for slot in slots),
            batch=self._settings.batch,
            queue=self._settings.queue,
            kv_slots=pool.n_slots,
            parked=pool.n_parked,
            steps=steps.steps,
            finished=totals.finished,
            prompt_tokens=totals.prompt_tokens,
            completion_tokens=totals.completion_tokens,
            prefill_tokens=steps.prefill_tokens,
            decode_tokens=steps.decode_tokens,
            step_s=steps.step_s,
            forward_s=steps.forward_s,
            hits=dict(pool.counts.hits),
            reused=dict(pool.counts.reused),
            evicted=pool.counts.evicted,
            drafted=steps.drafted,
            accepted=steps.accepted,
            disk=None if self._disk is None else self._disk.stats(),
            slots=slots,
        )

    def stop(self, grace_s: float = 0.0) -> None:
        """Refuse new requests, fail the waiting ones, and give the running ones `grace_s` seconds before they fail too.

        Then sequences go to disk, where there is one. Blocks until the worker has ended; may be called again, also from
        another thread to cut the grace short.
        """
        self._inbox.close()
        self._thread.join(grace_s)
        if self._thread.is_alive():
            self._inbox.close(cut=True)
            self._model.abort()
            self._thread.join(JOIN_S + (self._settings.flush_s if self._disk is not None else 0.0))
        if self._thread.is_alive():
            log.error("the engine did not end within %g s: a step ignores its abort", JOIN_S)

    def _work(self) -> None:
        self._worker.run()
        self._stepper.close()
        self._pool.flush()
        if self._disk is not None:
            self._disk.close(self._settings.flush_s)

    def _room(self, request: GenerationRequest) -> int:
        """How many tokens fit behind the prompt, 0 only where none is wanted. Raises PromptTooLong or RequestError."""
        n_prompt, n_vocab = len(request.prompt), self._model.n_vocab
        if n_prompt == 0:
            raise RequestError("the prompt is empty; a model needs at least one token to go on from", "prompt")
        size = self._model.block_size
        if n_prompt > self._n_ctx - size * (request.max_tokens > 0):
            raise PromptTooLong(
                f"the prompt has {n_prompt} tokens and the context holds {self._n_ctx}, {size} of them for the reply; "
                "shorten the prompt or serve the model with a larger --ctx"
            )
        if min(request.prompt) < 0 or max(request.prompt) >= n_vocab:
            raise RequestError(
                f"the prompt holds a token id outside 0..{n_vocab - 1}, the model's vocabulary", "prompt"
            )
        least = 0 if request.score_prompt else 1
        if request.max_tokens < least:
            raise RequestError(f"max_tokens is {request.max_tokens}; it must be at least {least}", "max_tokens")
        if isinstance(self._model, BlockLM):
            _check_blocks(request)
        return (self._n_ctx - n_prompt) // size * size

    def _report(self, record: GenerationRecord) -> None:
        if self._on_finished is None:
            return
        try:
            self._on_finished(replace(record, model=self._model_id, family=self._family))
        except Exception:
            log.exception("on_finished failed for generation %s", record.id)


def _stepper(
    model: CausalLM | BlockLM,
    sample: Sample | None,
    settings: EngineSettings,
    times: StepTimes,
    speculator: Speculator | None,
) -> Stepper:
    if isinstance(model, BlockLM):
        return BlockStepper(model, settings, times)
    if sample is None:
        from lmhub.sampling import Sampler

        sample = Sampler(model.n_vocab).sample
    return CausalStepper(model, sample, settings, times, speculator=speculator)


def _check_blocks(request: GenerationRequest) -> None:
    """Raises RequestError for what needs tokens to come one after the other."""
    for given, what in (
        (request.constraint, "a grammar"),
        (request.processors, "a logits processor"),
        (request.logprobs is not None or request.score_prompt or None, "log probabilities"),
    ):
        if given:
            raise RequestError(f"this model denoises whole blocks, for which there is no such thing as {what}")
