"""The deltas of one chat choice, event by event; whole replies are put together from the same ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from lmhub.server.openai_chat_parse import ChatEcho
from lmhub.server.tools_json import custom_input
from lmhub.types import Event, Finish, PromptScored, ReasoningDelta, TextDelta, TokenIds, ToolCallDelta, ToolCallStart

Delta = dict[str, Any]

THINK, END_THINK = "<think>\n", "\n</think>\n\n"  # around reasoning that was asked for inside the content


class Deltas:
    """Remembers what a choice has said. The first delta holds the role, and no other does."""

    def __init__(self, echo: ChatEcho, both: bool):
        self._echo, self._both = echo, both
        self._opened = False
        self._thinking = False  # inside reasoning that goes into the content
        self._custom: dict[int, str] = {}  # JSON of the custom calls that are being written

    def of(self, event: Event) -> Iterator[Delta]:
        """What `event` adds; a Finish only what was held back."""
        if isinstance(event, TokenIds | PromptScored):
            return
        if not self._opened:
            self._opened = True
            yield {"role": "assistant", "content": None if isinstance(event, ToolCallStart) else ""}
        if isinstance(event, ReasoningDelta):
            yield from self._reasoning(event.text)
            return
        if self._thinking:
            self._thinking = False
            yield {"content": END_THINK}
        if isinstance(event, TextDelta):
            yield {"content": event.text}
        elif isinstance(event, ToolCallStart):
            yield self._start(event)
        elif isinstance(event, ToolCallDelta):
            yield from self._fragment(event)
        elif isinstance(event, Finish):
            for index, arguments in self._custom.items():
                yield _custom_input(index, custom_input(arguments))
            self._custom.clear()

    def _reasoning(self, text: str) -> Iterator[Delta]:
        if self._echo.reasoning == "none":
            return
        if self._echo.reasoning == "inline":
            yield {"content": text if self._thinking else THINK + text}
            self._thinking = True
        elif self._both:
            yield {"reasoning_content": text, "reasoning": text}
        else:
            yield {"reasoning_content": text}

    def _start(self, start: ToolCallStart) -> Delta:
        head = {"index": start.index, "id": start.id}
        if start.name in self._echo.custom_tools:
            self._custom[start.index] = ""
            return {"tool_calls": [{**head, "type": "custom", "custom": {"name": start.name, "input": ""}}]}
        return {"tool_calls": [{**head, "type": "function", "function": {"name": start.name, "arguments": ""}}]}

    def _fragment(self, delta: ToolCallDelta) -> Iterator[Delta]:
        """A custom call's input is told once the JSON around it is complete."""
        if delta.index not in self._custom:
            yield {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.fragment}}]}
            return
        self._custom[delta.index] += delta.fragment
        try:
            json.loads(self._custom[delta.index])
        except ValueError:
            return
        yield _custom_input(delta.index, custom_input(self._custom.pop(delta.index)))


def _custom_input(index: int, text: str) -> Delta:
    return {"tool_calls": [{"index": index, "custom": {"input": text}}]}
