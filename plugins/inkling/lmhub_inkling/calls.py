"""How Inkling writes a tool call: `{"name": ..., "args": {...}}` as the payload of a block. Read, and as a grammar."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lmhub.chat.hermes import members_of
from lmhub.chat.lark import json_call
from lmhub.types import Tool


def parse_calls(text: str, tools: Sequence[Tool] = (), cut: bool = False) -> Sequence[tuple[str, str]] | None:
    """The call as its name and the JSON text of its arguments, as written; None for anything else. See `ToolStyle`."""
    try:
        text = text.strip()
        members, end = members_of(text, 0)
        name = json.loads(members["name"])
    except (ValueError, KeyError, RecursionError):
        return None
    is_call = end == len(text) and members.keys() == {"name", "args"} and isinstance(name, str) and name
    return [(name, members["args"])] if is_call and members["args"].startswith("{") else None


def shape(tool: Tool, rule: str, schema: Mapping[str, Any] | None, exact: bool) -> str:
    """Lark lines in which `rule` is the payload of one call of `tool`; see `ToolStyle`."""
    return json_call(tool, rule, schema, f'{{"name":{json.dumps(tool.name, ensure_ascii=False)},"args":')
