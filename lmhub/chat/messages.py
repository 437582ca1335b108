"""Conversations as chat templates want them: lists of dictionaries, arranged so that the template accepts them.

Everything that a client wrote stays a plain string; only the roles, which come from a closed set, are marked as the
template's own, because some templates build a control token around them. Knows nothing of tokens or of jinja.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

from lmhub.chat.traced import written
from lmhub.family import ThinkMarkers
from lmhub.types import Message, Part, Reasoning, Text, Tool, ToolCall, ToolResult

Turn = dict[str, Any]


class Null:
    """JSON's null, for templates that would print Python's name for it."""

    def __str__(self) -> str:
        return "null"


_REMINDER = ("<system-reminder>\n", "\n</system-reminder>")


def turns_of(
    messages: Sequence[Message],
    *,
    parsed_arguments: bool,
    inline: ThinkMarkers | None = None,
    custom: Collection[str] = (),
    null: Any = None,
    in_order: bool = False,
) -> list[Turn]:
    """The messages as template dictionaries, every tool result a turn of its own behind the calls and in their order.

    Call arguments are a mapping if `parsed_arguments`, otherwise the JSON text as it was written. Text that is not a
    JSON object becomes `{"arguments": text}` where a mapping is needed (`{"input": text}` for a `custom` tool), so that
    a call which a model got wrong is replayed, not refused. Reasoning between the markers `inline` is taken out of the
    text of assistant turns. `null` stands for null in arguments. `in_order`: turns have `parts` as well, which are
    `{"text": ...}`, `{"reasoning": ...}` or `{"call": ...}` each, in the order in which they were written.
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
            turn, parts = _turn(message, parsed_arguments, inline, custom, null)
            turns.append({**turn, "parts": parts} if in_order else turn)
        if calls_here:
            calls, n_results = calls_here, 0
    return _in_call_order(_results_first(turns))


def told(turns: Sequence[Turn], *, orphans_only: bool = False) -> list[Turn]:
    """The same for templates without tools: calls and results as texts that say what happened.

    `orphans_only`: only results that do not follow any call, for templates that show no others.
    """
    out: list[Turn] = []
    called = False
    for turn in turns:
        called = called if turn["role"] == "tool" else "tool_calls" in turn
        if orphans_only and (called or turn["role"] != "tool"):
            out.append(turn)
        elif turn["role"] == "tool":
            text = f"<tool_response>\n{turn['content']}\n</tool_response>"
            if out and out[-1].get("told"):
                out[-1]["content"] += f"\n{text}"
            else:
                out.append({"role": written("user"), "content": text, "told": True})
        elif "tool_calls" in turn:
            said = [turn["content"]] if turn["content"] else []
            plain = {key: value for key, value in turn.items() if key != "tool_calls"}
            out.append(plain | {"content": "\n".join((*said, *map(_told_call, turn["tool_calls"])))})
        else:
            out.append(turn)
    return [{key: value for key, value in turn.items() if key != "told"} for turn in out]


def declared(
    tools: Sequence[Tool], told: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
) -> list[dict[str, Any]] | None:
    """The tools in OpenAI's wrapper, keys in its usual order; None if there are none. `told` is `ToolStyle.schema`."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name}
            | ({} if tool.description is None else {"description": tool.description})
            | ({} if (schema := _parameters(tool)) is None else {"parameters": told(schema) if told else schema}),
        }
        for tool in tools
    ] or None


def arrangements(turns: list[Turn], *, fold: bool) -> Iterator[list[Turn]]:
    """`turns` as they are; then, where that differs, in forms that stricter templates accept, the gentlest first.

    Second: leading system turns as one, later ones folded where they stand into a user or tool turn, so that the text
    before them does not change from turn to turn, and neighbouring turns of one speaker as one. Third: no system turn
    at all, its text before the first user turn's. `fold` leaves out the first where a system turn comes late.
    """
    roles = [turn["role"] for turn in turns]
    n_leading = next((place for place, role in enumerate(roles) if role != "system"), len(roles))
    if not (fold and "system" in roles[n_leading:]):
        yield turns
    folded = _folded(turns, n_leading)
    if folded != turns:
        yield folded
    if folded and folded[0]["role"] == "system" and any(turn["role"] == "user" for turn in folded):
        yield _without_system(folded)


def _parameters(tool: Tool) -> Mapping[str, Any] | None:
    if not tool.custom:
        return tool.parameters
    described = {"type": "string"}
    if tool.format is not None:
        described["description"] = f"Text that matches this {tool.format.kind} grammar:\n{tool.format.source}"
    return {"type": "object", "properties": {"input": described}, "required": ["input"]}


def _results_first(turns: list[Turn]) -> list[Turn]:
    """The turns with system messages that stand between calls and their results moved behind the results."""
    out: list[Turn] = []
    waiting: list[Turn] = []  # system turns behind calls
    for turn in turns:
        if turn["role"] == "system" and out and ("tool_calls" in out[-1] or waiting):
            waiting.append(turn)
        elif turn["role"] == "tool":
            out.append(turn)
        else:
            out += waiting
            waiting = []
            out.append(turn)
    return out + waiting


def _in_call_order(turns: list[Turn]) -> list[Turn]:
    """The turns with results sorted like their calls.

    Clients that run calls at once (Claude Code) send results as they come in, and most templates show no ids: the model
    would take one result for the other. A result with an unknown id keeps its place.
    """
    out: list[Turn] = []
    for are_results, group in groupby(turns, lambda turn: bool(turn["role"] == "tool")):
        run = list(group)
        if are_results and out:
            places = {call["id"]: place for place, call in enumerate(out[-1].get("tool_calls", ()))}
            placed = sorted(enumerate(run), key=lambda item: places.get(item[1]["tool_call_id"], item[0]))
            run = [turn for _, turn in placed]
        out += run
    return out


def _turn(
    message: Message, parsed_arguments: bool, inline: ThinkMarkers | None, custom: Collection[str], null: Any
) -> tuple[Turn, list[dict[str, Any]]]:
    """The message without its results, and its parts in their order."""
    parts: list[dict[str, Any]] = []
    for part in _told_apart(message, inline):
        if isinstance(part, ToolCall):
            parts.append({"call": _call(part, parsed_arguments, custom, null)})
        elif not isinstance(part, ToolResult):
            parts.append({"text" if isinstance(part, Text) else "reasoning": part.text})

    def all_of(kind: str) -> list[Any]:
        return [part[kind] for part in parts if kind in part]

    turn: Turn = {"role": written(message.role), "content": "".join(all_of("text"))}
    if reasoning := "".join(all_of("reasoning")):
        turn["reasoning_content"] = reasoning
    if calls := all_of("call"):
        turn["tool_calls"] = calls
    return turn, parts


def _told_apart(message: Message, inline: ThinkMarkers | None) -> tuple[Part, ...]:
    """The parts; if the text of an assistant's turn begins with reasoning between `inline`, that is one of its own."""
    if inline is None or message.role != "assistant":
        return message.parts
    thought, text = _without_reasoning(message.text, inline)
    if text == message.text:
        return message.parts
    at = next(place for place, part in enumerate(message.parts) if isinstance(part, Text))
    has_thought = any(isinstance(part, Reasoning) and part.text for part in message.parts)
    behind = (part for part in message.parts[at:] if not isinstance(part, Text))
    return (*message.parts[:at], *(() if has_thought else (Reasoning(thought),)), Text(text), *behind)


def _without_reasoning(text: str, think: ThinkMarkers) -> tuple[str, str]:
    """Reasoning and content of a text that begins with reasoning, whose opening marker the prompt may have written."""
    before, marker, after = text.partition(think.close)
    head, opener, thought = before.partition(think.open)
    if not marker or (opener and head.strip()):
        return "", text
    return (thought if opener else before).strip("\n"), after.lstrip("\n")


def _call(call: ToolCall, parsed: bool, custom: Collection[str], null: Any) -> dict[str, Any]:
    arguments: Any = call.arguments if call.arguments.strip() else "{}"
    if parsed:
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
        if not isinstance(arguments, Mapping):
            arguments = {"input" if call.name in custom else "arguments": call.arguments}
        arguments = arguments if null is None else _filled(arguments, null)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _filled(value: Any, null: Any) -> Any:
    """`value` with every null in it replaced."""
    if isinstance(value, dict):
        return {key: _filled(one, null) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, null) for one in value]
    return null if value is None else value


def _result_turn(result: ToolResult, calls: Sequence[ToolCall], position: int) -> Turn:
    """A tool's answer under the name of the call with its id; an unknown id counts as the answer in its position."""
    name = next((call.name for call in calls if call.id == result.call_id), None)
    if name is None:
        name = calls[position].name if position < len(calls) else "unknown"
    return {"role": written("tool"), "content": result.content, "tool_call_id": result.call_id, "name": name}


def _told_call(call: Mapping[str, Any]) -> str:
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {text}}}\n</tool_call>'


def _folded(turns: list[Turn], n_leading: int) -> list[Turn]:
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
        elif turn["role"] == before == "assistant":
            folded[-1] = _joined_turns(folded[-1], turn)
        else:
            folded.append(turn)
    return folded


def _joined_turns(first: Turn, second: Turn) -> Turn:
    """Two neighbouring assistant turns as one."""
    both = {**first, **second}
    for key, gap in (("content", "\n\n"), ("reasoning_content", "\n\n")):
        if texts := [text for turn in (first, second) if (text := turn.get(key))]:
            both[key] = gap.join(texts)
    if calls := [*first.get("tool_calls", ()), *second.get("tool_calls", ())]:
        both["tool_calls"] = calls
    return both


def _append(turns: list[Turn], text: str) -> None:
    turns[-1] = turns[-1] | {"content": f"{turns[-1]['content']}\n\n{text}"}


def _reminder(text: str) -> str:
    return text if text.startswith(_REMINDER[0].strip()) else text.join(_REMINDER)


def _without_system(turns: list[Turn]) -> list[Turn]:
    system, rest = turns[0]["content"], list(turns[1:])
    first = next(index for index, turn in enumerate(rest) if turn["role"] == "user")
    rest[first] = rest[first] | {"content": f"{system}\n\n{rest[first]['content']}"}
    return rest
