"""Pieces of Lark grammars, in the dialect of llguidance, that the styles of tool calls are built from.

Knows what a grammar looks like, not what a call looks like, and imports no engine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lmhub.types import GrammarSpec, Tool

VALUE_END = "\n</parameter>\n"
_BLANKS = r"[ \x0A\x0D\x09]{1,16}"  # between JSON tokens: unbounded, small models loop in them


def literal(text: str) -> str:
    """`text` as a quoted literal."""
    return json.dumps(text, ensure_ascii=False)


def json_rule(schema: Mapping[str, Any]) -> str:
    """The body of a rule that matches JSON of `schema`, with few blanks between its tokens."""
    return "%json " + json.dumps({**schema, "x-guidance": {"whitespace_pattern": _BLANKS}}, ensure_ascii=False)


def nested(grammar: str) -> str:
    """The body of a rule that matches a whole grammar of its own."""
    return f"%lark {{\n{grammar}\n}}"


def free_text(rule: str) -> str:
    """A rule for any text up to the end of a parameter, which belongs to it."""
    return f"{rule}[suffix={literal(VALUE_END)}]: /(.|\\n)*/\n"


def input_schema(tool: Tool) -> Mapping[str, Any]:
    """What the model is told that a custom tool takes, and what JSON calls of it are held to."""
    described: dict[str, Any] = {"type": "string"}
    if tool.format is not None and tool.format.kind == "regex":
        described["pattern"] = f"^(?:{tool.format.source})$"
    return {"type": "object", "properties": {"input": described}, "required": ["input"], "additionalProperties": False}


def json_call(tool: Tool, rule: str, schema: Mapping[str, Any] | None, head: str) -> str:
    """Lark lines in which `rule` is a JSON object: `head`, then the arguments of `tool`, by `schema` if it has one."""
    arguments: Mapping[str, Any] = {"type": "object"} if schema is None else schema
    if tool.custom:
        arguments = input_schema(tool)
    return f"{rule}: {literal(head)} {rule}_a {literal('}')}\n{rule}_a: {json_rule(arguments)}\n"


def xml_shape_of_input(tool: Tool, rule: str) -> str:
    """Lark lines in which `rule` is one call of a custom tool in the XML style, its input held to its format."""
    head = literal(f"\n<function={tool.name}>\n<parameter=input>\n")
    end = literal("</function>\n")
    if tool.format is None:
        return f"{rule}: {head} {rule}_t {end}\n{free_text(rule + '_t')}"
    return f"{rule}: {head} {rule}_t {literal(VALUE_END)} {end}\n{rule}_t: {formatted(tool.format)}\n"


def formatted(format: GrammarSpec) -> str:
    """The body of a rule that matches what the input of a custom tool is held to."""
    return nested(format.source if format.kind == "lark" else f"start: /{_delimited(format.source)}/")


def _delimited(regex: str) -> str:
    """`regex` without a bare `/`, which would end it, and without line breaks, which it may not hold."""
    out, escaped = [], False
    for char in regex:
        out.append({"/": "/" if escaped else r"\/", "\n": r"\n", "\r": r"\r"}.get(char, char))
        escaped = char == "\\" and not escaped
    return "".join(out)
