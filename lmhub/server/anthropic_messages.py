"""The conversation of a Messages request: results before text, neighbours as one turn, system text folded in place.

Clients put system text between the turns, on nearly every request. It stays where it stands, so that the prompt before
it does not change from turn to turn; but it never comes between a call and its results, and after results it joins the
last of them: a user turn of its own would make templates forget the reasoning of a tool loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

import msgspec

from lmhub.errors import RequestError
from lmhub.server.anthropic_blocks import parts_of, plain_text
from lmhub.types import Message, Part, Text, ToolCall, ToolResult

_BILLING = "x-anthropic-billing-header:"  # its content changes with every request
_OPEN, _CLOSE = "<system-reminder>", "</system-reminder>"


class InMessage(msgspec.Struct):
    """One message; `content` is a string or blocks."""

    role: str
    content: str | list[dict[str, Any]] | None = None


def system_message(given: str | Sequence[dict[str, Any]] | None) -> tuple[Message, ...]:
    """The system message, if there is any text: blocks with a blank line between them, billing lines left out."""
    texts = [given or ""] if isinstance(given, str | None) else plain_text(given, "system")
    text = "\n\n".join(one for one in texts if one and not one.startswith(_BILLING))
    return (Message("system", (Text(text),)),) if text else ()


def conversation(given: Sequence[InMessage]) -> tuple[tuple[Message, ...], bool]:
    """The turns, and whether the reply continues the last one. Raises RequestError that names the place."""
    if not given:
        _refuse("messages", "is empty; at least one message is required")
    if given[0].role == "system":
        _refuse("messages[0].role", "is system; send the text as `system`, beside the messages")
    if given[0].role == "assistant":
        _refuse("messages[0].role", "is assistant; the first message must be the user's")
    turns = _Turns()
    prefill = False
    for place, message in enumerate(given):
        path = f"messages[{place}]"
        if message.content is None:
            _refuse(f"{path}.content", "is missing")
        blocks = [{"type": "text", "text": message.content}] if isinstance(message.content, str) else message.content
        if message.role == "system":
            turns.reminder("\n\n".join(plain_text(blocks, f"{path}.content")))
            prefill = False
        elif message.role == "user":
            turns.user(parts_of(blocks, "user", f"{path}.content"))
            prefill = False
        elif message.role == "assistant":
            prefill = turns.assistant(parts_of(blocks, "assistant", f"{path}.content")) or prefill
        else:
            _refuse(f"{path}.role", f"is an unknown role {message.role[:100]!r}; known: user, assistant, system")
    turns.flush()
    if prefill:
        _check_prefill(turns.all[-1], f"messages[{len(given) - 1}]")
    return tuple(turns.all), prefill


class _Turns:
    """Turns in the making. `_held` is system text that waits for the results which may still come."""

    def __init__(self) -> None:
        self.all: list[Message] = []
        self._held: list[str] = []

    def user(self, parts: Sequence[Part]) -> None:
        """A user's message: its results first, then its text."""
        results = [part for part in parts if isinstance(part, ToolResult)]
        texts = [part.text for part in parts if isinstance(part, Text)]
        if results:
            self._results(results)
            if all(_is_reminder(text) or not text.strip() for text in texts):
                self._held += [text.strip() for text in texts if text.strip()]
                return
        self.flush()
        self._text("".join(texts))

    def reminder(self, text: str) -> None:
        """System text between the turns."""
        if not text.strip():
            return
        wrapped = text if _is_reminder(text) else f"{_OPEN}\n{text}\n{_CLOSE}"
        if self._last == "tool" or (self._last == "assistant" and _calls(self.all[-1])):
            self._held.append(wrapped)
        else:
            self._text(wrapped)

    def assistant(self, parts: Sequence[Part]) -> bool:
        """A reply, or more of one; an empty one counts for nothing. Returns whether it counted."""
        if not any(not isinstance(part, Text) or part.text for part in parts):
            return False
        self.flush()
        if self._last == "assistant":
            first = next((part for part in parts if isinstance(part, Text)), None)
            if first is not None and self.all[-1].text:
                parts = [Text(f"\n\n{first.text}") if part is first else part for part in parts]
            self.all[-1] = replace(self.all[-1], parts=(*self.all[-1].parts, *parts))
        else:
            self.all.append(Message("assistant", tuple(parts)))
        return True

    def flush(self) -> None:
        """No further results come: put the waiting text behind the last result, or into a user turn."""
        text = "\n\n".join(self._held)
        self._held.clear()
        if not text:
            return
        if self._last == "tool":
            *before, last = self.all[-1].parts
            assert isinstance(last, ToolResult)
            joined = replace(last, content=f"{last.content}\n\n{text}" if last.content else text)
            self.all[-1] = replace(self.all[-1], parts=(*before, joined))
        else:
            self._text(text)

    @property
    def _last(self) -> str:
        return self.all[-1].role if self.all else ""

    def _results(self, results: Sequence[ToolResult]) -> None:
        if self._last == "tool":
            self.all[-1] = replace(self.all[-1], parts=(*self.all[-1].parts, *results))
        else:
            self.all.append(Message("tool", tuple(results)))

    def _text(self, text: str) -> None:
        if self._last == "user":
            joined = "\n\n".join(one for one in (self.all[-1].text, text) if one)
            self.all[-1] = Message("user", (Text(joined),))
        else:
            self.all.append(Message("user", (Text(text),)))


def _check_prefill(last: Message, path: str) -> None:
    if _calls(last):
        _refuse(path, "ends with a tool_use; the message that follows must bring its tool_result")
    if not last.text:
        _refuse(path, "is the assistant's and the last one, and it has no text that the reply could continue")


def _calls(message: Message) -> bool:
    return any(isinstance(part, ToolCall) for part in message.parts)


def _is_reminder(text: str) -> bool:
    stripped = text.strip()
    return stripped.startswith(_OPEN) and stripped.endswith(_CLOSE)


def _refuse(path: str, problem: str) -> NoReturn:
    raise RequestError(f"{path} {problem}", "messages")
