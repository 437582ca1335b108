"""The XML convention for tool calls (Qwen3-Coder, Qwen3.5): `<function=NAME>` around `<parameter=KEY>` values.

    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>

A value is text, file contents with markup of their own included, so its end is the closing tag that is followed by what
may follow a parameter. Closing tags may be missing or doubled. What the text means as JSON is `values`' business.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from lmhub.chat.values import as_json, properties_of, quoted, types_of
from lmhub.types import Tool

FUNCTION = re.compile(r"\s*<function=([^>\n]*)(?:>|(?=\n)|\Z)")
PARAMETER = re.compile(r"\s*<parameter=([^>\n]*)(?:>|(?=\n)|\Z)")
_CLOSE_PARAMETER = re.compile(r"\s*</parameter>")
CLOSE_FUNCTION = re.compile(r"\s*</function>")
_BLANK = re.compile(r"\s*")

_CANDIDATE = re.compile(r"\n?</parameter>|\n<parameter=|\n?</function>")
_PREFIXES = ("\n</parameter>", "\n<parameter=", "\n</function>", "</parameter>", "</function>")
_AFTER_PARAMETER: tuple[str, ...] = ("<parameter=", "</function>", "</tool_call>")
_AFTER_FUNCTION: tuple[str, ...] = ("</tool_call>", "<function=")


def parse_calls(text: str, tools: Sequence[Tool] = (), cut: bool = False) -> Sequence[tuple[str, str]] | None:
    """The functions in `text` as (name, JSON text of the arguments) pairs; None if it is anything else. Never raises.

    A key that occurs twice has its last value. The types of values are those of the schema of the tool of that name
    among `tools`. A text that was `cut` off must have its `</function>`.
    """
    calls: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        head = FUNCTION.match(text, at)
        name = head[1].strip() if head else ""
        if head is None or not name:
            return None
        parameters, at, closed = _parameters(text, head.end(), keys_of(name, tools))
        if at < 0 or (cut and not closed):
            return None
        calls.append((name, arguments_of(parameters, tool_named(name, tools))))
        while extra := CLOSE_FUNCTION.match(text, at):
            at = extra.end()
        at = _skip(text, at)
    return calls or None


def is_within_value(text: str, tools: Sequence[Tool] = ()) -> bool:
    """Whether `text`, the beginning of a region, ends within the value of a parameter."""
    at = 0
    keys: Collection[str] = ()
    while at < len(text):
        if head := FUNCTION.match(text, at):
            keys, at = keys_of(head[1].strip(), tools), head.end()
        elif head := PARAMETER.match(text, at):
            span = value_end(text, value_start(text, head.end()), keys, final=False)
            if not isinstance(span, tuple):
                return True
            at = span[1]
        elif closing := CLOSE_FUNCTION.match(text, at) or _CLOSE_PARAMETER.match(text, at):
            at = closing.end()
        else:
            return False
    return False


def tool_named(name: str, tools: Sequence[Tool]) -> Tool | None:
    """The offered tool of that name."""
    return next((tool for tool in tools if tool.name == name), None)


def keys_of(name: str, tools: Sequence[Tool]) -> Collection[str]:
    """The parameters that the tool of that name declares; empty if nothing is known of them."""
    tool = tool_named(name, tools)
    return properties_of(schema_of(tool)).keys() if tool is not None else ()


def schema_of(tool: Tool | None) -> Mapping[str, Any]:
    """The schema that types a tool's parameters."""
    if tool is not None and tool.custom:
        return {"properties": {"input": {"type": "string"}}}
    return (tool.parameters or {}) if tool is not None else {}


def value_as_json(key: str, text: str, tool: Tool | None) -> str:
    """A parameter's text as JSON."""
    schema = schema_of(tool)
    properties = properties_of(schema)
    return as_json(text, types_of(properties[key], schema) if key in properties else None)


def arguments_of(parameters: Mapping[str, str], tool: Tool | None) -> str:
    """The arguments object of a call, in the order of the parameters."""
    return "{" + ", ".join(f"{quoted(k)}: {value_as_json(k, v, tool)}" for k, v in parameters.items()) + "}"


def value_start(text: str, at: int) -> int:
    """Where a value begins whose tag ends at `at`: one line break is not part of it."""
    return at + text.startswith("\n", at)


def value_end(text: str, at: int, keys: Collection[str], *, final: bool) -> tuple[int, int] | int:
    """The end of the value from `at` on, and where to read on; or how much of it is certain so far.

    The value ends at the first closing tag with something behind it that may follow a parameter, or else, where that
    tag is missing, before a line that begins another parameter (one of `keys`, if there are any) or ends the function.
    `final`: nothing more will come.
    """
    for found in _CANDIDATE.finditer(text, at):
        verdict = _is_end(text, found, keys, final)
        if verdict is None:
            return found.start()
        if verdict:
            after = found.end() if "</parameter>" in found[0] else found.start()
            while extra := _CLOSE_PARAMETER.match(text, after):
                after = extra.end()
            return found.start(), after
    if not final:
        return len(text) - max(_overlap(text, at, prefix) for prefix in _PREFIXES)
    end = len(text) - (text.endswith("\n") and len(text) > at)
    return end, len(text)


def _is_end(text: str, found: re.Match[str], keys: Collection[str], final: bool) -> bool | None:
    """Whether a candidate ends the value; None if that depends on what is still to come."""
    if found[0] == "\n<parameter=":
        head = PARAMETER.match(text, found.start())
        if head is None or (head.end() == len(text) and text[-1] != ">" and not final):
            return None
        return not keys or head[1].strip() in keys
    at, followers = found.end(), _AFTER_FUNCTION
    if "</parameter>" in found[0]:
        followers = _AFTER_PARAMETER
        while extra := _CLOSE_PARAMETER.match(text, at):
            at = extra.end()
    rest = text[_skip(text, at) :][:16]
    if any(rest.startswith(one) for one in followers) or (not rest and final):
        return True
    possible = (*followers, "</parameter>") if followers is _AFTER_PARAMETER else followers
    return None if not final and any(one.startswith(rest) for one in possible) else False


def _parameters(text: str, at: int, keys: Collection[str]) -> tuple[dict[str, str], int, bool]:
    """The parameters of a function from behind its head on, where they end (-1: no parameter list), if it is closed."""
    parameters: dict[str, str] = {}
    while True:
        if closing := CLOSE_FUNCTION.match(text, at):
            return parameters, closing.end(), True
        if head := PARAMETER.match(text, at):
            start = value_start(text, head.end())
            span = value_end(text, start, keys, final=True)
            assert isinstance(span, tuple)
            parameters[head[1].strip()] = text[start : span[0]]
            at = span[1]
        elif extra := _CLOSE_PARAMETER.match(text, at):
            at = extra.end()
        else:
            at = _skip(text, at)
            ended = at == len(text) or text.startswith("<function=", at)
            return parameters, at if ended else -1, False


def _skip(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found else at


def _overlap(text: str, at: int, prefix: str) -> int:
    for length in range(min(len(text) - at, len(prefix) - 1), 0, -1):
        if text.endswith(prefix[:length]):
            return length
    return 0
