"""Request bodies of Chat Completions: what is honoured, what is refused under which name, what is ignored."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from lmhub.errors import RequestError
from lmhub.server.openai_chat import DIALECT
from lmhub.types import ChatRequest, Message, Reasoning, Text, Tool, ToolCall, ToolResult

USER = {"role": "user", "content": "hi"}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": {"type": "object"}}}


def parse(**fields: Any) -> ChatRequest:
    """The request of a body with these fields and, unless given, one user message."""
    return DIALECT.parse(json.dumps({"messages": [USER]} | fields).encode())


def refusal(body: bytes) -> RequestError:
    """The error that parsing `body` raises."""
    with pytest.raises(RequestError) as caught:
        DIALECT.parse(body)
    return caught.value


def refused(**fields: Any) -> RequestError:
    """The error of a body with these fields."""
    return refusal(json.dumps({"messages": [USER]} | fields).encode())


def talk(*messages: Any) -> tuple[Message, ...]:
    """The conversation of a body with these messages and a question at the end."""
    return parse(messages=[*messages, USER]).messages[:-1]


def test_a_minimal_body_gives_nothing_but_the_conversation() -> None:
    assert parse() == ChatRequest(messages=(Message("user", (Text("hi"),)),))


def test_fields_that_are_honoured() -> None:
    request = parse(
        model="m",
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        repeat_penalty=1.1,
        presence_penalty=-2,
        frequency_penalty=2,
        seed=2**64 - 1,
        max_tokens=64.0,
        stop=["a", "b"],
        stream=True,
        stream_options={"include_usage": True, "include_obfuscation": True},
        tools=[WEATHER],
        tool_choice="auto",
        reasoning_effort="low",
        chat_template_kwargs={"colour": "red"},
    )
    assert request.model == "m"
    assert request.sampling == {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "repeat_penalty": 1.1,
        "presence_penalty": -2,
        "frequency_penalty": 2,
        "seed": 2**64 - 1,
    }
    assert request.max_tokens == 64 and isinstance(request.max_tokens, int)
    assert request.stop == ("a", "b")
    assert request.stream and request.include_usage
    assert request.tools == (Tool("weather", "d", {"type": "object"}),)
    assert request.reasoning is True
    assert request.template_kwargs == {"colour": "red"}


def test_null_is_absence_at_every_depth_and_unknown_fields_are_ignored() -> None:
    known = "model temperature top_p top_k min_p repeat_penalty seed max_tokens max_completion_tokens stop stream n"
    known += " stream_options tools tool_choice reasoning_effort chat_template_kwargs response_format logprobs"
    known += " logit_bias functions function_call audio prediction regex lark parallel_tool_calls modalities"
    nothing = dict.fromkeys(known.split())
    bookkeeping = {"user": "u", "metadata": {"a": 1}, "store": True, "service_tier": "auto", "verbosity": "low"}
    bookkeeping |= {"prompt_cache_key": "k", "safety_identifier": "s", "keep_alive": -1, "from_the_future": [1]}
    assert parse(**nothing, **bookkeeping) == parse()
    message = USER | dict.fromkeys(("tool_calls", "tool_call_id", "refusal")) | {"name": "n", "cache_control": {}}
    tool = {"type": "function", "function": {"name": "f", "description": None, "parameters": None, "strict": True}}
    assert parse(messages=[message], tools=[tool]) == parse(tools=[{"function": {"name": "f"}}])


def test_values_that_change_nothing_are_accepted() -> None:
    neutral: dict[str, Any] = {"n": 1, "logprobs": False, "logit_bias": {}, "response_format": {"type": "text"}}
    neutral |= {"tool_choice": "none", "modalities": ["text"], "tools": [], "stop": [], "parallel_tool_calls": False}
    neutral |= {"add_generation_prompt": True, "continue_final_message": False, "reasoning_format": "auto"}
    neutral |= {"seed": -1, "max_tokens": -1, "reasoning_budget": -1}
    assert parse(**neutral) == parse()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("temperature", value) for value in (2.1, -0.1, "1", True, [])],
        *[("top_p", value) for value in (1.1, -0.1, "x")],
        *[("presence_penalty", -2.1), ("frequency_penalty", 3), ("min_p", 2), ("top_k", -1), ("top_k", 1.5)],
        *[("repeat_penalty", value) for value in (0, 4.1)],
        *[("seed", value) for value in (-2, 1.5, "1", 2**64)],
        *[("max_tokens", value) for value in (0, -5, 1.5, "10", False)],
        *[("max_completion_tokens", value) for value in (0, -2)],
        *[("stop", value) for value in (["a"] * 5, "", [""], 3, [3])],
        *[("messages", value) for value in ([], {}, "x", [3], [{}], [{"role": "robot", "content": "x"}])],
        ("model", 3),
        ("stream", "yes"),
        ("stream_options", {"include_usage": True}),
        ("tools", [{}]),
        ("tools", [3]),
        ("tools", [{"type": "function", "function": {}}]),
        ("tools", [{"type": "function", "function": {"name": ""}}]),
        ("tool_choice", "maybe"),
        ("tool_choice", {"type": "lottery"}),
        ("tool_choice", "required"),
        ("n", 0),
        ("response_format", {"type": "sound"}),
        ("reasoning_effort", "banana"),
        ("chat_template_kwargs", {"enable_thinking": "yes"}),
    ],
)
def test_wrong_values_are_refused_by_name(field: str, value: Any) -> None:
    error = refused(**{field: value})
    assert (error.param, error.code, error.status) == (field, None, 400)
    assert field in str(error)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[(name, [{"name": "f"}]) for name in ("functions", "function_call", "audio", "prediction")],
        *[(name, "x") for name in ("web_search_options", "regex", "lark", "grammar", "guided_json", "json_schema")],
        ("n", 2),
        ("logprobs", True),
        ("top_logprobs", 3),
        ("logit_bias", {"5": 1}),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": {}}}),
        ("modalities", ["text", "audio"]),
        ("continue_final_message", True),
        ("add_generation_prompt", False),
        ("reasoning_budget", 100),
        ("reasoning_format", "none"),
        ("tools", [{"type": "web_search"}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(field: str, value: Any) -> None:
    error = refused(**{field: value})
    assert (error.param, error.code) == (field, "unsupported_parameter")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_call_cannot_be_forced(choice: Any) -> None:
    assert refused(tools=[WEATHER], tool_choice=choice).code == "unsupported_parameter"
    assert refused(tools=[WEATHER], parallel_tool_calls=False).param == "parallel_tool_calls"


def test_tool_choice_none_takes_the_tools_away() -> None:
    assert parse(tools=[WEATHER], tool_choice="none").tools == ()


def test_max_completion_tokens_wins() -> None:
    assert parse(max_tokens=5, max_completion_tokens=7).max_tokens == 7


def test_top_p_zero_is_greedy() -> None:
    assert parse(top_p=0, temperature=1).sampling == {"temperature": 0.0}


def test_the_other_spelling_of_the_repeat_penalty() -> None:
    assert parse(repetition_penalty=1.2).sampling == {"repeat_penalty": 1.2}


@pytest.mark.parametrize(
    ("fields", "reasoning"),
    [
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "minimal"}, False),
        ({"reasoning_effort": "high"}, True),
        ({"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"reasoning_effort": "none", "think": True}, True),
        ({"enable_thinking": False}, False),
    ],
)
def test_reasoning(fields: dict[str, Any], reasoning: bool) -> None:
    request = parse(**fields)
    assert request.reasoning is reasoning
    assert request.template_kwargs == {}


# --- messages --------------------------------------------------------------------------------------------------------


def test_developer_is_system() -> None:
    assert talk({"role": "developer", "content": "x"}) == talk({"role": "system", "content": "x"})


def test_text_parts_are_joined_and_refusals_dropped() -> None:
    kinds = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, {"type": "output_text", "text": "c"}]
    parts = [*kinds, {"type": "refusal", "refusal": "no"}]
    assert talk({"role": "user", "content": parts}) == (Message("user", (Text("abc"),)),)


def test_a_round_trip_through_a_tool() -> None:
    def call(arguments: Any) -> dict[str, Any]:
        return {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": arguments}}

    given = [call('{"a":1}'), call(""), call(None), call({"b": 2}), call("{broken")]
    assistant = {"role": "assistant", "content": None, "tool_calls": given}
    result = {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "18 C"}]}
    texts = ['{"a":1}', "{}", "{}", '{"b": 2}', "{broken"]
    assert talk(assistant, result) == (
        Message("assistant", tuple(ToolCall("call_1", "weather", text) for text in texts)),
        Message("tool", (ToolResult("call_1", "18 C"),)),
    )


def test_an_assistant_may_have_said_nothing_or_thought_aloud() -> None:
    thinking = {"role": "assistant", "content": "x", "reasoning_content": "hm"}
    assert talk({"role": "assistant", "content": ""}) == (Message("assistant", (Text(""),)),)
    assert talk(thinking) == (Message("assistant", (Reasoning("hm"), Text("x"))),)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None},
        {"role": "user"},
        {"role": "user", "content": None},
        {"role": "function", "content": "x"},
        {"content": "x"},
        {"role": "user", "content": 3},
        {"role": "user", "content": ["x"]},
        {"role": "user", "content": [{"text": "x"}]},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": "user", "content": [{"type": "hologram"}]},
        {"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f"}}]},
        {"role": "assistant", "tool_calls": [{"id": "x"}]},
        {"role": "assistant", "content": "the last word"},
    ],
)
def test_messages_that_make_no_sense_are_refused_with_their_place(message: Any) -> None:
    error = refused(messages=[USER, message])
    assert error.param == "messages"
    assert "messages[1]" in str(error)


# --- bytes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", b"{nope", b"\xff\xfe", b'{"messages":[{"role":"\xff"}]}', b"{} x", b'{"a":NaN}'])
def test_bytes_that_are_no_json(body: bytes) -> None:
    error = refusal(body)
    assert "not valid JSON" in str(error)
    assert (error.param, error.code) == (None, None)


def test_a_number_that_no_float_holds_is_refused() -> None:
    assert refusal(b'{"messages":[{"role":"user","content":"x"}],"temperature":1e400}').status == 400


@pytest.mark.parametrize("body", [b"[]", b'"x"', b"3", b"null"])
def test_json_that_is_no_object(body: bytes) -> None:
    assert "must be a JSON object" in str(refusal(body))


@pytest.mark.parametrize("depth", [200, 100_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    assert "128" in str(refusal(b'{"messages":' + b"[" * depth + b"]" * depth + b"}"))


def test_a_byte_order_mark_and_half_a_surrogate_pair_are_tolerated() -> None:
    body = rb'{"messages":[{"role":"user","content":"\ud83d \ud83d\ude00 \\ud83d \u0000"}]}'
    assert DIALECT.parse(b"\xef\xbb\xbf" + body).messages[0].text == "\ufffd \U0001f600 \\ud83d \0"


def test_of_two_equal_keys_the_last_counts() -> None:
    assert DIALECT.parse(b'{"messages":[{"role":"user","content":"x"}],"seed":1,"seed":2}').sampling == {"seed": 2}


def test_mutated_bodies_parse_or_are_refused() -> None:
    random.seed(7)
    whole = json.dumps({"messages": [USER], "tools": [WEATHER], "stop": ["a"], "seed": 1, "stream": True}).encode()
    for _ in range(1000):
        body = bytearray(whole)
        for _ in range(random.randint(1, 4)):
            body[random.randrange(len(body))] = random.choice(b'"{}[],:0123456789ntx\\\x00\xff')
        try:
            DIALECT.parse(bytes(body))
        except RequestError as error:
            assert 0 < len(str(error)) < 2000
