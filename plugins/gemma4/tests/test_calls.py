"""Gemma 4's tool calls, as it should write them and as it does."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lmhub_gemma4 import QUOTE
from lmhub_gemma4.calls import parse_calls
from lmhub_gemma4.eager import EagerReader

from lmhub.chat.steps import Announced
from lmhub.types import Tool

PROPERTIES = {
    "zip": {"type": "string"},
    "n": {"type": "integer"},
    "on": {"type": "boolean"},
    "tags": {"type": "array", "items": {"type": "string"}},
    "at": {"$ref": "#/$defs/place"},
}
PLACE = {"type": "object", "properties": {"code": {"type": "string"}}}
TOOLS = (Tool("f", parameters={"type": "object", "properties": PROPERTIES, "$defs": {"place": PLACE}}), Tool("g"))


def read(text: str, cut: bool = False) -> Any:
    """The arguments of a call, `'` standing for the quotation token; None for what is no call."""
    calls = parse_calls(text.replace("'", QUOTE), TOOLS, cut)
    return None if calls is None else json.loads(calls[0][1])


def test_a_call_as_it_should_be() -> None:
    text = "call:get_weather{city:'Paris',days:3,ok:true,opts:{x:1.50},tags:['a','b'],none:null}"
    [(name, arguments)] = parse_calls(text.replace("'", QUOTE)) or ()
    assert name == "get_weather"
    assert arguments == ('{"city":"Paris","days":3,"ok":true,"opts":{"x":1.50},"tags":["a","b"],"none":null}')


@pytest.mark.parametrize("text", ["", "}", "a,b:1", 'say "x"', "line\nline", "\\n", "<tool_call|>", "{[(", "é😀"])
def test_quoted_text_is_raw(text: str) -> None:
    assert read(f"call:g{{a:'{text}',b:['{text}']}}") == {"a": text, "b": [text]}


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("call:g{}", {}),
        ("call:g", {}),
        ("call: g { a : 1 , b : [ 1 , 2 ] } ", {"a": 1, "b": [1, 2]}),
        ("g{a:1}", {"a": 1}),
        ("call:g(a=1, b='x')", {"a": 1, "b": "x"}),
        ("call:g{'a b':1}", {"a b": 1}),
        ('call:g{"a":1,"b":{"c":[true]}}', {"a": 1, "b": {"c": [True]}}),
        ('call:g{{"a":1}}', {"a": 1}),
        ('call:g{a:"x\\ny",b:2}', {"a": "x\ny", "b": 2}),
        ('call:g{a:"he said "no", ok",b:2}', {"a": 'he said "no", ok', "b": 2}),
        ("call:g{city:Paris, France,days:3}", {"city": "Paris, France", "days": 3}),
        ("call:g{a:[x y,z]}", {"a": ["x y", "z"]}),
        ("call:g{a:None,b:True,c:False}", {"a": None, "b": True, "c": False}),
        ("call:g{a:-1.5e3,,b:2,}", {"a": -1500.0, "b": 2}),
        ("call:g{a:1", {"a": 1}),
        ("call:g{a:[1,{b:2", {"a": [1, {"b": 2}]}),
        ("call:g{a:'half of it}", {"a": "half of it"}),
        ("call:g{a:'half of it", {"a": "half of it"}),
        ("call:f{zip:07030,n:'5',on:'true'}", {"zip": "07030", "n": 5, "on": True}),
        ("call:f{zip:true,n:'many',tags:[1,'2']}", {"zip": "true", "n": "many", "tags": ["1", "2"]}),
        ("call:f{at:{code:7}}", {"at": {"code": "7"}}),
    ],
)
def test_what_models_get_wrong(text: str, arguments: Any) -> None:
    assert read(text) == arguments


def test_single_quotes() -> None:
    assert parse_calls("call:g{a:'it's so, now',b:['x','y']}") == [("g", '{"a":"it\'s so, now","b":["x","y"]}')]


@pytest.mark.parametrize(
    "text", ["", "nothing", "call:", "call:{a:1}", "call:g{a", "call:g{a:1,a:2}", "call:g[1]", "{a:1}"]
)
def test_what_is_no_call(text: str) -> None:
    assert read(text) is None


@pytest.mark.parametrize(
    "text", ["call:g", "call:g{", "call:g{a:1", "call:g{a:'x", "call:g{a:'x'", "call:g{a:[1]", "call:g{a:{b:1}"]
)
def test_what_was_cut_off_is_not_completed(text: str) -> None:
    assert read(text, cut=True) is None


def written(value: Any) -> str:
    """As the model's template writes it."""
    if isinstance(value, str):
        return QUOTE + value + QUOTE
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{written(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return json.dumps(value)


UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # however busy the machine is
NAMES = st.from_regex(r"\A[a-z_]\w{0,8}\Z", fullmatch=True)
LEAVES = st.none() | st.booleans() | st.integers() | st.text().filter(lambda text: QUOTE not in text)
VALUES: st.SearchStrategy[Any] = st.deferred(
    lambda: LEAVES | st.lists(VALUES, max_size=3) | st.dictionaries(NAMES, VALUES, max_size=3)
)


@UNHURRIED
@given(st.dictionaries(st.from_regex(r"\A[a-z_]\w{0,8}\Z"), VALUES, max_size=5))
def test_what_is_written_is_read(arguments: dict[str, Any]) -> None:
    [(name, text)] = parse_calls(f"call:a.b-c{written(arguments)}") or ()
    assert (name, json.loads(text)) == ("a.b-c", arguments)


@UNHURRIED
@given(st.text("cal:g{}[](),='\"<|>\\ 1tn.\n", max_size=60), st.booleans())
def test_whatever_is_read_is_json(text: str, cut: bool) -> None:
    for _, arguments in parse_calls(text, TOOLS, cut) or ():
        assert isinstance(json.loads(arguments), dict)


def test_long_texts_take_linear_time() -> None:
    assert re.fullmatch("x+", read("call:g{a:'" + "x" * 300_000 + "'}")["a"])
    assert read("call:g{" + ",".join(f"k{i}:v{i}" for i in range(3000)) + "}")["k2999"] == "v2999"
    assert read("call:g{a:" + "[" * 5000) is None


# --- while they are written ------------------------------------------------------------------------------------------

EAGER = tuple(Tool(tool.name, parameters=tool.parameters, eager=True) for tool in TOOLS)


def fragments(pieces: list[str], tools: tuple[Tool, ...] = EAGER) -> list[Any]:
    """What a region brings, piece by piece, and at its end."""
    reader = EagerReader(tools)
    return [item for piece in pieces for item in reader.feed(piece)] + list(reader.finish())


def test_strings_grow_while_they_are_written() -> None:
    pieces = ["call:g{", "a:", QUOTE, "Par", 'is "', QUOTE, ",n:", "1", "2", ",l:[", "1]", "}"]
    assert fragments(pieces)[1:] == ['{"a":"', "Par", 'is \\"', '"', ',"n":12', ',"l":[1]', "}"]


@pytest.mark.parametrize(
    "text",
    [
        "{a:'x',b:1,c:{d:['y, }']},e:null}",
        "{a:''}",
        "{a:Paris, France,days:3}",
        "{a:1,b:x y}",
        "{a:'half of it}",
        "{a:'half",
        "{a:[1,{b:'x",
        "{ a : 1 , b : 'x' }",
        "(a=1)",
        '{a:{"b":"}"},c:\'x\'}',
    ],
)
def test_fragments_join_to_what_is_read_whole(text: str) -> None:
    text = "call:g" + text.replace("'", QUOTE)
    want = json.loads((parse_calls(text, EAGER) or [("", "")])[0][1])
    for size in (1, 2, 3, len(text)):
        found = fragments([text[at : at + size] for at in range(0, len(text), size)])
        if found:  # else nothing was announced, and the whole is read
            assert isinstance(found[0], Announced) and json.loads("".join(found[1:])) == want


def test_only_calls_that_want_it_are_read_eagerly() -> None:
    assert fragments(["call:g{a:1}"], TOOLS) == [] and fragments(["call:other{a:1}"]) == []
    assert fragments(['call:g{"a":1}']) == []
    typed = fragments([f"call:f{{zip:07030,n:{QUOTE}5{QUOTE}}}"])
    assert "".join(typed[1:]) == '{"zip":"07030","n":5}'


@UNHURRIED
@given(st.dictionaries(st.from_regex(r"\A[a-z_]\w{0,8}\Z"), VALUES, min_size=1, max_size=4), st.integers(1, 9))
def test_whatever_is_written_arrives_in_fragments(arguments: dict[str, Any], size: int) -> None:
    text = f"call:g{written(arguments)}"
    found = fragments([text[at : at + size] for at in range(0, len(text), size)])
    assert json.loads("".join(found[1:])) == arguments
