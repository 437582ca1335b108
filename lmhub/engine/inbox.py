"""Where callers and the worker meet: the bounded waiting queue and the flags that end the work, under one condition.

First come, first served. The bound counts requests that wait beyond those that can run at once, so a burst into an idle
engine fills every slot and then the queue. Knows nothing of models, steps or event delivery.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable

from lmhub.engine.generation import Generation
from lmhub.errors import QueueFull, ShuttingDown

Task = Callable[[], None]


def shutting_down() -> ShuttingDown:
    """The error of everything that a closed inbox turns away."""
    return ShuttingDown("the server is shutting down and takes no new requests; try again later")


class Inbox:
    """Generations that wait, and tasks for the worker."""

    def __init__(self, batch: int, queue: int):
        self._batch = batch
        self._queue = queue
        self._changed = threading.Condition()  # guards everything below
        self._waiting: deque[Generation] = deque()
        self._tasks: deque[Task] = deque()
        self._n_unfinished = 0  # waiting and running
        self._service_s = 0.0
        self.closed = False  # no new work
        self.cut = False  # what runs has to end now

    # --- callers -----------------------------------------------------------------------------------------------------

    def put(self, generation: Generation) -> None:
        """Append to the queue. Raises QueueFull or ShuttingDown."""
        with self._changed:
            if self.closed:
                raise shutting_down()
            n_live = self._n_unfinished - (len(self._waiting) - self._n_queued())
            if n_live >= self._batch + self._queue:
                wait_s = self._retry_after_s()
                raise QueueFull(
                    f"this model runs {self._batch} requests and {self._queue} more are waiting, which is the limit. "
                    f"Please try again in {wait_s}s.",
                    wait_s,
                )
            self._waiting.append(generation)
            self._n_unfinished += 1
            self._changed.notify()

    def put_task(self, task: Task) -> None:
        """Have the worker run `task` before its next step. Raises ShuttingDown."""
        with self._changed:
            if self.closed:
                raise shutting_down()
            self._tasks.append(task)
            self._changed.notify()

    def wake(self) -> None:
        """Tell an idle worker that a generation was cancelled."""
        with self._changed:
            self._changed.notify()

    def close(self, *, cut: bool = False) -> None:
        """Take nothing more; with `cut`, what runs has to end now."""
        with self._changed:
            self.closed = True
            self.cut = self.cut or cut
            self._changed.notify()

    def counts(self) -> tuple[int, int]:
        """How many generations wait, and how many run."""
        with self._changed:
            return self._n_queued(), self._n_unfinished - len(self._waiting)

    def _n_queued(self) -> int:
        return sum(not generation.cancelled for generation in self._waiting)

    def _retry_after_s(self) -> int:
        return min(60, max(1, math.ceil(self._n_queued() * self._service_s / self._batch)))

    # --- the worker --------------------------------------------------------------------------------------------------

    def wait(self, busy: bool) -> bool:
        """Block until there is something to do; at once if `busy`. False when closed and everything is done."""
        with self._changed:
            while not (busy or self._waiting or self._tasks or self.closed):
                self._changed.wait()
            return bool(busy or self._waiting or self._tasks)

    def take_task(self) -> Task | None:
        """The oldest task, if any."""
        with self._changed:
            return self._tasks.popleft() if self._tasks else None

    def take_gone(self) -> list[Generation]:
        """Waiting generations that will not run: the cancelled ones, and all of them once the inbox is closed."""
        with self._changed:
            gone = [generation for generation in self._waiting if generation.cancelled or self.closed]
            for generation in gone:
                self._waiting.remove(generation)
            return gone

    def take_next(self) -> Generation | None:
        """The one that has waited longest, if any."""
        with self._changed:
            return self._waiting.popleft() if self._waiting else None

    def finished(self, service_s: float | None) -> None:
        """Make room: a generation that was taken has ended. `service_s` is how long it ran, None if it never did."""
        with self._changed:
            self._n_unfinished -= 1
            if service_s is not None:
                self._service_s = service_s if not self._service_s else 0.8 * self._service_s + 0.2 * service_s
