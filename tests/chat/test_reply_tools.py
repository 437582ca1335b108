"""Tool calls within replies: both styles, calls without marker, custom tools, arguments in fragments, cut replies.

Everything is read in many splits, by token ids and by bytes, and must come out alike.
"""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmhub.chat.reply import ChannelParser
from lmhub.family import HERMES, XML, ThinkMarkers
from lmhub.types import Content, Thought, Tool, ToolCallDelta, ToolCallStart

MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
IDS = {text: 1000 + number for number, text in enumerate(MARKERS)}
SCHEMA = {"type": "object", "properties": {"s": {"type": "string"}, "i": {"type": "integer"}}}
PLAIN = (Tool("f", parameters=SCHEMA), Tool("g"), Tool("c", custom=True))
EAGER = (
    Tool("f", parameters=SCHEMA, eager=True),
    Tool("g", parameters=SCHEMA),
    Tool("c", custom=True, eager=True),
)


def tokens(text, size):
    """(token, piece) pairs: a marker is its own token, other text is cut into `size` bytes."""
    rest = text
    while rest:
        marker = next((one for one in MARKERS if rest.startswith(one)), None)
        if marker is not None:
            yield IDS[marker], marker.encode()
            rest = rest[len(marker) :]
            continue
        end = min((place for one in MARKERS if (place := rest.find(one)) > 0), default=len(rest))
        data = rest[:end].encode()
        yield from ((1, data[at : at + size]) for at in range(0, len(data), size))
        rest = rest[end:]


def channels(pairs, style=XML, offered=PLAIN, by_id=True, cut=False, think=True):
    """What a reply is: texts by channel between the calls, calls as (name, custom, arguments)."""
    parser = ChannelParser(
        IDS.get if by_id else lambda text: None, think=ThinkMarkers() if think else None, tools=style, offered=offered
    )
    items = [item for token, piece in pairs for item in parser.feed(token, piece)] + list(parser.finish(cut))
    found = []
    for item in items:
        if isinstance(item, ToolCallStart):
            assert item.index == sum(1 for one in found if one[0] == "call")
            found.append(("call", item.name, item.custom, ""))
        elif isinstance(item, ToolCallDelta):
            assert found[-1][0] == "call"
            found[-1] = (*found[-1][:3], found[-1][3] + item.fragment)
        else:
            kind = "thought" if isinstance(item, Thought) else "literal" if item.literal else "text"
            if found and found[-1][0] == kind:
                found[-1] = (kind, found[-1][1] + item.data)
            else:
                found.append((kind, item.data))
    n_begun = sum(1 for one in found if one[0] == "call")
    assert parser.n_calls in ((n_begun - 1, n_begun) if cut else (n_begun,))  # the budget may have cut the last one
    return found


def read(text, **options):
    """The same from every split."""
    [first, *others] = [channels(tokens(text, size), **options) for size in (1, 2, 3, 7, 1000)]
    assert all(other == first for other in others)
    data = text.encode()
    for size in (1, 2, 5, 1000):
        pieces = [(1, data[at : at + size]) for at in range(0, len(data), size)]
        assert channels(pieces, by_id=False, **options) == first
    return first


XML_F = "<function=f>\n<parameter=s>\nx\n</parameter>\n<parameter=i>\n5\n</parameter>\n</function>"
JSON_F = '{"name": "f", "arguments": {"s": "x", "i": 5}}'
F = ("call", "f", False, '{"s": "x", "i": 5}')
G = ("call", "g", False, "{}")

REPLIES = {
    "xml": (f"Look.\n\n<tool_call>\n{XML_F}\n</tool_call>", [("text", b"Look."), F]),
    "json in an xml model": (f"<tool_call>\n{JSON_F}\n</tool_call>", [F]),
    "blanks between calls": (f"<tool_call>\n{XML_F}\n</tool_call>\n\n<tool_call>\n{XML_F}\n</tool_call>\n", [F, F]),
    "text between calls": (
        f"<tool_call>{XML_F}</tool_call>\nand<tool_call>{JSON_F}</tool_call> so",
        [F, ("text", b"\nand"), F, ("text", b" so")],
    ),
    "two in one region": (f"<tool_call>\n{XML_F}\n<function=g>\n</function>\n</tool_call>", [F, G]),
    "never closed": (f"<tool_call>\n{XML_F}", [F]),
    "opened again": (f"<tool_call>\n{XML_F}\n<tool_call>\n{XML_F}\n</tool_call>", [F, F]),
    "no function": ("a <tool_call>\n<f>\n</tool_call> b", [
        ("text", b"a "), ("literal", b"<tool_call>\n<f>\n</tool_call>"), ("text", b" b")]),
    "without marker": (f"Look.\n{XML_F}\n</tool_call>", [("text", b"Look."), F]),
    "without markers": (f"Look.\n{XML_F}\nDone.", [("text", b"Look."), F, ("text", b"\nDone.")]),
    "without marker, twice": (f"{XML_F}\n</tool_call>\n{XML_F}\n</tool_call>", [F, F]),
    "without marker, empty": ("<function=g>\n</function>", [G]),
    "without marker, open": ("<function=f>\n<parameter=s>\nx\n", [("call", "f", False, '{"s": "x"}')]),
    "without marker, nobody": ("a <function=x>b</function>", [("text", b"a <function=x>b</function>")]),
    "without marker, no name": ("a <function=f", [("text", b"a <function=f")]),
    "without marker, then one": (f"<function=x <tool_call>{XML_F}</tool_call>", [("text", b"<function=x"), F]),
    "a marker in a value": (
        "<tool_call>\n<function=f>\n<parameter=s>\nsay </tool_call> now\n</parameter>\n</function>\n</tool_call>",
        [("call", "f", False, '{"s": "say </tool_call> now"}')],
    ),
    "both markers in a value": (
        "<tool_call>\n<function=f>\n<parameter=s>\na\n</parameter>\nsay </tool_call> now\n</parameter>\n</function>\n"
        "</tool_call>",
        [("call", "f", False, '{"s": "a\\n</parameter>\\nsay </tool_call> now"}')],
    ),
    "a marker in a string": (
        '<tool_call>{"name": "f", "arguments": {"s": "say </tool_call> now"}}</tool_call>',
        [("call", "f", False, '{"s": "say </tool_call> now"}')],
    ),
    "a value that ends at the marker": (
        "<tool_call>\n<function=f>\n<parameter=s>\nx</tool_call> so",
        [("call", "f", False, '{"s": "x</tool_call> so"}')],
    ),
    "custom": (
        '<tool_call>\n<function=c>\n<parameter=input>\n"5"\n\n</parameter>\n</function>\n</tool_call>',
        [("call", "c", True, '"5"\n')],
    ),
    "custom as json": (
        '<tool_call>{"name": "c", "arguments": {"input": "a\\nb"}}</tool_call>', [("call", "c", True, "a\nb")]
    ),
    "undeclared": ("<tool_call>\n<function=z>\n</function>\n</tool_call>", [("call", "z", False, "{}")]),
}  # fmt: skip


@pytest.mark.parametrize("name", REPLIES)
@pytest.mark.parametrize("offered", [PLAIN, EAGER], ids=["whole", "eager"])
def test_replies(name, offered):
    text, expected = REPLIES[name]
    assert read(text, offered=offered) == expected


def test_xml_in_a_json_model():
    assert read(f"<tool_call>\n{XML_F}\n</tool_call>", style=HERMES) == [F]
    assert read(f"a {XML_F}", style=HERMES) == [("text", f"a {XML_F}".encode())]  # without a marker it is text there


def test_a_call_that_was_cut_is_text_unless_it_was_announced():
    for begun in ('<tool_call>{"name": "f", "arguments": {"s": [1', "<tool_call><function=f>\n<parameter=s>\nx\n"):
        assert read(begun, cut=True) == [("literal", begun.encode())]
        assert [item[0] for item in read(begun, cut=True, offered=EAGER)] == ["call"]
    assert read(f"<tool_call>{JSON_F}", cut=True) == [F]
    assert read(f"<tool_call>{XML_F}", cut=True) == [F]


@pytest.mark.parametrize(
    ("begun", "n_whole"),
    [
        ('<tool_call>{"name": "f", "arguments": {"s": [1', 0),
        ("<tool_call><function=f>\n<parameter=s>\nx\n", 0),
        (f"<tool_call>{JSON_F}</tool_call>" + '<tool_call>{"name": "f", "arguments": {', 1),
        (f"<tool_call>{JSON_F}", 1),
    ],
)
def test_an_announced_call_that_the_budget_cut_is_not_complete(begun, n_whole):
    parser = ChannelParser(IDS.get, tools=HERMES, offered=EAGER)
    for token, piece in tokens(begun, 1):
        parser.feed(token, piece)
    parser.finish(cut=True)
    assert parser.n_calls == n_whole


def fragments(text, size=1):
    parser = ChannelParser(IDS.get, tools=XML, offered=EAGER)
    return [
        [item.fragment if isinstance(item, ToolCallDelta) else type(item).__name__ for item in parser.feed(*pair)]
        for pair in tokens(text, size)
    ]


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ('<tool_call>\n{"name": "f", "arguments": {"s": "ab\\"}", "i": 1.50}}\n', '{"s": "ab\\"}", "i": 1.50}'),
        ("<tool_call>\n<function=f>\n<parameter=s>\nab\ncd\n</parameter>\n</function>\n", '{"s": "ab\\ncd"}'),
        ("<tool_call>\n<function=f>\n<parameter=s>\nab</par\n</parameter>\n</function>\n", '{"s": "ab</par"}'),
        ('<tool_call>\n{"name": "c", "arguments": {"input": "a\\u00e9\\ud83d\\ude00b"}}\n', "aé😀b"),
        ("<tool_call>\n<function=c>\n<parameter=input>\nab\n</parameter>\n</function>\n", "ab"),
    ],
)
def test_arguments_come_in_fragments(text, whole):
    steps = [step for step in fragments(text) if step]
    assert steps[0][0] == "ToolCallStart"
    given = [item for step in steps for item in step[0 if step is not steps[0] else 1 :]]
    assert "".join(given) == whole and len(given) >= 2
    assert sum(len(step) for step in steps) > 2


def test_only_eager_tools_are_announced_early():
    assert not any(fragments('<tool_call>{"name": "g", "arguments": {"s": "ab"}}'))
    assert any(fragments('<tool_call>{"name": "f", "arguments": {"s": "ab'))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<tool_call>{"name": "f", "arguments": {"s": "x}\n</tool_call>', [("call", "f", False, '{"s": "x}\n')]),
        ('<tool_call>{"name": "f", "arguments": {}} junk</tool_call>', [
            ("call", "f", False, "{}"), ("literal", b"junk</tool_call>")]),
        (f'<tool_call>{JSON_F}\n{{"name": "g"}}</tool_call>', [F, G]),
        ("<tool_call><function=f>\n<parameter=s>\nx\n</parameter>\n<parameter=s>\ny\n</parameter></function></tool_call>",
            [("call", "f", False, '{"s": "x"}')]),
    ],
)  # fmt: skip
def test_what_was_announced_stays_a_call(text, expected):
    assert read(text, offered=EAGER) == expected


PIECES = [
    *MARKERS, "<function=f>", "<function=", "</function>", "<parameter=s>", "<parameter=i>", "</parameter>",
    '{"name": "f", "arguments": {', '"s": "', '{"name": "c", "arguments": {"input": "', "\\", '"', "}", XML_F, JSON_F,
    "\n", " ", "x", "5", "é", "f>", "<", "\\ud83d", "\\u00e9",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), st.booleans(), st.booleans(), st.data())
def test_any_split_gives_the_same_events(text, eager, cut, data):
    options = {"offered": EAGER if eager else PLAIN, "cut": cut, "think": False}
    assert channels(tokens(text, 1), **options) == channels(tokens(text, 1000), **options)
    whole = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(whole)))) | {0, len(whole)})
    pieces = [(1, whole[at:end]) for at, end in pairwise(cuts)]
    assert channels(pieces, by_id=False, **options) == channels([(1, whole)], by_id=False, **options)


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), st.booleans())
def test_calls_hold_objects_unless_they_were_announced(text, cut):
    for item in channels(tokens(text, 3), cut=cut):
        assert item[0] != "call" or item[2] or isinstance(json.loads(item[3]), dict)


def test_content_is_never_lost():
    data = b"a<function=f b <function=\nc"
    parser = ChannelParser(IDS.get, tools=XML, offered=PLAIN)
    items = [*parser.feed(1, data), *parser.finish()]
    assert b"".join(item.data for item in items if isinstance(item, Content)) == data
