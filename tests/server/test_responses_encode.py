"""Recorded events to Responses, streamed and whole: the annotated sequences of the protocol, and what is kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from lmhub.dialect import ReplyHead
from lmhub.errors import GenerationError, ShuttingDown
from lmhub.server.responses import responses_dialect
from lmhub.server.responses_encode import ResponsesEncoder, collect, count
from lmhub.server.responses_parse import ResponsesParser
from lmhub.server.responses_seal import Seal
from lmhub.server.responses_store import ResponseStore
from lmhub.types import (
    ChatRequest,
    Event,
    Failure,
    Finish,
    GenerationRequest,
    ReasoningDelta,
    SamplingParams,
    TextDelta,
    Timings,
    TokenIds,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)

USAGE = Usage(prompt_tokens=19, completion_tokens=5, cached_tokens=12, reasoning_tokens=2)
STOP, LENGTH, CALLED = Finish("stop", USAGE), Finish("length", USAGE), Finish("tool_calls", USAGE)
TOOLS = [
    {"type": "function", "name": "weather"},
    {"type": "custom", "name": "apply_patch"},
    {"type": "namespace", "name": "mcp__x", "tools": [{"type": "function", "name": "time"}]},
]
MESSAGE = ["output_item.added", "content_part.added", "output_text.delta", "output_text.delta"]
MESSAGE += ["output_text.done", "content_part.done", "output_item.done"]
CALL = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
TEXT: list[Event] = [TextDelta("Hel"), TextDelta("lo")]
WEATHER: list[Event] = [ToolCallStart(0, "call_a", "weather"), ToolCallDelta(0, '{"city":"Paris"}')]
REASONING = ["output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta"]
REASONING += ["reasoning_text.done", "content_part.done", "output_item.done"]
CUSTOM = ["output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done", "output_item.done"]
EMPTY = ["output_item.added", "content_part.added", "output_text.done", "content_part.done", "output_item.done"]
THOUGHT: list[Event] = [ReasoningDelta("h"), ReasoningDelta("m")]
SECOND: list[Event] = [ToolCallStart(1, "call_b", "weather"), ToolCallDelta(1, "{}")]
PATCH: list[Event] = [ToolCallStart(0, "call_a", "apply_patch"), ToolCallDelta(0, '{"input":"a\\nb"}')]
CUT_CALL: list[Event] = [ToolCallStart(0, "call_a", "weather"), ToolCallDelta(0, '{"city":"Pa')]
SEQUENCES: dict[str, tuple[list[Event], list[str]]] = {
    "text": ([*TEXT, STOP], [*MESSAGE, "completed"]),
    "stop sequence": ([*TEXT, Finish("stop_sequence", USAGE, "\n")], [*MESSAGE, "completed"]),
    "reasoning": ([*THOUGHT, *TEXT, STOP], [*REASONING, *MESSAGE, "completed"]),
    "one call": ([*WEATHER, CALLED], [*CALL, "completed"]),
    "two calls": ([*WEATHER, *SECOND, CALLED], [*CALL, *CALL, "completed"]),
    "text, call, text": ([*TEXT, *WEATHER, *TEXT, CALLED], [*MESSAGE, *CALL, *MESSAGE, "completed"]),
    "custom call": ([*PATCH, CALLED], [*CUSTOM, "completed"]),
    "budget end": ([*TEXT, LENGTH], [*MESSAGE, "incomplete"]),
    "budget end in a call": ([*CUT_CALL, LENGTH], [*CALL, "incomplete"]),
    "budget end in reasoning": ([*THOUGHT, LENGTH], [*REASONING, "incomplete"]),
    "empty output": ([STOP], [*EMPTY, "completed"]),
}


class Desk:
    """A store, a seal, and the two halves of the dialect that share them."""

    def __init__(self, size: int = 4) -> None:
        self.store, self.seal = ResponseStore(size), Seal(b"key")
        self.now = 0.0

    def head(self, id: str = "resp_1", **body: Any) -> ReplyHead:
        """The head of the reply to a request with these fields."""
        request = ResponsesParser(self.store, self.seal).parse(
            json.dumps({"input": "hi", "tools": TOOLS, **body}).encode()
        )
        generation = GenerationRequest(id, (1, 2), SamplingParams(temperature=0.5, top_p=0.9), 5, frozenset())
        return ReplyHead(id, "m", 1760000000, "fp_1", request, prompts=((1, 2),), generations=(generation,))

    def encoder(self, **body: Any) -> ResponsesEncoder:
        """An encoder whose clock is `now`."""
        return ResponsesEncoder(self.head(**body), self.store, self.seal, lambda: self.now)

    def stream(self, events: Sequence[Event], **body: Any) -> list[Any]:
        """The events of a stream."""
        encoder = self.encoder(**body)
        return frames(b"".join(encoder.event(event) for event in events))

    def whole(self, events: Sequence[Event], **body: Any) -> Any:
        """The body of a reply that is not streamed."""
        return json.loads(collect(self.head(**body), [events], self.store, self.seal))


@pytest.fixture
def desk() -> Desk:
    """A desk with room for four responses."""
    return Desk()


def frames(data: bytes) -> list[Any]:
    """The JSON of each frame, after checking what every frame must have."""
    blocks = data.decode().split("\n\n")
    assert blocks.pop() == ""
    told = []
    for block in blocks:
        event, payload = block.split("\n")
        value = json.loads(payload.removeprefix("data: "))
        assert event == f"event: {value['type']}"
        told.append(value)
    return told


def names(told: Sequence[Any]) -> list[str]:
    """The types of events, without their prefix."""
    return [value["type"].removeprefix("response.") for value in told]


# --- sequences ---


@pytest.mark.parametrize("name", SEQUENCES)
def test_the_skeleton_of_each_sequence(desk: Desk, name: str) -> None:
    events, expected = SEQUENCES[name]
    told = desk.stream(events)
    assert names(told) == ["created", "in_progress", *expected]
    assert [value["sequence_number"] for value in told] == list(range(len(told)))


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_stream_ends_with_what_a_whole_reply_is(desk: Desk, name: str) -> None:
    events, _ = SEQUENCES[name]
    told = desk.stream(events)
    response = told[-1]["response"]
    assert response == desk.whole(events)
    assert response["output"] == [value["item"] for value in told if value["type"] == "response.output_item.done"]
    assert {value["response"]["id"] for value in told if "response" in value} == {"resp_1"}


@pytest.mark.parametrize("name", SEQUENCES)
def test_items_are_sequential_and_every_part_event_says_where_it_belongs(desk: Desk, name: str) -> None:
    items: list[Any] = []
    is_open = False
    for value in desk.stream(SEQUENCES[name][0]):
        kind = value["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert not is_open and value["output_index"] == len(items)
            items.append(value["item"])
            assert value["item"]["status"] == "in_progress"
            is_open = True
        elif kind == "output_item.done":
            assert value["item"]["id"] == items[-1]["id"]
            assert value["item"].get("call_id") == items[-1].get("call_id")
            is_open = False
        elif "response" not in value:
            assert is_open and value["item_id"] == items[-1]["id"] and value["output_index"] == len(items) - 1
            if "text" in kind or "part" in kind:
                assert value["content_index"] == 0
    assert not is_open
    assert len({item["id"] for item in items}) == len(items)


def test_created_is_complete_and_empty(desk: Desk) -> None:
    created, progress = desk.stream(SEQUENCES["text"][0], instructions="I")[:2]
    assert created["response"] == progress["response"]
    response = created["response"]
    assert (response["output"], response["usage"], response["status"]) == ([], None, "in_progress")
    assert (response["instructions"], response["temperature"], response["top_p"]) == ("I", 0.5, 0.9)


def test_deltas_add_up(desk: Desk) -> None:
    told = desk.stream(SEQUENCES["text, call, text"][0])
    for kind, whole in (("output_text", "text"), ("function_call_arguments", "arguments")):
        for done in [value for value in told if value["type"] == f"response.{kind}.done"]:
            deltas = [value for value in told if value["type"] == f"response.{kind}.delta"]
            joined = "".join(value["delta"] for value in deltas if value["item_id"] == done["item_id"])
            assert joined == done[whole]


# --- the response ---


def test_a_whole_reply(desk: Desk) -> None:
    response = desk.whole([*TEXT, Finish("stop", USAGE, timings=Timings(1.0, 0.5, 2.0))])
    (item,) = response["output"]
    assert item["id"].startswith("msg_") and len(item["id"]) == 28
    part = {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
    assert item == {
        "id": item["id"],
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [part],
    }
    assert response["usage"] == {
        "input_tokens": 19,
        "input_tokens_details": {"cached_tokens": 12, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 24,
    }
    assert (response["object"], response["status"], response["error"]) == ("response", "completed", None)
    assert (response["created_at"], response["completed_at"]) == (1760000000, 1760000003)


def test_a_cut_reply(desk: Desk) -> None:
    response = desk.whole([*WEATHER, *TEXT, LENGTH])
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    assert desk.whole([*WEATHER, LENGTH])["output"][0]["status"] == "completed"


def test_calls(desk: Desk) -> None:
    events: list[Event] = [*WEATHER, ToolCallStart(1, "call_b", "mcp__x__time"), ToolCallDelta(1, "{}")]
    events += [ToolCallStart(2, "call_c", "apply_patch"), ToolCallDelta(2, '{"input":"*** a\\n+b"}'), CALLED]
    first, second, third = desk.whole(events)["output"]
    assert first["id"].startswith("fc_") and first["call_id"] == "call_a"
    assert (first["name"], first["arguments"], "namespace" in first) == ("weather", '{"city":"Paris"}', False)
    assert (second["name"], second["namespace"]) == ("time", "mcp__x")
    assert third["id"].startswith("ctc_") and third["type"] == "custom_tool_call"
    assert (third["call_id"], third["name"], third["input"]) == ("call_c", "apply_patch", "*** a\n+b")


def test_arguments_in_fragments(desk: Desk) -> None:
    events: list[Event] = [ToolCallStart(0, "call_a", "apply_patch"), ToolCallDelta(0, '{"inp'), TokenIds((5,))]
    events += [ToolCallDelta(0, 'ut":"x"}'), CALLED]
    told = desk.stream(events)
    assert [value["delta"] for value in told if "delta" in value] == ["x"]
    unwrapped: list[Event] = [ToolCallStart(0, "call_a", "apply_patch"), ToolCallDelta(0, "raw"), LENGTH]
    assert desk.whole(unwrapped)["output"][0]["input"] == "raw"


def test_a_summary_takes_the_place_of_raw_reasoning(desk: Desk) -> None:
    told = desk.stream([ReasoningDelta("hm"), TextDelta("x"), STOP], reasoning={"summary": "auto"})
    assert names(told)[2:8] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
    ]
    assert [value["summary_index"] for value in told[3:7]] == [0] * 4
    item = told[7]["item"]
    assert (item["summary"], item["content"]) == ([{"type": "summary_text", "text": "hm"}], [])


def test_encrypted_content_when_it_is_asked_for(desk: Desk) -> None:
    events: list[Event] = [ReasoningDelta("hm"), TextDelta("x"), STOP]
    assert desk.whole(events)["output"][0]["encrypted_content"] is None
    told = desk.stream(events, include=["reasoning.encrypted_content"])
    assert told[2]["item"]["encrypted_content"] is None
    blob = told[-1]["response"]["output"][0]["encrypted_content"]
    assert desk.seal.open(blob) == "hm"


def test_logprobs(desk: Desk) -> None:
    one = TokenLogprob(1, b"Hi", -0.5, ((1, b"Hi", -0.5), (2, b"\xc3", float("-inf"))))
    entry = {"token": "Hi", "logprob": -0.5, "bytes": [72, 105]}
    low = {"token": "\ufffd", "logprob": -9999.0, "bytes": [195]}
    told = desk.stream([TextDelta("Hi", (one,)), TextDelta("!"), STOP], top_logprobs=2)
    full = [{**entry, "top_logprobs": [entry, low]}]
    assert [value["logprobs"] for value in told if "logprobs" in value] == [full, [], full]
    assert told[-1]["response"]["output"][0]["content"][0]["logprobs"] == full


def test_token_ids_where_they_are_asked_for(desk: Desk) -> None:
    events: list[Event] = [TokenIds((5,)), TextDelta("x"), TokenIds((6, 7)), STOP]
    response = desk.whole(events, return_token_ids=True)
    assert (response["prompt_token_ids"], response["token_ids"]) == ([1, 2], [5, 6, 7])
    assert "token_ids" not in desk.whole(events)


def test_count() -> None:
    assert json.loads(count(7)) == {"object": "response.input_tokens", "input_tokens": 7}


# --- failures and pings ---


def test_a_failure_is_told_flat_and_nested_and_then_as_a_response(desk: Desk) -> None:
    told = desk.stream([*TEXT, Failure(GenerationError("it broke"))])
    error, failed = told[-2:]
    assert (error["type"], error["code"], error["message"], error["param"]) == (
        "error",
        "server_error",
        "it broke",
        None,
    )
    assert error["error"] == {"type": "server_error", "code": "server_error", "message": "it broke", "param": None}
    response = failed["response"]
    assert (failed["type"], response["status"]) == ("response.failed", "failed")
    assert response["error"] == {"code": "server_error", "message": "it broke"}
    assert response["output"][0]["content"][0]["text"] == "Hello"
    assert desk.store.find("resp_1") is None


def test_a_failure_hides_what_is_not_for_clients(desk: Desk) -> None:
    told = desk.stream([Failure(ValueError("/secret/path"))])
    assert names(told) == ["created", "in_progress", "error", "failed"]
    assert "secret" not in json.dumps(told)
    assert desk.stream([Failure(ShuttingDown("bye"))])[2]["error"]["type"] == "unavailable_error"


def test_pings_are_comments_and_once_a_minute_an_event(desk: Desk) -> None:
    encoder = desk.encoder()
    pings: list[bytes] = []
    for _ in range(9):
        desk.now += 15
        pings.append(encoder.ping())
    assert [ping.startswith(b":") for ping in pings] == [True, True, True, False] * 2 + [True]
    told = frames(pings[3] + pings[7] + encoder.event(TextDelta("x")))
    assert names(told)[:4] == ["created", "in_progress", "in_progress", "output_item.added"]
    assert [value["sequence_number"] for value in told] == list(range(len(told)))
    desk.now += 15
    assert encoder.ping().startswith(b":")


# --- the store ---


def test_what_is_kept(desk: Desk) -> None:
    events: list[Event] = [ReasoningDelta("hm"), TextDelta("x"), STOP]
    response = desk.whole(events, id="resp_a")
    kept = desk.store.find("resp_a")
    assert kept is not None and json.loads(kept.body) == response
    assert response["store"] is True
    (given,) = kept.input
    assert json.loads(given.data) == {
        "id": given.id,
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "hi"}],
    }
    head = desk.head(input="more", previous_response_id="resp_a")
    assert isinstance(head.request, ChatRequest)
    parts = [
        (message.role, [getattr(part, "text", part) for part in message.parts]) for message in head.request.messages
    ]
    assert parts == [("user", ["hi"]), ("assistant", ["hm", "x"]), ("user", ["more"])]
    assert head.request.echo.input[0].kept is given, "what is kept once is not kept twice"


@pytest.mark.parametrize("make", [Desk.whole, Desk.stream])
def test_what_is_not_kept(desk: Desk, make: Callable[..., Any]) -> None:
    make(desk, [TextDelta("x"), STOP], id="resp_b", store=False)
    assert desk.store.find("resp_b") is None
    make(desk, [TextDelta("x"), LENGTH], id="resp_c")
    assert desk.store.find("resp_c") is not None, "a cut reply can be referred to"


def test_the_record_of_the_dialect() -> None:
    dialect = responses_dialect(0)
    assert [page.path for page in dialect.pages] == ["/responses/compact"]
    assert dialect.schema is not None and "input" in dialect.schema["properties"]
