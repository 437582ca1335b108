"""Whole prompts against what transformers makes of the same conversations with the same templates."""

from __future__ import annotations

import hashlib

import pytest

from lmhub.errors import RequestError
from lmhub.types import Message, Reasoning, Text, Tool, ToolCall, ToolResult

FORMATS = [
    ("qwen3", "chat.json", None),
    ("qwen3-realvocab", "chat.json", None),
    ("qwen3moe", "chat-coder.json", "chat_template-coder.jinja"),
    ("qwen35", "chat.json", None),
    ("llama", "chat.json", None),
    ("gemma3", "chat.json", None),
    ("gemma4-e2b", "chat.json", None),
    ("gemma4-31b", "chat.json", None),
    ("gemma4-31b", "chat-interleaved.json", "chat_template-interleaved.jinja"),
    ("kimi-linear", "chat.json", None),
    ("kimi-k3", "chat.json", None),
]

LISTS = ("qwen3", "qwen3-realvocab", "qwen3moe", "llama", "gemma3", "gemma4-e2b", "gemma4-31b")  # others join alike
ABSENT_CONTENT = "an absent content is an empty text, so that no template stumbles over it"
JOINED_PARTS = "text parts are one text, so that no template needs to know lists"
MERGED_SYSTEMS = "leading system messages are merged for a template that refuses two"
TOLD_TOOLS = "a template without tools gets calls and results as texts, so that none is lost or refused"
OPENED = "a reply is opened where a template closes the last turn and opens none"
FOLDED = "results go into the turn of the call for a template that shows them nowhere else"
STRIPPED = "reasoning within the text of an earlier turn is taken out where the template does not do it"
TOOL_ROWS = ("tool_result", "tool_result_then_answer", "parallel_tools", "tool_reasoning", "tool_no_args")
DIFFERENT = {
    **{(f, "chat.json", name): TOLD_TOOLS for f in ("llama", "gemma3") for name in TOOL_ROWS},
    ("gemma3", "chat.json", "null_content"): TOLD_TOOLS,
    ("qwen3moe", "chat-coder.json", "reasoning_inline"): STRIPPED,
    **{(f, "chat.json", "null_content"): ABSENT_CONTENT for f in ("qwen3", "qwen3-realvocab", "llama")},
    **{(folder, file, "content_parts"): JOINED_PARTS for folder, file, _ in FORMATS if folder in LISTS},
    **{(f, "chat.json", "two_systems"): MERGED_SYSTEMS for f in ("qwen35", "gemma3")},
    **{(f, "chat.json", "parallel_tools"): OPENED for f in ("gemma4-e2b", "gemma4-31b")},
    **{("gemma4-31b", "chat-interleaved.json", name): FOLDED for name in (*TOOL_ROWS, "null_content")},
}


@pytest.mark.parametrize(("folder", "file", "template"), FORMATS)
def test_prompts_are_those_of_transformers(load_format, load_goldens, folder, file, template):
    chat, _ = load_format(folder, template)
    rows = load_goldens(folder, file)
    assert len(rows) == 25
    for name, row in rows.items():
        try:
            text = chat.render(row.messages, row.tools, **row.options).text
        except RequestError as error:
            assert error.status == 400
            assert row.error is not None and row.error.partition(": ")[2] in str(error), name
        else:
            assert (text != row.text) == ((folder, file, name) in DIFFERENT), (name, text)


@pytest.mark.parametrize(("folder", "file", "template"), FORMATS)
def test_harmless_conversations_get_the_ids_of_the_whole_text(load_format, load_goldens, folder, file, template):
    chat, tokenizer = load_format(folder, template)
    for name, row in load_goldens(folder, file).items():
        if row.text is None or any(special in row.said for special in tokenizer.specials):
            continue
        prompt = chat.render(row.messages, row.tools, **row.options)
        assert list(prompt.ids) == tokenizer.with_bos(tokenizer.encode(prompt.text, special=True)), name


def test_what_differs_from_transformers(load_format, load_goldens):
    def text(folder, name):
        row = load_goldens(folder, "chat.json")[name]
        return load_format(folder)[0].render(row.messages, row.tools).text

    assert '<|im_start|>assistant\n<tool_call>\n{"name": "add"' in text("qwen3", "null_content")
    assert "user\npart one part two<" in text("qwen3", "content_parts")
    assert text("qwen35", "two_systems").startswith("<|im_start|>system\none\n\ntwo<|im_end|>")
    assert text("gemma3", "two_systems").startswith("<bos><start_of_turn>user\none\n\ntwo\n\nx<end_of_turn>")


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}, "required": ["a"]}
F = (Tool("f", "d <b> é", SCHEMA),)
HI, RESULT = Message("user", (Text("hi"),)), Message("tool", (ToolResult("c", "42"),))
MIXED = ToolCall("c", "f", '{"a": "x", "n": 1, "b": true, "z": null, "l": [1, "é"]}')
PLAIN = ToolCall("c", "f", '{"a": "x"}')
RENDERED = {
    "G1": ((HI,), (), {}),
    "G2": ((HI,), (), {"enable_thinking": False}),
    "G3": ((Message("system", (Text("S"),)), HI), F, {}),
    "G4": ((HI, Message("assistant", (Reasoning("R"), Text("ok"), MIXED)), RESULT), (), {}),
    "G5": ((HI, Message("assistant", (PLAIN,)), RESULT, RESULT), (), {}),
    "G6": (
        (
            *(HI, Message("assistant", (Reasoning("R"), Text("ok"), PLAIN)), RESULT),
            *(Message("assistant", (Reasoning("R2"), Text("done"))), Message("user", (Text("again"),))),
        ),
        (),
        {},
    ),
    "G7": (
        (HI, Message("assistant", (Text("<think>\nR\n</think>\n\ndone"),)), Message("user", (Text("again"),))),
        (),
        {},
    ),
}
# Bytes and first twelve digits of the SHA-256 of the prompt, by template.
HASHES = {
    ("qwen3", None): "52 b257d9a21897 71 9f81e9d71724 651 15e740257c41 280 080f838be03e 247 5a0f6cfbfb6c "
    "284 839b614bbf19 122 1a18d9a71807",
    ("qwen35", None): "60 cf3fd97abdad 71 9f81e9d71724 1175 bf8af0129157 388 7f5dd39541da 289 e307aae47176 "
    "308 e07db97561ce 130 02f027077f9d",
    ("qwen3moe", "chat_template-coder.jinja"): "52 b257d9a21897 52 b257d9a21897 1160 4a80cf34386d 361 cfc0feb59ec5 "
    "263 3da5c14f9cf3 301 9b9c7b22b127 122 -",  # the template would leave the 20 bytes of reasoning in the text
}


@pytest.mark.parametrize(("folder", "template"), HASHES)
def test_prompts_have_the_known_hashes(load_format, folder, template):
    chat, _ = load_format(folder, template)
    wanted = HASHES[folder, template].split()
    for (name, (messages, tools, kwargs)), length, digest in zip(
        RENDERED.items(), wanted[::2], wanted[1::2], strict=True
    ):
        data = chat.render(messages, tools, template_kwargs=kwargs).text.encode()
        assert (len(data), hashlib.sha256(data).hexdigest()[:12]) == (int(length), digest) or digest == "-", name
        assert len(data) == int(length)
