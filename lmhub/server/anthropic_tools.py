"""The tools of a Messages request: declared by the client, built into its protocol, or run by a hosted service.

Tools that the client runs are all rendered. Those that only a hosted service could run are ignored with a log line,
unless the reply is forced to call one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from lmhub.errors import RequestError
from lmhub.server.fields import unsupported
from lmhub.server.tools_json import choice_of as openai_choice
from lmhub.types import Tool, ToolChoice

log = logging.getLogger("lmhub.server")


class InTool(msgspec.Struct):
    """One declaration. Hints for hosted services (`defer_loading`, `allowed_callers`, ...) are dropped."""

    name: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    type: str | None = None
    eager_input_streaming: bool | None = None


class InToolChoice(msgspec.Struct):
    """Whether a call is wanted, and which."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


def tools_of(given: Sequence[InTool], *, stream: bool, strict: bool) -> tuple[Tool, ...]:
    """The tools that the model is told of; `strict` refuses hosted ones. Raises RequestError with the param `tools`."""
    tools = (_tool(tool, f"tools[{place}]", stream, strict) for place, tool in enumerate(given))
    return tuple(tool for tool in tools if tool is not None)


def choice_of(given: InToolChoice | None, tools: Sequence[Tool]) -> ToolChoice:
    """What may be called. Raises RequestError with the param `tool_choice`."""
    if given is None or given.type == "auto":
        return ToolChoice()
    if given.type == "none":
        return ToolChoice("none")
    if given.type == "any":
        return openai_choice("required", tools)
    if given.type == "tool":
        if not given.name:
            raise RequestError("tool_choice.name is missing; the type tool needs the name of a tool", "tool_choice")
        return openai_choice({"type": "function", "name": given.name}, tools)
    raise RequestError(f"tool_choice.type must be auto, any, tool or none, not {given.type[:100]!r}", "tool_choice")


def _tool(given: InTool, path: str, stream: bool, strict: bool) -> Tool | None:
    kind = given.type or "custom"
    eager = stream and given.eager_input_streaming is True
    if kind != "custom":
        for prefix, (name, description, parameters) in _CLIENT_RUN.items():
            if kind.startswith(prefix):
                return Tool(given.name or name, description, parameters, strict=True, eager=eager)
        if kind.startswith("computer_"):
            raise unsupported(
                "tools",
                f"{path} is a computer tool, which answers with images; this server reads text, so leave it out",
            )
        if given.input_schema is None and strict:
            raise unsupported(
                "tools", f"{path} has the type {kind[:100]!r}, which runs on a hosted service; leave it out"
            )
        if given.input_schema is None:
            log.info("%s of the type %.100r was ignored; it runs on a hosted service", path, kind)
            return None
    if not given.name:
        raise RequestError(f"{path}.name is missing", "tools")
    return Tool(given.name, given.description, given.input_schema or {"type": "object"}, strict=True, eager=eager)


def _object(required: Sequence[str], **properties: Any) -> Mapping[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def _string(description: str) -> Mapping[str, Any]:
    return {"type": "string", "description": description}


def _commands(*names: str) -> Mapping[str, Any]:
    return {"type": "string", "enum": list(names), "description": "What to do."}


_EDITING = {
    "path": _string("Absolute path of a file or folder."),
    "file_text": _string("For create: the content of the new file."),
    "old_str": _string("For str_replace: the text to replace, which must occur exactly once in the file."),
    "new_str": _string("For str_replace: what to put in its place. For insert: the text to insert."),
    "insert_line": {"type": "integer", "description": "For insert: the line after which to insert; 0 is the top."},
    "insert_text": _string("For insert: the text to insert."),
    "view_range": {
        "type": "array",
        "items": {"type": "integer"},
        "description": "For view: first and last line to show, from 1; -1 as the last is the end of the file.",
    },
}
_BASH = _object(
    (),
    command=_string("The command to run. Needed unless the shell is restarted."),
    restart={"type": "boolean", "description": "true starts a fresh shell instead."},
)
_EDITOR = "View, create and edit text files."
_EDIT = ("view", "create", "str_replace", "insert")
# Type prefix -> name, description and schema. Clients run these tools and know them by type, so they send neither.
_CLIENT_RUN: dict[str, tuple[str, str, Mapping[str, Any]]] = {
    "bash_": ("bash", "Run a command in a bash shell that keeps its state between calls.", _BASH),
    "text_editor_2024": (
        "str_replace_editor",
        _EDITOR,
        _object(("command", "path"), command=_commands(*_EDIT, "undo_edit"), **_EDITING),
    ),
    "text_editor_20250124": (
        "str_replace_editor",
        _EDITOR,
        _object(("command", "path"), command=_commands(*_EDIT, "undo_edit"), **_EDITING),
    ),
    "text_editor_": (
        "str_replace_based_edit_tool",
        _EDITOR,
        _object(("command", "path"), command=_commands(*_EDIT), **_EDITING),
    ),
    "memory_": (
        "memory",
        "Keep notes in files below /memories that outlast this conversation. Look there before you begin.",
        _object(
            ("command",),
            command=_commands(*_EDIT, "delete", "rename"),
            **_EDITING,
            old_path=_string("For rename: the present path."),
            new_path=_string("For rename: the future path."),
        ),
    ),
}
