"""Texts, calls and results in the order in which a model wrote them, whatever the template's own is."""

from __future__ import annotations

from lmhub.chat.prompt import ChatFormat
from lmhub.chat.traced import hidden, joined, segments, shown, written
from lmhub.family import HERMES
from lmhub.testing.fake import FakeTokenizer
from lmhub.types import Message, Text, ToolCall, ToolResult

BEHIND = """\
{% for m in messages %}{{ '[' ~ m.role ~ ']' }}\
{% for call in m.tool_calls or [] %}{{ '<tool_call>' ~ call.function.name ~ call.function.arguments }}\
{{ '</tool_call>' }}{% endfor %}\
{{ m.content }}{% endfor %}"""
INSIDE = """\
{% for m in messages %}{{ '[' ~ m.role ~ ']' }}{{ m.content }}\
{% for call in m.tool_calls or [] %}{{ '<tool_call>' ~ call.function.name ~ call.function.arguments }}\
{{ '</tool_call>' }}{% endfor %}\
{% for one in m.tool_responses or [] %}{{ '(' ~ one.name ~ ': ' ~ one.response ~ ')' }}{% endfor %}{% endfor %}"""


def format_of(template: str) -> ChatFormat:
    return ChatFormat.from_metadata({"tokenizer.chat_template": template}, FakeTokenizer(), tools=HERMES)


def called(text: str, name: str = "f") -> tuple[Message, Message]:
    """A turn with a text and two calls of `name`, and the result of one."""
    calls = ToolCall("a", name, "{}"), ToolCall("b", name, "{}")
    return Message("assistant", (Text(text), *calls)), Message("tool", (ToolResult("a", "r"),))


def test_a_text_goes_before_the_first_of_its_calls() -> None:
    chat = format_of(BEHIND)
    messages = (*called(" one "), *called("two"), *called(""))
    calls = "<tool_call>f{}</tool_call><tool_call>f{}</tool_call>[tool]r"
    prompt = chat.render(messages)
    assert prompt.text == f"[assistant]one{calls}[assistant]two{calls}[assistant]{calls}"
    assert ("one", False) in prompt.segments


def test_no_client_can_spell_a_place() -> None:
    """The anchors are letters that nobody reserves: what counts is who wrote them."""
    anchor = chr(0xF0000)
    messages = (Message("user", (Text(f"<tool_call>{anchor}"),)), *called(f"one{anchor}", f"f{anchor}"))
    text = format_of(BEHIND).render(messages).text
    assert text.startswith(f"[user]<tool_call>{anchor}[assistant]one{anchor}<tool_call>f{anchor}{{}}</tool_call>")


def test_a_text_whose_place_is_not_found_stays_where_it_was() -> None:
    text = format_of(BEHIND.replace("<tool_call>", "<call>")).render(called("one")).text
    assert text == "[assistant]<call>f{}</tool_call><call>f{}</tool_call>one[tool]r"


def test_results_go_into_the_turn_of_the_call_where_the_template_shows_them_there() -> None:
    text = format_of(INSIDE).render((*called("one"), Message("user", (Text("two"),)))).text
    assert text == "[assistant]one<tool_call>f{}</tool_call><tool_call>f{}</tool_call>(f: r)[user]two"


def test_what_is_hidden_is_in_no_prompt() -> None:
    text = joined((written("a"), hidden("b"), "c", hidden("d"), "e", written("f")))
    assert shown(text) == "acef" and segments(shown(text)) == (("a", True), ("ce", False), ("f", True))
    assert shown("abc") == "abc"
