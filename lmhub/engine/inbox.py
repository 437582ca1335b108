"""Where callers and the worker meet: the bounded waiting queue and the flags that end the work, under one condition.

First come, first served. The bound counts requests that wait beyond those that can run at once, so a burst into an idle
engine fills every slot and then the queue. Of a request with several choices only the first one counts: once it is in,
the others must not fail for want of room. Knows nothing of models, steps or event delivery.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable

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
        self._ahead: deque[Generation] = deque(maxlen=batch)  # to be read when there is nothing else to do
        self._n_unfinished = 0  # waiting and running
        self._n_first = 0  # of these, how many are the first choice of their request
        self._n_resting = 0  # of these, how many rest because their readers have stalled
        self._woken = False
        self._service_s = 0.0
        self.closed = False  # no new work
        self.cut = False  # what runs has to end now

    # --- callers -----------------------------------------------------------------------------------------------------

    def put(self, generation: Generation) -> None:
        """Append to the queue. Raises QueueFull or ShuttingDown."""
        with self._changed:
            if self.closed:
                raise shutting_down()
            n_gone = sum(one.cancelled and _counts(one) for one in self._waiting)
            n_live = self._n_first - n_gone - self._n_resting
            if _counts(generation) and n_live >= self._batch + self._queue:
                wait_s = self._retry_after_s()
                raise QueueFull(
                    f"this model runs {self._batch} requests and {self._queue} more are waiting, which is the limit. "
                    f"Please try again in {wait_s}s.",
                    wait_s,
                )
            self._waiting.append(generation)
            self._n_unfinished += 1
            self._n_first += _counts(generation)
            self._changed.notify()

    def put_task(self, task: Task) -> None:
        """Have the worker run `task` before its next step. Raises ShuttingDown."""
        with self._changed:
            if self.closed:
                raise shutting_down()
            self._tasks.append(task)
            self._changed.notify()

    def put_ahead(self, generation: Generation) -> None:
        """Something to read once nobody wants anything. Of too many the oldest is forgotten, at the end all of them."""
        with self._changed:
            if not self.closed:
                self._ahead.append(generation)
                self._changed.notify()

    def wake(self) -> None:
        """Tell an idle worker to look: a generation was cancelled, or its reader is no longer behind."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    def close(self, *, cut: bool = False) -> None:
        """Take nothing more; with `cut`, what runs has to end now."""
        with self._changed:
            self.closed = True
            self.cut = self.cut or cut
            self._woken = True
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

    def wait(self, busy: bool, timeout_s: float | None = None) -> bool:
        """Block until there is something to look at, for `timeout_s` at the longest; not at all if `busy`.

        Returns whether that time has passed with nothing.
        """
        with self._changed:
            is_idle = not (busy or self._woken or self._waiting or self._tasks)
            timed_out = is_idle and not self._changed.wait(timeout_s)
            self._woken = False
            return timed_out

    @property
    def is_quiet(self) -> bool:
        """Whether nobody wants anything."""
        with self._changed:
            return not (self._waiting or self._tasks or self.closed)

    def take_ahead(self) -> Generation | None:
        """The newest of what is to be read ahead, if any."""
        with self._changed:
            return self._ahead.pop() if self._ahead else None

    @property
    def has_ahead(self) -> bool:
        """Whether there is something to read ahead."""
        return bool(self._ahead)

    @property
    def is_over(self) -> bool:
        """Whether it is closed, and all that was put in has ended."""
        with self._changed:
            return self.closed and not (self._n_unfinished or self._tasks)

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

    def resting(self, generations: Iterable[Generation]) -> None:
        """These are all that rest; they take nobody's place."""
        with self._changed:
            self._n_resting = sum(map(_counts, generations))

    def finished(self, generation: Generation, service_s: float | None) -> None:
        """Make room: a generation that was taken has ended. `service_s` is how long it ran, None if it never did."""
        with self._changed:
            self._n_unfinished -= 1
            self._n_first -= _counts(generation)
            if service_s is not None:
                self._service_s = service_s if not self._service_s else 0.8 * self._service_s + 0.2 * service_s


def _counts(generation: Generation) -> bool:
    """Whether it is a request of its own in the eyes of the queue."""
    return generation.request.choice == 0
