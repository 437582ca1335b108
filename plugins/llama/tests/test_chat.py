"""Tools of the family: the style goes by the file's template, and Llama 3's calls are replies as a whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lmhub_llama import lmhub_families

from lmhub import HERMES, LLAMA3
from lmhub.chat.prompt import ChatFormat
from lmhub.family import style_for
from lmhub.gguf import open_gguf
from lmhub.grammar import GrammarEngine
from lmhub.testing.tiny import tiny_gguf
from lmhub.tokenize import Tokenizer, load_tokenizer
from lmhub.types import Content, Message, Text, Tool, ToolCall, ToolCallDelta, ToolCallStart, ToolChoice, ToolResult

TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' ~ ('ipython' if message.role == 'tool' else message.role) ~ '\\n\\n' }}
    {%- if tools and message.role == 'user' %}
        {{- 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.' }}
        {%- for tool in tools %}{{ '\\n\\n' ~ (tool | tojson) }}{% endfor %}
        {{- '\\n\\n' }}
    {%- endif %}
    {%- if message.tool_calls %}
        {%- set call = message.tool_calls[0].function %}
        {{- '{"name": "' ~ call.name ~ '", "parameters": ' ~ (call.arguments | tojson) ~ '}' }}
    {%- else %}
        {{- message.content }}
    {%- endif %}
    {{- '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n\\n' }}{% endif %}
"""
WEATHER = Tool("get_weather", "Tells the weather", {"type": "object", "properties": {"city": {"type": "string"}}})
CALL = '{"name": "get_weather", "parameters": {"city": "Paris"}}'


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(open_gguf(tiny_gguf("llama", tmp_path_factory.mktemp("chat") / "tiny.gguf")).metadata)


@pytest.fixture
def chat(tokenizer: Tokenizer) -> ChatFormat:
    return ChatFormat.from_metadata({"tokenizer.chat_template": TEMPLATE}, tokenizer, tools=LLAMA3)


def test_the_style_goes_by_the_template(zoo: Path) -> None:
    [family] = lmhub_families()
    hermes = (zoo / "qwen3" / "chat_template.jinja").read_text()
    found = [style_for(family.tools, template) for template in (TEMPLATE, hermes, "{{ messages }}")]
    assert found == [LLAMA3, HERMES, None]


def read(chat: ChatFormat, tokenizer: Tokenizer, reply: str, cut: bool = False) -> list[Any]:
    """The items of a reply that is read letter by letter."""
    parser = chat.parser(chat.render([Message("user", (Text("Hi"),))], [WEATHER]), [WEATHER])
    items: list[Any] = []
    for token in tokenizer.encode(reply):
        items += parser.feed(token, tokenizer.piece(token))
    items += parser.finish(cut)
    assert parser.n_calls == sum(isinstance(item, ToolCallStart) for item in items)
    return items


def test_a_reply_that_is_a_call(chat: ChatFormat, tokenizer: Tokenizer) -> None:
    start, arguments = read(chat, tokenizer, f"\n{CALL}\n")
    assert (start.name, arguments) == ("get_weather", ToolCallDelta(0, '{"city": "Paris"}'))


@pytest.mark.parametrize("reply", ["Hi!", f"So: {CALL}", '{"name": "other", "parameters": {}}', '{"a": 1}', "{", "  "])
def test_replies_that_are_none(chat: ChatFormat, tokenizer: Tokenizer, reply: str) -> None:
    items = read(chat, tokenizer, reply)
    assert all(isinstance(item, Content) for item in items)
    assert b"".join(item.data for item in items).decode() == reply


def test_a_call_that_was_cut_off_is_text(chat: ChatFormat, tokenizer: Tokenizer) -> None:
    assert read(chat, tokenizer, CALL[:-2], cut=True) == [Content(CALL[:-2].encode())]


def test_a_forced_call_can_be_read(chat: ChatFormat, tokenizer: Tokenizer) -> None:
    matcher = GrammarEngine(tokenizer, tokenizer.n_vocab, tokenizer.eog).constraint(
        chat.forced([WEATHER], ToolChoice("any"))
    )
    for token in tokenizer.encode(CALL):
        mask = matcher.mask()
        assert mask is None or mask[token // 32] >> token % 32 & 1
        matcher.commit(token)
    assert read(chat, tokenizer, CALL)[0].name == "get_weather"


def test_what_was_called_is_in_the_history_as_it_was_written(chat: ChatFormat) -> None:
    said = [
        Message("user", (Text("Weather?"),)),
        Message("assistant", (ToolCall("c1", "get_weather", json.dumps({"city": "Paris"})),)),
        Message("tool", (ToolResult("c1", "sunny"),)),
    ]
    text = chat.render(said, [WEATHER]).text
    assert f"assistant\n\n{CALL}<|im_end|><|im_start|>ipython\n\nsunny<|im_end|>" in text
