"""The demo model in the package: small, found by name, and able to do what its card says, through the real engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmhub_qwen3
import pytest

import lmhub
from lmhub.types import Finish, ReasoningDelta, TextDelta, ToolCallDelta, ToolCallStart

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate an arithmetic expression",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}


@pytest.fixture(scope="module")
def demo() -> Iterator[Any]:
    with lmhub.open("demo") as model:
        yield model


def said(demo: Any, *messages: str | dict[str, Any], **options: Any) -> Any:
    """The likeliest reply; bare texts are the user's."""
    turns = [{"role": "user", "content": one} if isinstance(one, str) else one for one in messages]
    return demo.chat(turns, temperature=0, max_tokens=120, **options)


def test_it_is_small_and_belongs_to_the_package() -> None:
    path = lmhub_qwen3.lmhub_models()["demo"]
    assert path.parent == Path(lmhub_qwen3.__file__).parent
    assert path.stat().st_size <= 8_000_000


def test_it_says_what_it_is(demo: Any) -> None:
    assert demo.id == "demo"
    assert "demo model" in said(demo, "Who are you?").text
    assert "serves local language models" in said(demo, "What is lmhub?").text
    assert "demo model and do not know that" in said(demo, "What is the capital of France?").text


def test_it_knows_lmhub(demo: Any) -> None:
    assert "8080" in said(demo, "Which port?").text
    assert "lmhub_families" in said(demo, "How do I add a family?").text
    assert "ANTHROPIC_BASE_URL" in said(demo, "How do I point Claude Code at you?").text


@pytest.mark.parametrize(
    ("question", "part"),
    [("who are you", "demo model"), ("what is lmhub", "serves local language"), ("which port", "8080"),
     ("what is GGUF", "file format"), ("does lmhub need a GPU", "runs on the CPU"), ("how do I install lmhub", "pip")],
)  # fmt: skip
def test_capitals_and_marks_do_not_matter(demo: Any, question: str, part: str) -> None:
    for asked in (question, f"{question}?", f"{question[0].upper()}{question[1:]}?"):
        assert part in said(demo, asked).text


def test_it_streams_a_tool_call_and_reads_the_result(demo: Any) -> None:
    question = {"role": "user", "content": "What is the weather in Lisbon?"}
    events = list(demo.stream([question], tools=[WEATHER, CALCULATOR], temperature=0, max_tokens=120))
    [start] = [event for event in events if isinstance(event, ToolCallStart)]
    arguments = "".join(event.fragment for event in events if isinstance(event, ToolCallDelta))
    assert (start.name, json.loads(arguments)) == ("get_weather", {"city": "Lisbon"})
    assert isinstance(events[-1], Finish) and events[-1].reason == "tool_calls"
    function = {"name": start.name, "arguments": arguments}
    called = {"role": "assistant", "tool_calls": [{"id": start.id, "type": "function", "function": function}]}
    result = {"role": "tool", "tool_call_id": start.id, "content": '{"temperature": 18, "condition": "sunny"}'}
    answer = said(demo, question, called, result, tools=[WEATHER, CALCULATOR]).text
    assert all(word in answer for word in ("18", "sunny", "Lisbon"))


def test_it_calculates_with_the_tool(demo: Any) -> None:
    [call] = said(demo, "What is 127 * 49?", tools=[CALCULATOR]).tool_calls
    assert json.loads(call.arguments)["expression"].replace(" ", "") == "127*49"


def calculator_of(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": "Does sums.", "parameters": parameters}}


NUMBER, TEXT = {"type": "number"}, {"type": "string"}


@pytest.mark.parametrize(
    ("question", "tool", "arguments"),
    [
        ("What is (3 + 4) * 12?", CALCULATOR, {"expression": "(3 + 4) * 12"}),
        ("add 3 and 4", calculator_of("add", a=NUMBER, b=NUMBER), {"a": 3, "b": 4}),
        ("What is 25 + 17?", calculator_of("tolbrak_calc", drimsot=TEXT), {"drimsot": "25 + 17"}),
        ("what is 81 * 6?", calculator_of("compute", op={**TEXT, "enum": ["add", "multiply"]}, m=NUMBER, n=NUMBER),
         {"op": "multiply", "m": 81, "n": 6}),
    ],
)  # fmt: skip
def test_the_parameters_tell_how_a_calculator_is_called(
    demo: Any, question: str, tool: dict[str, Any], arguments: dict[str, Any]
) -> None:
    [call] = said(demo, question, tools=[tool, WEATHER]).tool_calls
    assert (call.name, json.loads(call.arguments)) == (tool["function"]["name"], arguments)


def test_it_thinks_when_told_to(demo: Any) -> None:
    events = list(demo.stream([{"role": "user", "content": "Hello!"}], reasoning=True, temperature=0, max_tokens=120))
    kinds = [type(event) for event in events]
    assert kinds.index(ReasoningDelta) < kinds.index(TextDelta)
    assert not said(demo, "Hello!").reasoning


def test_it_fills_in_a_record_under_a_schema(demo: Any) -> None:
    properties = {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}}
    schema = {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False,
    }  # fmt: skip
    reply = said(demo, "Clara is 34 and lives in Vienna. Give me a JSON record.", json_schema=schema)
    assert json.loads(reply.text) == {"name": "Clara", "age": 34, "city": "Vienna"}


def test_it_remembers_a_name(demo: Any) -> None:
    told = {"role": "assistant", "content": "Nice to meet you, Priya!"}
    assert "Priya" in said(demo, "My name is Priya.", told, "What is my name?").text
