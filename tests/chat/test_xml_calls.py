"""Tool calls in the XML style: what is a value, of which type, and what is no call; and JSON where XML is expected."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmhub.chat.calls import parse_calls, raw_input
from lmhub.types import Tool

SCHEMA = {
    "type": "object",
    "properties": {
        "s": {"type": "string"},
        "i": {"type": "integer"},
        "x": {"type": "number"},
        "b": {"type": "boolean"},
        "o": {"type": "object"},
        "l": {"type": "array"},
        "is": {"type": ["integer", "string"]},
        "in": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "sn": {"type": ["string", "null"]},
        "r": {"$ref": "#/$defs/list"},
        "loop": {"$ref": "#/$defs/loop"},
        "e": {"enum": ["5", "6"]},
        "c": {"const": 5},
        "nul": {"type": "integer", "nullable": True},
        "all": {"allOf": [{"$ref": "#/$defs/list"}]},
        "any": {},
        "yes": True,
    },
    "$defs": {"list": {"type": "array"}, "loop": {"$ref": "#/$defs/loop"}},
}
F = Tool("f", parameters=SCHEMA)


def one(body, tools=(F,)):
    calls = parse_calls(f"\n<function=f>\n{body}</function>\n", tools)
    assert calls is None or len(calls) == 1
    return None if calls is None else calls[0][1]


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("s", "5", '"5"'),
        ("s", "null", '"null"'),
        ("s", '{"a": 1}', '"{\\"a\\": 1}"'),
        ("i", "5", "5"),
        ("i", " 5 ", "5"),
        ("i", '"5"', "5"),
        ("i", "5.0", "5.0"),
        ("i", "five", '"five"'),
        ("i", "null", '"null"'),
        ("i", "9" * 400, "9" * 400),
        ("x", "1.50", "1.50"),
        ("x", "5", "5"),
        ("b", "true", "true"),
        ("b", "True", "true"),
        ("o", '{"b":1.0,  "a":2}', '{"b":1.0,  "a":2}'),
        ("o", "{'a': None, 'b': [True]}", '{"a": null, "b": [true]}'),
        ("o", '{"a": 1, "a": 2}', '{"a": 2}'),
        ("o", "{'a': open}", "\"{'a': open}\""),
        ("l", "[1, 'é']", '[1, "é"]'),
        ("l", "(1, 2)", "[1, 2]"),
        ("l", "{1, 2}", '"{1, 2}"'),
        ("l", "[1e999]", "[1e999]"),
        ("l", "[" * 5000, '"' + "[" * 5000 + '"'),
        ("is", "5", "5"),
        ("is", "five", '"five"'),
        ("is", "[5]", '"[5]"'),
        ("in", "null", "null"),
        ("in", "None", "null"),
        ("sn", "null", "null"),
        ("sn", "5", '"5"'),
        ("r", "[1]", "[1]"),
        ("loop", "[1]", "[1]"),
        ("e", "5", '"5"'),
        ("c", "5", "5"),
        ("nul", "null", "null"),
        ("all", "[1]", "[1]"),
        ("any", "5", "5"),
        ("any", "null", '"null"'),
        ("yes", "true", "true"),
        ("unknown", "-1.5e3", "-1.5e3"),
        ("unknown", "[1, 2]", "[1, 2]"),
        ("unknown", "[1, ", '"[1, "'),
        ("unknown", "007", '"007"'),
        ("unknown", "text", '"text"'),
    ],
)
def test_values_have_the_types_of_the_schema(key, text, value):
    assert one(f"<parameter={key}>\n{text}\n</parameter>\n") == f'{{"{key}": {value}}}'


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ("", {}),
        ("<parameter=s>\nx\n</parameter>\n", {"s": "x"}),
        ("<parameter=s>x</parameter>", {"s": "x"}),
        ("<parameter=s>\n\n  x \n\n</parameter>\n", {"s": "\n  x \n"}),
        ("<parameter=s>\n</parameter>\n", {"s": ""}),
        ("<parameter=s>\n\n</parameter>\n", {"s": ""}),
        ("<parameter=s>\na</parameter>b\n</parameter>\n", {"s": "a</parameter>b"}),
        ("<parameter=s>\na\n</parameter>\nb\n</parameter>\n", {"s": "a\n</parameter>\nb"}),
        ("<parameter=s>\n</function>\nb\n</parameter>\n", {"s": "</function>\nb"}),
        ("<parameter=s>\n<parameter=zz>\nb\n</parameter>\n", {"s": "<parameter=zz>\nb"}),  # not one of f's
        ("<parameter=s\nx\n</parameter>\n", {"s": "x"}),
        ("< parameter=s>", None),
        ("<parameter= s >\nx\n</parameter>\n", {"s": "x"}),
        ("<parameter=s>\nx\n</parameter>\n</parameter>\n", {"s": "x"}),
        ("<parameter=s>\nx\n<parameter=i>\n5\n</parameter>\n", {"s": "x", "i": 5}),
        ("<parameter=s>\nx\n", {"s": "x"}),
        ("<parameter=s>\nx\n</parameter>\n<parameter=s>\ny\n</parameter>\n", {"s": "y"}),
        ("<parameter=s>\nx\n</parameter>\nand then", {"s": "x\n</parameter>\nand then"}),
        ("<parameter=i>\n5\n</parameter>\nand then\n", {"i": "5\n</parameter>\nand then"}),
        ("and then\n<parameter=s>\nx\n</parameter>\n", None),
    ],
)
def test_where_values_end(body, arguments):
    found = one(body)
    assert (None if found is None else json.loads(found)) == arguments


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("<function=f>\n<parameter=s>\nx\n</parameter>", [("f", '{"s": "x"}')]),
        ("<function=f\n<parameter=s>\nx", [("f", '{"s": "x"}')]),
        ("<function=f>", [("f", "{}")]),
        ("<function=f></function></function>", [("f", "{}")]),
        ("<function=f></function>\n<function=g>\n</function>", [("f", "{}"), ("g", "{}")]),
        ("<function=f>\n<function=g>\n</function>", [("f", "{}"), ("g", "{}")]),
        ("<function=nobody></function>", [("nobody", "{}")]),
        ('{"name": "f", "arguments": {"s": 1}}', [("f", '{"s": 1}')]),
        ("<function=>x</function>", None),
        ("<function=f>x</function>", None),
        ("<f>x</f>", None),
        ("text", None),
        ("", None),
    ],
)
def test_calls(text, calls):
    assert parse_calls(text, (F,)) == calls


def test_a_call_that_was_cut_off_is_none():
    begun = "<function=f>\n<parameter=s>\nx\n</parameter>\n"
    for text in ('{"name": "f", "arguments": {"a": [1', begun, "<function=f>"):
        assert parse_calls(text, (F,)) is not None
        assert parse_calls(text, (F,), True) is None
    for text in ('{"name": "f", "arguments": {}}', "<function=f>\n<parameter=s>\nx\n</parameter>\n</function>"):
        assert parse_calls(text, (F,), True) == parse_calls(text, (F,))


def test_the_text_of_a_custom_tool():
    tool = Tool("patch", custom=True)
    [(_, arguments)] = parse_calls("<function=patch>\n<parameter=input>\n5\n</parameter>\n</function>", (tool,))
    assert raw_input(arguments) == "5"
    assert raw_input('{"input": "a\\nb"}') == "a\nb"
    assert raw_input('{"text": "a"}') == "a"
    assert raw_input('{"input": {"a": 1}}') == '{"input": {"a": 1}}'
    assert raw_input("{}") == "{}"


PIECES = ["<function=f>", "<function=", "</function>", "<parameter=s>", "<parameter=", "</parameter>", "\n", "x", ">"]


@given(st.lists(st.sampled_from(PIECES)).map("".join) | st.text())
def test_it_never_raises_and_gives_objects(text):
    for calls in (parse_calls("<function=f>" + text, (F,)), parse_calls(text)):
        assert calls is None or all(isinstance(json.loads(arguments), dict) for _, arguments in calls)


WORDS = st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: "</" not in text)


@given(st.dictionaries(st.text("abc", min_size=1), WORDS))
def test_strings_come_back_as_they_were_written(values):
    tool = Tool("f", parameters={"properties": {key: {"type": "string"} for key in values}})
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    assert json.loads(one(body, (tool,))) == values
