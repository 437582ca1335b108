"""The Python API: `lmhub.open(path)` gives a `Model` that chats, completes and computes logits, synchronously.

The same hub, plugins and engine as behind the server; a private thread runs the event loop that the hooks expect, so
that it works in scripts, threads and notebooks alike. Knows no HTTP. In the examples PATH is a GGUF file.

    >>> import lmhub
    >>> with lmhub.open(PATH, ctx=256) as model:
    ...     reply = model.chat([{"role": "user", "content": "Hello"}], max_tokens=8, seed=1)
    >>> reply.usage.completion_tokens <= 8
    True
"""

from __future__ import annotations

import asyncio
import os
import queue
import secrets
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lmhub.errors import PromptTooLong, RequestError, ShuttingDown, UnsupportedModel
from lmhub.hub import Hub, Progress, Served
from lmhub.model import CausalLM, Chunk
from lmhub.plain import (
    alternatives_from,
    budget_from,
    choice_from,
    denoising_from,
    grammar_from,
    message_from,
    sampling_from,
    stops_from,
    tool_from,
)
from lmhub.settings import EngineSettings
from lmhub.types import (
    ChatRequest,
    CompletionRequest,
    Event,
    Failure,
    Finish,
    FinishReason,
    GenerationRequest,
    GrammarSpec,
    Message,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_DEFAULTS = EngineSettings()
_CHUNK = 256  # rows of one step of `logits`

AnyMessage = Message | Mapping[str, Any]
AnyTool = Tool | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply. `logprobs` are those of the tokens of `text`, where they were asked for."""

    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: FinishReason
    usage: Usage
    logprobs: tuple[TokenLogprob, ...] = ()


def open(
    path: str | os.PathLike[str],
    *,
    ctx: int = _DEFAULTS.ctx,
    threads: int = _DEFAULTS.threads,
    batch: int = 1,
    kv_dtype: str = _DEFAULTS.kv_dtype,
    kv_slots: int = _DEFAULTS.kv_slots,
    kv_cache_dir: str | os.PathLike[str] = "",
    spec: bool = _DEFAULTS.spec,
    progress: Progress | None = None,
) -> Model:
    """Load a GGUF file, or a model that a plugin brings under the name `path`, with the installed plugin of its family.

    `ctx` is in positions per sequence, capped by what the model was trained for; `threads` are compute threads of the
    whole process (0: as they are, by default one per usable CPU); `batch` sequences run at once (from several Python
    threads); `kv_dtype` is "f16", "f32" or "q8_0"; `kv_slots` sequences are kept for prompts that begin alike (0: twice
    the batch), and in the folder `kv_cache_dir` they survive the process; `spec` guesses tokens ahead where that pays,
    which changes no reply; `progress(done_bytes, total_bytes)` is called while loading.
    Raises ModelFileError, UnsupportedModel, PluginError.

        >>> model = lmhub.open(PATH, ctx=64)
        >>> model.n_ctx
        64
        >>> model.close()
    """
    if ctx < 1 or batch < 1 or threads < 0 or kv_slots < 0:
        raise RequestError(
            f"ctx and batch must be at least 1, threads and kv_slots at least 0, not {ctx}, {batch}, {threads} and "
            f"{kv_slots}"
        )
    if kv_dtype not in ("f16", "f32", "q8_0"):
        raise RequestError(f"kv_dtype must be 'f16', 'f32' or 'q8_0', not {kv_dtype!r}", "kv_dtype")
    hub = Hub()
    settings = EngineSettings(
        ctx=ctx,
        threads=threads,
        batch=batch,
        kv_dtype=kv_dtype,
        kv_slots=kv_slots,
        kv_cache_dir=os.fspath(kv_cache_dir),
        spec=spec,
    )
    return Model(hub, hub.load(os.fspath(path), settings, progress), owns_hub=True)


class Model:
    """A loaded model. Use it as a context manager, or call `close`. Its methods may be called from several threads.

    `Model(hub, served)` wraps a model of a hub of your own, which `close` then leaves alone.
    """

    def __init__(self, hub: Hub, served: Served, *, owns_hub: bool = False) -> None:
        self._hub, self._served, self._owns_hub = hub, served, owns_hub
        self._loaded = served.model
        running: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=_run_loop, args=(running,), name=f"lmhub {self.id}", daemon=True)
        self._thread.start()
        self._loop = running.result()

    # --- facts -------------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The name under which a server would offer it."""
        return self._loaded.id

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The file's metadata."""
        return self._loaded.metadata

    @property
    def n_ctx(self) -> int:
        """Positions per sequence."""
        return self._loaded.n_ctx

    @property
    def n_vocab(self) -> int:
        """Columns of the logits; the tokenizer may know fewer tokens."""
        return self._loaded.model.n_vocab

    # --- generation --------------------------------------------------------------------------------------------------

    def chat(self, messages: Sequence[AnyMessage], **options: Any) -> Reply:
        """Answer a conversation. Takes the options of `stream`, returns the whole reply.

        >>> with lmhub.open(PATH) as model:
        ...     reply = model.chat([{"role": "user", "content": "Hello"}], max_tokens=4)
        >>> reply.finish_reason in ("stop", "length")
        True
        """
        return _collect(self.stream(messages, **options))

    def stream(
        self,
        messages: Sequence[AnyMessage],
        *,
        tools: Sequence[AnyTool] = (),
        tool_choice: str = "auto",
        json_schema: Mapping[str, Any] | bool | None = None,
        grammar: GrammarSpec | None = None,
        logprobs: int | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        reasoning: bool | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        denoising: Mapping[str, float] | None = None,
        **sampling: float,
    ) -> Generator[Event, None, None]:
        """The reply to a conversation: TextDelta, ReasoningDelta, ToolCallStart, ToolCallDelta events, then one Finish.

        `messages` are Message records or OpenAI-style dicts. `tool_choice` is auto, none, any or the name of a tool.
        `json_schema`, or a `grammar` of another kind, is what the text will match. `logprobs` asks for every token's
        log probability and for so many alternatives. `max_tokens` defaults to the rest of the context (1024 under a
        grammar), `reasoning` is off unless asked for, each of `sampling` (the fields of SamplingParams: temperature,
        top_p, seed, ...) is the model's own default, as is what `denoising` leaves out (steps, t_max, ... of diffusion
        models; fields of Denoising). Closing the iterator cancels. Raises RequestError and
        PromptTooLong at once, QueueFull at the first event, GenerationError while it runs.

            >>> from lmhub.types import TextDelta
            >>> with lmhub.open(PATH) as model:
            ...     events = model.stream([{"role": "user", "content": "Hello"}], max_tokens=4, seed=1)
            ...     text = "".join(event.text for event in events if isinstance(event, TextDelta))
        """
        if not messages:
            raise RequestError("messages is empty; give at least one message", "messages")
        request = ChatRequest(
            messages=tuple(message_from(message, f"messages[{at}]") for at, message in enumerate(messages)),
            model=self.id,
            tools=tuple(tool_from(tool, f"tools[{at}]") for at, tool in enumerate(tools)),
            tool_choice=choice_from(tool_choice),
            grammar=grammar_from(json_schema, grammar),
            logprobs=alternatives_from(logprobs),
            sampling=sampling_from(sampling),
            denoising=denoising_from(denoising),
            max_tokens=budget_from(max_tokens),
            stop=stops_from(stop),
            reasoning=reasoning,
            template_kwargs=template_kwargs or {},
            stream=True,
        )
        [generation] = self._hub.prepare(self._served, request, _new_id())
        return self._events(generation)

    def complete(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        special: bool = False,
        json_schema: Mapping[str, Any] | bool | None = None,
        grammar: GrammarSpec | None = None,
        logprobs: int | None = None,
        **sampling: float,
    ) -> Reply:
        """Continue raw text or token ids, without a chat template; everything that comes is text.

        Text gets the BOS that the model wants; `special=True` reads control tokens in it. Ids are taken as they are.

            >>> with lmhub.open(PATH) as model:
            ...     reply = model.complete("Once upon a time", max_tokens=4, temperature=0)
            >>> reply.usage.prompt_tokens > 0
            True
        """
        tokenizer = self._loaded.tokenizer
        ids = tokenizer.with_bos(tokenizer.encode(prompt, special=special)) if isinstance(prompt, str) else list(prompt)
        self._check_ids(ids)
        request = CompletionRequest(
            prompts=(tuple(ids),),
            model=self.id,
            grammar=grammar_from(json_schema, grammar),
            logprobs=alternatives_from(logprobs),
            sampling=sampling_from(sampling),
            max_tokens=budget_from(max_tokens),
            stop=stops_from(stop),
        )
        [generation] = self._hub.prepare(self._served, request, _new_id())
        return _collect(self._events(generation))

    def _events(self, request: GenerationRequest) -> Generator[Event, None, None]:
        """Run `request` through the hub's hooks on the private loop, and hand its events to this thread.

        Failures are raised. Leaving early cancels.
        """
        self._check_open()
        arrived: queue.SimpleQueue[Event | Exception] = queue.SimpleQueue()

        async def pump() -> None:
            try:
                async for event in self._hub.generate(self._served, request):
                    arrived.put(event)
            except asyncio.CancelledError:
                arrived.put(self._closed())
                raise
            except Exception as error:
                arrived.put(error)

        running = asyncio.run_coroutine_threadsafe(pump(), self._loop)
        try:
            while True:
                item = arrived.get()
                if isinstance(item, Failure):
                    raise item.error
                if isinstance(item, Exception):
                    raise item
                yield item
                if isinstance(item, Finish):
                    return
        finally:
            running.cancel()

    # --- logits and tokens -------------------------------------------------------------------------------------------

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """The logits of every position: float32 (len(ids), n_vocab); row i predicts the token after `ids[: i + 1]`.

        Runs between the steps of other requests. Raises RequestError, PromptTooLong, UnsupportedModel (block models).

            >>> with lmhub.open(PATH) as model:
            ...     rows = model.logits(model.tokenize("Hello"))
            >>> rows.dtype.name, rows.shape[1] == model.n_vocab
            ('float32', True)
        """
        import numpy as np

        self._check_open()
        ids = [int(token) for token in ids]
        self._check_ids(ids)
        if len(ids) > self.n_ctx:
            raise PromptTooLong(
                f"{len(ids)} ids exceed the context of {self.n_ctx}; open the model with a larger ctx", "ids"
            )
        model = self._loaded.model
        if not isinstance(model, CausalLM):
            raise UnsupportedModel(f"{self.id} denoises blocks and has no next-token logits; use chat or complete")

        def run() -> NDArray[np.float32]:
            state = model.new_state(len(ids))
            rows = np.empty((len(ids), model.n_vocab), np.float32)
            for start in range(0, len(ids), _CHUNK):
                rows[start : start + _CHUNK] = model.forward([Chunk(state, ids[start : start + _CHUNK], "all")])
            return rows

        return self._served.engine.call(run).result()

    def tokenize(self, text: str, special: bool = False) -> list[int]:
        """Token ids of `text`, without BOS. With `special`, texts of control tokens become these tokens.

        >>> with lmhub.open(PATH) as model:
        ...     model.detokenize(model.tokenize("Hello, world"))
        'Hello, world'
        """
        return self._loaded.tokenizer.encode(text, special=special)

    def detokenize(self, ids: Sequence[int], special: bool = False) -> str:
        """The text of `ids`, invalid UTF-8 replaced. With `special`, control tokens are shown. Raises RequestError."""
        size = self._loaded.tokenizer.n_vocab
        if bad := [token for token in ids if not 0 <= token < size]:
            raise RequestError(f"{bad[0]} is not a token id of {self.id}; they go from 0 to {size - 1}", "ids")
        return self._loaded.tokenizer.decode(ids, special=special)

    def _check_ids(self, ids: Sequence[int]) -> None:
        if not ids:
            raise RequestError("the prompt is empty; give at least one token", "prompt")
        if bad := [token for token in ids if not 0 <= token < self.n_vocab]:
            raise RequestError(
                f"{bad[0]} is not a token id of {self.id}; they go from 0 to {self.n_vocab - 1}", "prompt"
            )

    def _check_open(self) -> None:
        if self._loop.is_closed():
            raise self._closed()

    def _closed(self) -> ShuttingDown:
        return ShuttingDown(f"the model {self.id} has been closed; open it again")

    # --- life --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Cancel what runs and release the model. Further calls do nothing."""
        if self._loop.is_closed():
            return
        if self._owns_hub:
            self._hub.close()
        asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<lmhub.Model {self.id} of family {self._loaded.family.name}>"


def _run_loop(running: Future[asyncio.AbstractEventLoop]) -> None:
    """Make an event loop on this thread, where no Ctrl-C can leave it half made, and run it until it is stopped."""
    loop = asyncio.new_event_loop()
    loop.call_soon(running.set_result, loop)
    loop.run_forever()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _collect(events: Iterator[Event]) -> Reply:
    """A Reply from all events of one generation."""
    text, thoughts = [], []
    logprobs: list[TokenLogprob] = []
    calls: dict[int, tuple[str, str, list[str]]] = {}
    for event in events:
        match event:
            case TextDelta(piece, entries):
                text.append(piece)
                logprobs += entries
            case ReasoningDelta(piece):
                thoughts.append(piece)
            case ToolCallStart(index, id, name):
                calls[index] = (id, name, [])
            case ToolCallDelta(index, fragment):
                calls[index][2].append(fragment)
            case Finish(reason, usage):
                made = tuple(ToolCall(id, name, "".join(parts)) for _, (id, name, parts) in sorted(calls.items()))
                return Reply("".join(text), "".join(thoughts), made, reason, usage, tuple(logprobs))
    raise RuntimeError("a plugin's lmhub_generate ended without a Finish")


def _new_id() -> str:
    return f"local-{secrets.token_hex(8)}"
