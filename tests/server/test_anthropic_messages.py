"""Conversations of Messages: blocks of every kind, results before text, system text folded where it stands."""

from __future__ import annotations

from typing import Any

import pytest

from lmhub.errors import RequestError
from lmhub.server.anthropic_messages import InMessage, conversation
from lmhub.server.anthropic_thinking import sealed, signature, unsealed
from lmhub.types import Message, Part, Reasoning, Text, ToolCall, ToolResult

CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"b": 1, "a": [1.0, "é"]}}
NOTE = "<system-reminder>\nnote\n</system-reminder>"


def talk(*given: tuple[str, Any]) -> list[tuple[str, Any]]:
    """The turns as (role, text) where there is only text, else (role, parts)."""
    turns, _ = conversation([InMessage(role, content) for role, content in given])
    return [(turn.role, turn.text if _is_text(turn) else turn.parts) for turn in turns]


def refused(*given: tuple[str, Any]) -> str:
    """The message with which these are refused."""
    with pytest.raises(RequestError) as caught:
        talk(*given)
    assert caught.value.param == "messages"
    return str(caught.value)


def user(*blocks: dict[str, Any]) -> tuple[Part, ...]:
    """The parts of the first turn of a conversation that consists of one user message."""
    turns, _ = conversation([InMessage("user", list(blocks))])
    return turns[0].parts


def result(**fields: Any) -> dict[str, Any]:
    """A tool_result block."""
    return {"type": "tool_result", "tool_use_id": "toolu_1"} | fields


def text(value: str, **more: Any) -> dict[str, Any]:
    """A text block."""
    return {"type": "text", "text": value} | more


def _is_text(turn: Message) -> bool:
    return all(isinstance(part, Text) for part in turn.parts)


# --- blocks ----------------------------------------------------------------------------------------------------------


def test_text_is_joined_and_may_be_empty() -> None:
    assert talk(("user", [text("a", cache_control={"type": "ephemeral"}), text("b")])) == [("user", "ab")]
    assert talk(("user", "")) == talk(("user", [])) == talk(("user", [text("")])) == [("user", "")]


def test_calls_and_results() -> None:
    turns = talk(
        ("user", "q"),
        ("assistant", [text("let me see"), CALL | {"caller": {"type": "direct"}}]),
        ("user", [result(content="sunny"), text("and now?")]),
    )
    assert turns[1] == ("assistant", (Text("let me see"), ToolCall("toolu_1", "f", '{"b": 1, "a": [1.0, "é"]}')))
    assert turns[2:] == [("tool", (ToolResult("toolu_1", "sunny"),)), ("user", "and now?")]


@pytest.mark.parametrize(
    ("fields", "content"),
    [
        ({"content": "x"}, "x"),
        ({"content": [text("x"), text("y")]}, "xy"),
        ({}, ""),
        ({"content": None}, ""),
        ({"content": []}, ""),
        ({"content": "no such file", "is_error": True}, "Error: no such file"),
        ({"content": "Error: no such file", "is_error": True}, "Error: no such file"),
        ({"is_error": True}, "Error: "),
        ({"content": [{"type": "tool_reference", "tool_name": "g"}]}, "g\n"),
        ({"content": [{"type": "search_result", "title": "T", "source": "S", "content": [text("x")]}]}, "T\nS\nx\n"),
        ({"content": [text("a "), {"type": "image"}]}, "a [image left out: this model reads text only]"),
        ({"content": [{"type": "document", "source": {"type": "text", "data": "x"}}]}, "x\n"),
    ],
)
def test_results_in_all_shapes(fields: dict[str, Any], content: str) -> None:
    assert user(result(**fields)) == (ToolResult("toolu_1", content),)


def test_results_come_before_the_text_of_their_message() -> None:
    turns = talk(
        ("user", "q"), ("assistant", [CALL]), ("user", [text("so?"), result(content="1"), result(content="2")])
    )
    assert [role for role, _ in turns] == ["user", "assistant", "tool", "user"]
    assert turns[2][1] == (ToolResult("toolu_1", "1"), ToolResult("toolu_1", "2"))


def test_documents_that_are_text_are_inlined() -> None:
    source = {"type": "content", "content": [text("x"), text("y")]}
    assert user({"type": "document", "title": "T", "context": "C", "source": source}) == (Text("T\nC\nxy\n"),)


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}, "is an image"),
        ({"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/x.png"}}, "fetches nothing"),
        ({"type": "image", "source": {"type": "file", "file_id": "f"}}, "fetches nothing"),
        ({"type": "image"}, "is an image"),
        ({"type": "document", "source": {"type": "base64", "data": "AA=="}}, "is of type base64"),
        ({"type": "document", "source": {"type": "url", "url": "http://127.0.0.1/"}}, "is of type url"),
        ({"type": "document"}, "is of type None"),
        ({"type": "hologram"}, "unknown type 'hologram'"),
        ({"text": "x"}, "messages[0].content[0].type is missing"),
        ({"type": "text"}, "messages[0].content[0].text is missing"),
        ({"type": "text", "text": 3}, "messages[0].content[0].text must be a string"),
        (CALL, "belongs to the assistant's messages"),
        (result(content=3), "messages[0].content[0].content must be"),
        (result(content=[{"type": "hologram"}]), "messages[0].content[0].content[0] is of an unknown type"),
    ],
)
def test_blocks_that_are_refused(block: dict[str, Any], says: str) -> None:
    assert says in refused(("user", [block]))


@pytest.mark.parametrize("given", ["{}", [], None, 3])
def test_the_input_of_a_call_must_be_an_object(given: Any) -> None:
    assert "messages[1].content[0].input must be an object" in refused(
        ("user", "q"), ("assistant", [CALL | {"input": given}]), ("user", "r")
    )


@pytest.mark.parametrize(
    "kind",
    [
        "server_tool_use",
        "web_search_tool_result",
        "code_execution_tool_result",
        "container_upload",
        "mcp_tool_use",
        "mcp_tool_result",
        "compaction",
        "fallback",
        "redacted_thinking",
    ],
)
def test_what_hosted_tools_left_is_dropped(kind: str) -> None:
    block = {"type": kind, "content": {"type": "odd"}, "id": 3, "name": None, "data": "x"}
    turns = talk(("user", "q"), ("assistant", [block, text("so")]), ("user", "r"))
    assert turns == [("user", "q"), ("assistant", "so"), ("user", "r")]
    assert talk(("user", "q"), ("assistant", [block]), ("user", "r")) == [("user", "q\n\nr")]


def test_thinking_is_replayed_in_its_place() -> None:
    blocks = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "thinking", "thinking": "so", "signature": "x"},
        text("a"),
    ]
    turns = talk(("user", "q"), ("assistant", blocks), ("user", "r"))
    assert turns[1] == ("assistant", (Reasoning("hm"), Reasoning("so"), Text("a")))


def test_thinking_that_was_not_shown_comes_back_out_of_its_signature() -> None:
    block = {"type": "thinking", "thinking": "", "signature": sealed("grübeln 👋", "fp")}
    assert talk(("user", "q"), ("assistant", [block, text("a")]), ("user", "r"))[1][1][0] == Reasoning("grübeln 👋")
    foreign = {"type": "thinking", "thinking": "", "signature": "EqQBCgIYAhIM"}
    assert talk(("user", "q"), ("assistant", [foreign, text("a")]), ("user", "r"))[1] == ("assistant", "a")


@pytest.mark.parametrize("given", ["", "x", "lmhub1.", "lmhub1.é.", "lmhub1.!!!!.", "lmhub1.gICA.", "lmhub1.A"])
def test_signatures_from_elsewhere_hold_nothing(given: str) -> None:
    assert unsealed(given) == ""


def test_signatures_differ_by_text_and_author() -> None:
    assert len({signature(text, author) for text in ("", "a") for author in ("", "fp")}) == 4


# --- turns -----------------------------------------------------------------------------------------------------------


def test_neighbours_with_one_role_are_one_turn() -> None:
    assert talk(("user", "a"), ("user", "b")) == [("user", "a\n\nb")]
    turns = talk(("user", "q"), ("assistant", "a"), ("assistant", [text("b")]), ("assistant", [CALL]), ("user", "r"))
    assert [role for role, _ in turns] == ["user", "assistant", "user"]
    assert turns[1][1][:2] == (Text("a"), Text("\n\nb"))


def test_the_first_message_is_the_users() -> None:
    assert "send the text as `system`" in refused(("system", "x"), ("user", "q"))
    assert "messages[0].role is assistant" in refused(("assistant", "x"), ("user", "q"))


def test_a_last_reply_is_continued() -> None:
    turns, prefill = conversation([InMessage("user", "q"), InMessage("assistant", "The answer is")])
    assert prefill and turns[-1] == Message("assistant", (Text("The answer is"),))
    for empty in ("", [], [{"type": "redacted_thinking", "data": "x"}]):
        turns, prefill = conversation([InMessage("user", "q"), InMessage("assistant", empty)])
        assert not prefill and turns[-1].role == "user"
    assert "tool_result" in refused(("user", "q"), ("assistant", [text("a"), CALL]))
    assert "no text" in refused(("user", "q"), ("assistant", [{"type": "thinking", "thinking": "hm"}]))
    assert not conversation([InMessage("user", "q"), InMessage("assistant", "a"), InMessage("system", "note")])[1]


# --- system text between the turns -----------------------------------------------------------------------------------


def test_system_text_joins_the_user_turn_beside_it() -> None:
    assert talk(("user", "q"), ("system", "note")) == [("user", f"q\n\n{NOTE}")]
    assert talk(("user", "q"), ("system", "note"), ("user", "r")) == [("user", f"q\n\n{NOTE}\n\nr")]
    after = talk(("user", "q"), ("assistant", "a"), ("system", [text("note")]), ("user", "r"))
    assert after == [("user", "q"), ("assistant", "a"), ("user", f"{NOTE}\n\nr")]
    assert talk(("user", "q"), ("assistant", "a"), ("system", "note"))[2:] == [("user", NOTE)]
    assert talk(("user", "q"), ("system", " \n")) == [("user", "q")]


def test_a_wrapper_is_not_wrapped_again() -> None:
    assert talk(("user", "q"), ("system", NOTE)) == [("user", f"q\n\n{NOTE}")]


def test_system_text_never_comes_between_a_call_and_its_results() -> None:
    turns = talk(
        ("user", "q"),
        ("assistant", [CALL]),
        ("system", "note"),
        ("user", [result(content="1")]),
        ("system", "more"),
        ("user", [result(content="2")]),
    )
    more = NOTE.replace("note", "more")
    assert [role for role, _ in turns] == ["user", "assistant", "tool"]
    assert turns[2][1] == (ToolResult("toolu_1", "1"), ToolResult("toolu_1", f"2\n\n{NOTE}\n\n{more}"))


def test_system_text_after_results_joins_the_last_of_them() -> None:
    turns = talk(("user", "q"), ("assistant", [CALL]), ("user", [result()]), ("system", "note"))
    assert turns[2:] == [("tool", (ToolResult("toolu_1", NOTE),))]
    followed = talk(("user", "q"), ("assistant", [CALL]), ("user", [result()]), ("system", "note"), ("user", "r"))
    assert followed[2:] == [("tool", (ToolResult("toolu_1", NOTE),)), ("user", "r")]


def test_a_reminder_in_the_message_of_results_is_no_turn_of_its_own() -> None:
    turns = talk(("user", "q"), ("assistant", [CALL]), ("user", [result(content="1"), text(NOTE + "\n")]))
    assert turns[2:] == [("tool", (ToolResult("toolu_1", f"1\n\n{NOTE}"),))]
    mixed = talk(("user", "q"), ("assistant", [CALL]), ("user", [result(content="1"), text(NOTE), text("r")]))
    assert mixed[2:] == [("tool", (ToolResult("toolu_1", "1"),)), ("user", f"{NOTE}r")]


def test_system_text_after_a_call_that_got_no_result() -> None:
    turns = talk(("user", "q"), ("assistant", [CALL]), ("system", "note"), ("user", "never mind"))
    assert turns[2:] == [("user", f"{NOTE}\n\nnever mind")]


def test_the_turns_before_do_not_change_as_a_conversation_grows() -> None:
    history: list[tuple[str, Any]] = [
        ("user", "q"),
        ("system", "note"),
        ("assistant", [CALL]),
        ("user", [result(content="1")]),
        ("system", "note"),
        ("assistant", "done"),
        ("user", "r"),
        ("system", "note"),
    ]
    whole = talk(*history)
    for n in (2, 5, 8):
        part = talk(*history[:n])
        assert whole[: len(part)] == part
