"""Grammars for tool calls, run by the grammar engine: what they accept is what the parsers read."""

from __future__ import annotations

import json
import logging

import llguidance
import pytest

from lmhub.chat.calls import parse_calls, raw_input
from lmhub.chat.forcing import Markers, forced_call, opened_call
from lmhub.chat.prompt import ChatFormat
from lmhub.errors import RequestError
from lmhub.family import HERMES, XML, ThinkMarkers, ToolStyle
from lmhub.testing.fake import END_TOOL_CALL, TOOL_CALL, FakeTokenizer
from lmhub.types import GrammarSpec, Tool, ToolChoice

STYLES = [HERMES, XML]
BY_ID = Markers(f"<[{TOOL_CALL}]>", f"<[{END_TOOL_CALL}]>")
ANY = ToolChoice("any")


class Bytes:
    """The fake vocabulary as the grammar engine wants it."""

    eos_token_id = 257
    bos_token_id = None
    tokens = [bytes((byte,)) for byte in range(256)] + [b"<0>", b"<1>", b"<2>"] + [
        b"<think>", b"</think>", b"<tool_call>", b"</tool_call>"]  # fmt: skip
    special_token_ids = [256, 257, 258]  # noqa: RUF012

    def __call__(self, text):
        return list(text if isinstance(text, bytes) else text.encode())


@pytest.fixture(scope="module")
def engine():
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(Bytes()))


@pytest.fixture
def accepts(engine):
    """`accepts(spec, text)`: whether the whole reply is what the grammar ends with; markers are their tokens."""

    def accepts(spec, text, opened=False):
        matcher = llguidance.LLMatcher(engine, llguidance.LLMatcher.grammar_from_lark(spec.source))
        assert not matcher.is_error(), matcher.get_error()
        ids = FakeTokenizer().encode(text, special=True)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    return accepts


def call(name, arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def xml(name, **values):
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "note": {"type": "string", "description": "d"},
        "path": {"type": "string"},
        "n": {"type": "integer", "title": "N", "default": 1},
        "unit": {"enum": ["c", "f"]},
        "list": {"$ref": "#/$defs/list"},
    },
    "required": ["path", "n"],
    "additionalProperties": False,
    "$defs": {"list": {"type": "array", "items": {"type": "boolean"}}},
}
LOOSE, STRICT = Tool("f", parameters=SCHEMA), Tool("f", parameters=SCHEMA, strict=True)
OTHER = Tool("g")


def test_hermes_calls(accepts):
    loose = forced_call(HERMES, (LOOSE, OTHER), ANY, BY_ID)
    assert loose.kind == "lark" and loose.param == "tools"
    assert accepts(loose, call("f", '{"x": [1]}')) and accepts(loose, call("g", "{}"))
    assert not accepts(loose, call("h", "{}")) and not accepts(loose, call("f", "[1]"))
    assert not accepts(loose, call("f", "{}") * 2) and not accepts(loose, "x" + call("f", "{}"))
    assert not accepts(loose, call("f", "{" + " " * 17 + "}"))  # small models loop in blanks
    strict = forced_call(HERMES, (STRICT,), ANY, BY_ID)
    assert accepts(strict, call("f", '{"path": "a", "n": 1, "unit": "c", "list": [true]}'))
    assert not accepts(strict, call("f", '{"path": "a"}')) and not accepts(strict, call("f", '{"path": "a", "n": "1"}'))


def test_xml_calls(accepts):
    loose = forced_call(XML, (LOOSE, OTHER), ANY, BY_ID)
    for right in (xml("f", x="1\n</par\n"), xml("g"), xml("f", a="", b="c")):
        assert accepts(loose, right), right
    assert not accepts(loose, xml("h")) and not accepts(loose, "x" + xml("f")) and not accepts(loose, xml("f") * 2)
    strict = forced_call(XML, (STRICT,), ANY, BY_ID)
    assert accepts(strict, xml("f", path="a\nb", n="1")) and accepts(strict, xml("f", path="", n="-1", list="[true]"))
    assert accepts(strict, xml("f", path="a", n="1", note="x", unit="c", list="[]"))
    for wrong in ({"path": "a"}, {"path": "a", "n": "one"}, {"n": "1", "path": "a"}):
        assert not accepts(strict, xml("f", **wrong)), wrong
    for wrong in ({"unit": "k"}, {"list": "[1]"}, {"other": "1"}):
        assert not accepts(strict, xml("f", path="a", n="1", **wrong)), wrong


def test_what_is_accepted_is_what_is_read(accepts):
    spec = forced_call(XML, (STRICT,), ANY, BY_ID)
    text = xml("f", path="a\n\n  <b>", n="-1", unit="f", list="[true]")
    assert accepts(spec, text)
    [(name, arguments)] = parse_calls(text.removeprefix("<tool_call>").removesuffix("</tool_call>"), (STRICT,))
    assert (name, json.loads(arguments)) == ("f", {"path": "a\n\n  <b>", "n": -1, "unit": "f", "list": [True]})


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
def test_a_choice_narrows_the_tools(accepts, style):
    texts = {name: call(name, "{}") if style is HERMES else xml(name) for name in ("f", "g")}
    spec = forced_call(style, (LOOSE, OTHER), ToolChoice("any", ("g",)), BY_ID)
    assert accepts(spec, texts["g"]) and not accepts(spec, texts["f"])
    for names, tools in ((("h",), (LOOSE,)), ((), ())):
        with pytest.raises(RequestError) as caught:
            forced_call(style, tools, ToolChoice("any", names), BY_ID)
        assert caught.value.param == "tool_choice"
    with pytest.raises(RequestError, match="'a b' cannot be forced") as caught:
        forced_call(style, (Tool("a b"),), ANY, BY_ID)
    assert caught.value.param == "tools"


def test_markers_that_are_no_tokens_are_spelt(accepts):
    spec = forced_call(HERMES, (OTHER,), ANY, Markers('"<call>"', '"</call>"'))
    assert accepts(spec, '<call>\n{"name": "g", "arguments": {}}\n</call>')


REGEX = GrammarSpec("regex", r'[a-z]+/"?\d', "tools")
PATCH = GrammarSpec("lark", 'start: "*** Begin" LF line+ "*** End"\nline: /[+-].*/ LF\nLF: "\\n"', "tools")


def test_custom_tools(accepts):
    free = Tool("c", custom=True)
    assert accepts(forced_call(HERMES, (free,), ANY, BY_ID), call("c", '{"input": "a\\n\\"b"}'))
    assert not accepts(forced_call(HERMES, (free,), ANY, BY_ID), call("c", '{"input": 1}'))
    assert accepts(forced_call(XML, (free,), ANY, BY_ID), xml("c", input='a\n"b'))
    shaped = Tool("c", custom=True, format=REGEX)
    assert accepts(forced_call(HERMES, (shaped,), ANY, BY_ID), call("c", '{"input": "ab/\\"5"}'))
    assert not accepts(forced_call(HERMES, (shaped,), ANY, BY_ID), call("c", '{"input": "ab/5x"}'))
    assert accepts(forced_call(XML, (shaped,), ANY, BY_ID), xml("c", input='ab/"5'))
    assert not accepts(forced_call(XML, (shaped,), ANY, BY_ID), xml("c", input="ab/5x"))


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
def test_a_custom_tool_with_a_grammar_is_written_as_xml(accepts, style):
    tools = (Tool("c", custom=True, format=PATCH),)
    spec = forced_call(style, tools, ANY, BY_ID)
    text = xml("c", input='*** Begin\n+a "b"\n-c\n*** End')
    assert accepts(spec, text) and not accepts(spec, xml("c", input="*** Begin\nx\n*** End"))
    [(_, arguments)] = parse_calls(text.removeprefix("<tool_call>").removesuffix("</tool_call>"), tools)
    assert raw_input(arguments) == '*** Begin\n+a "b"\n-c\n*** End'


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
def test_a_broken_format_is_refused_only_where_it_is_forced(style):
    tool = Tool("c", custom=True, format=GrammarSpec("lark", "start: nothing", "tools"))
    with pytest.raises(RequestError, match="the format of the tool c cannot be enforced"):
        forced_call(style, (tool,), ANY, BY_ID)
    assert opened_call(style, (tool,), TOOL_CALL, BY_ID) is not None


ODD = [
    {"type": "object", "properties": {"a": {"not": {"type": "string"}}}},
    {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}},
    {"type": "object", "properties": {"a": {"type": "array", "items": {"pattern": "(?=a)", "type": "string"}}}},
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}, "b": {"$ref": "http://x/y"}}, "required": ["b"]},
    {"type": "object", "properties": {"a": {"type": "nothing"}}},
    {"type": "object", "dependentRequired": {"a": ["b"]}},
    {"type": "string"},
    {"type": "object", "properties": {f"p{number}": {} for number in range(1001)}},
]


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
def test_odd_schemas_never_sink_a_request(accepts, style, caplog):
    odd = [Tool(f"odd{place}", parameters=schema, strict=True) for place, schema in enumerate(ODD)]
    good = [Tool(f"good{place}", parameters=SCHEMA, strict=True) for place in range(32)]
    with caplog.at_level(logging.WARNING, "lmhub"):
        lazy = opened_call(style, [*odd, *good], TOOL_CALL, BY_ID)
    assert lazy is not None and lazy.opener == TOOL_CALL
    assert "odd1" in caplog.text and "good0" not in caplog.text

    def written(name, text):
        whole = call(name, text) if style is HERMES else xml(name, **json.loads(text))
        return whole.removeprefix("<tool_call>")

    accepted = {
        (name, text): accepts(lazy.grammar, written(name, text))
        for name in ("odd1", "good31", "unknown")
        for text in ('{"a": 1}', '{"path": "x", "n": 1}')
    }
    assert [key for key, value in accepted.items() if value] == [
        ("odd1", '{"a": 1}'),
        ("odd1", '{"path": "x", "n": 1}'),
        ("good31", '{"path": "x", "n": 1}'),
    ]


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (ODD[0], "'not' at #/properties/a/not"),
        (ODD[1], "'uniqueItems' at #/properties/a/uniqueItems"),
        (ODD[2], "look-around|regex"),
        (ODD[5], "'dependentRequired' at #/dependentRequired"),
        (ODD[6], "its type is not object"),
        (ODD[7], "1001 properties and the limit is 1000"),
    ],
)
@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
def test_a_forced_strict_call_names_what_cannot_be_enforced(style, schema, told):
    with pytest.raises(RequestError, match=told) as caught:
        forced_call(style, (Tool("odd", parameters=schema, strict=True),), ANY, BY_ID)
    assert caught.value.param == "tools" and "the schema of the tool odd" in str(caught.value)
    assert forced_call(style, (Tool("odd", parameters=schema),), ANY, BY_ID)


def test_an_object_of_anything_may_hold_anything(accepts):
    spec = forced_call(XML, (Tool("f", parameters={"type": "object"}, strict=True),), ANY, BY_ID)
    assert accepts(spec, xml("f", anything="1"))
    closed = {"type": "object", "additionalProperties": False}
    spec = forced_call(XML, (Tool("f", parameters=closed, strict=True),), ANY, BY_ID)
    assert accepts(spec, xml("f")) and not accepts(spec, xml("f", anything="1"))


def test_what_xml_cannot_enforce_is_written_as_json(accepts):
    digits, date = {"type": "string", "pattern": "^[0-9]+$"}, {"type": "string", "format": "date"}
    for schema, good, bad in (
        ({"properties": {"d": digits}, "required": ["d"]}, '{"d": "5"}', '{"d": "x"}'),
        ({"properties": {"d": date}, "required": ["d"]}, '{"d": "2026-01-01"}', '{"d": "x"}'),
        ({"anyOf": [{"properties": {"d": {"const": 1}}, "required": ["d"]}]}, '{"d": 1}', '{"d": 2}'),
    ):
        tool = Tool("f", parameters=schema, strict=True)
        spec = forced_call(XML, (tool,), ANY, BY_ID)
        assert accepts(spec, call("f", good)) and not accepts(spec, call("f", bad))
        lazy = opened_call(XML, (tool,), TOOL_CALL, BY_ID)
        assert accepts(lazy.grammar, xml("f", d="x").removeprefix("<tool_call>")) or "const" in str(schema)


def test_a_chat_format_forces_its_own_style(accepts):
    chat = ChatFormat.from_metadata({}, FakeTokenizer(), think=ThinkMarkers(), tools=HERMES)
    assert accepts(chat.forced((OTHER,), ANY), call("g", "{}"))
    lazy = chat.lazy((OTHER,))
    assert lazy.opener == TOOL_CALL and accepts(lazy.grammar, call("g", '{"a": 1}').removeprefix("<tool_call>"))
    assert chat.lazy(()) is None
    silent = ChatFormat.from_metadata({}, FakeTokenizer())
    assert silent.lazy((OTHER,)) is None
    with pytest.raises(RequestError, match="no way to call tools"):
        silent.forced((OTHER,), ANY)
    mine = ToolStyle("mine", "<a>", "</a>", "lmhub.chat.calls:parse_calls")
    with pytest.raises(RequestError, match="cannot be forced"):
        ChatFormat.from_metadata({}, FakeTokenizer(), tools=mine).forced((OTHER,), ANY)
    assert ChatFormat.from_metadata({}, FakeTokenizer(), tools=mine).lazy((OTHER,)) is None


def test_names_that_no_grammar_can_write_leave_calls_free():
    assert opened_call(XML, (OTHER, Tool("a>b")), TOOL_CALL, BY_ID) is None
    assert opened_call(HERMES, (OTHER, Tool('say "hi"')), TOOL_CALL, BY_ID) is not None
