"""Request bodies of Chat Completions: what is honoured, what is refused under which name, what is ignored."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from lmhub.errors import RequestError
from lmhub.server.openai_chat import chat_dialect
from lmhub.settings import ServerSettings
from lmhub.types import ChatRequest, GrammarSpec, Message, Reasoning, Text, Tool, ToolCall, ToolChoice, ToolResult

DIALECT = chat_dialect(ServerSettings())
USER = {"role": "user", "content": "hi"}
PATCH = {"type": "custom", "custom": {"name": "patch"}}
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
    assert request.template_kwargs == {"colour": "red", "reasoning_effort": "low"}


def test_null_is_absence_at_every_depth_and_unknown_fields_are_ignored() -> None:
    known = "model temperature top_p top_k min_p repeat_penalty seed max_tokens max_completion_tokens stop stream n"
    known += " stream_options tools tool_choice reasoning_effort chat_template_kwargs response_format logprobs"
    known += " logit_bias functions function_call audio prediction regex lark parallel_tool_calls modalities"
    nothing = dict.fromkeys(known.split())
    bookkeeping = {"user": "u", "metadata": {"a": 1}, "store": True, "service_tier": "auto", "verbosity": "low"}
    bookkeeping |= {"prompt_cache_key": "k", "safety_identifier": "s", "keep_alive": -1, "from_the_future": [1]}
    assert parse(**nothing, **bookkeeping) == parse()
    message = USER | dict.fromkeys(("tool_calls", "tool_call_id", "refusal")) | {"name": "n", "cache_control": {}}
    tool = {"type": "function", "function": {"name": "f", "description": None, "parameters": None, "strict": None}}
    assert parse(messages=[message], tools=[tool]) == parse(tools=[{"function": {"name": "f"}}])


def test_values_that_change_nothing_are_accepted() -> None:
    neutral: dict[str, Any] = {"n": 1, "logprobs": False, "logit_bias": {}, "response_format": {"type": "text"}}
    neutral |= {"tool_choice": "none", "modalities": ["text"], "tools": [], "stop": [], "parallel_tool_calls": True}
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
        *[("n", value) for value in (0, 9, 1.5)],
        *[("top_logprobs", value) for value in (3, 21)],
        *[("logit_bias", value) for value in ({"x": 1}, {"5": 101}, {"5": True}, [[5]], [[-1, 1]], [["a", "b"]])],
        ("response_format", {"type": "json_schema", "json_schema": {"name": "n"}}),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": 3}}),
        ("continue_final_message", True),
        ("reasoning_format", "loud"),
        ("sse_ping_interval", -2),
        ("guided_choice", []),
        ("guided_json", "{nope"),
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
        ("web_search_options", "x"),
        ("modalities", ["text", "audio"]),
        ("add_generation_prompt", False),
        ("tools", [{"type": "web_search"}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(field: str, value: Any) -> None:
    error = refused(**{field: value})
    assert (error.param, error.code) == (field, "unsupported_parameter")


@pytest.mark.parametrize(
    ("choice", "meant"),
    [
        ("auto", ToolChoice()),
        ("required", ToolChoice("any")),
        ({"type": "function", "function": {"name": "weather"}}, ToolChoice("any", ("weather",))),
        ({"type": "function", "name": "weather"}, ToolChoice("any", ("weather",))),
        ({"type": "custom", "custom": {"name": "patch"}}, ToolChoice("any", ("patch",))),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "weather"}}]},
            },
            ToolChoice("auto", ("weather",)),
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "patch"}]},
            ToolChoice("any", ("patch",)),
        ),
    ],
)
def test_tool_choices(choice: Any, meant: ToolChoice) -> None:
    assert parse(tools=[WEATHER, PATCH], tool_choice=choice).tool_choice == meant


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "function": {"name": "time"}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "maybe", "tools": [WEATHER]}},
        {"type": "function"},
        {"type": "web_search"},
    ],
)
def test_tool_choices_that_make_no_sense(choice: Any) -> None:
    assert refused(tools=[WEATHER], tool_choice=choice).param == "tool_choice"


def test_a_forced_name_must_fit_a_grammar() -> None:
    tool = {"type": "function", "function": {"name": "the weather"}}
    assert parse(tools=[tool]).tools[0].name == "the weather"
    assert refused(tools=[tool], tool_choice="required").param == "tools"


def test_custom_tools() -> None:
    grammar = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /x+/"}}
    tool = {"type": "custom", "custom": {"name": "patch", "description": "d", "format": grammar}}
    assert parse(tools=[tool]).tools == (
        Tool("patch", "d", custom=True, format=GrammarSpec("lark", "start: /x+/", "tools")),
    )
    assert refused(tools=[{"type": "custom", "custom": {"name": "p", "format": {"type": "poem"}}}]).param == "tools"


SCHEMA = {"z": 1, "a": {"$ref": "#"}}


@pytest.mark.parametrize(
    ("fields", "kind", "source", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "json_schema", {"type": "object"}, "response_format"),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "json_schema", SCHEMA, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
            "json_schema",
            SCHEMA,
            "response_format",
        ),
        ({"json_schema": True}, "json_schema", True, "json_schema"),
        ({"guided_json": json.dumps(SCHEMA)}, "json_schema", SCHEMA, "guided_json"),
        ({"guided_choice": ["a", "b"]}, "choice", ["a", "b"], "guided_choice"),
        ({"structured_outputs": {"choice": ["a"]}}, "choice", ["a"], "structured_outputs"),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", SCHEMA, "structured_outputs"),
    ],
)
def test_constraints_that_are_json(fields: dict[str, Any], kind: str, source: Any, param: str) -> None:
    spec = parse(**fields).grammar
    assert spec is not None and (spec.kind, spec.param) == (kind, param)
    assert json.dumps(json.loads(spec.source)) == json.dumps(source)  # the order of the keys counts


@pytest.mark.parametrize(
    ("field", "kind"),
    [("regex", "regex"), ("lark", "lark"), ("grammar", "gbnf"), ("guided_regex", "regex"), ("guided_grammar", "lark")],
)
def test_constraints_that_are_text(field: str, kind: Any) -> None:
    assert parse(**{field: "[a-z]+"}).grammar == GrammarSpec(kind, "[a-z]+", field)


@pytest.mark.parametrize(
    ("fields", "second"),
    [
        ({"regex": "a", "lark": "b"}, "lark"),
        ({"response_format": {"type": "json_object"}, "regex": "a"}, "regex"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
    ],
)
def test_two_constraints_are_refused(fields: dict[str, Any], second: str) -> None:
    assert refused(**fields).param == second


def test_a_forced_call_beats_a_response_format() -> None:
    request = parse(tools=[WEATHER], tool_choice="required", response_format={"type": "json_object"})
    assert request.grammar is None and request.tool_choice.mode == "any"


def test_log_probabilities_and_choices() -> None:
    request = parse(n=3, logprobs=True, top_logprobs=5, logit_bias={"5": -100}, return_token_ids=True, ignore_eos=True)
    assert (request.n, request.logprobs, request.logit_bias) == (3, 5, {5: -100.0})
    assert request.return_token_ids and request.ignore_eos
    assert parse(logprobs=True).logprobs == 0 and parse(logprobs=False).logprobs is None
    assert parse(logit_bias=[[7, 1], ["word", False]]).logit_bias == {7: 1.0, "word": -100.0}


@pytest.mark.parametrize(
    ("fields", "continues"),
    [
        ({}, True),
        ({"continue_final_message": True}, True),
        ({"add_generation_prompt": True}, False),
        ({"add_generation_prompt": False}, True),
    ],
)
def test_a_trailing_assistant_message(fields: dict[str, Any], continues: bool) -> None:
    said = [USER, {"role": "assistant", "content": "1, 2,"}]
    assert parse(messages=said, **fields).continue_final is continues


def test_a_trailing_assistant_message_may_be_refused_by_the_server() -> None:
    strict = chat_dialect(ServerSettings(prefill=False))
    said = {"messages": [USER, {"role": "assistant", "content": "1, 2,"}]}
    with pytest.raises(RequestError) as caught:
        strict.parse(json.dumps(said).encode())
    assert caught.value.param == "messages"
    continued = strict.parse(json.dumps(said | {"continue_final_message": True}).encode())
    assert isinstance(continued, ChatRequest) and continued.continue_final


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
    assert "enable_thinking" not in request.template_kwargs


# --- messages --------------------------------------------------------------------------------------------------------


def test_developer_is_system() -> None:
    assert talk({"role": "developer", "content": "x"}) == talk({"role": "system", "content": "x"})


def test_text_parts_stay_apart_and_refusals_are_dropped() -> None:
    kinds = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, {"type": "output_text", "text": "c"}]
    parts = [*kinds, {"type": "refusal", "refusal": "no"}]
    assert talk({"role": "user", "content": parts}) == (Message("user", (Text("a"), Text("b"), Text("c"), Text(""))),)


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
