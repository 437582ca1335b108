"""Gemma 4's tool calls as a grammar, as far as a schema can be written so. The rule `quote` is the quotation token."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lmhub.chat.lark import formatted, json_rule, literal
from lmhub.chat.values import resolved, types_of
from lmhub.types import Tool

_KEY = re.compile(r"[^\s:={}\[\],\"'<>][^:={}\[\],\"<>\n]*")
_ANNOTATIONS = {
    *("$schema", "$id", "$comment", "$defs", "definitions", "type", "enum", "const"),
    *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "nullable"),
}
_SAYS = {  # what this notation can hold a value to, by the value's type
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}
_SAYS["integer"] = _SAYS["number"]
_MAX_DEPTH = 12  # of objects within objects; deeper ones may hold anything


class _Unwritable(Exception):
    """The schema says more than the notation can hold a text to."""


def shape(tool: Tool, rule: str, schema: Mapping[str, Any] | None, exact: bool) -> str:
    """Lark lines in which `rule` is the text between the markers for one call of `tool`; see `ToolStyle`.

    Keys come in the order of their letters, as the model's template shows them. Where `exact` enforcement is asked for
    and the schema says more than this notation can hold a text to, the arguments are JSON, which the parser reads too.
    """
    head = literal(f"call:{tool.name}")
    grammar = _Grammar(rule, schema or {}, exact)
    if tool.custom:
        text = "any_text" if tool.format is None else "input"
        lines = "" if tool.format is None else f"{rule}_input: {formatted(tool.format)}\n"
        return f'{rule}: {head} "{{input:" quote {rule}_{text} quote "}}"\n{lines}{grammar.anything()}'
    try:
        arguments = grammar.any_object if schema is None else grammar.value(schema, 0)
    except _Unwritable:
        return f"{rule}: {head} {rule}_a\n{rule}_a: {json_rule(schema or {})}\n"
    return f"{rule}: {head} {arguments}\n{grammar.lines()}"


class _Grammar:
    """Rules for the values of one tool's arguments, named after `rule`."""

    def __init__(self, rule: str, root: Mapping[str, Any], exact: bool):
        self._rule, self._root, self._exact = rule, root, exact
        self._lines: list[str] = []
        self.any_object, self._any = f"{rule}_any_object", f"{rule}_any"

    def lines(self) -> str:
        """All rules."""
        return "".join(self._lines) + self.anything()

    def anything(self) -> str:
        """The rules of values that nothing is known of."""
        r = self._rule
        return (
            f"{r}_any: {r}_any_string | {r}_any_number | {r}_any_object | {r}_any_list"
            ' | "true" | "false" | "null"\n'
            f"{r}_any_string: quote {r}_any_text quote\n"
            f"{r}_any_text: /(.|\\n)*/\n"
            f"{r}_any_number: /-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?/\n"
            f'{r}_any_list: "[" ({r}_any ("," {r}_any)*)? "]"\n'
            f'{r}_any_object: "{{" ({r}_any_member ("," {r}_any_member)*)? "}}"\n'
            f'{r}_any_member: {r}_any_key ":" {r}_any\n'
            f'{r}_any_key: /[^ \\n:={{}}\\[\\],"\'<>][^:={{}}\\[\\],"<>\\n]{{0,100}}/\n'
        )

    def value(self, schema: Any, depth: int) -> str:
        """What matches a value of `schema`, a part of the root. Raises _Unwritable."""
        schema = resolved(schema, self._root)
        types = types_of(schema, self._root)
        if not isinstance(schema, Mapping) or not schema or depth > _MAX_DEPTH:
            return self._unless_exact(self._any, is_fine=schema in (True, {}))
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list) and values and all(isinstance(one, str | int | float | None) for one in values):
            return f"({' | '.join(map(_written, values))})"
        if types is None or "type" not in schema:
            return self._unless_exact(self._any)
        known = _ANNOTATIONS.union(*(_SAYS.get(kind, ()) for kind in types))
        if schema.keys() - known:
            self._unless_exact(self._any)
        return f"({' | '.join(self._typed(kind, schema, depth) for kind in sorted(types))})"

    def _unless_exact(self, rule: str, is_fine: bool = False) -> str:
        if self._exact and not is_fine:
            raise _Unwritable
        return rule

    def _typed(self, kind: str, schema: Mapping[str, Any], depth: int) -> str:
        r = self._rule
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            item = self.value(schema.get("items", True), depth + 1)
            return f'"[" ({item} ("," {item})*)? "]"'
        if kind in ("integer", "number"):
            bounds = {key: schema[key] for key in _SAYS["number"] & schema.keys()}
            return self._named(json_rule({"type": kind, **bounds}))
        plain = {"string": f"{r}_any_string", "boolean": '"true" | "false"', "null": '"null"'}
        return plain[kind] if kind in plain else self._unless_exact(self._any)

    def _object(self, schema: Mapping[str, Any], depth: int) -> str:
        properties, required = schema.get("properties", {}), schema.get("required", ())
        if not isinstance(properties, Mapping) or not all(_KEY.fullmatch(str(key)) for key in properties):
            return self._unless_exact(self.any_object)
        more = schema.get("additionalProperties", True)
        if not properties and more is not False:
            return self._unless_exact(self.any_object, is_fine=more in (True, {}))
        if not isinstance(required, list | tuple) or any(key not in properties for key in required):
            return self._unless_exact(self.any_object)
        members = [
            (f"{literal(key + ':')} {self.value(properties[key], depth + 1)}", key in required)
            for key in sorted(properties, key=lambda key: (key.lower(), key))
        ]
        return f'"{{" {self._listed(members)} "}}"'

    def _listed(self, members: Sequence[tuple[str, bool]]) -> str:
        """Members in order, with commas between those that are there; what is not required may be left out."""
        first, later = '""', '""'  # of what begins here, with nothing and with something before it
        for member, is_required in reversed(members):
            begun = self._named(f"{member} {later}")
            first = begun if is_required else self._named(f"{begun} | {first}")
            later = self._named(f'"," {begun}' if is_required else f'"," {begun} | {later}')
        return first

    def _named(self, body: str) -> str:
        """A rule of that body."""
        name = f"{self._rule}_{len(self._lines)}"
        self._lines.append(f"{name}: {body}\n")
        return name


def _written(value: str | float | None) -> str:
    """What matches one plain value."""
    if not isinstance(value, str):
        return literal(json.dumps(value))
    return f"quote {literal(value)} quote" if value else "quote quote"
