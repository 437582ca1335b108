"""Between two turns: what the engine is given to read is what the next prompt really begins with."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

import pytest

PATIENCE_S = 30.0
ASKED = {"role": "user", "content": "Tell me something"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
LONG = "A reply that is long enough to be worth it"


@pytest.fixture
def ahead(api: Callable[..., Any]) -> Callable[..., tuple[Any, queue.SimpleQueue[tuple[int, ...]]]]:
    """`ahead(reply, **engine)`: an application, and the queue of what its engine was given to read ahead."""

    def make(reply: str, **engine: Any) -> tuple[Any, queue.SimpleQueue[tuple[int, ...]]]:
        made = api(reply, engine=engine)
        given: queue.SimpleQueue[tuple[int, ...]] = queue.SimpleQueue()
        made.rig.engine.read_ahead = given.put
        return made, given

    return make


@pytest.mark.parametrize("stream", [False, True])
def test_the_next_turn_begins_with_what_was_read(ahead: Callable[..., Any], stream: bool) -> None:
    made, given = ahead(f"<think>well</think>{LONG}")
    assert made.post("/v1/chat/completions", messages=[ASKED], stream=stream).status_code == 200
    ids = list(given.get(timeout=PATIENCE_S))
    text = bytes(token for token in ids if token < 256).decode()
    assert text.endswith(f"assistant\n{LONG}\nuser\n")  # without its reasoning, up to what the user will say
    assert b"well" not in bytes(token for token in ids if token < 256)


def test_a_call_is_followed_by_its_result(ahead: Callable[..., Any]) -> None:
    made, given = ahead('<tool_call>{"name": "look", "arguments": {}}</tool_call>')
    made.chat(messages=[ASKED], tools=[TOOL])
    text = bytes(token for token in given.get(timeout=PATIENCE_S) if token < 256).decode()
    assert text.endswith('{"name": "look", "arguments": {}}\n\nuser\n<tool_response>\n')


def test_messages_keep_their_reasoning(ahead: Callable[..., Any]) -> None:
    made, given = ahead(f"<think>well</think>{LONG}")
    seen: list[Any] = []
    model = made.rig.hub.acquire(None).model
    model.next_turn = lambda request, reply: seen.append(reply) or (1, 2)
    thinking = {"type": "enabled", "budget_tokens": 1024}
    body = {"model": "m", "max_tokens": 1500, "messages": [ASKED], "thinking": thinking}
    assert made.post("/v1/messages", **body).status_code == 200
    assert given.get(timeout=PATIENCE_S) == (1, 2)
    assert [type(part).__name__ for part in seen[0].parts] == ["Reasoning", "Text"]


@pytest.mark.parametrize(
    ("reply", "fields", "engine"),
    [
        ("short", {}, {}),
        (LONG, {"n": 2}, {}),
        (LONG, {}, {"read_ahead": False}),
        (LONG, {"messages": [ASKED, {"role": "assistant", "content": "So"}]}, {}),
    ],
)
def test_what_is_not_read_ahead(
    ahead: Callable[..., Any], reply: str, fields: dict[str, Any], engine: dict[str, Any]
) -> None:
    made, given = ahead(reply, **engine)
    assert made.chat(**{"messages": [ASKED], **fields}).status_code == 200
    assert given.empty()


def test_a_template_that_takes_no_such_history_is_no_error(ahead: Callable[..., Any]) -> None:
    made, given = ahead(LONG)
    model = made.rig.hub.acquire(None).model

    def refuse(request: Any, reply: Any) -> Any:
        given.put(())
        raise ValueError("no")

    model.next_turn = refuse
    assert made.chat(messages=[ASKED]).status_code == 200
    assert given.get(timeout=PATIENCE_S) == ()
    assert made.chat(messages=[ASKED]).status_code == 200
