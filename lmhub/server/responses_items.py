"""The output items of a response, each a small machine: opened, fed, closed; each step gives the events that tell it.

An event here is a dictionary without its `sequence_number`. Knows the shapes of the wire, and nothing of streams.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from lmhub.server.logprobs import entries
from lmhub.server.tools_json import custom_input
from lmhub.types import TextDelta, TokenLogprob

Frame = dict[str, Any]
Status = Literal["in_progress", "completed", "incomplete"]


class OpenItem(Protocol):
    """What the machines have in common."""

    id: str
    status: Status

    def opening(self) -> list[Frame]:
        """The events that announce the item."""
        ...

    def closing(self, status: Status) -> list[Frame]:
        """The events that end it. `status` is what the end of the reply means for an item that it cut."""
        ...

    def item(self) -> dict[str, Any]:
        """The item as it stands."""
        ...


class MessageItem:
    """Visible text."""

    def __init__(self, id: str, index: int):
        self.id = id
        self.status: Status = "in_progress"
        self._place = {"item_id": id, "output_index": index, "content_index": 0}
        self._index = index
        self._text: list[str] = []
        self._logprobs: list[TokenLogprob] = []

    def opening(self) -> list[Frame]:
        """The item, empty, and its only part."""
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return [
            _added(self._index, {**self.item(), "content": []}),
            {"type": "response.content_part.added", **self._place, "part": part},
        ]

    def add(self, delta: TextDelta) -> list[Frame]:
        """More text, and the log probabilities of its tokens."""
        self._text.append(delta.text)
        self._logprobs += delta.logprobs
        logprobs = entries(delta.logprobs)
        return [{"type": "response.output_text.delta", **self._place, "delta": delta.text, "logprobs": logprobs}]

    def closing(self, status: Status) -> list[Frame]:
        """The text, the part, the item."""
        self.status = status
        part = self._part()
        return [
            {"type": "response.output_text.done", **self._place, "text": part["text"], "logprobs": part["logprobs"]},
            {"type": "response.content_part.done", **self._place, "part": part},
            _done(self._index, self.item()),
        ]

    def item(self) -> dict[str, Any]:
        """See OpenItem."""
        head = {"id": self.id, "type": "message", "status": self.status, "role": "assistant"}
        return {**head, "content": [self._part()]}

    def _part(self) -> dict[str, Any]:
        logprobs = entries(self._logprobs)
        return {"type": "output_text", "text": "".join(self._text), "annotations": [], "logprobs": logprobs}


class ReasoningItem:
    """Reasoning: raw, or as a summary where the client asked for one, but never both.

    Clients that show summaries by default would otherwise show the same text twice.
    """

    def __init__(self, id: str, index: int, *, summarise: bool, seal: Callable[[str], str] | None):
        """`seal` makes the `encrypted_content` of the finished item; None where the client did not ask for it."""
        self.id = id
        self.status: Status = "in_progress"
        self._index, self._summarise, self._seal = index, summarise, seal
        self._text: list[str] = []
        part_index = "summary_index" if summarise else "content_index"
        self._place = {"item_id": id, "output_index": index, part_index: 0}
        self._kind = "summary_text" if summarise else "reasoning_text"
        self._part_event = "response.reasoning_summary_part" if summarise else "response.content_part"
        self._text_event = "response.reasoning_summary_text" if summarise else "response.reasoning_text"

    @property
    def text(self) -> str:
        """What was thought so far."""
        return "".join(self._text)

    def opening(self) -> list[Frame]:
        """The item, empty, and its only part."""
        part = {"type": self._kind, "text": ""}
        return [
            _added(self._index, {**self.item(), "summary": [], "content": []}),
            {"type": f"{self._part_event}.added", **self._place, "part": part},
        ]

    def add(self, text: str) -> list[Frame]:
        """More of it."""
        self._text.append(text)
        return [{"type": f"{self._text_event}.delta", **self._place, "delta": text}]

    def closing(self, status: Status) -> list[Frame]:
        """The text, the part, the item."""
        self.status = status
        part = {"type": self._kind, "text": self.text}
        return [
            {"type": f"{self._text_event}.done", **self._place, "text": self.text},
            {"type": f"{self._part_event}.done", **self._place, "part": part},
            _done(self._index, self.item()),
        ]

    def item(self) -> dict[str, Any]:
        """See OpenItem."""
        parts = [{"type": self._kind, "text": self.text}]
        closed = self.status != "in_progress"
        return {
            "id": self.id,
            "type": "reasoning",
            "summary": parts if self._summarise else [],
            "content": [] if self._summarise else parts,
            "encrypted_content": self._seal(self.text) if self._seal and closed else None,
            "status": self.status,
        }


class FunctionCallItem:
    """A call of a function; `namespace` is that of the tool, where it has one."""

    def __init__(self, id: str, index: int, *, call_id: str, name: str, namespace: str | None):
        self.id = id
        self.status: Status = "in_progress"
        self._place = {"item_id": id, "output_index": index}
        self._index, self._call_id, self._name, self._namespace = index, call_id, name, namespace
        self._arguments: list[str] = []

    def opening(self) -> list[Frame]:
        """The item without arguments."""
        return [_added(self._index, self.item())]

    def add(self, fragment: str) -> list[Frame]:
        """More of the arguments."""
        self._arguments.append(fragment)
        return [{"type": "response.function_call_arguments.delta", **self._place, "delta": fragment}]

    def closing(self, status: Status) -> list[Frame]:
        """The arguments, the item. A call whose arguments are whole is complete, however the reply ended."""
        arguments = "".join(self._arguments)
        self.status = "completed" if _arguments(arguments) is not None else status
        event = "response.function_call_arguments.done"
        return [
            {"type": event, **self._place, "name": self._name, "arguments": arguments},
            _done(self._index, self.item()),
        ]

    def item(self) -> dict[str, Any]:
        """See OpenItem."""
        item = {
            "id": self.id,
            "type": "function_call",
            "status": self.status,
            "call_id": self._call_id,
            "name": self._name,
            "arguments": "".join(self._arguments),
        }
        return item if self._namespace is None else {**item, "namespace": self._namespace}


class CustomCallItem:
    """A call of a custom tool. The model calls a function of one string, `input`; the client gets the bare text.

    So nothing can be said before the arguments are whole.
    """

    def __init__(self, id: str, index: int, *, call_id: str, name: str, namespace: str | None):
        self.id = id
        self.status: Status = "in_progress"
        self._place = {"item_id": id, "output_index": index}
        self._index, self._call_id, self._name, self._namespace = index, call_id, name, namespace
        self._arguments: list[str] = []

    def opening(self) -> list[Frame]:
        """The item without input."""
        return [_added(self._index, {**self.item(), "input": ""})]

    def add(self, fragment: str) -> list[Frame]:
        """More of the arguments; nothing to tell yet."""
        self._arguments.append(fragment)
        return []

    def closing(self, status: Status) -> list[Frame]:
        """The input, the item."""
        self.status = "completed" if _arguments("".join(self._arguments)) is not None else status
        text = self._input()
        return [
            {"type": "response.custom_tool_call_input.delta", **self._place, "delta": text},
            {"type": "response.custom_tool_call_input.done", **self._place, "input": text},
            _done(self._index, self.item()),
        ]

    def item(self) -> dict[str, Any]:
        """See OpenItem."""
        item = {
            "id": self.id,
            "type": "custom_tool_call",
            "status": self.status,
            "call_id": self._call_id,
            "name": self._name,
            "input": self._input(),
        }
        return item if self._namespace is None else {**item, "namespace": self._namespace}

    def _input(self) -> str:
        return custom_input("".join(self._arguments))


def dump(items: Sequence[OpenItem]) -> list[dict[str, Any]]:
    """The `output` of a response."""
    return [item.item() for item in items]


def _arguments(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _added(index: int, item: dict[str, Any]) -> Frame:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def _done(index: int, item: dict[str, Any]) -> Frame:
    return {"type": "response.output_item.done", "output_index": index, "item": item}
