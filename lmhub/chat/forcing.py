"""Grammars that hold a reply to tool calls: exactly one where the client demands it, or from the opening marker on.

A schema that the grammar engine refuses never sinks a request whose model may choose freely: that tool's arguments are
then any object. Only a call that is forced and must obey its schema is refused. Knows no engine and no tokens: the
markers come as pieces of grammar.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from lmhub.chat.schemas import MAX_SOURCE, as_object, located, problem, size_problem
from lmhub.errors import RequestError
from lmhub.family import ToolStyle
from lmhub.types import GrammarSpec, Tool, ToolChoice

log = logging.getLogger("lmhub")

_NAME = re.compile(r"[A-Za-z0-9_.:-]+")
_WRITABLE = re.compile(r"[^\x00-\x1f<>]+")  # names that a model can write in any style

Shape = Callable[[Tool, str, Mapping[str, Any] | None, bool], str]


@dataclass(frozen=True, slots=True)
class LazyTools:
    """What holds a model to its tools once it opens a call, and to nothing before and after.

    `opener` is the token that opens a call; `grammar` matches what follows it, up to and including the closing marker.
    """

    opener: int
    grammar: GrammarSpec


@dataclass(frozen=True, slots=True)
class Markers:
    """The two markers of a style as pieces of grammar: `<[id]>` where they are tokens, quoted text otherwise.

    `rules` are lines that define the style's other tokens.
    """

    open: str
    close: str
    rules: str = ""


def forced_call(style: ToolStyle, tools: Sequence[Tool], choice: ToolChoice, markers: Markers) -> GrammarSpec:
    """The grammar of a reply that is exactly one call of a tool that `choice` allows.

    Raises RequestError for a name that is not declared (`tool_choice`), for one that cannot be forced and for a strict
    schema that cannot be enforced (`tools`).
    """
    for name in choice.names:
        if name not in {tool.name for tool in tools}:
            raise RequestError(
                f"tool_choice names {name[:100]!r}, which is not among the tools; declare it or choose another",
                "tool_choice",
            )
    allowed = [tool for tool in tools if not choice.names or tool.name in choice.names]
    if not allowed:
        raise RequestError("tool_choice forces a call, but no tools are declared; send auto", "tool_choice")
    shape = _shape(style)
    rules = []
    for place, tool in enumerate(allowed):
        if not _NAME.fullmatch(tool.name):
            raise RequestError(
                f"the tool {tool.name[:100]!r} cannot be forced: its name must consist of letters, digits, _ . : and -",
                "tools",
            )
        rules.append(_exact_rule(shape, tool, f"c{place}", markers.rules))
    rules.append(markers.rules)
    return _spec((f"{markers.open} c{place} {markers.close}" for place in range(len(allowed))), rules)


def opened_call(style: ToolStyle, tools: Sequence[Tool], opener: int, markers: Markers) -> LazyTools | None:
    """What follows the token `opener`; None if no tool can be written in a grammar at all."""
    shape = _shape(style)
    usable = [tool for tool in tools if _WRITABLE.fullmatch(tool.name)]
    if len(usable) < len(tools) or not usable:
        return None  # a grammar that leaves out a tool would forbid it
    rules = [_loose_rule(shape, tool, f"c{place}", markers.rules) for place, tool in enumerate(usable)]
    choices = [f"c{place} {markers.close}" for place in range(len(usable))]
    spec = _spec(choices, [*rules, markers.rules])
    if len(spec.source) > MAX_SOURCE // 2 or problem(spec.source) is not None:  # each is fine, all together too much
        log.warning("%d tool schemas are too much for one grammar: calls are not held to them", len(tools))
        rules = [shape(replaced, f"c{place}", None, False) for place, replaced in enumerate(map(_plain, usable))]
        spec = _spec(choices, [*rules, markers.rules])
        if problem(spec.source) is not None:
            return None
    return LazyTools(opener, spec)


def _spec(alternatives: Iterable[str], rules: Iterable[str]) -> GrammarSpec:
    return GrammarSpec("lark", f"start: {' | '.join(alternatives)}\n{''.join(rules)}", "tools")


def _exact_rule(shape: Shape, tool: Tool, rule: str, others: str) -> str:
    schema = as_object(tool.parameters) if tool.strict and not tool.custom else None
    message = _refusal(schema)
    if message is None:
        lines = shape(tool, rule, schema, True)
        message = problem(f"start: {rule}\n{lines}{others}")
        if message is None:
            return lines
    told = located(schema, message) if schema is not None else message
    what = "format" if tool.custom else "schema"
    raise RequestError(f"the {what} of the tool {tool.name[:100]} cannot be enforced: {told[:300]}", "tools")


def _loose_rule(shape: Shape, tool: Tool, rule: str, others: str) -> str:
    schema = as_object(tool.parameters) if tool.strict and not tool.custom else None
    message = _refusal(schema)
    if message is None:
        lines = shape(tool, rule, schema, False)
        message = problem(f"start: {rule}\n{lines}{others}")
        if message is None:
            return lines
    log.warning("calls of the tool %s are not held to its schema: %s", tool.name, message)
    return shape(_plain(tool), rule, None, False)


def _refusal(schema: Mapping[str, Any] | None) -> str | None:
    if schema is None:
        return None
    if schema.get("type") != "object":
        return "its type is not object"
    return size_problem(schema)


def _plain(tool: Tool) -> Tool:
    """The tool without a format."""
    return Tool(tool.name, custom=tool.custom)


def _shape(style: ToolStyle) -> Shape:
    if style.shape is None:
        raise RequestError(
            f"this model's tool calls ({style.name}) cannot be forced; send tool_choice auto", "tool_choice"
        )
    module, _, name = style.shape.partition(":")
    shape: Shape = getattr(import_module(module), name)
    return shape
