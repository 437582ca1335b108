"""The access log: one line for each request that was answered, or whose client went away. Logger `lmhub.access`, INFO.

    POST /v1/chat/completions 200 id=req_1 model=m prompt=120 cached=96 source=slot completion=20 ...

Never a query, a header or a text of a client. Costs nothing while nobody listens.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import quote

from starlette.types import Message, Scope, Send

from lmhub.hookspecs import hookimpl
from lmhub.server.request_id import REQUEST_ID
from lmhub.types import GenerationRecord, Timings

log = logging.getLogger("lmhub.access")

LATE_S = 1.0  # how long a line waits for the records of generations that have just been called off
_PATH = 200  # characters
_KEY = "lmhub.access"  # of a scope: its Entry
_PLAIN = re.compile(r"[\w.:/#@+-]+")


@dataclass(slots=True, eq=False)
class Entry:
    """What is known of one request so far."""

    method: str
    path: str
    request_id: str
    begun_s: float = field(default_factory=time.monotonic)
    status: int = 0
    nbytes: int = 0
    is_whole: bool = False  # otherwise the client went away before the end of its answer
    model: str = ""
    n_generations: int = 0  # that answer it
    records: list[GenerationRecord] = field(default_factory=list)
    complete: asyncio.Event = field(default_factory=asyncio.Event)


class AccessLog:
    """A plugin that collects what became of each request's generations, and writes the lines."""

    def __init__(self) -> None:
        self._followed: dict[str, tuple[Entry, asyncio.AbstractEventLoop]] = {}

    @hookimpl
    def lmhub_generation_finished(self, record: GenerationRecord) -> None:
        """Keep the record for its request's line. Called on an engine's thread, before the last event is delivered."""
        followed = self._followed.get(record.id)
        if followed is None:
            return
        entry, loop = followed
        entry.records.append(record)
        if len(entry.records) >= entry.n_generations:
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(entry.complete.set)

    def open(self, scope: Scope) -> Entry | None:
        """Begin a line; None while nobody listens."""
        if not log.isEnabledFor(logging.INFO):
            return None
        entry = Entry(scope["method"], quote(scope["path"][:_PATH], safe="/:@+,=~"), REQUEST_ID.get())
        scope[_KEY] = entry
        return entry

    @staticmethod
    def watch(entry: Entry, send: Send) -> Send:
        """`send`, which notes status and size."""

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                entry.status = message["status"]
            elif message["type"] == "http.response.body":
                entry.nbytes += len(message.get("body", b""))
                entry.is_whole = not message.get("more_body", False)
            await send(message)

        return watched

    def follow(self, scope: Scope, model: str, id: str, n: int) -> None:
        """The request is answered by `n` generations of that id."""
        entry = scope.get(_KEY)
        if entry is not None:
            entry.model, entry.n_generations = model, n
            self._followed[id] = entry, asyncio.get_running_loop()

    async def close(self, entry: Entry) -> None:
        """Write the line, once what was called off because its client went away has ended as well."""
        if not entry.is_whole and len(entry.records) < entry.n_generations:
            with suppress(TimeoutError):  # a plugin generates by itself, or a step takes long
                async with asyncio.timeout(LATE_S):
                    await entry.complete.wait()
        for followed in [id for id, (one, _) in self._followed.items() if one is entry]:
            del self._followed[followed]
        log.info("%s", line(entry))


def line(entry: Entry) -> str:
    """The line of a request, in the order in which one reads it."""
    words = [entry.method, entry.path, str(entry.status or "-")]
    facts: dict[str, object] = {"id": entry.request_id}
    if entry.model:
        facts |= {"model": entry.model} | _generated(entry.records)
    facts |= {"bytes": entry.nbytes, "total_ms": round(1000 * (time.monotonic() - entry.begun_s))}
    if not entry.is_whole:
        facts["client"] = "gone"
    return " ".join([*words, *(f"{name}={_word(value)}" for name, value in facts.items())])


def _generated(records: Iterable[GenerationRecord]) -> dict[str, object]:
    """Sums over the choices; what they share of the prompt counts for each."""
    records = list(records)
    if not records:
        return {}

    def ms(read: Callable[[Timings], float]) -> int:
        return round(1000 * max(read(record.timings) for record in records))

    return {
        "prompt": sum(record.usage.prompt_tokens for record in records),
        "cached": sum(record.usage.cached_tokens for record in records),
        "source": ",".join(sorted({record.source for record in records})),
        "completion": sum(record.usage.completion_tokens for record in records),
        "queue_ms": ms(lambda one: one.queued_s),
        "prefill_ms": ms(lambda one: one.prefill_s),
        "decode_ms": ms(lambda one: one.decode_s),
        "finish": ",".join(sorted({record.finish for record in records})),
    }


def _word(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text.replace(",", "")) else repr(text)
