"""Recorded events in, Messages frames and bodies out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import anthropic
import httpx2 as httpx  # the SDK brings it
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmhub.dialect import ReplyHead
from lmhub.errors import (
    AuthenticationError,
    LmhubError,
    PromptTooLong,
    QueueFull,
    RequestError,
    ShuttingDown,
    UnknownModel,
)
from lmhub.server import http_errors
from lmhub.server.anthropic import messages_dialect
from lmhub.server.anthropic_parse import Echo
from lmhub.server.anthropic_thinking import unsealed
from lmhub.server.request_id import REQUEST_ID
from lmhub.settings import ServerSettings
from lmhub.types import (
    ChatRequest,
    Event,
    Failure,
    Finish,
    FinishReason,
    Message,
    ReasoningDelta,
    Text,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)

DIALECT = messages_dialect(ServerSettings())
USAGE = Usage(prompt_tokens=19, completion_tokens=5, cached_tokens=12, reasoning_tokens=2)
PARIS = (ToolCallStart(0, "call_0a", "weather"), ToolCallDelta(0, '{"city": "Paris", "n": 1.0}'))
NICE = (ToolCallStart(1, "call_0b", "weather"), ToolCallDelta(1, '{"city":'), ToolCallDelta(1, ' "Nice"}'))
THINKING = (ReasoningDelta("h"), ReasoningDelta("m"))
# name -> events before the finish, finish, types of the blocks
REPLIES: dict[str, tuple[Sequence[Event], Finish, list[str]]] = {
    "text": ((TextDelta("Hel"), TextDelta("lo")), Finish("stop", USAGE), ["text"]),
    "empty": ((), Finish("stop", USAGE), ["text"]),
    "budget": ((TextDelta("Hel"),), Finish("length", USAGE), ["text"]),
    "sequence": ((TextDelta("Hel"),), Finish("stop_sequence", USAGE, "END"), ["text"]),
    "reasoning": ((*THINKING, TextDelta("so")), Finish("stop", USAGE), ["thinking", "text"]),
    "reasoning only": (THINKING, Finish("length", USAGE), ["thinking"]),
    "call": (PARIS, Finish("tool_calls", USAGE), ["tool_use"]),
    "calls": ((*PARIS, *NICE), Finish("tool_calls", USAGE), ["tool_use", "tool_use"]),
    "no arguments": ((ToolCallStart(0, "call_0a", "now"),), Finish("tool_calls", USAGE), ["tool_use"]),
    "interleaved": (
        (*THINKING, TextDelta("a"), *PARIS, TextDelta("b"), *NICE),
        Finish("tool_calls", USAGE),
        ["thinking", "text", "tool_use", "text", "tool_use"],
    ),
    "call and text": ((*PARIS, TextDelta("x")), Finish("tool_calls", USAGE), ["tool_use", "text"]),
}
STOP_REASONS = {"text": "end_turn", "empty": "end_turn", "reasoning": "end_turn", "sequence": "stop_sequence"} | {
    "budget": "max_tokens",
    "reasoning only": "max_tokens",
}


def head(echo: Any = None, stream: bool = True) -> ReplyHead:
    """The head of a reply to a prompt of 19 tokens."""
    request = ChatRequest(messages=(Message("user", (Text("hi"),)),), stream=stream, echo=echo)
    return ReplyHead("msg_1", "m", 1760000000, "fp_1", request, prompts=(tuple(range(19)),))


def frames(events: Sequence[Event], echo: Any = None) -> list[dict[str, Any]]:
    """The data of each frame; every frame must have an event line that agrees with it."""
    encoder = DIALECT.encoder(head(echo))
    return parsed(b"".join(encoder.event(event) for event in events))


def parsed(stream: bytes) -> list[dict[str, Any]]:
    """The data of each frame of a stream."""
    found = []
    assert stream.endswith(b"\n\n")
    for frame in stream.decode().removesuffix("\n\n").split("\n\n"):
        event, data = frame.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert event == "event: " + found[-1]["type"]
    return found


def body(events: Sequence[Event], echo: Any = None) -> dict[str, Any]:
    """The body of a whole reply."""
    found: dict[str, Any] = json.loads(DIALECT.collect(head(echo, stream=False), [events]))
    return found


def accumulated(events: Sequence[Event]) -> anthropic.types.Message:
    """What the official SDK makes of the stream."""
    encoder = DIALECT.encoder(head())
    stream = b"".join(encoder.event(event) for event in events)

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=stream)

    with (
        httpx.Client(transport=httpx.MockTransport(answer)) as transport,
        anthropic.Anthropic(api_key="k", base_url="http://localhost", http_client=transport, max_retries=0) as client,
        client.messages.stream(model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}]) as received,
    ):
        return received.get_final_message()


@pytest.mark.parametrize("name", REPLIES)
def test_streams_keep_the_contract(name: str) -> None:
    events, finish, kinds = REPLIES[name]
    got = frames([*events, finish])
    assert [frame["type"] for frame in got[-2:]] == ["message_delta", "message_stop"]
    start = got[0]["message"]
    assert got[0]["type"] == "message_start" and start["content"] == [] and start["stop_reason"] is None
    assert start["usage"]["input_tokens"] == 19 and start["usage"]["output_tokens"] == 0
    open_block: int | None = None
    starts: list[str] = []
    for frame in got[1:-2]:
        if frame["type"] == "content_block_start":
            assert open_block is None and frame["index"] == len(starts)
            starts.append(frame["content_block"]["type"])
            open_block = frame["index"]
        else:
            assert frame["index"] == open_block
            open_block = None if frame["type"] == "content_block_stop" else open_block
    assert open_block is None and starts == kinds
    assert got[-2]["delta"] == {
        "stop_reason": STOP_REASONS.get(name, "tool_use"),
        "stop_sequence": "END" if name == "sequence" else None,
    }
    assert got[-2]["usage"]["output_tokens"] == 5
    assert got[-2]["usage"]["input_tokens"] + got[-2]["usage"]["cache_read_input_tokens"] == 19


@pytest.mark.parametrize("name", REPLIES)
def test_bodies_hold_what_the_streams_hold(name: str) -> None:
    events, finish, kinds = REPLIES[name]
    whole = body([*events, finish])
    assert [block["type"] for block in whole["content"]] == kinds
    assert whole["stop_reason"] == STOP_REASONS.get(name, "tool_use")
    assert set(whole) == {
        "id",
        "type",
        "role",
        "model",
        "content",
        "stop_reason",
        "stop_sequence",
        "stop_details",
        "usage",
    }
    assert whole["usage"] == {
        "input_tokens": 7,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 12,
        "output_tokens": 5,
        "output_tokens_details": {"thinking_tokens": 2},
        "service_tier": "standard",
    }
    streamed = accumulated([*events, finish])
    assert streamed.stop_reason == whole["stop_reason"] and streamed.stop_sequence == whole["stop_sequence"]
    assert streamed.usage.input_tokens == 7 and streamed.usage.cache_read_input_tokens == 12
    assert [block.to_dict(exclude_none=True) for block in streamed.content] == [
        {key: value for key, value in block.items() if value is not None} for block in whole["content"]
    ]


def test_calls_have_objects_as_the_model_wrote_them() -> None:
    events, finish, _ = REPLIES["calls"]
    raw = DIALECT.collect(head(stream=False), [[*events, finish]])
    assert b'"input":{"city": "Paris", "n": 1.0}' in raw  # neither numbers nor order pass through a parser
    first, second = json.loads(raw)["content"]
    assert first == {"type": "tool_use", "id": "toolu_0a", "name": "weather", "input": {"city": "Paris", "n": 1.0}}
    assert second["id"] == "toolu_0b" and second["input"] == {"city": "Nice"}
    assert body([*REPLIES["no arguments"][0], finish])["content"][0]["input"] == {}
    odd = (ToolCallStart(0, "call_0a", "f"), ToolCallDelta(0, "not json"))
    assert body([*odd, finish])["content"][0]["input"] == {"arguments": "not json"}


def test_a_call_that_the_budget_cut_is_not_reported_as_one() -> None:
    cut = (ToolCallStart(0, "call_0a", "f"), ToolCallDelta(0, '{"city": "Pa'))
    assert frames([*cut, Finish("length", USAGE)])[-2]["delta"]["stop_reason"] == "max_tokens"
    assert accumulated([*cut, Finish("length", USAGE)]).stop_reason == "max_tokens"


def test_thinking_ends_with_its_signature() -> None:
    events, finish, _ = REPLIES["reasoning"]
    got = frames([*events, finish])
    deltas = [frame["delta"]["type"] for frame in got if frame["type"] == "content_block_delta" and not frame["index"]]
    assert deltas == ["thinking_delta", "thinking_delta", "signature_delta"]
    assert got[4]["delta"]["signature"] == body([*events, finish])["content"][0]["signature"] != ""
    assert got[5] == {"type": "content_block_stop", "index": 0}


def test_thinking_that_is_not_to_be_shown_is_in_the_signature() -> None:
    events, finish, _ = REPLIES["reasoning"]
    echo = Echo(omit_thinking=True)
    got = frames([*events, finish], echo)
    assert not any(frame.get("delta", {}).get("type") == "thinking_delta" for frame in got)
    assert unsealed(got[2]["delta"]["signature"]) == "hm"
    thought = body([*events, finish], echo)["content"][0]
    assert thought["thinking"] == "" and unsealed(thought["signature"]) == "hm"


def test_pings_come_after_the_start() -> None:
    encoder = DIALECT.encoder(head())
    stream = encoder.ping() + encoder.ping() + encoder.event(TextDelta("a")) + encoder.ping()
    kinds = [frame["type"] for frame in parsed(stream)]
    assert kinds[:4] == ["message_start", "ping", "ping", "content_block_start"]
    assert kinds.count("message_start") == 1 and kinds[-1] == "ping"


def test_a_failure_ends_the_stream_in_the_envelope() -> None:
    got = frames([TextDelta("a"), Failure(ShuttingDown("the server is shutting down"))])
    assert got[-1]["type"] == "error" and got[-1]["error"]["type"] == "overloaded_error"
    assert got[-1]["request_id"] == REQUEST_ID.get()
    assert "secret" not in str(frames([Failure(ValueError("secret"))]))
    with pytest.raises(anthropic.APIStatusError, match="shutting down") as caught:
        accumulated([TextDelta("a"), Failure(ShuttingDown("the server is shutting down"))])
    assert caught.value.status_code == 200 and caught.value.body["error"]["type"] == "overloaded_error"  # type: ignore[index]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RequestError("x is wrong", "x"), "invalid_request_error"),
        (AuthenticationError("no key"), "authentication_error"),
        (http_errors.HostRefused("x"), "permission_error"),
        (UnknownModel("model 'x' is not served", "model"), "not_found_error"),
        (http_errors.UnknownEndpoint("x"), "not_found_error"),
        (http_errors.MethodNotAllowed("x", "POST"), "invalid_request_error"),
        (http_errors.BodyTimeout("x"), "timeout_error"),
        (http_errors.LengthRequired("x"), "invalid_request_error"),
        (http_errors.BodyTooLarge("x"), "request_too_large"),
        (http_errors.UnsupportedMedia("x"), "invalid_request_error"),
        (QueueFull("x", 1), "rate_limit_error"),
        (LmhubError("x"), "api_error"),
        (http_errors.Loading("x"), "overloaded_error"),
        (ShuttingDown("x"), "overloaded_error"),
    ],
)
def test_errors_before_the_first_byte(error: LmhubError, kind: str) -> None:
    envelope = json.loads(DIALECT.error(error))
    assert envelope == {
        "type": "error",
        "error": {"type": kind, "message": str(error)},
        "request_id": REQUEST_ID.get(),
    }


def test_an_error_names_its_field() -> None:
    def message(error: LmhubError) -> str:
        found: str = json.loads(DIALECT.error(error))["error"]["message"]
        return found

    assert message(RequestError("does not compile: `minContains`", "tools")) == "tools: does not compile: `minContains`"
    too_long = PromptTooLong("this model's maximum context length is", "messages", n_prompt=41233, n_ctx=40960)
    assert message(too_long) == "prompt is too long: 41233 tokens > 40960 maximum"
    assert len(message(RequestError("x" * 5000))) == 5000


def test_a_count() -> None:
    assert DIALECT.count is not None and json.loads(DIALECT.count(7)) == {"input_tokens": 7}


@st.composite
def replies(draw: st.DrawFn) -> list[Event]:
    """Any order of text, thinking and calls, and a finish."""
    texts = st.text(min_size=1, max_size=5)
    events: list[Event] = []
    n_calls = 0
    for kind in draw(st.lists(st.sampled_from(("text", "thinking", "call")), max_size=8)):
        if kind == "text":
            events.append(TextDelta(draw(texts)))
        elif kind == "thinking":
            events.append(ReasoningDelta(draw(texts)))
        else:
            arguments = json.dumps(draw(st.dictionaries(texts, texts, max_size=2)), ensure_ascii=draw(st.booleans()))
            cut = draw(st.integers(0, len(arguments)))
            events.append(ToolCallStart(n_calls, f"call_{n_calls:024x}", "f"))
            events += [ToolCallDelta(n_calls, part) for part in (arguments[:cut], arguments[cut:])]
            n_calls += 1
    reasons: list[FinishReason] = ["tool_calls"] if n_calls else ["stop", "length"]
    return [*events, Finish(draw(st.sampled_from(reasons)), USAGE)]


@given(replies())
def test_any_stream_adds_up_to_its_body(events: list[Event]) -> None:
    blocks: list[dict[str, Any]] = []
    keys = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
    for frame in frames(events):
        if frame["type"] == "content_block_start":
            blocks.append(frame["content_block"] | ({"input": ""} if "input" in frame["content_block"] else {}))
        elif frame["type"] == "content_block_delta":
            delta = frame["delta"]
            key = keys.get(delta["type"], "input")
            blocks[-1][key] += delta.get(key, delta.get("partial_json"))
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["input"] or "{}")
    assert blocks == body(events)["content"]
