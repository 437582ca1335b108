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
        self._parts: list[tuple[type[Text] | type[Reasoning] | ToolCallStart, list[str]]] = []  # and what they say
        self._calls: dict[int, list[str]] = {}
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
                self._say(Text, text)
            case ReasoningDelta(text) if self._with_reasoning:
                self._say(Reasoning, text)
            case ToolCallStart():
                self._calls[event.index] = []
                self._parts.append((event, self._calls[event.index]))
            case ToolCallDelta(index, fragment):
                self._calls[index].append(fragment)
            case Finish():
                self.finish = event

    def _say(self, kind: type[Text] | type[Reasoning], text: str) -> None:
        if not self._parts or self._parts[-1][0] is not kind:
            self._parts.append((kind, []))
        self._parts[-1][1].append(text)

    @property
    def message(self) -> Message:
        """The reply as a turn of the conversation."""
        made: list[Part] = []
        for kind, pieces in self._parts:
            said = "".join(pieces)
            if isinstance(kind, ToolCallStart):
                made.append(ToolCall(kind.id, kind.name, said))
            elif said:
                made.append(kind(said))
        return Message("assistant", tuple(made))


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
