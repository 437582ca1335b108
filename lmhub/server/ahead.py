"""Between two turns of a conversation: the engine reads what the next prompt will begin with, while nobody waits.

A template writes a reply into the history in a form of its own (no reasoning, other blanks), so that the rows of the
reply as it was generated are of no use to the next turn. Here the history's form is rendered as soon as the reply has
been sent, and the engine reads it in its idle time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from lmhub.errors import LmhubError
from lmhub.hub import Served
from lmhub.types import (
    ChatRequest,
    Event,
    Finish,
    Message,
    Part,
    Reasoning,
    ReasoningDelta,
    Request,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolCallStart,
)

log = logging.getLogger("lmhub.server")

WORTH_READING = 16  # tokens of a reply; fewer are soon read with the next turn


class Heard:
    """One reply as its client hears it, and will send it back. `with_reasoning`: clients send that back as well."""

    def __init__(self, with_reasoning: bool):
        self._with_reasoning = with_reasoning
        self._thoughts: list[str] = []
        self._texts: list[str] = []
        self._calls: dict[int, tuple[str, str, list[str]]] = {}
        self.finish: Finish | None = None

    async def listen(self, events: AsyncIterator[tuple[Event, int] | None]) -> AsyncIterator[tuple[Event, int] | None]:
        """`events`, unchanged."""
        async for item in events:
            if item is not None:
                self._note(item[0])
            yield item

    def _note(self, event: Event) -> None:
        match event:
            case TextDelta(text):
                self._texts.append(text)
            case ReasoningDelta(text) if self._with_reasoning:
                self._thoughts.append(text)
            case ToolCallStart(index, id, name):
                self._calls[index] = (id, name, [])
            case ToolCallDelta(index, fragment):
                self._calls[index][2].append(fragment)
            case Finish():
                self.finish = event

    @property
    def message(self) -> Message:
        """The reply as a turn of the conversation."""
        parts: list[Part] = [Reasoning("".join(self._thoughts))] if self._thoughts else []
        if any(self._texts):
            parts.append(Text("".join(self._texts)))
        parts += [ToolCall(id, name, "".join(fragments)) for id, name, fragments in self._calls.values()]
        return Message("assistant", tuple(parts))


def read_ahead(served: Served, request: Request, heard: Heard) -> None:
    """Have the engine read what follows from the reply, if it has nothing else to do. Returns at once."""
    finish = heard.finish
    if not isinstance(request, ChatRequest) or request.n > 1 or request.continue_final or finish is None:
        return
    is_worth_it = finish.reason != "cancelled" and finish.usage.completion_tokens >= WORTH_READING
    stats = served.engine.stats()
    if is_worth_it and served.settings.read_ahead and not (stats.running or stats.queued):
        asyncio.get_running_loop().run_in_executor(None, _read_ahead, served, request, heard.message)


def _read_ahead(served: Served, request: ChatRequest, reply: Message) -> None:
    try:
        served.engine.read_ahead(served.model.next_turn(request, reply))
    except LmhubError as error:  # of a template that takes no such history
        log.debug("nothing is read ahead: %s", error)
    except Exception:
        log.exception("what the next turn begins with cannot be told")
