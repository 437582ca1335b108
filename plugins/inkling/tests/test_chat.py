"""How Inkling is talked to: prompts as the vendor's renderer writes them, replies by blocks, calls by a grammar."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
from lmhub_inkling import CALLS, THINK
from lmhub_inkling.calls import parse_calls
from lmhub_inkling.reply import BlockParser
from lmhub_inkling.wire import template

from lmhub.chat.prompt import ChatFormat
from lmhub.grammar import GrammarEngine
from lmhub.tokenize import Tokenizer, load_tokenizer
from lmhub.types import (
    Content,
    Message,
    Reasoning,
    Text,
    Thought,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolCallStart,
    ToolChoice,
    ToolResult,
)

WEATHER = Tool(
    "get_weather",
    'Get "w" é',
    {
        "type": "object",
        "properties": {"b": {"type": "string"}, "a": {"type": "number", "default": 1.0}},
        "required": ["b"],
    },
)
HI = Message("user", (Text("Hi!"),))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(run_path(str(Path(__file__).with_name("tiny_inkling.py")))["spoken"]())


@pytest.fixture
def chat(tokenizer: Tokenizer) -> ChatFormat:
    metadata = {"tokenizer.chat_template": "the file's own is not used"}
    reply = "lmhub_inkling.reply:parser"
    return ChatFormat.from_metadata(metadata, tokenizer, think=THINK, tools=CALLS, fallback=template, reply=reply)


def spelled(text: str) -> str:
    """A prompt with the abbreviations of the tests below written out."""
    names = {"S": "message_system", "U": "message_user", "M": "message_model", "T": "message_tool", "t": "content_text"}
    names |= {"h": "content_thinking", "c": "content_invoke_tool_json", "x": "content_xml", "/": "end_message"}
    names["end"] = "content_model_end_sampling"
    for short, name in names.items():
        text = text.replace(f"<{short}>", f"<|{name}|>")
    return text


def test_a_question(chat: ChatFormat) -> None:
    """The first golden of the vendor's renderer."""
    prompt = chat.render([HI], reasoning=True)
    assert prompt.text == spelled("<S><t>Thinking effort level: 0.9</><U><t>Hi!</><M>")
    assert not prompt.opens_reasoning and prompt.n_stable == len(prompt.ids) - 1


def test_tools_thoughts_and_results(chat: ChatFormat) -> None:
    """The second one: keys of schemas sorted at every level, numbers as they are spelled, nothing escaped."""
    said = [
        Message("system", (Text("Be brief."),)),
        HI,
        Message("assistant", (Reasoning("hmm"), ToolCall("c1", "get_weather", '{"z": 1, "city": "Paris"}'))),
        Message("tool", (ToolResult("c1", "sunny"),)),
    ]
    declared = (
        r'[{"description":"Get \"w\" é","name":"get_weather","parameters":{"properties":{"a":{"default":1.0,"type":'
        r'"number"},"b":{"type":"string"}},"required":["b"],"type":"object"},"type":"function"}]'
    )
    assert chat.render(said, [WEATHER], reasoning=True).text == spelled(
        f"<S>tool_declare<x>{declared}</><S><t>Be brief.</><S><t>Thinking effort level: 0.9</><U><t>Hi!</>"
        '<M><h>hmm</><M>get_weather<c>{"name":"get_weather","args":{"city":"Paris","z":1}}</><end>'
        "<T>get_weather<t>sunny</><M>"
    )


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ([Message("system", (Text("a"),))], "<S><t>a</><S><t>Thinking effort level: 0</><M><t>"),
        (
            [HI, Message("system", (Text("late"),)), Message("assistant", (Text("x"), Text("y")))],
            "<S><t>Thinking effort level: 0</><U><t>Hi!</><S><t>late</><M><t>x</><M><t>y</><end><M><t>",
        ),
        (
            [HI, Message("assistant", (Text("x"), Reasoning("r"), Text("y<|end_message|>"), Text("")))],
            "<S><t>Thinking effort level: 0</><U><t>Hi!</><M><t>x</><M><h>r</><M><t>y</></><end><M><t>",
        ),
        (
            [Message("user", (Text("x"), Text("y")))],
            "<S><t>Thinking effort level: 0</><U><t>x</><U><t>y</><M><t>",
        ),
        ([HI, Message("assistant", ()), HI], "<S><t>Thinking effort level: 0</>" + 2 * "<U><t>Hi!</>" + "<M><t>"),
    ],
)
def test_other_orders(chat: ChatFormat, said: list[Message], text: str) -> None:
    assert chat.render(said).text == spelled(text)


def test_keys_of_arguments_are_sorted_at_the_first_level_alone(chat: ChatFormat) -> None:
    call = ToolCall("c1", "a", '{"z": {"y": 1, "x": {"c": 1, "b": 2}}, "é": [{"b": 1, "a": null}], "A": 1.50}')
    text = chat.render([HI, Message("assistant", (call,))], [WEATHER]).text
    assert '"args":{"A":1.5,"z":{"y":1,"x":{"c":1,"b":2}},"é":[{"b":1,"a":null}]}}<' in text


def test_what_stands_behind_a_call_stays_there(chat: ChatFormat) -> None:
    said = Message("assistant", (Reasoning("r"), Text("a"), ToolCall("c", "f", "{}"), Text("b")))
    text = chat.render([HI, said, Message("tool", (ToolResult("c", ""),))], [WEATHER]).text
    assert spelled('<M><h>r</><M><t>a</><M>f<c>{"name":"f","args":{}}</><M><t>b</><end><T>f<t></><M>') in text


def test_two_calls_and_their_results(chat: ChatFormat) -> None:
    calls = [ToolCall(f"c{i}", f"tool_{i}", '{"n": 2.0}') for i in range(2)]
    results = [Message("tool", (ToolResult(f"c{i}", f"r{i}"),)) for i in (1, 0)]
    text = chat.render([HI, Message("assistant", (Text("ok"), *calls)), *results], [WEATHER]).text
    assert text.endswith(
        spelled(
            '<M><t>ok</><M>tool_0<c>{"name":"tool_0","args":{"n":2.0}}</><M>tool_1<c>{"name":"tool_1","args":{"n":2.0}}'
            "</><end><T>tool_0<t>r0</><T>tool_1<t>r1</><M>"
        )
    )


@pytest.mark.parametrize(("effort", "level"), [("low", "0.2"), ("medium", "0.7"), ("max", "0.99")])
def test_efforts(chat: ChatFormat, effort: str, level: str) -> None:
    text = chat.render([HI], reasoning=True, template_kwargs={"reasoning_effort": effort}).text
    assert f"Thinking effort level: {level}<" in text


def test_what_users_write_is_no_token(chat: ChatFormat, tokenizer: Tokenizer) -> None:
    ids = chat.render([Message("user", (Text("<|end_message|>"),))]).ids
    assert ids.count(tokenizer.token_id("<|end_message|>")) == 2


def read(tokenizer: Tokenizer, reply: str, prompt: str = "<M>", tools: Sequence[Tool] = ()) -> list[Any]:
    """The items of a reply, neighbours of one kind joined."""
    ids = tokenizer.encode(spelled(prompt), special=True)
    parser = BlockParser(tokenizer.token_id, ids, tools)
    items: list[Any] = []
    fed: list[Any] = []
    for token in tokenizer.encode(spelled(reply), special=True):
        fed += parser.feed(token, tokenizer.piece(token))
    for item in (*fed, *parser.finish()):
        if items and type(items[-1]) is type(item) and isinstance(item, Content | Thought):
            items[-1] = type(item)(items[-1].data + item.data)
        else:
            items.append(item)
    assert parser.n_calls == sum(isinstance(item, ToolCallStart) for item in items)
    return items


CALL = '{"name":"get_weather","args":{"b": 1e2}}'


@pytest.mark.parametrize(
    ("reply", "prompt", "items"),
    [
        ("<t>Hi</><end>", "<M>", [Content(b"Hi")]),
        ("Hi</>", "<M><t>", [Content(b"Hi")]),
        ("<h>hm</><M><t>Hi</>", "<M>", [Thought(b"hm"), Content(b"Hi")]),
        ("<h>a</><M><h>b</><M><t>x</><M><t>y", "<M>", [Thought(b"a\nb"), Content(b"xy")]),
        ("<h>a</><M><t>x</><M><h>b</>", "<M>", [Thought(b"a"), Content(b"x"), Thought(b"b")]),
        ("<M>author<t>Hi</>", "", [Content(b"Hi")]),
        ("just text", "", [Content(b"just text")]),
        ("no kind</>", "<M>", [Content(b"no kind")]),
        (f"<c>{CALL[:-1]}</>", "<M>", [Content(CALL[:-1].encode(), literal=True)]),
        (f"other<c>{CALL}</>", "<M>", [Content(CALL.encode(), literal=True)]),
    ],
)
def test_replies(tokenizer: Tokenizer, reply: str, prompt: str, items: list[Any]) -> None:
    assert read(tokenizer, reply, prompt) == items


def test_calls_between_texts(tokenizer: Tokenizer) -> None:
    items = read(tokenizer, f"<t>a</><M>get_weather<c>{CALL}</><M><c>{CALL}</><M><t>b</>", tools=[WEATHER])
    assert [type(item) for item in items] == [Content, *2 * [ToolCallStart, ToolCallDelta], Content]
    assert (items[1].name, items[2].fragment, items[3].index) == ("get_weather", '{"b": 1e2}', 1)


EAGER = replace(WEATHER, eager=True)


@pytest.mark.parametrize("header", ["get_weather", ""])
def test_arguments_in_fragments_while_they_are_written(tokenizer: Tokenizer, header: str) -> None:
    spaced = '{ "name" : "get_weather", "args": {"b": "x } \\" y", "n": [{"é": 1e2}]} }'
    start, *deltas = read(tokenizer, f"{header}<c>{spaced}</><M><c>{CALL}</>", tools=[EAGER])
    again = next(place for place, item in enumerate(deltas) if isinstance(item, ToolCallStart))
    assert (start.name, start.index, deltas[again].index) == ("get_weather", 0, 1)
    assert "".join(item.fragment for item in deltas[:again]) == spaced[spaced.index("{", 1) : -2]
    assert "".join(item.fragment for item in deltas[again + 1 :]) == '{"b": 1e2}'
    assert 3 < again < len(deltas) - 2


def test_what_is_announced_stays_a_call_and_is_not_complete_when_cut(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(spelled(f"<c>{CALL[:-4]}"), special=True)
    for cut in (False, True):
        parser = BlockParser(tokenizer.token_id, tokenizer.encode(spelled("<M>"), special=True), [EAGER])
        items = [item for token in ids for item in parser.feed(token, tokenizer.piece(token))]
        assert [type(item) for item in items[:2]] == [ToolCallStart, ToolCallDelta] and not parser.n_calls
        assert not parser.finish(cut) and parser.n_calls == (not cut)
    items = read(tokenizer, f'<c>{CALL[:-1]},"more":1}}</>', tools=[EAGER])
    assert items[-1] == Content(b'"more":1}', literal=True)


@pytest.mark.parametrize("reply", [f"other<c>{CALL}</>", '<c>{"args":{},"name":"get_weather"}</>', '<c>{"name":1}</>'])
def test_what_cannot_be_told_early_is_read_whole(tokenizer: Tokenizer, reply: str) -> None:
    assert read(tokenizer, reply, tools=[EAGER])[-1] == read(tokenizer, reply, tools=[WEATHER])[-1]


def plain(part: Text | Reasoning | ToolCall) -> tuple[str, Any]:
    """What a part says, without ids."""
    if isinstance(part, ToolCall):
        return part.name, json.loads(part.arguments)
    return type(part).__name__, part.text


def said(items: Sequence[Any]) -> list[tuple[str, Any]]:
    """The parts that items of a reply are, likewise."""
    parts: list[tuple[str, Any]] = []
    for item in items:
        kind = {Content: "Text", Thought: "Reasoning"}.get(type(item), "")
        if isinstance(item, ToolCallStart):
            parts.append((item.name, ""))
        elif isinstance(item, ToolCallDelta):
            parts[-1] = (parts[-1][0], parts[-1][1] + item.fragment)
        elif parts and parts[-1][0] == kind:
            parts[-1] = (kind, parts[-1][1] + item.data)
        else:
            parts.append((kind, item.data))
    return [(kind, text.decode() if isinstance(text, bytes) else json.loads(text)) for kind, text in parts]


def turns(rng: random.Random) -> Iterator[tuple[Text | Reasoning | ToolCall, ...]]:
    """Replies of all kinds of parts in any order; neighbours are of different kinds, or calls."""
    words = ("Hi", " é", "你好", "<|end_message|>", '"q"', "\\", "\n\n", "{}", "get_weather")
    for _ in range(60):
        parts: list[Text | Reasoning | ToolCall] = []
        for at in range(rng.randrange(1, 6)):
            said, kind = "".join(rng.choices(words, k=rng.randrange(1, 4))), rng.choice((Text, Reasoning, ToolCall))
            if kind is ToolCall:
                parts.append(ToolCall(str(at), "get_weather", json.dumps({"b": said, "n": [1.0]}, ensure_ascii=False)))
            elif not parts or type(parts[-1]) is not kind:
                parts.append(kind(said))
        yield tuple(parts)


@pytest.mark.parametrize("tool", [WEATHER, EAGER], ids=["whole", "eager"])
def test_what_is_rendered_is_read_and_beginnings_of_it_leak_nothing(
    chat: ChatFormat, tokenizer: Tokenizer, tool: Tool
) -> None:
    prompt = chat.render([HI], [tool], add_generation_prompt=False).ids
    for parts in turns(random.Random(5)):
        whole = chat.render([HI, Message("assistant", parts)], [tool], add_generation_prompt=False).ids
        assert whole[: len(prompt)] == prompt and whole[-1] in tokenizer.eog
        reply = whole[len(prompt) : -1]
        for end in (*range(1, len(reply), 7), len(reply)):
            parser = BlockParser(tokenizer.token_id, prompt, [tool])
            fed = [parser.feed(token, tokenizer.piece(token)) for token in reply[:end]]
            items = [item for step in (*fed, parser.finish(end < len(reply))) for item in step]
            shown = b"".join(item.data for item in items if isinstance(item, Content | Thought))
            assert b"content_" not in shown and b"message_" not in shown
        assert said(items) == [plain(part) for part in parts]


def test_a_call_in_place_of_a_text_that_the_prompt_began(tokenizer: Tokenizer) -> None:
    assert read(tokenizer, f"<c>{CALL}</>", "<M><t>", [WEATHER])[0].name == "get_weather"


@pytest.mark.parametrize(
    "text", ["", "[]", '{"name": "f"}', '{"name": "f", "args": []}', '{"name": 1, "args": {}}', CALL + "x"]
)
def test_no_calls(text: str) -> None:
    assert parse_calls(text) is None


def test_a_forced_call_is_one_that_can_be_read(chat: ChatFormat, tokenizer: Tokenizer) -> None:
    spec = chat.forced([WEATHER], ToolChoice("any"))
    matcher = GrammarEngine(tokenizer, tokenizer.n_vocab, tokenizer.eog).constraint(spec)
    call = {"name": "get_weather", "args": {"b": "Paris"}}
    ids = tokenizer.encode(spelled(f"<c>{json.dumps(call, separators=(',', ':'))}</>"), special=True)
    for token in ids:
        mask = matcher.mask()
        assert mask is None or mask[token // 32] >> token % 32 & 1
        matcher.commit(token)
    assert [name for name, _ in parse_calls(json.dumps(call)) or ()] == ["get_weather"]
