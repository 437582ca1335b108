"""The events of all choices of one request as a connection wants them: in one stream, with gaps made visible, and with
an end when the server stops. Knows no dialect and no socket.

All choices are submitted at once, in their order: an engine that takes the first one takes the others too, and has what
they share of a prompt read once. One rule is kept here: a choice is first seen in ascending order, because an SDK
indexes a list with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

from lmhub.errors import GenerationError, LmhubError
from lmhub.server.state import shutting_down
from lmhub.types import CompletionRequest, Event, Failure, Finish, GenerationRequest, Request, Usage

log = logging.getLogger("lmhub.server")

Start = Callable[[GenerationRequest], AsyncIterator[Event]]


async def merged(
    generations: Sequence[GenerationRequest], start: Start, ping_s: float, cut: asyncio.Event
) -> AsyncGenerator[tuple[Event, int] | None, None]:
    """`(event, choice)` of all `generations`, and None for every `ping_s` seconds (0: never) in which none came.

    The last item is the Finish of the last choice to end, or a Failure: what a choice raises becomes one, and so do an
    end without one and `cut`, once it is set. Closing this iterator closes all of them, which cancels the generations.
    """
    running = _Choices(generations, start)
    stopped = asyncio.ensure_future(cut.wait())
    now = asyncio.get_running_loop().time
    quiet_until = now() + ping_s
    try:
        running.begin()
        while not running.done:
            timeout = max(quiet_until - now(), 0) if ping_s > 0 else None
            waiting: set[asyncio.Future[Any]] = {stopped, *running.following.values()}
            done, _ = await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            arrived = running.take()
            for event, choice in arrived:
                quiet_until = now() + ping_s
                yield event, choice
                if isinstance(event, Failure):
                    return
            if stopped in done and not arrived:
                yield Failure(shutting_down()), 0
                return
            if not done and ping_s > 0 and quiet_until <= now():
                quiet_until = now() + ping_s
                yield None
    finally:
        stopped.cancel()
        await asyncio.gather(stopped, return_exceptions=True)
        await running.close()


class _Choices:
    """The iterators of one request's choices. `following` holds the next event of each that is being waited for."""

    def __init__(self, generations: Sequence[GenerationRequest], start: Start):
        self._generations, self._start = generations, start
        self._iterators: dict[int, AsyncIterator[Event]] = {}
        self._held: dict[int, list[Event]] = {}  # events of choices that must not be seen yet
        self._n_seen = 0  # choices below this one have been seen
        self.following: dict[int, asyncio.Future[Event]] = {}

    @property
    def done(self) -> bool:
        """Whether every choice has ended."""
        return not self._iterators

    def begin(self) -> None:
        """Submit all choices, in their order."""
        for choice, generation in enumerate(self._generations):
            self._iterators[choice] = self._start(generation)
            self._follow(choice)

    def take(self) -> list[tuple[Event, int]]:
        """What has arrived, as far as it may be seen."""
        for choice in sorted(choice for choice, future in self.following.items() if future.done()):
            event = _outcome(self.following.pop(choice))
            self._held.setdefault(choice, []).append(event)
            if isinstance(event, Finish | Failure):
                del self._iterators[choice]
            else:
                self._follow(choice)
        return self._release()

    def _release(self) -> list[tuple[Event, int]]:
        out: list[tuple[Event, int]] = []
        for choice in sorted(self._held):
            events = self._held[choice]
            if choice <= self._n_seen or isinstance(events[-1], Failure):
                self._n_seen = max(self._n_seen, choice + 1)
                out += [(event, choice) for event in self._held.pop(choice)]
        return out

    def _follow(self, choice: int) -> None:
        self.following[choice] = asyncio.ensure_future(anext(self._iterators[choice]))

    async def close(self) -> None:
        """Cancel what still runs."""
        for future in self.following.values():
            future.cancel()
        await asyncio.gather(*self.following.values(), return_exceptions=True)  # a running iterator cannot be closed
        for iterator in self._iterators.values():
            if hasattr(iterator, "aclose"):
                await iterator.aclose()


def total(request: Request, finishes: Sequence[Finish]) -> Usage:
    """The usage of a reply with these choices: replies are summed, and a prompt is counted once for all its choices."""
    per_prompt = request.n if isinstance(request, CompletionRequest) else len(finishes)
    firsts = [one.usage for one in finishes[::per_prompt]]
    return replace(
        firsts[0],
        prompt_tokens=sum(one.prompt_tokens for one in firsts),
        cached_tokens=sum(one.cached_tokens for one in firsts),
        completion_tokens=sum(one.usage.completion_tokens for one in finishes),
        reasoning_tokens=sum(one.usage.reasoning_tokens for one in finishes),
    )


def _outcome(following: asyncio.Future[Event]) -> Event:
    try:
        event = following.result()
    except StopAsyncIteration:
        return Failure(GenerationError("the generation ended without saying why"))
    except LmhubError as error:
        return Failure(error)
    except Exception as error:
        log.exception("a generation failed")
        return Failure(error)
    if isinstance(event, Finish) and event.reason == "cancelled":
        # Its reader is still here, so it is the server that called it off.
        return Failure(shutting_down())
    return event
