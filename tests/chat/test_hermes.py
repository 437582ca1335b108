"""The text between `<tool_call>` markers: what is a call, letter by letter, and what is not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmhub.chat.hermes import parse_calls


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('{"name": "f", "arguments": {"a": 1}}', [("f", '{"a": 1}')]),
        (' \n{"arguments": {"b":1.50,  "a":[1e5, -0]}, "name": "f"}\n', [("f", '{"b":1.50,  "a":[1e5, -0]}')]),
        ('{"name": "f"}', [("f", "{}")]),
        ('{"name": "f", "arguments": null}', [("f", "{}")]),
        ('{"name": "f", "arguments": ""}', [("f", "{}")]),
        ('{"name": "f", "parameters": {"a": "}"}}', [("f", '{"a": "}"}')]),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', [("f", '{"a": 1}')]),
        ('{"name": "f"}\n{"name": "g", "arguments": {}}', [("f", "{}"), ("g", "{}")]),
        ('{"name": "f", "id": 7, "arguments": {"é": "\\u00e9"}}', [("f", '{"é": "\\u00e9"}')]),
        ('{"name": "f", "arguments": {"n": ' + "9" * 5000 + "}}", [("f", '{"n": ' + "9" * 5000 + "}")]),
        # usual defects
        ('{"name": "f", "arguments": {"a": 1,},}', [("f", '{"a": 1}')]),
        ('{"name": "f", "arguments": {"a": "x\ny\t"}}', [("f", '{"a": "x\\ny\\t"}')]),
        ('{"name": "f", "arguments": {"a": [1, 2', [("f", '{"a": [1, 2]}')]),
        ('{"name": "f", "arguments": {"a": 1}', [("f", '{"a": 1}')]),
    ],
)
def test_calls(text, calls):
    assert parse_calls(text) == calls


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  \n",
        "none",
        "[]",
        '"f"',
        "{}",
        '{"name": ""}',
        '{"name": 1}',
        '{"name": "\\ud800"}',
        '{"arguments": {}}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": "text"}',
        '{"name": "f", "arguments": "[1]"}',
        '{"name": "f", "arguments": {"a": NaN}}',
        '{"name": "f", "arguments": {"a": 1, "a": 2}}',
        '{"name": "f", "name": "g"}',
        '{"name": "f"} and more',
        '{"name": "f", "arguments": {"a": "never closed',
        '{"name": "f"}}',
        "{" * 100000,
        '{"name": "f", "arguments": ' + "[" * 100000,
    ],
)
def test_everything_else_is_text(text):
    assert parse_calls(text) is None


@given(st.text())
def test_it_never_raises(text):
    for candidate in (text, "{" + text, '{"name": "f", "arguments": {' + text):
        calls = parse_calls(candidate)
        assert calls is None or all(isinstance(json.loads(arguments), dict) for _, arguments in calls)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)
    )
)
def test_arguments_come_back_as_they_were_written(value):
    written = json.dumps({"value": value}, ensure_ascii=False)
    assert parse_calls(json.dumps({"name": "f"})[:-1] + f', "arguments": {written}}}') == [("f", written)]
