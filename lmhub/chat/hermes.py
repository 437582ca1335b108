"""The Hermes convention for tool calls: JSON objects `{"name": ..., "arguments": {...}}` between `<tool_call>` markers.

Tolerant of what models get wrong (raw newlines in strings, trailing commas, brackets that were never closed), strict
about what it means: arguments are handed on letter by letter, so that numbers and the order of keys stay as the model
wrote them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from lmhub.chat.lark import input_schema, json_rule, literal, xml_shape_of_input
from lmhub.types import Tool

_BLANK = re.compile(r"[ \t\r\n]*")
_CLOSING = {"{": "}", "[": "]"}
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def parse_calls(text: str, *, cut: bool = False) -> Sequence[tuple[str, str]] | None:
    """The calls in `text`, what stands between the markers, as (name, JSON text of the arguments object) pairs.

    Several objects, one behind the other, are several calls. `parameters` is taken for `arguments`, a string that holds
    an object for the object, and none at all for `{}`. Returns None for anything else, duplicate keys included. Never
    raises. A text that was `cut` off is not repaired.
    """
    for candidate in (text,) if cut else (text, _repaired(text)):
        try:
            return list(_calls(candidate)) or None
        except (ValueError, RecursionError):
            continue
    return None


def shape(tool: Tool, rule: str, schema: Mapping[str, Any] | None, exact: bool) -> str:
    """Lark lines in which `rule` is the text between the markers for one call of `tool`; see `ToolStyle`.

    A custom tool's input is a JSON string that matches its format. A grammar cannot be quoted like that: an `exact`
    call is written in the XML style then, which `calls.parse_calls` reads as well, and any other takes any text.
    """
    arguments: Mapping[str, Any] = {"type": "object"} if schema is None else schema
    if tool.custom:
        if exact and tool.format is not None and tool.format.kind == "lark":
            return xml_shape_of_input(tool, rule)
        arguments = input_schema(tool)
    head = f'\n{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "arguments": '
    return f"{rule}: {literal(head)} {rule}_a {literal('}' + chr(10))}\n{rule}_a: {json_rule(arguments)}\n"


def _calls(text: str) -> Iterator[tuple[str, str]]:
    at = _skip(text, 0)
    while at < len(text):
        members, at = members_of(text, at)
        yield _name(members), _arguments(members)
        at = _skip(text, at)
        if text[at : at + 1] in (",", ";"):
            at = _skip(text, at + 1)


def members_of(text: str, at: int) -> tuple[Mapping[str, str], int]:
    """The members of the object at `at` as JSON text by key, and where the object ends. Raises ValueError."""
    if text[at : at + 1] != "{":
        raise ValueError("an object is expected")
    _, end = DECODER.raw_decode(text, at)  # checks the whole object first
    members: dict[str, str] = {}
    at = _skip(text, at + 1)
    while text[at] != "}":
        key, at = DECODER.raw_decode(text, at)
        start = _skip(text, _skip(text, at) + 1)  # behind the colon
        _, at = DECODER.raw_decode(text, start)
        members[key] = text[start:at]
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return members, end


def _name(members: Mapping[str, str]) -> str:
    name = json.loads(members.get("name", "null"))
    if not isinstance(name, str) or not name.strip():
        raise ValueError("a call needs a name")
    name.encode()  # half a surrogate pair is no name
    return name.strip()


def _arguments(members: Mapping[str, str]) -> str:
    raw = members.get("arguments", members.get("parameters", "null"))
    if raw.startswith('"'):
        raw = json.loads(raw).strip() or "null"
        raw.encode()
        DECODER.decode(raw)
    if raw == "null":
        return "{}"
    if not raw.startswith("{"):
        raise ValueError("arguments are an object")
    return raw


def _repaired(text: str) -> str:
    """`text` with the usual defects undone: line breaks in strings, commas before a bracket, brackets left open."""
    out: list[str] = []
    open_brackets: list[str] = []
    in_string = escaped = False
    for char in text.rstrip():
        if in_string:
            in_string = escaped or char != '"'
            escaped = char == "\\" and not escaped
            out.append(_ESCAPES.get(char, char))
            continue
        in_string = char == '"'
        if char in _CLOSING:
            open_brackets.append(_CLOSING[char])
        elif open_brackets and char == open_brackets[-1]:
            open_brackets.pop()
            _drop_comma(out)
        out.append(char)
    if not in_string:
        _drop_comma(out)
        out += reversed(open_brackets)
    return "".join(out)


def _drop_comma(out: list[str]) -> None:
    at = len(out)
    while at and out[at - 1] in " \t\r\n":
        at -= 1
    if at and out[at - 1] == ",":
        del out[at - 1]


def _skip(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found else at


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a key occurs twice")
    return members


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Numbers stay text: they are only looked over, and a long one must not be refused for its length.
DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant, parse_int=str, parse_float=str)
