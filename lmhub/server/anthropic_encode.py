"""Events to Messages replies: the frames of a stream, or one body. Pure; knows no sockets, no requests in flight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from lmhub.dialect import ReplyHead
from lmhub.server.anthropic_errors import anthropic_error_object
from lmhub.server.anthropic_parse import Echo
from lmhub.server.anthropic_thinking import sealed, signature
from lmhub.server.extension import extension
from lmhub.server.openai_chat_encode import as_lmhub_error
from lmhub.server.wire import to_json
from lmhub.types import (
    Event,
    Failure,
    Finish,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)

_STOP_REASONS = {"stop_sequence": "stop_sequence", "length": "max_tokens", "tool_calls": "tool_use"}


class MessagesEncoder:
    """One streamed reply. Blocks are numbered as they open, and one is closed before the next one opens."""

    def __init__(self, head: ReplyHead):
        self._head = head
        self._started = False
        self._n_blocks = 0
        self._open: str | None = None  # the type of the block that is open
        self._thinking = ""  # text of the open thinking block, which its signature is about

    def event(self, event: Event, choice: int = 0) -> bytes:
        """The frames of one event. After a Failure the stream ends without `message_stop`."""
        if isinstance(event, Failure):
            return _frame(anthropic_error_object(as_lmhub_error(event.error)))
        return self._start() + b"".join(_frame(frame) for frame in self._frames(event))

    def ping(self) -> bytes:
        """A ping, which must not come before `message_start`."""
        return self._start() + _frame({"type": "ping"})

    def _start(self) -> bytes:
        """`message_start`, once. How much of the prompt was cached is only known at the end, and corrected there."""
        if self._started:
            return b""
        self._started = True
        counts = Usage(prompt_tokens=sum(map(len, self._head.prompts)), completion_tokens=0)
        message = _message(self._head, [], None, None, counts)
        return _frame({"type": "message_start", "message": message})

    def _frames(self, event: Event) -> Iterator[dict[str, Any]]:
        if isinstance(event, ReasoningDelta):
            yield from self._switch("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            self._thinking += event.text
            if not _omits_thinking(self._head):
                yield self._delta({"type": "thinking_delta", "thinking": event.text})
        elif isinstance(event, TextDelta):
            yield from self._switch("text", {"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": event.text})
        elif isinstance(event, ToolCallStart):
            yield from self._close()
            yield from self._switch("tool_use", {**_tool_use(event), "input": {}})
        elif isinstance(event, ToolCallDelta):
            yield self._delta({"type": "input_json_delta", "partial_json": event.fragment})
        elif isinstance(event, Finish):
            yield from self._end(event)

    def _end(self, finish: Finish) -> Iterator[dict[str, Any]]:
        if not self._n_blocks:  # SDKs ask for the text of a reply that has none
            yield from self._switch("text", {"type": "text", "text": ""})
        yield from self._close()
        reason = _STOP_REASONS.get(finish.reason, "end_turn")
        yield {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": finish.stop_sequence},
            "usage": _usage(finish.usage),
            **extension([finish]),
        }
        yield {"type": "message_stop"}

    def _switch(self, kind: str, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if self._open == kind:
            return
        yield from self._close()
        yield {"type": "content_block_start", "index": self._n_blocks, "content_block": block}
        self._open = kind
        self._n_blocks += 1

    def _close(self) -> Iterator[dict[str, Any]]:
        if self._open is None:
            return
        if self._open == "thinking":
            yield self._delta({"type": "signature_delta", "signature": _signature(self._head, self._thinking)})
            self._thinking = ""
        yield {"type": "content_block_stop", "index": self._n_blocks - 1}
        self._open = None

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._n_blocks - 1, "delta": delta}


def collect(head: ReplyHead, replies: Sequence[Sequence[Event]]) -> bytes:
    """The body of a reply that is not streamed. There is one choice, and its last event is a Finish."""
    (events,) = replies
    finish = events[-1]
    assert isinstance(finish, Finish)
    blocks = _blocks(head, events)
    reason = _STOP_REASONS.get(finish.reason, "end_turn")
    message = _message(head, blocks or [_text("")], reason, finish.stop_sequence, finish.usage)
    return to_json({**message, **extension([finish])})


def count(n_tokens: int) -> bytes:
    """The answer of `count_tokens`."""
    return to_json({"input_tokens": n_tokens})


def _message(
    head: ReplyHead, blocks: list[dict[str, Any]], reason: str | None, stop: str | None, counts: Usage
) -> dict[str, Any]:
    return {
        "id": head.id,
        "type": "message",
        "role": "assistant",
        "model": head.model,
        "content": blocks,
        "stop_reason": reason,
        "stop_sequence": stop,
        "stop_details": None,
        "usage": {**_usage(counts), "service_tier": "standard"},
    }


def _usage(counts: Usage) -> dict[str, Any]:
    """Token counts. The prompt's are split: what was read from the cache is not part of `input_tokens`."""
    return {
        "input_tokens": counts.prompt_tokens - counts.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counts.cached_tokens,
        "output_tokens": counts.completion_tokens,
        "output_tokens_details": {"thinking_tokens": counts.reasoning_tokens},
    }


def _blocks(head: ReplyHead, events: Iterable[Event]) -> list[dict[str, Any]]:
    """The content of a whole reply in the order in which it was written; neighbours of one kind are one block."""
    blocks: list[dict[str, Any]] = []
    for event in events:
        last: dict[str, Any] = blocks[-1] if blocks else {"type": None}
        if isinstance(event, TextDelta):
            if last["type"] != "text":
                blocks.append(last := _text(""))
            last["text"] += event.text
        elif isinstance(event, ReasoningDelta):
            if last["type"] != "thinking":
                blocks.append(last := {"type": "thinking", "thinking": "", "signature": ""})
            last["thinking"] += event.text
        elif isinstance(event, ToolCallStart):
            blocks.append({**_tool_use(event), "input": ""})
        elif isinstance(event, ToolCallDelta):
            last["input"] += event.fragment
    for block in blocks:
        if block["type"] == "thinking":
            block["signature"] = _signature(head, block["thinking"])
            block["thinking"] = "" if _omits_thinking(head) else block["thinking"]
        elif block["type"] == "tool_use":
            block["input"] = _input(block["input"])
    return blocks


def _input(arguments: str) -> Any:
    """The arguments of a call as the model wrote them, numbers and order included."""
    if not arguments.strip():
        return {}
    if _is_object(arguments):
        return msgspec.Raw(arguments.encode())
    return {"arguments": arguments}


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(arguments), dict)
    except (msgspec.DecodeError, RecursionError):
        return False


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}  # no `citations: null`, which the AI SDK refuses


def _tool_use(start: ToolCallStart) -> dict[str, Any]:
    return {"type": "tool_use", "id": "toolu_" + start.id.removeprefix("call_"), "name": start.name}


def _signature(head: ReplyHead, thinking: str) -> str:
    return (sealed if _omits_thinking(head) else signature)(thinking, head.fingerprint)


def _omits_thinking(head: ReplyHead) -> bool:
    return isinstance(head.request.echo, Echo) and head.request.echo.omit_thinking


def _frame(frame: dict[str, Any]) -> bytes:
    """One event; SDKs skip those without an `event:` line."""
    kind: str = frame["type"]
    return b"event: " + kind.encode() + b"\ndata: " + to_json(frame) + b"\n\n"
