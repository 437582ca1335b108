"""Events to Chat Completions: chunks of a stream, or one body. Pure; knows neither sockets nor requests in flight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmhub.dialect import ReplyHead
from lmhub.errors import GenerationError, LmhubError
from lmhub.server.wire import SSE_DONE, SSE_PING, openai_error_object, sse, to_json
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

FINISH_REASONS = {
    "stop": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "cancelled": "stop",
}


class ChatEncoder:
    """One streamed reply. SDKs concatenate the deltas, so role, call ids and names are said exactly once."""

    def __init__(self, head: ReplyHead):
        self._head = head
        self._opened = False

    def event(self, event: Event) -> bytes:
        """The frames of one event. After a Failure the stream ends without `[DONE]`: SDKs raise on the error itself."""
        if isinstance(event, Failure):
            return sse(openai_error_object(as_lmhub_error(event.error)))
        opening = b""
        if not self._opened:
            self._opened = True
            content = None if isinstance(event, ToolCallStart) else ""
            opening = self._chunk({"role": "assistant", "content": content})
        if isinstance(event, Finish):
            return opening + self._closing(event)
        return opening + self._chunk(_delta(event))

    def ping(self) -> bytes:
        """A comment; allowed anywhere between events, before the first one as well."""
        return SSE_PING

    def _closing(self, finish: Finish) -> bytes:
        frames = self._chunk({}, FINISH_REASONS[finish.reason])
        if self._head.request.include_usage:
            frames += sse({**_common(self._head, "chat.completion.chunk"), "choices": [], "usage": usage(finish.usage)})
        return frames + SSE_DONE

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return sse({**_common(self._head, "chat.completion.chunk"), "choices": [choice]})


def collect(head: ReplyHead, events: Sequence[Event]) -> bytes:
    """The body of a reply that is not streamed. The last event is a Finish."""
    finish = events[-1]
    assert isinstance(finish, Finish)
    choice = {
        "index": 0,
        "message": _message(events),
        "logprobs": None,
        "finish_reason": FINISH_REASONS[finish.reason],
    }
    common = _common(head, "chat.completion")
    return to_json({**common, "service_tier": "default", "choices": [choice], "usage": usage(finish.usage)})


def usage(counts: Usage) -> dict[str, Any]:
    """Token counts as OpenAI's chat and completions report them; the prompt's include the cached ones."""
    return {
        "prompt_tokens": counts.prompt_tokens,
        "completion_tokens": counts.completion_tokens,
        "total_tokens": counts.prompt_tokens + counts.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": counts.cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": counts.reasoning_tokens,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def as_lmhub_error(error: Exception) -> LmhubError:
    """`error` itself if it is fit to be shown, else a sentence that says as much as a client may know."""
    if isinstance(error, LmhubError):
        return error
    return GenerationError("the generation failed; the server's log says why")


def _common(head: ReplyHead, kind: str) -> dict[str, Any]:
    return {
        "id": head.id,
        "object": kind,
        "created": head.created,
        "model": head.model,
        "system_fingerprint": head.fingerprint,
    }


def _delta(event: Event) -> dict[str, Any]:
    if isinstance(event, TextDelta):
        return {"content": event.text}
    if isinstance(event, ReasoningDelta):
        return {"reasoning_content": event.text}
    if isinstance(event, ToolCallStart):
        function = {"name": event.name, "arguments": ""}
        return {"tool_calls": [{"index": event.index, "id": event.id, "type": "function", "function": function}]}
    assert isinstance(event, ToolCallDelta)
    return {"tool_calls": [{"index": event.index, "function": {"arguments": event.fragment}}]}


def _message(events: Sequence[Event]) -> dict[str, Any]:
    """The assistant's message. Keys of what there is none of are left out: an empty array of calls stalls clients."""
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    reasoning = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    calls = [_call(event, events) for event in events if isinstance(event, ToolCallStart)]
    message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else "")}
    message |= {"refusal": None, "annotations": []}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _call(start: ToolCallStart, events: Sequence[Event]) -> dict[str, Any]:
    arguments = "".join(e.fragment for e in events if isinstance(e, ToolCallDelta) and e.index == start.index)
    return {"id": start.id, "type": "function", "function": {"name": start.name, "arguments": arguments}}
