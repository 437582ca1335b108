"""The templates of files that carry none: turns, calls and reasoning as the models' own templates show them."""

from __future__ import annotations

import json

import pytest

from lmhub.chat.chatml import PLAIN, THINKING, THINKING_XML
from lmhub.chat.prompt import ChatFormat
from lmhub.errors import RequestError
from lmhub.family import HERMES, XML, ThinkMarkers, style_for
from lmhub.types import Message, Reasoning, Text, Tool, ToolCall, ToolResult

TOOL = Tool("f", "d", {"type": "object", "properties": {"a": {"type": "string"}}})


@pytest.fixture
def pair(load_format):
    """`pair(folder, template, switch)`: the format of the folder's own template, and that of `template`."""

    def formats(folder, template, switch="enable_thinking"):
        own, tokenizer = load_format(folder)
        chat = ChatFormat.from_metadata({}, tokenizer, think=ThinkMarkers(switch=switch), tools=XML, fallback=template)
        return own, chat

    return formats


@pytest.mark.parametrize(("folder", "template", "n_alike"), [("qwen3", THINKING, 15), ("qwen35", THINKING_XML, 14)])
def test_conversations_without_tools_are_those_of_the_models_templates(pair, load_goldens, folder, template, n_alike):
    own, chat = pair(folder, template, None)
    alike = 0
    for name, row in load_goldens(folder, "chat.json").items():
        if row.tools or name == "two_systems":  # which the model's own template refuses, and these show
            continue
        try:
            expected = own.render(row.messages, **row.options)
        except RequestError:
            continue
        alike += 1
        if "arguments" not in row.said:  # values of calls are JSON here
            assert chat.render(row.messages, **row.options) == expected, name
    assert alike == n_alike


def user(text):
    return Message("user", (Text(text),))


LOOP = (
    user("u1"),
    Message("assistant", (Reasoning("r1"), Text("a1"), ToolCall("1", "f", '{"a": "x\\n y", "b": true, "c": [1]}'))),
    Message("tool", (ToolResult("1", "res"),)),
    Message("tool", (ToolResult("2", "res2"),)),
)
XML_CALL = """\
<tool_call>
<function=f>
<parameter=a>
x
 y
</parameter>
<parameter=b>
true
</parameter>
<parameter=c>
[1]
</parameter>
</function>
</tool_call>"""
JSON_CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "x\\n y", "b": true, "c": [1]}}\n</tool_call>'
RESULTS = (
    "<|im_start|>user\n<tool_response>\nres\n</tool_response>\n<tool_response>\nres2\n</tool_response><|im_end|>\n"
)


@pytest.mark.parametrize(
    ("template", "turn", "opener"),
    [
        (THINKING_XML, f"<think>\nr1\n</think>\n\na1\n\n{XML_CALL}", "<think>\n"),
        (THINKING, f"<think>\nr1\n</think>\n\na1\n{JSON_CALL}", ""),
        (PLAIN, f"a1\n{JSON_CALL}", ""),
    ],
)
def test_a_tool_loop_and_its_end(pair, template, turn, opener):
    _, chat = pair("qwen35", template)
    begun = chat.render(LOOP, (TOOL,), reasoning=True).text
    assert begun.endswith(
        f"<|im_start|>user\nu1<|im_end|>\n<|im_start|>assistant\n{turn}<|im_end|>\n{RESULTS}<|im_start|>assistant\n{opener}"
    )
    over = chat.render((*LOOP, Message("assistant", (Reasoning("r2"), Text("a2"))), user("u2")), (TOOL,)).text
    assert "r1" not in over and "r2" not in over and "assistant\na2<|im_end|>\n<|im_start|>user\nu2" in over


@pytest.mark.parametrize(("template", "style"), [(THINKING_XML, XML), (THINKING, HERMES), (PLAIN, HERMES)])
def test_tools_are_declared_in_the_style_that_calls_are_read_in(pair, template, style):
    _, chat = pair("qwen35", template)
    assert style_for((XML, HERMES), template) is style
    system = Message("system", (Text("  be brief"),))
    text = chat.render((system, user("u")), (TOOL,)).text.partition("<|im_end|>")[0]
    assert text.count("be brief") == 1 and text.count("<|im_start|>") == 1
    declared = text.partition("<tools>\n")[2].partition("\n</tools>")[0]
    assert json.loads(declared)["function"]["name"] == "f"
    assert chat.render((user("u"),), (TOOL,)).text.startswith("<|im_start|>system\n# Tools")


def test_a_file_s_own_template_goes_first(load_format):
    _, tokenizer = load_format("qwen35")
    chat = ChatFormat.from_metadata({"tokenizer.chat_template": "mine"}, tokenizer, fallback=THINKING_XML)
    assert chat.render((user("u"),)).text == "mine"
