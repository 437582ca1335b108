"""From the events of a reply to its output items, in the order in which the model wrote them.

    text text call text reasoning  ->  message, call, message, reasoning

An item is over when the next one begins. Streamed and whole replies are made by this one machine, so they agree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from lmhub.dialect import ReplyHead
from lmhub.server.responses_items import (
    CustomCallItem,
    Frame,
    FunctionCallItem,
    MessageItem,
    OpenItem,
    ReasoningItem,
    dump,
)
from lmhub.server.responses_record import Asked
from lmhub.types import (
    ChatRequest,
    Event,
    FinishReason,
    PromptScored,
    ReasoningDelta,
    TextDelta,
    TokenIds,
    ToolCallDelta,
    ToolCallStart,
)


class Output:
    """The output of one response while it grows. Item ids follow from the response's."""

    def __init__(self, head: ReplyHead, seal: Callable[[str], str]):
        assert isinstance(head.request, ChatRequest) and isinstance(head.request.echo, Asked)
        self._id, self._asked, self._seal = head.id, head.request.echo, seal
        self._custom = {tool.name for tool in head.request.tools if tool.custom}
        self._items: list[OpenItem] = []
        self.token_ids: list[int] = []

    def feed(self, event: Event) -> list[Frame]:
        """What one event other than the last tells the client."""
        if isinstance(event, TokenIds):
            self.token_ids += event.tokens
            return []
        if isinstance(event, TextDelta):
            if not event.text and not event.logprobs:
                return []
            message, frames = self._message()
            return frames + message.add(event)
        if isinstance(event, ReasoningDelta):
            reasoning, frames = self._reasoning()
            return frames + reasoning.add(event.text)
        if isinstance(event, ToolCallStart):
            return self._begin(self._call(event))
        if isinstance(event, ToolCallDelta):
            call = self._items[-1]
            assert isinstance(call, FunctionCallItem | CustomCallItem), "the fragments of a call come in one piece"
            return call.add(event.fragment)
        assert isinstance(event, PromptScored)
        return []

    def finish(self, reason: FinishReason) -> list[Frame]:
        """The end of the last item, which the budget may have cut; an empty reply is an empty message."""
        frames = [] if self._items else self._begin(MessageItem(self._name("msg_"), 0))
        return frames + self._items[-1].closing("incomplete" if reason == "length" else "completed")

    def items(self) -> list[dict[str, Any]]:
        """The output so far."""
        return dump(self._items)

    def kept_items(self) -> list[dict[str, Any]]:
        """The output as a later request needs it: reasoning is always there, sealed."""
        sealed = {one.id: self._seal(one.text) for one in self._items if isinstance(one, ReasoningItem)}
        return [
            {**item, "encrypted_content": sealed[item["id"]]} if item["id"] in sealed else item for item in self.items()
        ]

    def _message(self) -> tuple[MessageItem, list[Frame]]:
        last = self._items[-1] if self._items else None
        if isinstance(last, MessageItem):
            return last, []
        item = MessageItem(self._name("msg_"), len(self._items))
        return item, self._begin(item)

    def _reasoning(self) -> tuple[ReasoningItem, list[Frame]]:
        last = self._items[-1] if self._items else None
        if isinstance(last, ReasoningItem):
            return last, []
        seal = self._seal if self._asked.encrypt else None
        name = self._name("rs_")
        item = ReasoningItem(name, len(self._items), summarise=self._asked.summarise, seal=seal)
        return item, self._begin(item)

    def _call(self, start: ToolCallStart) -> FunctionCallItem | CustomCallItem:
        namespace, name = self._asked.namespaces.get(start.name, (None, start.name))
        index = len(self._items)
        if start.name in self._custom:
            return CustomCallItem(self._name("ctc_"), index, call_id=start.id, name=name, namespace=namespace)
        return FunctionCallItem(self._name("fc_"), index, call_id=start.id, name=name, namespace=namespace)

    def _begin(self, item: OpenItem) -> list[Frame]:
        frames = self._items[-1].closing("completed") if self._items else []
        self._items.append(item)
        return frames + item.opening()

    def _name(self, prefix: str) -> str:
        digest = hashlib.sha256(f"{self._id} {len(self._items)}".encode()).hexdigest()
        return prefix + digest[:24]
