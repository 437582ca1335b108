"""One submitted request as its caller sees it: where its events arrive, and how it is called off.

The engine's thread writes, the caller's thread or event loop reads. A reader that reads nothing loses nothing: events
wait here, and the engine never waits for them. It looks at `backlog` instead, and lets a reply rest whose reader is far
behind. Knows nothing of models and slots.
"""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from itertools import groupby

from lmhub.engine.reply import Reply
from lmhub.types import Event, Failure, Finish, GenerationRequest, ReasoningDelta, TextDelta, ToolCallDelta

Delivery = tuple["Generation", Sequence[Event]]

RESUME = 0.25  # of the bytes at which a reply is paused: with fewer left to read it goes on
EVENT_COST = 64  # bytes that an event takes beside its text


class Generation:
    """A request between `submit` and its last event, which is always one Finish or one Failure."""

    def __init__(
        self,
        request: GenerationRequest,
        reply: Reply,
        wake: Callable[[], None],
        loop: asyncio.AbstractEventLoop | None = None,
        resume_below: int = 1 << 18,
    ):
        """`wake` tells the engine to look at `cancelled`, and that `backlog` has sunk below `resume_below` bytes.

        With a `loop`, events are for its coroutines only.
        """
        self.request = request
        self.reply = reply
        self.loop = loop
        self.cancelled = False  # written by the caller, read by the engine between steps
        self.submitted_s = time.monotonic()
        self._wake = wake
        self._resume_below = resume_below
        self._n_sent = 0  # bytes, written by the engine only
        self._n_read = 0  # written by the reader only
        self._ended = False  # the caller's side has seen the last event
        self._arrived: queue.SimpleQueue[Sequence[Event]] = queue.SimpleQueue()
        self._arrived_on_loop: asyncio.Queue[Sequence[Event]] = asyncio.Queue()

    @property
    def backlog(self) -> int:
        """Bytes of events that have not been read."""
        return self._n_sent - self._n_read

    @property
    def n_read(self) -> int:
        """Bytes of events that have been read."""
        return self._n_read

    def cancel(self) -> None:
        """Call the generation off, from any thread: it ends within one step. No effect once it has ended."""
        if not self._ended and not self.cancelled:
            self.cancelled = True
            self._wake()

    def events(self) -> Generator[Event, None, None]:
        """The events as they come, blocking; closing the iterator cancels. For generations without an event loop."""
        try:
            while not self._ended:
                for event in self._arrived.get():
                    self._ended = isinstance(event, Finish | Failure)
                    yield event
                    self._read(event)
        finally:
            self.cancel()

    async def aevents(self) -> AsyncGenerator[Event, None]:
        """The events as they come; closing the iterator or cancelling its task cancels. For generations with a loop."""
        try:
            while not self._ended:
                for event in await self._arrived_on_loop.get():
                    self._ended = isinstance(event, Finish | Failure)
                    yield event
                    self._read(event)
        finally:
            self.cancel()

    def sent(self, events: Sequence[Event]) -> None:
        """The engine's side: these are on their way."""
        self._n_sent += sum(map(cost, events))

    def arrive(self, events: Sequence[Event]) -> None:
        """Hand events to the reader: on the loop's thread if there is a loop, else on any."""
        if self.loop is None:
            self._arrived.put(events)
        else:
            self._arrived_on_loop.put_nowait(events)

    def _read(self, event: Event) -> None:
        """The reader came back for more, so it is done with `event`."""
        before = self.backlog
        self._n_read += cost(event)
        if before >= self._resume_below > self.backlog:
            self._wake()


def cost(event: Event) -> int:
    """Bytes of memory that an event stands for, roughly."""
    match event:
        case TextDelta(text, logprobs):
            return EVENT_COST * (1 + len(logprobs)) + len(text)
        case ReasoningDelta(text) | ToolCallDelta(_, text):
            return EVENT_COST + len(text)
    return EVENT_COST


def deliver(deliveries: Iterable[Delivery]) -> None:
    """Hand over what one step brought, with a single wake-up for each event loop among the readers.

    A generation whose loop is gone is cancelled: nobody will read it.
    """
    by_loop = sorted(deliveries, key=lambda delivery: id(delivery[0].loop))
    for _, group in groupby(by_loop, key=lambda delivery: id(delivery[0].loop)):
        batch = list(group)
        for generation, events in batch:
            generation.sent(events)
        loop = batch[0][0].loop
        if loop is None:
            _hand_over(batch)
            continue
        try:
            loop.call_soon_threadsafe(_hand_over, batch)
        except RuntimeError:  # the loop is closed
            for generation, _ in batch:
                generation.cancelled = True


def _hand_over(batch: Sequence[Delivery]) -> None:
    for generation, events in batch:
        generation.arrive(events)
