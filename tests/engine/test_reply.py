"""From committed tokens to events: channels, stop strings, characters, budget, reasons."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from lmhub.engine.reply import PlainText, Reply
from lmhub.sampling import Score
from lmhub.testing.fake import END_OF_TEXT, END_THINK, END_TOOL_CALL, IM_END, THINK, TOOL_CALL, FakeTokenizer
from lmhub.types import (
    Content,
    Event,
    GenerationRequest,
    ReasoningDelta,
    ReplyItem,
    TextDelta,
    Thought,
    TokenIds,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStart,
)


class ChannelParser:
    """Reasoning and calls between their markers; a call that starts with "!" is malformed."""

    def __init__(self) -> None:
        self.reasoning_tokens = 0
        self._in = 0
        self._call = b""
        self.n_calls = 0

    @property
    def in_reasoning(self) -> bool:
        return self._in == THINK

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
        index, self.n_calls = self.n_calls, self.n_calls + 1
        return (ToolCallStart(index, f"call_{index}", "f"), ToolCallDelta(index, self._call.decode()))

    def finish(self, cut: bool = False) -> Sequence[ReplyItem]:
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


def test_a_complete_call_is_the_reason_whatever_ended_the_reply(read: Read) -> None:
    text = "<tool_call>{}</tool_call>abc"
    for options in ({"budget": 5}, {"stop": ("b",)}):
        _, reply = read(text, parser=ChannelParser(), **options)
        assert (reply.reason, reply.stop_sequence) == ("tool_calls", None)
    assert read(text, budget=3, parser=ChannelParser())[1].reason == "length"


def test_a_reply_ends_with_its_last_allowed_call(read: Read) -> None:
    text = "a<tool_call>{}</tool_call>b<tool_call>{1}</tool_call>c"
    events, reply = read(text, parser=ChannelParser(), max_calls=1)
    assert merged(events) == [TextDelta("a"), ToolCallStart(0, "call_0", "f"), ToolCallDelta(0, "{}")]
    assert reply.reason == "tool_calls"
    events, _ = read(text, parser=ChannelParser(), max_calls=2)
    assert [event.index for event in events if isinstance(event, ToolCallStart)] == [0, 1]


def test_of_two_calls_behind_one_marker_only_the_allowed_ones_are_shown(read: Read) -> None:
    class TwoAtOnce(ChannelParser):
        def _end_call(self) -> Sequence[ReplyItem]:
            return (*super()._end_call(), *super()._end_call())

    events, _ = read("<tool_call>{}</tool_call>", parser=TwoAtOnce(), max_calls=1)
    assert events == [ToolCallStart(0, "call_0", "f"), ToolCallDelta(0, "{}")]


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
    assert (reply.reason, reply.n_tokens) == ("tool_calls", 19)  # the stop string ended it, but there is a call


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
    in_reasoning = False
    n_calls = 0

    def __init__(self, items: Sequence[Sequence[ReplyItem]], end: Sequence[ReplyItem] = ()) -> None:
        self._items = list(items)
        self._end = end

    def feed(self, token: int, piece: bytes) -> Sequence[ReplyItem]:
        return self._items.pop(0)

    def finish(self, cut: bool = False) -> Sequence[ReplyItem]:
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


# --- log probabilities, token ids, budgets ---------------------------------------------------------------------------


class Words:
    """A vocabulary of longer pieces; the last one is the end of a reply."""

    pieces = (
        b"Hel",
        b"lo",
        b" w\xc3",
        b"\xb6rld",
        b".\n\n",
        b"END",
        b" E",
        b"N",
        b"D",
        b"\xf0\x9f\x98",
        b"\x8a!",
        b"\xff",
        b"",
    )
    n_vocab = len(pieces)

    def piece(self, token: int) -> bytes:
        return self.pieces[token]


def scored(tokens: Sequence[int]) -> list[Score]:
    """Distinct scores, so that entries can be told apart."""
    return [Score(-1.0 - place, ((token, -0.5), (99, -2.0))) for place, token in enumerate(tokens)]


def read_words(
    make_request: Callable[..., GenerationRequest], tokens: Sequence[int], **rest: Any
) -> tuple[list[Event], Reply]:
    request = replace(make_request(logprobs=2, **rest), eog=frozenset((12,)))
    reply = Reply(request, Words(), 1000)
    events: list[Event] = []
    for token, score in zip(tokens, scored(tokens), strict=True):
        events += reply.feed((token,), (score,))
    return events, reply


def entries(events: Sequence[Event]) -> list[TokenLogprob]:
    return [entry for event in events if isinstance(event, TextDelta) for entry in event.logprobs]


def shown(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def test_every_token_of_the_text_has_its_log_probability(make_request: Callable[..., GenerationRequest]) -> None:
    events, _ = read_words(make_request, [0, 1, 2, 3, 12])
    assert [(entry.token, entry.piece, entry.logprob) for entry in entries(events)] == [
        (0, b"Hel", -1.0),
        (1, b"lo", -2.0),
        (2, b" w\xc3", -3.0),
        (3, b"\xb6rld", -4.0),
    ]
    assert entries(events)[0].top == ((0, b"Hel", -0.5), (99, b"", -2.0))  # an id beyond the vocabulary has no text


def test_an_entry_comes_with_the_delta_that_holds_its_last_byte(make_request: Callable[..., GenerationRequest]) -> None:
    events, _ = read_words(make_request, [0, 2, 3])
    found = [(event.text, [e.token for e in event.logprobs]) for event in events if isinstance(event, TextDelta)]
    assert found == [("Hel", [0]), (" w", []), ("örld", [2, 3])]


def test_a_stop_string_takes_the_entries_of_its_text_with_it(make_request: Callable[..., GenerationRequest]) -> None:
    events, reply = read_words(make_request, [0, 6, 7, 8], stop=("END",))
    assert (shown(events), reply.stop_sequence) == ("Hel ", "END")
    assert [entry.piece for entry in entries(events)] == [b"Hel", b" "]  # a token that is cut has what is left of it


def test_entries_of_held_text_come_when_it_is_released(make_request: Callable[..., GenerationRequest]) -> None:
    events, _ = read_words(make_request, [0, 6, 7, 1], stop=("END",))
    assert [(event.text, [e.token for e in event.logprobs]) for event in events if isinstance(event, TextDelta)] == [
        ("Hel", [0]),
        (" ", []),
        ("ENlo", [6, 7, 1]),
    ]


@pytest.mark.parametrize("stop", [(), ("END",), ("o ",), ("\n\n",), ("!",)])
def test_the_bytes_of_the_entries_are_the_text(
    make_request: Callable[..., GenerationRequest], stop: tuple[str, ...]
) -> None:
    rng = random.Random(1)
    for _ in range(300):
        tokens = [rng.randrange(12) for _ in range(rng.randrange(1, 9))]
        if rng.random() < 0.5:
            tokens.append(12)
        events, reply = read_words(make_request, tokens, stop=stop)
        if reply.reason is None:
            continue
        joined = b"".join(entry.piece for entry in entries(events))
        assert joined.decode("utf-8", "replace") == shown(events), tokens
        n_text = n_entries = 0
        for event in events:
            if isinstance(event, TextDelta):
                n_text += len(event.text.replace("\ufffd", "").encode())
                n_entries += sum(len(entry.piece.replace(b"\xff", b"")) for entry in event.logprobs)
        assert n_entries >= n_text


def test_reasoning_and_calls_have_no_entries(
    tokenizer: FakeTokenizer, make_request: Callable[..., GenerationRequest]
) -> None:
    tokens = tokenizer.encode("<think>aa</think>a<tool_call>a</tool_call>a<tool_call>!a</tool_call>", special=True)
    reply = Reply(make_request(logprobs=0, parser=ChannelParser()), tokenizer, 1000)
    events: list[Event] = []
    for place, token in enumerate(tokens):
        events += reply.feed((token,), (Score(float(-place), ()),))
    content = "a" + "a" + "<tool_call>!a</tool_call>"
    assert shown(events) == content
    assert b"".join(entry.piece for entry in entries(events)).decode() == content
    assert [entry.logprob for entry in entries(events)] == [-4, -8, -9, -10, -11, -12]


def test_token_ids_come_before_their_text(read: Read) -> None:
    events, _ = read([*b"ab", IM_END], return_token_ids=True, per_step=2)
    assert events == [TokenIds(tuple(b"ab")), TextDelta("ab"), TokenIds((IM_END,))]
    events, _ = read([*b"ab", IM_END, *b"cd"], return_token_ids=True, per_step=9)
    assert events[0] == TokenIds((*b"ab", IM_END))


def test_reasoning_must_close_when_its_budget_is_used_up(read: Read) -> None:
    def must(text: bytes, **options: Any) -> bool:
        tokens = [THINK, *text]
        return read(tokens, parser=ChannelParser(), **options)[1].must_close

    assert not must(b"ab")
    assert not must(b"a", reasoning_budget=3)
    assert must(b"ab", reasoning_budget=3)
    assert must(b"abc", reasoning_budget=3)
    assert not must(b"a\xc3", reasoning_budget=3)  # in the middle of a character
    assert must(b"a\xc3\xa9", reasoning_budget=3)
    assert not read([THINK, *b"abc", END_THINK, *b"d"], parser=ChannelParser(), reasoning_budget=3)[1].must_close
    assert not read([THINK, *b"abc"], parser=ChannelParser(), reasoning_budget=3, budget=4)[1].must_close


def test_a_budget_of_nothing_ends_the_reply_at_once(read: Read, make_request: Callable[..., GenerationRequest]) -> None:
    reply = Reply(make_request(), Words(), 0)
    assert reply.feed(()) == []
    assert (reply.reason, reply.n_tokens) == ("length", 0)


class Announcing(PlainText):
    """Announces a call with the first token and completes it with the second."""

    def __init__(self) -> None:
        self.n_calls, self._n_fed = 0, 0

    def feed(self, token: int, piece: bytes) -> Sequence[ReplyItem]:
        """A call in two fragments."""
        self._n_fed += 1
        self.n_calls = int(self._n_fed == 2)
        return (ToolCallStart(0, "call_0", "f"),) if self._n_fed == 1 else (ToolCallDelta(0, "{}"),)


@pytest.mark.parametrize(("budget", "reason"), [(1, "length"), (2, "tool_calls")])
def test_a_call_that_was_announced_but_cut_is_no_tool_call(
    budget: int, reason: str, make_request: Callable[..., GenerationRequest]
) -> None:
    reply = Reply(make_request(parser=Announcing()), FakeTokenizer(), budget)
    reply.feed([ord("a"), ord("b")])
    assert reply.reason == reason
