"""Recorded events to Chat Completions, streamed and whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from lmhub.dialect import ReplyHead
from lmhub.errors import GenerationError
from lmhub.server.openai_chat import chat_dialect
from lmhub.settings import ServerSettings
from lmhub.types import (
    ChatRequest,
    Event,
    Failure,
    Finish,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)

DIALECT = chat_dialect(ServerSettings())
USAGE = Usage(prompt_tokens=19, completion_tokens=5, cached_tokens=12, reasoning_tokens=2)
CALLS: list[Event] = [
    TextDelta("Checking."),
    ToolCallStart(0, "call_a", "weather"),
    ToolCallDelta(0, '{"city":'),
    ToolCallDelta(0, '"Paris"}'),
    ToolCallStart(1, "call_b", "time"),
    ToolCallDelta(1, "{}"),
    Finish("tool_calls", USAGE),
]
TEXT: list[Event] = [ReasoningDelta("hm"), TextDelta("Hel"), TextDelta("lo"), Finish("stop", USAGE)]


def head(include_usage: bool = False) -> ReplyHead:
    """What every frame repeats."""
    return ReplyHead("chatcmpl-1", "m", 1760000000, "fp_1", ChatRequest((), include_usage=include_usage))


def stream(events: Sequence[Event], include_usage: bool = False) -> tuple[list[Any], bool]:
    """The JSON of every frame, and whether `[DONE]` was the last one."""
    encoder = DIALECT.encoder(head(include_usage))
    frames = b"".join(encoder.event(event) for event in events).decode().split("\n\n")
    assert frames.pop() == ""
    data = [frame.removeprefix("data: ") for frame in frames]
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
    return [json.loads(one) for one in data if one != "[DONE]"], data[-1] == "[DONE]"


def deltas(events: Sequence[Event]) -> list[Any]:
    """The deltas of a stream without its usage."""
    return [chunk["choices"][0]["delta"] for chunk in stream(events)[0]]


def whole(events: Sequence[Event]) -> Any:
    """The body of a reply that is not streamed."""
    return json.loads(DIALECT.collect(head(), [events]))


def test_a_stream_opens_once_and_closes_with_done() -> None:
    chunks, done = stream(TEXT)
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "hm"},
        {"content": "Hel"},
        {"content": "lo"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, None, "stop"]
    assert {(c["id"], c["created"], c["model"], c["object"], c["system_fingerprint"]) for c in chunks} == {
        ("chatcmpl-1", 1760000000, "m", "chat.completion.chunk", "fp_1")
    }
    assert done


def test_usage_comes_last_and_only_when_asked_for() -> None:
    assert not any("usage" in chunk for chunk in stream(TEXT)[0])
    chunks, done = stream(TEXT, include_usage=True)
    assert [("usage" in chunk, chunk["choices"] == []) for chunk in chunks] == [(False, False)] * 5 + [(True, True)]
    assert chunks[-1]["usage"] == whole(TEXT)["usage"]
    assert done


def test_call_ids_and_names_are_said_once() -> None:
    first = {"id": "call_a", "type": "function", "function": {"name": "weather", "arguments": ""}}
    second = {"id": "call_b", "type": "function", "function": {"name": "time", "arguments": ""}}
    assert deltas(CALLS)[2:] == [
        {"tool_calls": [{"index": 0} | first]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"Paris"}'}}]},
        {"tool_calls": [{"index": 1} | second]},
        {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]},
        {},
    ]


def test_a_reply_of_calls_only_has_no_content() -> None:
    assert deltas(CALLS[1:])[0] == {"role": "assistant", "content": None}
    assert whole(CALLS[1:])["choices"][0]["message"]["content"] is None


def test_the_whole_reply() -> None:
    body = whole(TEXT)
    assert body["object"] == "chat.completion" and body["model"] == "m" and body["id"] == "chatcmpl-1"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "Hello",
                "refusal": None,
                "annotations": [],
                "reasoning_content": "hm",
            },
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": 19,
        "completion_tokens": 5,
        "total_tokens": 24,
        "prompt_tokens_details": {"cached_tokens": 12},
        "completion_tokens_details": {
            "reasoning_tokens": 2,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def test_the_whole_reply_with_calls() -> None:
    choice = whole(CALLS)["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Checking."
    assert [(call["id"], call["type"], call["function"]) for call in choice["message"]["tool_calls"]] == [
        ("call_a", "function", {"name": "weather", "arguments": '{"city":"Paris"}'}),
        ("call_b", "function", {"name": "time", "arguments": "{}"}),
    ]


def test_an_empty_reply_has_empty_content_and_no_key_for_what_is_not_there() -> None:
    message = whole([Finish("stop", USAGE)])["choices"][0]["message"]
    assert message["content"] == ""
    assert not {"tool_calls", "reasoning_content"} & message.keys()
    assert deltas([Finish("stop", USAGE)]) == [{"role": "assistant", "content": ""}, {}]


@pytest.mark.parametrize(
    ("reason", "told"),
    [("stop", "stop"), ("stop_sequence", "stop"), ("length", "length"), ("tool_calls", "tool_calls")],
)
def test_finish_reasons(reason: FinishReason, told: str) -> None:
    events = [TextDelta("x"), Finish(reason, USAGE)]
    assert whole(events)["choices"][0]["finish_reason"] == told
    assert stream(events)[0][-1]["choices"][0]["finish_reason"] == told


def test_an_error_in_the_stream_is_the_last_frame() -> None:
    chunks, done = stream([TextDelta("Hel"), Failure(GenerationError("the kernel gave up"))])
    assert chunks[-1] == {
        "error": {"message": "the kernel gave up", "type": "server_error", "param": None, "code": None}
    }
    assert not done


def test_an_unforeseen_error_does_not_show_its_text() -> None:
    chunks, _ = stream([Failure(ValueError("/secret/path"))])
    assert "secret" not in chunks[0]["error"]["message"]


def test_text_that_looks_like_framing_survives() -> None:
    text = 'data: [DONE]\n\ndata: {"x"}\r\n\u2028\0"'
    assert deltas([TextDelta(text), Finish("stop", USAGE)])[1] == {"content": text}


def test_a_ping_is_a_comment() -> None:
    assert DIALECT.encoder(head()).ping() == b": ping\n\n"
