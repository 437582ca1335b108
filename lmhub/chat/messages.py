"""Conversations as chat templates want them: lists of dictionaries, arranged so that the template accepts them.

Everything that a client wrote stays a plain string; only the roles, which come from a closed set, are marked as the
template's own, because some templates build a control token around them. Knows nothing of tokens or of jinja.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from lmhub.chat.traced import written
from lmhub.types import Message, Reasoning, Tool, ToolCall, ToolResult

Turn = dict[str, Any]

_REMINDER = ("<system-reminder>\n", "\n</system-reminder>")


def turns_of(messages: Sequence[Message], *, parsed_arguments: bool) -> list[Turn]:
    """The messages as template dictionaries, every tool result a turn of its own.

    Call arguments are a mapping if `parsed_arguments`, otherwise the JSON text as it was written. Text that is not a
    JSON object becomes `{"arguments": text}` where a mapping is needed, so that a call which a model got wrong is
    replayed, not refused.
    """
    turns: list[Turn] = []
    calls: list[ToolCall] = []  # of the last turn that made any
    n_results = 0  # that followed it
    for message in messages:
        calls_here = [part for part in message.parts if isinstance(part, ToolCall)]
        results = [part for part in message.parts if isinstance(part, ToolResult)]
        for result in results:
            turns.append(_result_turn(result, calls, n_results))
            n_results += 1
        if len(results) < len(message.parts) or not results:
            turns.append(_turn(message, parsed_arguments))
        if calls_here:
            calls, n_results = calls_here, 0
    return turns


def declared(tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
    """The tools in OpenAI's wrapper, keys in its usual order; None if there are none."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name}
            | ({} if tool.description is None else {"description": tool.description})
            | ({} if tool.parameters is None else {"parameters": tool.parameters}),
        }
        for tool in tools
    ] or None


def arrangements(turns: list[Turn]) -> Iterator[list[Turn]]:
    """`turns` as they are; then, where that differs, in forms that stricter templates accept, the gentlest first.

    Second: leading system turns as one, later ones folded where they stand into a user or tool turn, so that the text
    before them does not change from turn to turn, and neighbouring user turns as one. Third: no system turn at all, its
    text before the first user turn's.
    """
    yield turns
    folded = _folded(turns)
    if folded != turns:
        yield folded
    if folded[0]["role"] == "system" and any(turn["role"] == "user" for turn in folded):
        yield _without_system(folded)


def _turn(message: Message, parsed_arguments: bool) -> Turn:
    turn: Turn = {"role": written(message.role), "content": message.text}
    reasoning = "".join(part.text for part in message.parts if isinstance(part, Reasoning))
    if reasoning:
        turn["reasoning_content"] = reasoning
    calls = [_call(part, parsed_arguments) for part in message.parts if isinstance(part, ToolCall)]
    if calls:
        turn["tool_calls"] = calls
    return turn


def _call(call: ToolCall, parsed: bool) -> dict[str, Any]:
    arguments: Any = call.arguments if call.arguments.strip() else "{}"
    if parsed:
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
        if not isinstance(arguments, Mapping):
            arguments = {"arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _result_turn(result: ToolResult, calls: Sequence[ToolCall], position: int) -> Turn:
    """A tool's answer under the name of the call with its id; an unknown id counts as the answer in its position."""
    name = next((call.name for call in calls if call.id == result.call_id), None)
    if name is None:
        name = calls[position].name if position < len(calls) else "unknown"
    return {"role": written("tool"), "content": result.content, "tool_call_id": result.call_id, "name": name}


def _folded(turns: list[Turn]) -> list[Turn]:
    n_leading = next((index for index, turn in enumerate(turns) if turn["role"] != "system"), len(turns))
    folded: list[Turn] = []
    if n_leading:
        folded.append(turns[0] | {"content": "\n\n".join(turn["content"] for turn in turns[:n_leading])})
    for turn in turns[n_leading:]:
        before = folded[-1]["role"] if folded else None
        if turn["role"] == "system" and before in ("user", "tool"):
            _append(folded, _reminder(turn["content"]))
        elif turn["role"] == "system":
            folded.append({"role": written("user"), "content": _reminder(turn["content"])})
        elif turn["role"] == before == "user":
            _append(folded, turn["content"])
        else:
            folded.append(turn)
    return folded


def _append(turns: list[Turn], text: str) -> None:
    turns[-1] = turns[-1] | {"content": f"{turns[-1]['content']}\n\n{text}"}


def _reminder(text: str) -> str:
    return text if text.startswith(_REMINDER[0].strip()) else text.join(_REMINDER)


def _without_system(turns: list[Turn]) -> list[Turn]:
    system, rest = turns[0]["content"], list(turns[1:])
    first = next(index for index, turn in enumerate(rest) if turn["role"] == "user")
    rest[first] = rest[first] | {"content": f"{system}\n\n{rest[first]['content']}"}
    return rest
