"""The events of one generation as a connection wants them: with gaps made visible, and an end when the server stops.

Knows no dialect and no socket.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator

from lmhub.errors import GenerationError, LmhubError
from lmhub.server.state import shutting_down
from lmhub.types import Event, Failure, Finish

log = logging.getLogger("lmhub.server")


async def watched(
    events: AsyncIterator[Event], ping_s: float, cut: asyncio.Event
) -> AsyncGenerator[Event | None, None]:
    """`events`, with a None for every `ping_s` seconds in which none came, and a Failure once `cut` is set.

    The last item is always a Finish or a Failure: what `events` raises becomes one, and so does an end without one.
    Closing this iterator closes `events`, which cancels the generation.
    """
    stopped = asyncio.ensure_future(cut.wait())
    following = asyncio.ensure_future(anext(events))
    try:
        while True:
            done, _ = await asyncio.wait({following, stopped}, timeout=ping_s, return_when=asyncio.FIRST_COMPLETED)
            if following in done:
                event = _outcome(following)
                yield event
                if isinstance(event, Finish | Failure):
                    return
                following = asyncio.ensure_future(anext(events))
            elif stopped in done:
                yield Failure(shutting_down())
                return
            else:
                yield None
    finally:
        stopped.cancel()
        following.cancel()
        await asyncio.gather(following, stopped, return_exceptions=True)  # an iterator cannot be closed while it runs
        if hasattr(events, "aclose"):
            await events.aclose()


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
