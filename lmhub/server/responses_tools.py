"""The tools of a Responses request and the choice among them: functions, custom tools, namespaces of both.

Hosted tools (web search and the like) cannot be run here. A client that merely offers them works without; one that
insists on a call of them is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lmhub.errors import RequestError
from lmhub.server.fields import unsupported
from lmhub.server.tools_json import choice_of, tool_of
from lmhub.types import Tool, ToolChoice

log = logging.getLogger("lmhub.server")

_OURS = ("function", "custom")


@dataclass(slots=True)
class Declared:
    """The tools that the model is shown. `namespaces` maps the names of some to their namespace and bare name."""

    tools: list[Tool] = field(default_factory=list)
    namespaces: dict[str, tuple[str, str]] = field(default_factory=dict)
    hosted: list[str] = field(default_factory=list)  # types that were left out

    def flat(self, name: str, namespace: object) -> str:
        """The name under which the model sees what a client calls `name`, with or without its namespace."""
        spelled = flattened(name, namespace)
        if any(tool.name == spelled for tool in self.tools):
            return spelled
        return next((flat for flat, (_, bare) in self.namespaces.items() if bare == name), spelled)


def flattened(name: str, namespace: object) -> str:
    """The name under which the model sees a tool of a namespace."""
    return f"{namespace}__{name}" if isinstance(namespace, str) and namespace else name


def declared(given: Sequence[Mapping[str, Any]], *, strict: bool = False) -> Declared:
    """The tools of a request. Hosted ones are left out with one log line, or refused if `strict`.

    Raises RequestError with the param `tools`.
    """
    found = Declared()
    for place, tool in enumerate(given):
        _declare(found, tool, place, None)
    if found.hosted:
        names = ", ".join(sorted(set(found.hosted)))
        if strict:
            raise unsupported("tools", f"tools of the type {names} run on the vendor's machines only; leave them out")
        log.info("left out hosted tools that cannot be run here: %s", names)
    return found


def echoed(given: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tools as the response object repeats them."""
    return [dict(tool) if tool.get("type") else {"type": "function", **tool} for tool in given]


def choice(given: str | dict[str, Any] | None, found: Declared) -> ToolChoice:
    """The choice among `found`. Raises RequestError with the param `tool_choice`."""
    if not isinstance(given, dict):
        return choice_of(given, found.tools)
    kind = given.get("type")
    if kind in _OURS:
        return choice_of(_spelled(given, found), found.tools)
    if kind == "allowed_tools":
        nested = given.get("allowed_tools")
        inner = nested if isinstance(nested, dict) else given
        tools = inner.get("tools")
        if isinstance(tools, list):
            ours = [_spelled(tool, found) for tool in tools if isinstance(tool, dict) and tool.get("type") in _OURS]
            if tools and not ours:
                raise RequestError("tool_choice.tools names no tool that could be called here", "tool_choice")
            inner = {**inner, "tools": ours}
        return choice_of({"type": kind, "allowed_tools": inner}, found.tools)
    if not isinstance(kind, str):
        raise RequestError("tool_choice.type is missing", "tool_choice")
    hosted = f"tool_choice demands a call of the hosted tool {kind[:100]}, which cannot be run here"
    raise unsupported("tool_choice", hosted)


def _spelled(given: dict[str, Any], found: Declared) -> dict[str, Any]:
    """A named tool, its name as the model sees it."""
    name = given.get("name")
    return {**given, "name": found.flat(name, given.get("namespace"))} if isinstance(name, str) else given


def _declare(found: Declared, given: Mapping[str, Any], place: int, namespace: str | None) -> None:
    kind = given.get("type") or ("function" if given.get("name") or given.get("function") else None)
    if kind == "namespace" and namespace is None:
        name, inner = given.get("name"), given.get("tools") or ()
        if not isinstance(name, str) or not name:
            raise RequestError(f"tools[{place}].name is missing", "tools")
        if not isinstance(inner, Sequence) or not all(isinstance(tool, Mapping) for tool in inner):
            raise RequestError(f"tools[{place}].tools must be an array of objects", "tools")
        for tool in inner:
            _declare(found, tool, place, name)
    elif kind in _OURS:
        tool = tool_of({**given, "type": kind}, place)
        if namespace is not None:
            bare, tool = tool.name, replace(tool, name=flattened(tool.name, namespace))
            found.namespaces[tool.name] = (namespace, bare)
        found.tools.append(tool)
    elif kind is None:
        raise RequestError(f"tools[{place}].type is missing", "tools")
    else:
        found.hosted.append(str(kind)[:100])
