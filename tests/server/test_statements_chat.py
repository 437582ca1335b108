"""The numbered conformance statements of Chat Completions, against a scripted model behind the whole application."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import openai
import pytest

from lmhub.errors import GenerationError
from lmhub.testing.fake import FakeModel, FakeTokenizer, NoiseModel

Make = Callable[..., Any]

USER = {"role": "user", "content": "hi"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
PARIS = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
ROME = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


def deltas(chunks: list[Any], index: int = 0) -> list[Any]:
    """The deltas of one choice."""
    return [
        choice["delta"]
        for chunk in chunks
        if "choices" in chunk
        for choice in chunk["choices"]
        if choice["index"] == index
    ]


def said(chunks: list[Any], name: str = "content", index: int = 0) -> str:
    """What the deltas of one choice say, joined."""
    return "".join(delta.get(name) or "" for delta in deltas(chunks, index))


def schema_format(schema: Any) -> dict[str, Any]:
    """A response format."""
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


# --- messages --------------------------------------------------------------------------------------------------------


def test_046_a_minimal_request(api: Make) -> None:
    body = api().chat().json()
    assert body["object"] == "chat.completion" and body["id"].startswith("chatcmpl-")
    (choice,) = body["choices"]
    assert choice["message"]["role"] == "assistant" and choice["message"]["content"] == "Hello"
    assert choice["finish_reason"] == "stop"


def test_047_the_model_is_named_as_in_the_list(api: Make) -> None:
    made = api()
    assert made.chat(model="anything").json()["model"] == made.get("/v1/models").json()["data"][0]["id"]


@pytest.mark.parametrize("messages", [None, [], "hi", {}, [3], ["hi"]])
def test_048_messages_must_be_messages(api: Make, messages: Any) -> None:
    assert api().error(messages=messages)["param"] == "messages"


def test_048_two_user_messages_are_fine(api: Make) -> None:
    assert api().chat(messages=[USER, USER]).status_code == 200


@pytest.mark.parametrize(
    "message", [{"role": "robot", "content": "x"}, {"role": "function", "content": "x"}, {"content": "x"}]
)
def test_049_unknown_roles_are_refused(api: Make, message: Any) -> None:
    assert api().error(messages=[message, USER])["param"] == "messages"


def test_049_developer_renders_like_system(api: Make) -> None:
    made = api()
    prompts = [
        made.post("/apply-template", messages=[{"role": role, "content": "Be brief"}, USER]).json()["prompt"]
        for role in ("system", "developer")
    ]
    assert prompts[0] == prompts[1] and "Be brief" in prompts[0]


def test_050_text_parts_are_the_same_as_text(api: Make) -> None:
    made = api(NoiseModel())
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "cd"}]
    bodies = [
        made.chat(messages=[{"role": "user", "content": content}], temperature=0, max_tokens=5).json()
        for content in (parts, "abcd")
    ]
    assert bodies[0]["choices"] == bodies[1]["choices"]
    assert bodies[0]["usage"]["prompt_tokens"] == bodies[1]["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}},
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
    ],
)
def test_051_images_and_audio_are_refused(api: Make, part: Any) -> None:
    error = api().error(messages=[{"role": "user", "content": [part]}])
    assert (error["param"], error["code"]) == ("messages", "unsupported_parameter")


def test_052_content_may_be_null_beside_calls_only(api: Make) -> None:
    made = api()
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assistant = {"role": "assistant", "content": None}
    assert made.chat(messages=[USER, assistant | {"tool_calls": [call]}, USER]).status_code == 200
    assert made.error(messages=[USER, assistant, USER])["param"] == "messages"


def test_053_a_trailing_assistant_message_is_refused_where_the_server_says_so(api: Make) -> None:
    trailing = [USER, {"role": "assistant", "content": "1, 2,"}]
    assert api(prefill=False).error(messages=trailing)["param"] == "messages"
    assert api().chat(messages=trailing).status_code == 200  # changed: continued unless --no-prefill is set


def test_054_a_trailing_assistant_message_is_continued(api: Make) -> None:
    made = api(prefill=False)
    trailing = [USER, {"role": "assistant", "content": "1, 2,"}]
    asked = {"messages": trailing, "continue_final_message": True}
    assert made.post("/apply-template", **asked).json()["prompt"].endswith("assistant\n1, 2,")
    assert made.reply(**asked)["message"]["content"] == "Hello"


def test_055_a_late_system_message_does_not_fail(api: Make) -> None:
    assert api().chat(messages=[USER, {"role": "system", "content": "Be brief"}, USER]).status_code == 200


# --- sampling and budgets --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [2.1, -0.1, "1", True])
def test_056_temperature_out_of_range(api: Make, value: Any) -> None:
    assert api().error(temperature=value)["param"] == "temperature"


@pytest.mark.parametrize("value", [0, 2])
def test_056_temperature_at_its_bounds(api: Make, value: Any) -> None:
    assert api().chat(temperature=value).status_code == 200


@pytest.mark.parametrize(("name", "value"), [("top_p", 1.1), ("presence_penalty", -2.1), ("frequency_penalty", 3)])
def test_057_other_sampling_out_of_range(api: Make, name: str, value: Any) -> None:
    assert api().error(**{name: value})["param"] == name


@pytest.mark.parametrize("value", [0, -5, 1.5, "10"])
def test_058_budgets_that_are_none(api: Make, value: Any) -> None:
    assert api().error(max_tokens=value)["param"] == "max_tokens"


def test_058_budgets_are_clamped_to_the_context(api: Make) -> None:
    made = api()
    assert made.chat(max_tokens=1).json()["usage"]["completion_tokens"] == 1
    assert made.chat(max_tokens=10**9).status_code == 200


def test_059_the_newer_budget_wins(api: Make) -> None:
    assert api().chat(max_tokens=5, max_completion_tokens=2).json()["usage"]["completion_tokens"] == 2


def test_060_null_is_absence_and_the_unknown_is_ignored(api: Make) -> None:
    made = api()
    paths = made.get("/openapi.json").json()["components"]["schemas"]["openai-chat"]["properties"]
    nothing = {name: None for name in paths if name != "messages"}
    assert made.reply(**nothing, from_the_future={"x": [1]}) == made.reply()


def test_061_bookkeeping_has_no_effect(api: Make) -> None:
    made = api()
    bookkeeping = {"metadata": {"a": "b"}, "user": "u", "store": True, "service_tier": "auto", "verbosity": "low"}
    bookkeeping |= {"prompt_cache_key": "k", "safety_identifier": "s"}
    assert made.reply(**bookkeeping) == made.reply()


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1, "seed": 7}])
def test_062_greedy_and_seeded_replies_repeat(api: Make, sampling: Any) -> None:
    made = api(NoiseModel())
    assert made.reply(max_tokens=12, **sampling) == made.reply(max_tokens=12, **sampling)


@pytest.mark.parametrize("stop", ["lo", ["xx", "lo"]])
def test_063_stop_strings_cut(api: Make, stop: Any) -> None:
    choice = api("Hello you").reply(stop=stop)
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Hel", "stop")


def test_064_and_065_nothing_of_a_stop_string_leaks_and_all_before_it_is_told(api: Make) -> None:
    texts = [delta.get("content") or "" for delta in deltas(api("one. STX two STOP three").chunks(stop="STOP"))]
    assert "".join(texts) == "one. STX two "
    assert not any(text.endswith(("S", "ST", "STO")) and "".join(texts).endswith(text) for text in texts[-1:])


@pytest.mark.parametrize("stop", [["a"] * 5, "", 3])
def test_066_stop_strings_that_are_none(api: Make, stop: Any) -> None:
    assert api().error(stop=stop)["param"] == "stop"


# --- streams and usage -----------------------------------------------------------------------------------------------


def test_067_stream_options_need_a_stream(api: Make) -> None:
    assert api().error(stream_options={"include_usage": True})["param"] == "stream_options"


def test_068_to_070_the_frame_of_a_stream(api: Make) -> None:
    chunks = api().chunks()
    assert [("role" in delta) for delta in deltas(chunks)] == [True] + [False] * (len(chunks) - 1)
    assert deltas(chunks)[0]["role"] == "assistant"
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert all(isinstance(chunk["choices"], list) for chunk in chunks)
    assert chunks[-1]["choices"][0]["delta"] == {} and chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_071_and_072_usage_comes_last_and_only_when_asked_for(api: Make) -> None:
    made = api()
    assert not any(chunk.get("usage") for chunk in made.chunks())
    chunks = made.chunks(stream_options={"include_usage": True})
    assert [chunk["choices"] == [] for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    whole = made.chat().json()["usage"]
    assert chunks[-1]["usage"].keys() == whole.keys()
    assert chunks[-1]["usage"]["completion_tokens"] == whole["completion_tokens"] >= 5


def test_073_stream_and_whole_reply_say_the_same(api: Make) -> None:
    made = api("Hello you")
    assert said(made.chunks()) == made.reply()["message"]["content"]


def test_074_streams_are_whole_characters(api: Make) -> None:
    text = "größer 漢字 👩‍👩‍👧 end"
    assert said(api(text).chunks()) == text


def test_075_usage_adds_up_and_a_second_request_finds_its_prompt(api: Make) -> None:
    made = api()
    first, second = made.chat().json()["usage"], made.chat().json()["usage"]
    assert first["prompt_tokens"] + first["completion_tokens"] == first["total_tokens"]
    assert 0 < second["prompt_tokens_details"]["cached_tokens"] < second["prompt_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_076_a_prompt_that_does_not_fit(api: Make, stream: bool) -> None:
    error = api(engine={"n_ctx": 512}).error(messages=[{"role": "user", "content": "x" * 600}], stream=stream)
    assert error["code"] == "context_length_exceeded"
    assert "maximum context length is 512 tokens" in error["message"]


def test_077_a_full_context_ends_the_reply(api: Make) -> None:
    assert api("x" * 1000, engine={"n_ctx": 512}).reply()["finish_reason"] == "length"


# --- choices, log probabilities, biases ------------------------------------------------------------------------------


def test_078_several_choices(api: Make) -> None:
    made = api()
    body = made.chat(n=2).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    one = made.chat().json()["usage"]
    assert body["usage"]["completion_tokens"] == 2 * one["completion_tokens"]
    assert body["usage"]["prompt_tokens"] == one["prompt_tokens"]
    assert made.error(n=9)["param"] == "n" and made.error(n=0)["param"] == "n"


def test_078_more_choices_than_there_is_room_for(api: Make) -> None:
    body = api(engine={"batch": 1, "queue": 0}).chat(n=4).json()
    assert [choice["message"]["content"] for choice in body["choices"]] == ["Hello"] * 4


def test_078_seeded_choices_are_distinct_and_repeat(api: Make) -> None:
    made = api(NoiseModel())
    twice = [made.chat(n=3, temperature=2, seed=3, max_tokens=8).json()["choices"] for _ in range(2)]
    texts = [choice["message"]["content"] for choice in twice[0]]
    assert twice[0] == twice[1] and len(set(texts)) == 3


def test_079_choices_are_first_seen_in_order(api: Make) -> None:
    made = api()
    chunks = made.chunks(n=3, stream_options={"include_usage": True})
    indices = [choice["index"] for chunk in chunks for choice in chunk["choices"]]
    assert sorted(set(indices), key=indices.index) == [0, 1, 2]
    for index in range(3):
        assert said(chunks, index=index) == "Hello"
        assert sum(c["finish_reason"] is not None for x in chunks for c in x["choices"] if c["index"] == index) == 1
    assert chunks[-1]["usage"]["completion_tokens"] == 3 * made.chat().json()["usage"]["completion_tokens"]


def test_080_log_probabilities(api: Make) -> None:
    choice = api("Grüße").reply(logprobs=True)
    content = choice["logprobs"]["content"]
    assert bytes(byte for one in content for byte in one["bytes"]).decode() == choice["message"]["content"]
    assert all(one["logprob"] <= 0 and one["top_logprobs"] == [] for one in content)


def test_081_alternatives(api: Make) -> None:
    made = api(NoiseModel())
    for one in made.reply(logprobs=True, top_logprobs=3, max_tokens=4, logit_bias={"257": -100})["logprobs"]["content"]:
        values = [top["logprob"] for top in one["top_logprobs"]]
        assert len(values) == 3 and values == sorted(values, reverse=True)
    assert made.error(logprobs=True, top_logprobs=21)["param"] == "top_logprobs"
    assert made.error(top_logprobs=3)["param"] == "top_logprobs"


def test_082_streamed_log_probabilities_are_the_same(api: Make) -> None:
    made = api("Grüße")
    chunks = made.chunks(logprobs=True, top_logprobs=2)
    streamed = [one for chunk in chunks for one in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == made.reply(logprobs=True, top_logprobs=2)["logprobs"]["content"]


def test_083_biases(api: Make) -> None:
    made = api()
    assert made.reply(logit_bias={str(ord("H")): -100}, max_tokens=1)["message"]["content"] != "H"
    assert made.reply(logit_bias=[["H", False]], max_tokens=1)["message"]["content"] != "H"
    for bias in ({"H": 1}, {"72": 101}, {"100000": 1}):
        assert made.error(logit_bias=bias)["param"] == "logit_bias"


# --- what replies must match -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["functions", "function_call", "audio", "prediction", "web_search_options"])
def test_084_what_is_refused_by_name(api: Make, name: str) -> None:
    error = api().error(**{name: {}})
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")


def test_085_response_formats(api: Make) -> None:
    made = api()
    assert made.chat(response_format={"type": "text"}).status_code == 200
    assert made.error(response_format={"type": "sound"})["param"] == "response_format"
    assert (
        made.error(response_format={"type": "json_schema", "json_schema": {"name": "x"}})["param"] == "response_format"
    )


@pytest.mark.parametrize("reply", ['{"a": [1, 2]}', "Hello"])
def test_086_json_object(api: Make, reply: str) -> None:
    choice = api(reply).reply(response_format={"type": "json_object"}, logit_bias={"125": 50, "34": 5, "58": 5})
    assert isinstance(json.loads(choice["message"]["content"]), dict) or choice["finish_reason"] == "length"


NESTED = {
    "type": "object",
    "properties": {
        "kind": {"$ref": "#/$defs/kind"},
        "pair": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2},
        "inner": {
            "type": "object",
            "properties": {"yes": {"anyOf": [{"type": "boolean"}, {"type": "null"}]}},
            "required": ["yes"],
            "additionalProperties": False,
        },
    },
    "required": ["kind", "pair", "inner"],
    "additionalProperties": False,
    "$defs": {"kind": {"enum": ["cat", "dog"]}},
}


@pytest.mark.parametrize("seed", range(4))
def test_087_json_schema(api: Make, seed: int) -> None:
    """The model writes noise; only white space could keep it from coming to an end, and that is biased away."""
    blanks = {"32": -100, "10": -100, "13": -100, "9": -100}
    made = api(NoiseModel())
    choice = made.reply(response_format=schema_format(NESTED), temperature=1, seed=seed, logit_bias=blanks)
    assert choice["finish_reason"] == "stop"
    value = json.loads(choice["message"]["content"])
    jsonschema.validate(value, NESTED)
    assert list(value) == ["kind", "pair", "inner"]


def test_088_annotations_do_not_matter(api: Make) -> None:
    noted = NESTED | {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "T", "description": "d"}
    assert api('{"kind":"cat"').chat(response_format=schema_format(noted), max_tokens=3).status_code == 200


@pytest.mark.parametrize("schema", [False, {"type": "object", "propertyNames": {"pattern": "x"}, "$ref": "#/nowhere"}])
def test_089_impossible_schemas(api: Make, schema: Any) -> None:
    error = api().error(response_format=schema_format(schema), stream=True)
    assert error["param"] == "response_format"


def test_090_a_budget_cuts_json(api: Make) -> None:
    whole = '{"kind":"cat","pair":[1,2],"inner":{"yes":null}}'
    choice = api(whole).reply(response_format=schema_format(NESTED), max_tokens=9)
    assert choice["finish_reason"] == "length" and whole.startswith(choice["message"]["content"])


def test_091_regex_and_lark(api: Make) -> None:
    made = api(NoiseModel())
    assert made.reply(regex="(cat|dog)s?", temperature=1, seed=1)["message"]["content"].rstrip("s") in ("cat", "dog")
    assert made.reply(lark='start: "a" | "b"', temperature=1)["message"]["content"] in ("a", "b")
    assert made.error(regex="a", lark='start: "a"')["param"] == "lark"
    assert made.error(regex="a", response_format={"type": "json_object"})["param"] == "regex"
    assert made.error(regex="(")["param"] == "regex"
    assert made.error(lark="start: nowhere")["param"] == "lark"


def test_092_a_constrained_reply_reasons_only_where_that_was_asked_for(api: Make) -> None:
    """Changed: where reasoning was asked for, the constraint begins behind it."""
    made = api("<think>\nhm\n</think>\n\na")
    silent = made.reply(regex="a|b")["message"]
    assert silent["content"] in ("a", "b") and "reasoning_content" not in silent
    aloud = made.reply(regex="a|b", reasoning_effort="high")["message"]
    assert aloud["content"] == "a" and aloud["reasoning_content"].strip() == "hm"


def test_093_without_the_grammar_engine(api: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmhub.grammar.GrammarEngine.is_available", lambda self: False, raising=True)
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    response = api().chat(response_format=schema_format(NESTED))
    assert response.status_code == 501
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("not_supported_error", "response_format")


# --- tools -----------------------------------------------------------------------------------------------------------


def test_094_to_096_and_108_a_call(api: Make) -> None:
    made = api(PARIS)
    replies = [made.reply(tools=[WEATHER]) for _ in range(2)]
    for choice in replies:
        (call,) = choice["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
        assert call["id"].startswith("call_") and choice["message"]["content"] is None
        assert choice["finish_reason"] == "tool_calls"
    assert len({choice["message"]["tool_calls"][0]["id"] for choice in replies}) == 2
    assert made.error(tools=[{}])["param"] == "tools"
    assert made.error(tools=[{"type": "web_search"}])["param"] == "tools"
    assert "tool_calls" not in api().reply(tools=[])["message"]


def test_097_tool_choice_none(api: Make) -> None:
    made = api(PARIS)
    choice = made.reply(tools=[WEATHER], tool_choice="none")
    assert "tool_calls" not in choice["message"]
    assert "weather" not in made.post("/apply-template", messages=[USER], tools=[WEATHER], tool_choice="none").text


TIME = {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_098_099_101_forced_calls(api: Make, choice: Any) -> None:
    strict = {"type": "function", "function": WEATHER["function"] | {"strict": True}}  # type: ignore[operator]
    made = api(NoiseModel())
    reply = made.reply(
        tools=[strict, strict | {"function": strict["function"] | {"name": "forecast"}}],
        tool_choice=choice,
        temperature=2,
        seed=5,
        logit_bias={"32": -99, "10": -99, "13": -99, "9": -99},
    )
    (call,) = reply["message"]["tool_calls"]
    assert call["function"]["name"] in ("weather", "forecast")
    assert choice == "required" or call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"])["city"] in ("Paris", "Rome")
    assert reply["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "time"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "the weather"}}], "tool_choice": "required"}, "tools"),
    ],
)
def test_100_choices_that_make_no_sense(api: Make, fields: Any, param: str) -> None:
    assert api().error(**fields)["param"] == param


def test_102_one_call_at_most(api: Make) -> None:
    made = api(PARIS + "\n" + ROME)
    assert len(made.reply(tools=[WEATHER])["message"]["tool_calls"]) == 2
    assert len(made.reply(tools=[WEATHER], parallel_tool_calls=False)["message"]["tool_calls"]) == 1


def test_103_and_104_streamed_calls(api: Make) -> None:
    chunks = api(PARIS + "\n" + ROME).chunks(tools=[WEATHER])
    parts = [part for delta in deltas(chunks) for part in delta.get("tool_calls", ())]
    for index, city in enumerate(("Paris", "Rome")):
        first, *rest = [part for part in parts if part["index"] == index]
        assert (
            first["id"].startswith("call_") and first["type"] == "function" and first["function"]["name"] == "weather"
        )
        assert all(part.keys() == {"index", "function"} and part["function"].keys() == {"arguments"} for part in rest)
        arguments = first["function"]["arguments"] + "".join(part["function"]["arguments"] for part in rest)
        assert json.loads(arguments) == {"city": city}


def test_105_text_before_a_call(api: Make) -> None:
    message = api("Let me see.\n" + PARIS).reply(tools=[WEATHER])["message"]
    assert message["content"].strip() == "Let me see." and len(message["tool_calls"]) == 1


def test_106_a_malformed_call_is_content(api: Make, rig: Any) -> None:
    made = api("<tool_call>\nweather, please\n</tool_call>")
    made.rig.hub.models[0].lazy_tools = False
    message = made.reply(tools=[WEATHER])["message"]
    assert "tool_calls" not in message
    assert "<tool_call>" in message["content"] and "weather, please" in message["content"]


def test_107_a_call_that_the_budget_cuts_is_none(api: Make) -> None:
    choice = api(PARIS).reply(tools=[WEATHER], max_tokens=20)
    assert choice["finish_reason"] == "length"
    assert "tool_calls" not in choice["message"] and "<tool_call>" in choice["message"]["content"]


def test_109_histories_with_calls_render(api: Make) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{broken"}}
    for content in ("sunny", [{"type": "text", "text": "sunny"}]):
        history = [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": content},
        ]
        assert api().chat(messages=history, tools=[WEATHER]).status_code == 200


def test_110_custom_tools(api: Make) -> None:
    patch = {"type": "custom", "custom": {"name": "patch", "description": "Applies a patch"}}
    made = api('<tool_call>\n{"name": "patch", "arguments": {"input": "a \\"b\\"\\n"}}\n</tool_call>')
    choice = made.reply(tools=[patch])
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "custom" and call["custom"] == {"name": "patch", "input": 'a "b"\n'}
    assert choice["finish_reason"] == "tool_calls"
    parts = [part for delta in deltas(made.chunks(tools=[patch])) for part in delta.get("tool_calls", ())]
    assert "".join(part["custom"]["input"] for part in parts) == 'a "b"\n'


THINKS = "<think>\nhm\n</think>\n\n42"


# --- reasoning and errors --------------------------------------------------------------------------------------------


def test_111_and_114_reasoning_comes_apart(api: Make) -> None:
    body = api(THINKS).chat(reasoning_effort="high").json()
    message = body["choices"][0]["message"]
    assert message["reasoning_content"].strip() == "hm" and message["content"] == "42"
    details = body["usage"]["completion_tokens_details"]
    assert 0 < details["reasoning_tokens"] <= body["usage"]["completion_tokens"]


def test_111_reasoning_under_both_names_in_the_content_or_left_out(api: Make) -> None:
    message = api(THINKS, reasoning_field="both").reply(reasoning_effort="high")["message"]
    assert message["reasoning"] == message["reasoning_content"]
    made = api(THINKS)
    inline = made.reply(reasoning_effort="high", reasoning_format="none")["message"]
    assert inline["content"].split() == ["<think>", "hm", "</think>", "42"] and "reasoning_content" not in inline
    excluded = made.reply(reasoning={"effort": "high", "exclude": True})["message"]
    assert excluded["content"] == "42" and "reasoning_content" not in excluded


@pytest.mark.parametrize("effort", ["none", "minimal"])
def test_112_efforts_that_switch_it_off(api: Make, effort: str) -> None:
    made = api("42")
    assert "reasoning_content" not in made.reply(reasoning_effort=effort)["message"]
    assert made.error(reasoning_effort="banana")["param"] == "reasoning_effort"


def test_113_reasoning_precedes_content(api: Make) -> None:
    kinds = [set(delta) & {"reasoning_content", "content"} for delta in deltas(api(THINKS).chunks(think=True))[1:-1]]
    assert all(len(kind) == 1 for kind in kinds)
    names = [kind.pop() for kind in kinds]
    assert names == sorted(names, reverse=True) and {"content", "reasoning_content"} == set(names)


def test_115_an_error_in_the_stream(rig: Any, serving: Any) -> None:
    def fail(chunks: Any) -> None:
        if any(chunk.state.n_tokens > 25 for chunk in chunks):
            raise GenerationError("the kernel gave up")

    with serving(rig(FakeModel(b"x" * 40, before_step=fail)).hub) as running:
        client = openai.OpenAI(base_url=running.address + "/v1", api_key="k", max_retries=0)
        with client, pytest.raises(openai.APIError, match="gave up"):
            for _ in client.chat.completions.create(model="m", messages=[USER], stream=True):  # type: ignore[arg-type]
                pass


def test_token_ids_are_returned_per_choice(api: Make) -> None:
    made = api()
    ids = FakeTokenizer().encode("Hello")
    choice = made.reply(return_token_ids=True)
    assert choice["token_ids"][: len(ids)] == ids
    assert FakeTokenizer().decode(choice["prompt_token_ids"], special=True).endswith("assistant\n")
    chunks = [chunk["choices"][0] for chunk in made.chunks(return_token_ids=True)]
    assert [id for chunk in chunks for id in chunk.get("token_ids", ())] == choice["token_ids"]
    assert chunks[0]["prompt_token_ids"] == choice["prompt_token_ids"]


def test_prompt_tokens_can_be_counted_without_a_reply(api: Make) -> None:
    made = api()
    counted = made.post("/v1/chat/completions/input_tokens", messages=[USER]).json()
    assert counted == {"object": "response.input_tokens", "input_tokens": made.chat().json()["usage"]["prompt_tokens"]}


def test_timings_are_told_when_asked_for(api: Make) -> None:
    made = api()
    body = made.chat(timings_per_token=True).json()
    assert body["timings"]["predicted_n"] == body["usage"]["completion_tokens"]
    assert made.chunks(timings_per_token=True)[-1]["timings"]["prompt_n"] > 0
    assert "timings" not in made.chat().json()
