"""Tools as OpenAI's dialects declare and choose them. Chat nests what Responses writes flat; both are understood.

A custom tool takes free text. The model sees it as a function of one string, `input`; `custom_input` translates back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from lmhub.errors import RequestError
from lmhub.server.fields import unsupported
from lmhub.types import GrammarSpec, Tool, ToolChoice

_FORCEABLE = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")  # a forced name becomes part of a grammar


def tool_of(given: dict[str, Any], place: int) -> Tool:
    """A `function` or `custom` tool. Raises RequestError with the param `tools`."""
    kind = given.get("type") or "function"
    path = f"tools[{place}]"
    if kind not in ("function", "custom"):
        raise unsupported("tools", f"{path} has the type {str(kind)[:100]!r}; send function or custom")
    nested = given.get(kind)
    inner = nested if isinstance(nested, dict) else given
    if inner is given and "name" not in given:
        raise RequestError(f"{path}.{kind} is missing", "tools")
    name = inner.get("name")
    if not isinstance(name, str) or not name:
        raise RequestError(f"{path}: the tool's name is missing", "tools")
    description = inner.get("description")
    if description is not None and not isinstance(description, str):
        raise RequestError(f"{path}: the description must be a string", "tools")
    if kind == "custom":
        return Tool(name, description, custom=True, format=_format(inner.get("format"), path))
    parameters = inner.get("parameters")
    if parameters is not None and not isinstance(parameters, dict | bool):
        raise RequestError(f"{path}: parameters must be a JSON schema, an object", "tools")
    schema = parameters if isinstance(parameters, dict) else None
    return Tool(name, description, schema, strict=inner.get("strict") is True)


def choice_of(given: str | dict[str, Any] | None, tools: Sequence[Tool]) -> ToolChoice:
    """The choice, checked against the declared tools. Raises RequestError with the param `tool_choice`."""
    if given is None or given == "auto":
        return ToolChoice()
    if given == "none":
        return ToolChoice("none")
    if given == "required":
        return _forced((), tools)
    kind = given.get("type") if isinstance(given, dict) else None
    if isinstance(given, dict) and kind in ("function", "custom"):
        return _forced((_name(given, str(kind)),), tools)
    if isinstance(given, dict) and kind == "allowed_tools":
        return _allowed(given, tools)
    raise RequestError("tool_choice must be auto, none, required or an object that names tools", "tool_choice")


def custom_input(arguments: str) -> str:
    """The free text of a custom call from the JSON that the model wrote; what is no such JSON is the text itself."""
    try:
        value = msgspec.json.decode(arguments.encode())
    except (msgspec.DecodeError, RecursionError):
        return arguments
    if isinstance(value, dict) and isinstance(value.get("input"), str):
        return str(value["input"])
    return arguments


def custom_arguments(text: str) -> str:
    """The inverse of `custom_input`, for a custom call in the history."""
    return json.dumps({"input": text}, ensure_ascii=False)


def _allowed(given: dict[str, Any], tools: Sequence[Tool]) -> ToolChoice:
    inner = given.get("allowed_tools")
    inner = inner if isinstance(inner, dict) else given
    entries, mode = inner.get("tools"), inner.get("mode", "auto")
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise RequestError("tool_choice.tools must be an array of the allowed tools", "tool_choice")
    names = tuple(_name(entry, str(entry.get("type"))) for entry in entries)
    if mode == "required":
        return _forced(names, tools)
    if mode != "auto":
        raise RequestError("tool_choice.mode must be auto or required", "tool_choice")
    _check_declared(names, tools)
    return ToolChoice("auto", names)


def _forced(names: tuple[str, ...], tools: Sequence[Tool]) -> ToolChoice:
    _check_declared(names, tools)
    for tool in tools:
        if (not names or tool.name in names) and not _FORCEABLE.fullmatch(tool.name):
            raise RequestError(
                f"the tool {tool.name[:100]!r} cannot be forced: its name may hold letters, digits and _ . : / - only",
                "tools",
            )
    return ToolChoice("any", names)


def _check_declared(names: Sequence[str], tools: Sequence[Tool]) -> None:
    if not tools:
        raise RequestError("tool_choice needs tools to choose from", "tool_choice")
    declared = {tool.name for tool in tools}
    for name in names:
        if name not in declared:
            raise RequestError(f"tool_choice names {name[:100]!r}, which is not among the tools", "tool_choice")


def _name(given: dict[str, Any], kind: str) -> str:
    nested = given.get(kind)
    name = (nested if isinstance(nested, dict) else given).get("name")
    if not isinstance(name, str):
        raise RequestError("tool_choice does not say the name of the tool", "tool_choice")
    return name


def _format(given: Any, path: str) -> GrammarSpec | None:
    """Of a custom tool: text, or a grammar (nested in chat, flat in Responses)."""
    if given is None:
        return None
    kind = given.get("type") if isinstance(given, dict) else None
    if kind == "text":
        return None
    nested = given.get("grammar") if isinstance(given, dict) else None
    grammar = nested if isinstance(nested, dict) else given
    syntax, definition = (grammar.get("syntax"), grammar.get("definition")) if kind == "grammar" else (None, None)
    if syntax == "lark" and isinstance(definition, str):
        return GrammarSpec("lark", definition, "tools")
    if syntax == "regex" and isinstance(definition, str):
        return GrammarSpec("regex", definition, "tools")
    raise RequestError(f"{path}.format must be text, or a grammar with a lark or regex definition", "tools")
