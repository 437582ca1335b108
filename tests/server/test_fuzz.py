"""Bodies that no client would send, against the whole application: each is answered in its dialect, none with a 500.

Sound bodies of every route are changed in fields (from the schemas of `/openapi.json`), in places deep inside and in
bytes. `LMHUB_FUZZ_BODIES=20000 pytest tests/server/test_fuzz.py` sends that many from a random seed; a failure prints
the smallest body that Hypothesis found, and `--hypothesis-show-statistics` tells how the rest was answered.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from lmhub.hub import Hub
from lmhub.server.app import create_app
from lmhub.server.builtin import Builtin
from lmhub.server.openapi import description
from lmhub.settings import EngineSettings, ServerSettings
from lmhub.testing.fake import PATIENCE_S, FakeModel, FakeTokenizer
from lmhub.testing.serving import fake_loaded
from lmhub.testing.sse import frames
from lmhub.testing.tiny import decoder, write

LONG = int(os.environ.get("LMHUB_FUZZ_BODIES", "0"))
N_SCRIPTED, N_CONSTRAINED = (LONG, LONG // 4) if LONG else (1000, 150)
LARGEST_ANSWER = 4 << 20  # bytes: 8 replies that fill the context, with 20 alternatives for each token
KEY = "sk-kept-to-itself"

Draw = Callable[[st.SearchStrategy[Any]], Any]
Place = tuple[Any, Any]  # a container and a key or an index of it

DESCRIPTION: dict[str, Any] = description(list(Builtin(ServerSettings()).lmhub_dialects()))
SCHEMAS: dict[str, Any] = DESCRIPTION["components"]["schemas"]


# --- sound bodies ----------------------------------------------------------------------------------------------------

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Rome"]},
        "days": {"type": "array", "items": {"$ref": "#/$defs/day"}, "maxItems": 2},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"day": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": "^[a-z]{1,3}$"}]}},
}
FUNCTION = {"name": "weather", "description": "The weather of a city.", "parameters": SCHEMA, "strict": True}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
LARK = {"type": "grammar", "syntax": "lark", "definition": "start: /[a-z]{1,9}/"}
HI = [{"role": "user", "content": "hi"}]

CHAT: list[dict[str, Any]] = [
    {"messages": [{"role": "system", "content": "Be brief."}, *HI], "max_tokens": 8, "temperature": 0.5, "seed": 3},
    {
        "messages": [*HI, {"role": "assistant", "content": None, "tool_calls": [CALL]},
                     {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "sunny"}]}],
        "tools": [{"type": "function", "function": FUNCTION},
                  {"type": "custom", "custom": {"name": "patch", "format": {"type": "grammar", "grammar": LARK}}}],
        "tool_choice": "auto", "stream": True, "stream_options": {"include_usage": True},
    },
    {
        "messages": HI, "tools": [{"type": "function", "function": FUNCTION}], "max_tokens": 60,
        "tool_choice": {"type": "function", "function": {"name": "weather"}}, "parallel_tool_calls": False,
    },
    {
        "messages": HI, "n": 2, "logprobs": True, "top_logprobs": 2, "logit_bias": {"72": -100}, "stop": ["lo", "x"],
        "stream": True, "return_token_ids": True, "timings_per_token": True, "max_completion_tokens": 9,
    },
    {"messages": HI, "response_format": {"type": "json_schema", "json_schema": {"name": "r", "schema": SCHEMA}},
     "max_tokens": 60},
    {"messages": HI, "reasoning_effort": "high", "reasoning": {"exclude": False, "max_tokens": 5}, "max_tokens": 40,
     "chat_template_kwargs": {"enable_thinking": True}, "metadata": {"user": "1"}},
    {"messages": [*HI, {"role": "assistant", "content": "Well, "}], "continue_final_message": True, "max_tokens": 5},
    {"messages": HI, "structured_outputs": {"choice": ["yes", "no"]}, "max_tokens": 9},
    {"messages": HI, "regex": "[ab]{1,5}", "max_tokens": 9},
    {"messages": HI, "lark": 'start: "a" | /b+/', "stream": True, "max_tokens": 9},
    {"messages": HI, "grammar": 'root ::= "a" | "b"', "max_tokens": 9},
]  # fmt: skip
COMPLETIONS: list[dict[str, Any]] = [
    {"prompt": "Once upon", "max_tokens": 8, "temperature": 0, "stop": "x", "suffix": None},
    {"prompt": ["a", "b"], "n": 2, "echo": True, "logprobs": 2, "max_tokens": 4},
    {"prompt": [[72, 105], [72]], "max_tokens": 0, "echo": True, "logprobs": 1},
    {"prompt": [72, 105], "stream": True, "stream_options": {"include_usage": True}, "best_of": 1, "max_tokens": 5},
    {"prompt": "x", "json_schema": SCHEMA, "max_tokens": 60},
]
TOOL = {"type": "function", **FUNCTION}
RESPONSES: list[dict[str, Any]] = [
    {"model": "m", "input": "hi", "instructions": "Be brief.", "max_output_tokens": 8, "store": False},
    {
        "model": "m", "stream": True, "store": True, "include": ["reasoning.encrypted_content"],
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "so"}],
             "content": [{"type": "reasoning_text", "text": "so"}], "encrypted_content": "AAAA"},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Paris"}'},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "sunny"}]},
            {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "x"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": "done"},
            {"role": "assistant", "content": [{"type": "output_text", "text": "Well", "annotations": []}]},
            {"role": "user", "content": "go on"},
        ],
        "tools": [TOOL, {"type": "custom", "name": "patch", "format": LARK}, {"type": "web_search"},
                  {"type": "namespace", "name": "mcp", "tools": [TOOL]}],
        "reasoning": {"effort": "medium", "summary": "auto"}, "text": {"verbosity": "low"}, "max_output_tokens": 90,
    },
    {
        "model": "m", "input": HI, "tools": [TOOL], "tool_choice": {"type": "function", "name": "weather"},
        "max_output_tokens": 60, "parallel_tool_calls": False,
    },
    {"model": "m", "input": HI, "text": {"format": {"type": "json_schema", "name": "r", "schema": SCHEMA}},
     "max_output_tokens": 60, "top_logprobs": 1, "include": ["message.output_text.logprobs"]},
    {"model": "m", "input": HI, "previous_response_id": "resp_1", "truncation": "disabled", "background": False},
]  # fmt: skip
MESSAGES: list[dict[str, Any]] = [
    {"model": "m", "max_tokens": 8, "messages": HI, "system": "Be brief.", "temperature": 1, "top_k": 5},
    {
        "model": "m", "max_tokens": 90, "stream": True,
        "system": [{"type": "text", "text": "x-anthropic-billing-header: cch=1;", "cache_control": {"type": "x"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "so", "signature": "x"}, {"type": "redacted_thinking", "data": "AA"},
                {"type": "text", "text": "Well"},
                {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris"}}]},
            {"role": "system", "content": "Hurry."},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "is_error": False,
                                          "content": [{"type": "text", "text": "sunny"}]}]},
        ],
        "tools": [{"name": "weather", "description": "d", "input_schema": SCHEMA, "eager_input_streaming": True},
                  {"type": "web_search_20250305", "name": "web_search"}],
        "thinking": {"type": "enabled", "budget_tokens": 9}, "stop_sequences": ["x"],
        "context_management": {"edits": []}, "metadata": {"user_id": "1"}, "output_config": {"effort": "high"},
    },
    {
        "model": "m", "max_tokens": 60, "messages": HI, "tools": [{"name": "weather", "input_schema": SCHEMA}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    },
    {"model": "m", "max_tokens": 60, "messages": HI,
     "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    {"model": "m", "max_tokens": 5, "messages": [*HI, {"role": "assistant", "content": "Well,"}]},
]  # fmt: skip
SEEDS: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": CHAT,
    "/v1/chat/completions/input_tokens": CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/responses": RESPONSES,
    "/v1/responses/input_tokens": RESPONSES,
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": MESSAGES,
    "/apply-template": CHAT,
    "/tokenize": [
        {"content": ["hi", 72], "add_special": True, "parse_special": True, "with_pieces": True},
        {"prompt": "hi", "add_special_tokens": True, "return_token_strs": True},
        {"messages": HI, "model": "fake"},
    ],
    "/detokenize": [{"tokens": [72, 105, 258], "model": "fake"}],
}
CONSTRAINED = {
    "/v1/chat/completions": [body for body in CHAT if {"tools", "response_format", "regex", "lark"} & set(body)],
    "/v1/completions": COMPLETIONS[-1:],
    "/v1/responses": RESPONSES[1:4],
    "/v1/messages": MESSAGES[1:4],
}


# --- what is put into them -------------------------------------------------------------------------------------------

WORDS = (
    "text", "function", "custom", "image_url", "input_text", "output_text", "input_image", "reasoning", "message",
    "any", "function_call", "function_call_output", "item_reference", "tool_use", "tool_result", "thinking", "image",
    "auto", "json_schema", "json_object", "grammar", "lark", "regex", "web_search", "none", "required", "tool",
    "allowed_tools", "enabled", "adaptive", "disabled", "user", "system", "assistant", "developer", "high", "minimal",
    "refusal", "object", "array", "string", "weather", "patch", "toolu_1", "c1", "#", "#/$defs/day", "#/$defs/none",
    "default",
)  # fmt: skip
TEXTS = (
    "", " ", "\0", "\ud800", "a\udfffb", "\ue000\uf8ff", "\u2028\u2029\x85", "\U0001f600\u200d\U0010ffff",
    "e\u0301" * 40, "x" * 3000, "<|im_end|>", "<|im_start|>system\n", "<think>", "</think>", "<tool_call>",
    "</tool_call>\n{", "{{ 1 }}", "{% for i in range(9**9) %}x{% endfor %}", '{"city": ', "[" * 500, "NaN", "1e999",
    "/etc/passwd",
    "data: x\n\n", "a{1,100000}", "(a|b", "(?=x)", "(a*)*$", "[", "\\p{Lu}", "start: start", "start: /a/ start?",
    'root ::= "a" root', 'root ::= [^\\n]* "', "start: <[257]> /x/", "%import common.INT", "start: @x",
    "data:image/png;base64,AAAA",
)  # fmt: skip
NUMBERS = (
    0, -0.0, -1, 1, 2, 3, 0.5, 1.5, 8, 20, 21, 65, 1000, -2.5, 1e308, 5e-324, 1 << 31, (1 << 53) + 1, (1 << 63) - 1,
    1 << 63, 1 << 64, -(1 << 63) - 1, 10**30, 10**400,
)  # fmt: skip
WAYS = ("field",) * 3 + ("mix",) * 4 + ("like",) * 4 + ("junk", "junk", "drop", "double", "wrap", "null", "move")
BYTES = (b"\0", b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b'"', b"{", b"}", b",", b"\\", b"\n", b"\\u", b"1e999", b"//")
KEYWORDS = (
    "type", "properties", "items", "prefixItems", "enum", "const", "anyOf", "oneOf", "allOf", "not", "$ref", "$defs",
    "required", "minLength", "maxLength", "minItems", "maxItems", "minimum", "exclusiveMaximum", "multipleOf",
    "pattern", "patternProperties", "additionalProperties", "format", "if", "then", "uniqueItems", "minProperties",
    "$schema",
)  # fmt: skip


def deep(levels: int, key: str | None) -> Any:
    """Arrays, or objects of one key, in each other."""
    value: Any = 1
    for _ in range(levels):
        value = [value] if key is None else {key: value}
    return value


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(NUMBERS),
    st.sampled_from(WORDS),
    st.sampled_from(TEXTS),
    st.text(max_size=6),
)
JUNK = st.one_of(
    SCALARS,
    SCALARS,
    st.lists(SCALARS, max_size=3),
    st.dictionaries(st.sampled_from((*WORDS, *KEYWORDS, "", "name", "content", "x")), SCALARS, max_size=3),
    st.dictionaries(st.sampled_from(KEYWORDS), st.one_of(SCALARS, st.just({}), st.just([]), st.just([{}])), max_size=4),
    st.builds(deep, st.sampled_from((3, 60, 120, 500)), st.sampled_from((None, "items", "anyOf", "type", "content"))),
    st.sampled_from(([[]], [None], [{}], {"": ""}, ["x"] * 300, [72] * 600, {"type": None}, {"type": {}}, SCHEMA)),
)


def valid(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that the published schema allows, mostly."""
    if "$ref" in schema:
        return valid(SCHEMAS[schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return st.one_of([valid(one) for one in schema["anyOf"]])
    kind = schema.get("type")
    if kind == "object" and "properties" in schema:
        return st.fixed_dictionaries({}, optional={name: valid(one) for name, one in schema["properties"].items()})
    if kind == "array" and "items" in schema:
        return st.lists(valid(schema["items"]), max_size=2)
    if kind == "integer":
        low = schema.get("minimum", -9)
        return st.integers(low, schema.get("maximum", low + 30))
    if kind == "number":
        return st.floats(schema.get("minimum", 0), schema.get("maximum", 4), allow_nan=False)
    plain = {"string": st.sampled_from(WORDS), "boolean": st.booleans(), "null": st.none()}
    return plain.get(kind or "", JUNK)


def fields(operation: dict[str, Any]) -> dict[str, st.SearchStrategy[Any]]:
    """Field -> values for it, of the body of one route."""
    reference = operation["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    return {name: valid(one) for name, one in SCHEMAS[reference.rpartition("/")[2]]["properties"].items()}


FIELDS = {path: fields(operation) for path, operation in DESCRIPTION["paths"].items()}


def places(value: Any) -> Iterator[Place]:
    """Every place inside `value`."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def like(draw: Draw, value: Any) -> Any:
    """Another value of the type that `value` has."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return draw(st.one_of(st.sampled_from(WORDS), st.sampled_from(TEXTS), st.text(max_size=9)))
    if isinstance(value, int | float):
        return draw(st.one_of(st.integers(-2, 40), st.sampled_from(NUMBERS)))
    return draw(JUNK)


def change(draw: Draw, path: str, body: dict[str, Any]) -> None:
    """Change one thing of `body`."""
    how = draw(st.sampled_from(WAYS))
    found = list(places(body))
    if how == "field" or not found:
        name = draw(st.sampled_from(sorted(FIELDS[path])))
        body[name] = copy.deepcopy(draw(FIELDS[path][name]))
        return
    if how == "mix":
        other = draw(st.sampled_from(SEEDS[path]))
        body.update(copy.deepcopy({name: other[name] for name in draw(st.lists(st.sampled_from(sorted(other))))}))
        return
    holder, key = draw(st.sampled_from(found))
    if how == "drop":
        del holder[key]
    elif how == "double" and isinstance(holder, list):
        holder[key:key] = [copy.deepcopy(holder[key])] * draw(st.sampled_from((1, 2, 70)))
    elif how == "wrap":
        holder[key] = draw(st.sampled_from(([holder[key]], {"type": holder[key]}, json.dumps(holder[key]))))
    elif how == "move":
        other, at = draw(st.sampled_from(found))
        holder[key] = copy.deepcopy(other[at])
    elif how == "like":
        holder[key] = copy.deepcopy(like(draw, holder[key]))
    else:
        holder[key] = None if how == "null" else copy.deepcopy(draw(JUNK))  # some are shared


def spelled(draw: Draw, body: dict[str, Any]) -> bytes:
    """`body` as JSON, in one of several hands; now and then not quite JSON."""
    text = json.dumps(body, ensure_ascii=draw(st.booleans()))
    data = text.encode("utf-8", "surrogatepass")
    how = draw(st.sampled_from(("whole",) * 30 + ("cut", "insert", "remove", "twice", "mark", "array", "again")))
    at = draw(st.integers(0, len(data)))
    if how == "cut":
        return data[:at]
    if how == "insert":
        return data[:at] + draw(st.sampled_from(BYTES)) + data[at:]
    if how == "remove":
        return data[:at] + data[at + 1 :]
    if how == "twice":  # the same keys once more
        return data[:-1] + b"," + data[1:]
    return {"mark": b"\xef\xbb\xbf" + data, "array": b"[" + data + b"]", "again": data + data}.get(how, data)


@st.composite
def requests(draw: Draw, seeds: dict[str, list[dict[str, Any]]]) -> tuple[str, bytes]:
    """A path and a body."""
    path = draw(st.sampled_from(sorted(seeds)))
    body = copy.deepcopy(draw(st.sampled_from(seeds[path])))
    for _ in range(draw(st.sampled_from((1, 1, 2, 3)))):
        change(draw, path, body)
    return path, spelled(draw, body)


# --- what must come of them ------------------------------------------------------------------------------------------

REPLIES = (
    "Hello",
    "",
    "<think>\nso\n</think>\n\nHi \u00e9\u4e2d\U0001f600",
    'Well<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>then',
    '<tool_call>\n{"name": "patch", "arguments": {"input": "a\\nb"}}\n</tool_call>',
    '<tool_call>\n{"name": ',
    "<think>\nnever ends",
    '{"city": "Rome", "days": [1, "ab"]}',
)


def reply(prompt: tuple[int, ...]) -> list[int]:
    """One of REPLIES, as the prompt has it."""
    return FakeTokenizer().encode(REPLIES[sum(prompt) % len(REPLIES)], special=True)


@dataclass
class Target:
    """The application, on an event loop of its own."""

    client: httpx.AsyncClient
    loop: asyncio.AbstractEventLoop

    def post(self, path: str, body: bytes) -> httpx.Response:
        """The answer."""
        return self.loop.run_until_complete(asyncio.wait_for(self.client.post(path, content=body), PATIENCE_S))


def target_of(hub: Hub) -> Iterator[Target]:
    """The application of `hub`, which is closed at the end."""
    transport = httpx.ASGITransport(create_app(hub, ServerSettings(api_keys=(KEY,))))
    headers = {"authorization": f"Bearer {KEY}"}
    client = httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)
    loop = asyncio.new_event_loop()
    try:
        yield Target(client, loop)
    finally:
        loop.run_until_complete(client.aclose())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        hub.close()


@pytest.fixture(scope="module")
def scripted() -> Iterator[Target]:
    """A server whose model answers with one of REPLIES."""
    hub = Hub(entry_points=False)
    hub.serve(fake_loaded(FakeModel(reply), n_ctx=2048), EngineSettings())
    yield from target_of(hub)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A server of a small random model, which takes grammars where they lead."""
    path = write(tmp_path_factory.mktemp("fuzz") / "tiny.gguf", decoder("qwen3", qk_norm=True, n_ctx=2048))
    hub = Hub()
    hub.load(path, EngineSettings(ctx=2048))
    yield from target_of(hub)


def check(path: str, answer: httpx.Response) -> None:
    """The answer is one that a client of this path can read, and tells nobody what is none of their business."""
    text = answer.text
    event(f"{path} {answer.status_code}")
    assert answer.status_code in (200, 400, 404, 413, 501), (answer.status_code, text[:500])
    assert len(answer.content) < LARGEST_ANSWER
    assert "its log says why" not in text and "Traceback" not in text
    assert KEY not in text and str(Path(__file__).parents[2]) not in text
    if answer.headers["content-type"].startswith("text/event-stream"):
        check_stream(path, text)
    elif answer.status_code == 200:
        assert isinstance(json.loads(text), dict)
    else:
        check_error(path, json.loads(text))


def check_error(path: str, answer: dict[str, Any]) -> None:
    """The envelope is that of the path."""
    error = answer["error"]
    assert isinstance(error["message"], str) and error["message"] and isinstance(error["type"], str)
    if path.startswith("/v1/messages"):
        assert answer.keys() == {"type", "error", "request_id"} and error.keys() == {"type", "message"}
    else:
        assert answer.keys() == {"error"} and error.keys() == {"message", "type", "param", "code"}


def check_stream(path: str, text: str) -> None:
    """The stream ends as its dialect's streams do; no generation fails."""
    found = list(frames(text))
    data = [json.loads(data) for _, data in found if data != "[DONE]"]
    if path == "/v1/messages":
        assert data[-1]["type"] == "message_stop"
    elif path == "/v1/responses":
        assert data[-1]["type"] in ("response.completed", "response.incomplete"), data[-1]
    else:
        assert found[-1] == (None, "[DONE]") and all("error" not in chunk for chunk in data)


BOUNDS: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "derandomize": not LONG,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
}


@given(case=requests(SEEDS))
@settings(max_examples=N_SCRIPTED, **BOUNDS)
def test_217_mutations_of_sound_bodies_are_answered(scripted: Target, case: tuple[str, bytes]) -> None:
    check(case[0], scripted.post(*case))


@given(case=requests(CONSTRAINED))
@settings(max_examples=N_CONSTRAINED, **BOUNDS)
def test_mutations_of_constraints_are_answered(real: Target, case: tuple[str, bytes]) -> None:
    check(case[0], real.post(*case))


@pytest.mark.parametrize("path", SEEDS)
def test_sound_bodies_are_sound(scripted: Target, path: str) -> None:
    for body in SEEDS[path]:
        answer = scripted.post(path, json.dumps(body).encode())
        assert answer.status_code == 200 or "previous_response_id" in answer.text, (body, answer.text)


def test_every_published_route_is_tried() -> None:
    assert set(DESCRIPTION["paths"]) == set(SEEDS)
