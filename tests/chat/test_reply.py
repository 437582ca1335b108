"""Replies into channels: by token id where a marker is a token, otherwise by bytes, and alike however they split."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmhub.chat.reply import MAX_CALL_BYTES, ChannelParser
from lmhub.family import HERMES, ThinkMarkers
from lmhub.types import Content, Thought, ToolCallDelta, ToolCallStart

MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
IDS = {text: 1000 + number for number, text in enumerate(MARKERS)}
CALL = '{"name": "f", "arguments": {"a": 1}}'


def tokens(*parts, size=1):
    """(token, piece) pairs: a marker is its own token, other text is cut into `size` bytes."""
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        if part in IDS:
            yield IDS[part], data
        else:
            yield from ((byte, data[at : at + size]) for at, byte in list(enumerate(data))[::size])


def read(pairs, by_id=True, **options):
    """What a reply is: the text of each channel between the calls, calls as (name, arguments)."""
    parser = ChannelParser(
        IDS.get if by_id else lambda text: None, **{"think": ThinkMarkers(), "tools": HERMES, **options}
    )
    items = [item for token, piece in pairs for item in parser.feed(token, piece)] + list(parser.finish())
    read = []
    for item in items:
        if isinstance(item, ToolCallStart):
            assert len(item.id) == 29 and item.id.startswith("call_")
            read.append(("call", item.index, item.name, ""))
        elif isinstance(item, ToolCallDelta):
            assert read[-1][:2] == ("call", item.index)
            read[-1] = (*read[-1][:3], read[-1][3] + item.fragment)
        else:
            kind = "thought" if isinstance(item, Thought) else "literal" if item.literal else "text"
            if read and read[-1][0] == kind:
                read[-1] = (kind, read[-1][1] + item.data)
            else:
                read.append((kind, item.data))
    return read


THINK, END, OPEN, CLOSE = MARKERS
F = ("call", 0, "f", '{"a": 1}')
CASES = {
    "text": (["hello "], [("text", b"hello ")]),
    "leading blanks": (["\n hello"], [("text", b"\n hello")]),
    "only blanks": ([" \n"], [("text", b" \n")]),
    "nothing": ([], []),
    "head": ([THINK, "\nwhy\nnot\n", END, "\n\nbecause"], [("thought", b"why\nnot"), ("text", b"because")]),
    "head after blanks": (["\n", THINK, "a", END, "b"], [("thought", b"a"), ("text", b"b")]),
    "two newlines at most": ([THINK, "a", END, "\n\n\n b"], [("thought", b"a"), ("text", b"\n b")]),
    "empty head": ([THINK, "\n\n", END, "\n\nb"], [("text", b"b")]),
    "stray close at the head": ([" ", END, "\n\nb"], [("text", b"b")]),
    "stray close within": (["a", END, "b"], [("text", b"ab")]),
    "unclosed": ([THINK, "a\n\nb"], [("thought", b"a\n\nb")]),
    "second block": (["a ", THINK, "b", END, "c"], [("text", b"a "), ("thought", b"b"), ("text", b"c")]),
    "opened twice": ([THINK, "\n", THINK, "a", END, "b"], [("thought", b"a"), ("text", b"b")]),
    "call": ([OPEN, f"\n{CALL}\n", CLOSE], [F]),
    "text and call": (["Let me look.\n\n", OPEN, CALL, CLOSE, "\n"], [("text", b"Let me look."), F]),
    "two calls": ([OPEN, CALL, CLOSE, "\n", OPEN, CALL, CLOSE], [F, ("call", 1, *F[2:])]),
    "text behind a call": ([OPEN, CALL, CLOSE, "\nso"], [F, ("text", b"\nso")]),
    "call never closed": (["a", OPEN, CALL], [("text", b"a"), F]),
    "call opened again": ([OPEN, CALL, OPEN, CALL, CLOSE], [F, ("call", 1, *F[2:])]),
    "call within reasoning": ([THINK, "a\n", OPEN, CALL, CLOSE], [("thought", b"a"), F]),
    "malformed": (["a \n", OPEN, " {x}\n", CLOSE, " b"], [
        ("text", b"a \n"), ("literal", b"<tool_call> {x}\n</tool_call>"), ("text", b" b")]),
    "malformed, never closed": ([OPEN, "{x"], [("literal", b"<tool_call>{x")]),
    "marker in a call": ([OPEN, "{", THINK, CLOSE], [("literal", b"<tool_call>{<think></tool_call>")]),
    "stray end of call": (["a", CLOSE], [("text", b"a</tool_call>")]),
    "bytes that are no text": ([b"\xff\xc3"], [("text", b"\xff\xc3")]),
}  # fmt: skip
BY_ID_ONLY = {"second block", "stray close within"}


@pytest.mark.parametrize("name", CASES)
def test_channels(name):
    parts, expected = CASES[name]
    for size in (1, 2, 3, 100):
        assert read(tokens(*parts, size=size)) == expected


@pytest.mark.parametrize("name", sorted(CASES.keys() - BY_ID_ONLY))
def test_channels_by_bytes(name):
    parts, expected = CASES[name]
    data = b"".join(part if isinstance(part, bytes) else part.encode() for part in parts)
    for size in (1, 2, 3, 7, 100):
        assert read(tokens(data, size=size), by_id=False) == expected


def test_text_that_spells_a_marker_stays_text():
    spelt = "".join((THINK, "a", END, OPEN, CALL, CLOSE))
    assert read(tokens(spelt, size=2)) == [("text", spelt.encode())]
    assert read([(0, b"a<think>b</think>")], by_id=False) == [("text", b"a<think>b</think>")]  # not at the head


def test_a_prompt_may_open_the_reasoning():
    assert read(tokens("\nwhy\n", END, "\n\nso"), opens_reasoning=True) == [("thought", b"why"), ("text", b"so")]
    assert read(tokens(THINK, "\nwhy", END), opens_reasoning=True) == [("thought", b"why")]


def test_channels_that_were_not_asked_for_are_text():
    assert read(tokens(OPEN, CALL, CLOSE), tools=None) == [("text", (OPEN + CALL + CLOSE).encode())]
    assert read(tokens("\n", THINK, "a", END), think=None) == [("text", b"\n<think>a</think>")]


def test_reasoning_tokens_are_counted_with_their_markers():
    parser = ChannelParser(IDS.get, think=ThinkMarkers())
    for token, piece in tokens("\n", THINK, "abc", END, "de"):
        parser.feed(token, piece)
    assert parser.reasoning_tokens == 5


def test_a_call_without_end_becomes_text():
    parser = ChannelParser(IDS.get, tools=HERMES)
    parser.feed(IDS[OPEN], b"")
    out = [item for _ in range(5) for item in parser.feed(1, b"x" * (MAX_CALL_BYTES // 4))]
    assert sum(len(item.data) for item in out if isinstance(item, Content)) == MAX_CALL_BYTES * 5 // 4 + len(OPEN)
    assert list(parser.finish()) == []


@given(st.lists(st.sampled_from([*MARKERS, CALL, "{", "\n", " ", "a", "é"]), max_size=8), st.data())
def test_any_split_gives_the_same_channels(parts, data):
    assert read(tokens(*parts, size=1)) == read(tokens(*parts, size=50))
    whole = "".join(parts).encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(whole)))) | {0, len(whole)})
    pieces = [(0, whole[at:end]) for at, end in pairwise(cuts)]
    assert read(pieces, by_id=False) == read([(0, whole)], by_id=False)


@given(st.lists(st.sampled_from([*MARKERS, CALL, "{", "\n", " ", "a"]), max_size=8))
def test_nothing_but_blanks_and_markers_is_lost(parts):
    said = "".join(part for part in parts if part not in MARKERS).split()
    shown = b"".join(
        f'{{"name": "{item[2]}", "arguments": {item[3]}}}'.encode() if item[0] == "call" else item[1]
        for item in read(tokens(*parts, size=1))
    ).decode()
    for marker in MARKERS:
        shown = shown.replace(marker, "")
    assert "".join(shown.split()) == "".join(said)
