"""OpenAI-style dicts, as people write them in Python, turned into the records of `types.py`.

For the Python API only: the HTTP dialects check bytes from strangers and have parsers of their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lmhub.errors import RequestError
from lmhub.types import Message, Part, Reasoning, Role, Text, Tool, ToolCall, ToolResult

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


def message_from(given: Message | Mapping[str, Any], where: str) -> Message:
    """A Message from `{"role", "content"}`, with `tool_calls`, `tool_call_id`, `reasoning_content` where they apply.

    `where` names the message in errors. Raises RequestError.
    """
    if isinstance(given, Message):
        return given
    if not isinstance(given, Mapping) or given.get("role") not in _ROLES:
        raise RequestError(f"{where} must be a dict with a role out of {', '.join(_ROLES)}", f"{where}.role")
    known = {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content"}
    if unknown := set(given) - known:
        raise RequestError(f"{where} has the unknown key {min(unknown)!r}; known are {', '.join(sorted(known))}", where)
    content = _text(given.get("content"), where)
    if given["role"] == "tool":
        call_id = given.get("tool_call_id")
        if not isinstance(call_id, str):
            raise RequestError(f"{where} answers a tool call and needs its tool_call_id", f"{where}.tool_call_id")
        return Message("tool", (ToolResult(call_id, content),))
    parts: list[Part] = []
    if thought := given.get("reasoning_content"):
        parts.append(Reasoning(thought))
    if content:
        parts.append(Text(content))
    parts += [_call(call, f"{where}.tool_calls[{at}]") for at, call in enumerate(given.get("tool_calls") or ())]
    return Message(_ROLES[given["role"]], tuple(parts))


def tool_from(given: Tool | Mapping[str, Any], where: str) -> Tool:
    """A Tool from `{"name", "description", "parameters"}`, bare or as the "function" of one. Raises RequestError."""
    if isinstance(given, Tool):
        return given
    function = given.get("function", given) if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(f"{where} must be a dict with the name of a function", f"{where}.name")
    return Tool(function["name"], function.get("description"), function.get("parameters"))


def _text(content: Any, where: str) -> str:
    """The text of `content`: a string, None, or a list of `{"type": "text", "text": ...}`."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = (
        [part.get("text") if isinstance(part, Mapping) else None for part in content]
        if isinstance(content, list)
        else [None]
    )
    if not all(isinstance(text, str) for text in texts):
        raise RequestError(f"the content of {where} must be a string or a list of text parts", f"{where}.content")
    return "".join(str(text) for text in texts)


def _call(given: Any, where: str) -> ToolCall:
    if isinstance(given, ToolCall):
        return given
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(f"{where} must hold an id and a function with name and arguments", where)
    arguments = function.get("arguments", "{}")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(str(given.get("id", "")), function["name"], text)
