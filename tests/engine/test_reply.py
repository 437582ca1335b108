"""From committed tokens to events: channels, stop strings, characters, budget, reasons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from lmhub.engine.reply import Reply
from lmhub.testing.fake import END_OF_TEXT, END_THINK, END_TOOL_CALL, IM_END, THINK, TOOL_CALL, FakeTokenizer
from lmhub.types import (
    Content,
    Event,
    GenerationRequest,
    ReasoningDelta,
    ReplyItem,
    TextDelta,
    Thought,
    ToolCallDelta,
    ToolCallStart,
)


class ChannelParser:
    """Reasoning and calls between their markers; a call that starts with "!" is malformed."""

    def __init__(self) -> None:
        self.reasoning_tokens = 0
        self._in = 0
        self._call = b""
        self._n_calls = 0

    def feed(self, token: int, piece: bytes) -> Sequence[ReplyItem]:
        self.reasoning_tokens += THINK in (self._in, token)
        if token in (THINK, TOOL_CALL):
            self._in, self._call = token, b""
        elif token == END_THINK:
            self._in = 0
        elif token == END_TOOL_CALL:
            self._in = 0
            return self._end_call()
        elif self._in == THINK:
            return (Thought(piece),)
        elif self._in == TOOL_CALL:
            self._call += piece
        else:
            return (Content(piece),)
        return ()

    def _end_call(self) -> Sequence[ReplyItem]:
        if self._call.startswith(b"!"):
            return (Content(b"<tool_call>" + self._call + b"</tool_call>", literal=True),)
        index, self._n_calls = self._n_calls, self._n_calls + 1
        return (ToolCallStart(index, f"call_{index}", "f"), ToolCallDelta(index, self._call.decode()))

    def finish(self) -> Sequence[ReplyItem]:
        return (Content(b"<tool_call>" + self._call, literal=True),) if self._in == TOOL_CALL else ()


Read = Callable[..., tuple[list[Event], Reply]]


@pytest.fixture
def read(tokenizer: FakeTokenizer, make_request: Callable[..., GenerationRequest]) -> Read:
    def run(
        text: str | bytes | Sequence[int], budget: int = 1000, per_step: int = 1, **rest: Any
    ) -> tuple[list[Event], Reply]:
        tokens = tokenizer.encode(text, special=True) if isinstance(text, str) else list(text)
        reply = Reply(make_request(**rest), tokenizer, budget)
        events: list[Event] = []
        for start in range(0, len(tokens), per_step):
            events += reply.feed(tokens[start : start + per_step])
        return events, reply

    return run


def merged(events: Sequence[Event]) -> list[Event]:
    """Neighbouring deltas of one kind joined."""
    out: list[Event] = []
    for event in events:
        if out and isinstance(event, TextDelta | ReasoningDelta) and type(out[-1]) is type(event):
            out[-1] = type(event)(out[-1].text + event.text)
        else:
            out.append(event)
    return out


def test_text_flows_token_by_token(read: Read) -> None:
    events, reply = read("abc")
    assert events == [TextDelta("a"), TextDelta("b"), TextDelta("c")]
    assert (reply.reason, reply.n_tokens) == (None, 3)


def test_the_text_of_one_step_is_one_event(read: Read) -> None:
    events, _ = read("abcd", per_step=3)
    assert events == [TextDelta("abc"), TextDelta("d")]


@pytest.mark.parametrize("end", [IM_END, END_OF_TEXT])
def test_an_end_token_stops_counts_and_shows_nothing(read: Read, end: int) -> None:
    events, reply = read([*b"ok", end, *b"more"])
    assert merged(events) == [TextDelta("ok")]
    assert (reply.reason, reply.n_tokens) == ("stop", 3)


def test_the_budget_ends_the_reply(read: Read) -> None:
    events, reply = read("abcdef", budget=4)
    assert merged(events) == [TextDelta("abcd")]
    assert (reply.reason, reply.n_tokens) == ("length", 4)


def test_an_end_token_on_the_last_place_is_a_stop(read: Read) -> None:
    assert read([*b"abc", IM_END], budget=4)[1].reason == "stop"


def test_a_stop_string_on_the_last_place_is_a_stop_string(read: Read) -> None:
    assert read("abEND", budget=5, stop=("END",))[1].reason == "stop_sequence"


def test_characters_are_whole(read: Read) -> None:
    events, _ = read("a😊é")
    assert events == [TextDelta("a"), TextDelta("😊"), TextDelta("é")]


@pytest.mark.parametrize("tail", [b"\xf0\x9f", b"\xf0\x9f\x98"])
def test_an_incomplete_character_at_the_end_is_replaced(read: Read, tail: bytes) -> None:
    assert merged(read([*b"a", *tail, IM_END])[0]) == [TextDelta("a\ufffd")]
    assert merged(read([*b"a", *tail], budget=1 + len(tail))[0]) == [TextDelta("a\ufffd")]


def test_invalid_bytes_are_replaced_at_once(read: Read) -> None:
    assert read(b"\xffa")[0] == [TextDelta("\ufffd"), TextDelta("a")]


def test_a_stop_string_over_several_tokens_leaks_nothing(read: Read) -> None:
    events, reply = read("say END now", stop=("END",))
    assert merged(events) == [TextDelta("say ")]
    assert (reply.reason, reply.stop_sequence, reply.n_tokens) == ("stop_sequence", "END", 7)


def test_the_text_before_a_stop_string_in_its_own_step_is_kept(read: Read) -> None:
    events, _ = read("say END now", stop=("END",), per_step=11)
    assert events == [TextDelta("say ")]


def test_held_text_is_released_at_the_natural_end_and_at_the_budget(read: Read) -> None:
    assert merged(read([*b"aEN", IM_END], stop=("END",))[0]) == [TextDelta("aEN")]
    assert merged(read("aENx", budget=3, stop=("END",))[0]) == [TextDelta("aEN")]


def test_a_stop_string_of_many_bytes_per_character(read: Read) -> None:
    events, reply = read("ok 😊 no", stop=("😊",))
    assert merged(events) == [TextDelta("ok ")]
    assert reply.stop_sequence == "😊"


def test_channels(read: Read) -> None:
    text = "<think>why</think>so<tool_call>{}</tool_call>end<|im_end|>"
    events, reply = read(text, parser=ChannelParser())
    assert merged(events) == [
        ReasoningDelta("why"),
        TextDelta("so"),
        ToolCallStart(0, "call_0", "f"),
        ToolCallDelta(0, "{}"),
        TextDelta("end"),
    ]
    assert (reply.reason, reply.reasoning_tokens) == ("tool_calls", 5)


def test_calls_cut_by_the_budget_end_with_length(read: Read) -> None:
    _, reply = read("<tool_call>{}</tool_call>abc", budget=5, parser=ChannelParser())
    assert reply.reason == "length"


def test_stop_strings_hold_in_content_only(read: Read) -> None:
    text = "<think>a.b</think>c<tool_call>d.e</tool_call><tool_call>!f.g</tool_call>h.i"
    events, reply = read(text, stop=(".",), parser=ChannelParser())
    assert merged(events) == [
        ReasoningDelta("a.b"),
        TextDelta("c"),
        ToolCallStart(0, "call_0", "f"),
        ToolCallDelta(0, "d.e"),
        TextDelta("<tool_call>!f.g</tool_call>h"),
    ]
    assert (reply.reason, reply.stop_sequence) == ("stop_sequence", ".")


def test_no_stop_string_spans_a_boundary(read: Read) -> None:
    for middle in ("<think>x</think>", "<tool_call>{}</tool_call>", "<tool_call>!</tool_call>"):
        events, reply = read(f"E{middle}ND", stop=("END",), parser=ChannelParser())
        assert reply.reason is None
        assert "".join(event.text for event in events if isinstance(event, TextDelta)).startswith("E")


def test_order_is_kept_when_text_is_held_before_a_boundary(read: Read) -> None:
    events, _ = read("aE<tool_call>{}</tool_call>b", stop=("END",), parser=ChannelParser())
    assert merged(events) == [TextDelta("aE"), ToolCallStart(0, "call_0", "f"), ToolCallDelta(0, "{}"), TextDelta("b")]


def test_what_a_parser_held_back_comes_out_at_the_end(read: Read) -> None:
    events, reply = read("a<tool_call>{", budget=3, parser=ChannelParser())
    assert merged(events) == [TextDelta("a<tool_call>{")]
    assert reply.reason == "length"


REPLIES = [
    "plain",
    "a😊 END",
    "<think>é.</think>\n\nok.no",
    "x<tool_call>{1}</tool_call>\n\n<tool_call>!.</tool_call>.",
    "<think>.",
    "ENEND",
    "E\nND\n\n",
]


@pytest.mark.parametrize("text", REPLIES)
@pytest.mark.parametrize("stop", [(), ("END", "\n\n"), (".",)])
def test_every_grouping_of_tokens_gives_the_same_reply(
    tokenizer: FakeTokenizer, make_request: Callable[..., GenerationRequest], text: str, stop: tuple[str, ...]
) -> None:
    tokens = [*tokenizer.encode(text, special=True)[:12], IM_END]
    results = set()
    for mask in range(1 << (len(tokens) - 1)):
        reply = Reply(make_request(stop=stop, parser=ChannelParser()), tokenizer, 1000)
        events: list[Event] = []
        start = 0
        for end in range(1, len(tokens) + 1):
            if end == len(tokens) or mask >> (end - 1) & 1:
                events += reply.feed(tokens[start:end])
                start = end
        results.add((tuple(merged(events)), reply.reason, reply.stop_sequence, reply.n_tokens))
    assert len(results) == 1


class Scripted:
    """A parser that gives fixed items for each token, and others at the end."""

    reasoning_tokens = 0

    def __init__(self, items: Sequence[Sequence[ReplyItem]], end: Sequence[ReplyItem] = ()) -> None:
        self._items = list(items)
        self._end = end

    def feed(self, token: int, piece: bytes) -> Sequence[ReplyItem]:
        return self._items.pop(0)

    def finish(self) -> Sequence[ReplyItem]:
        return self._end


def test_a_stop_string_in_what_a_parser_held_back_ends_the_reply(read: Read) -> None:
    events, reply = read([1], budget=1, stop=("END",), parser=Scripted([[]], [Content(b"a END b"), Content(b"c")]))
    assert events == [TextDelta("a ")]
    assert (reply.reason, reply.stop_sequence) == ("stop_sequence", "END")


def test_nothing_follows_a_stop_string_in_its_own_token(read: Read) -> None:
    items: list[ReplyItem] = [Content(b"a."), Content(b"b"), Thought(b"c"), ToolCallStart(0, "id", "f")]
    events, reply = read([1], stop=(".",), parser=Scripted([items]))
    assert events == [TextDelta("a")]
    assert reply.reason == "stop_sequence"


def test_half_a_character_before_a_stop_string_is_replaced(read: Read) -> None:
    assert merged(read(b"a\xf0\x9fEND", stop=("END",))[0]) == [TextDelta("a\ufffd")]
