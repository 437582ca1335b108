"""Reads tool calls while they are being written, for tools whose caller wants the arguments in fragments as they come.

A call is announced when its name is complete and its arguments have begun; what is announced stays a call, whatever
follows. JSON arguments are handed on letter by letter; XML parameters are strings that grow, or values that come whole.
Calls of other tools are left to the parser that reads whole regions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from lmhub.chat.steps import Announced, StepReader
from lmhub.chat.values import properties_of, quoted, types_of
from lmhub.chat.xml_calls import (
    CLOSE_FUNCTION,
    PARAMETER,
    keys_of,
    schema_of,
    tool_named,
    value_as_json,
    value_end,
    value_start,
)

_MAX_HEAD = 4096  # characters before the arguments
_STRING = r'"(?:[^"\\]|\\.)*"'
_JSON_HEAD = re.compile(rf'\s*\{{\s*"name"\s*:\s*({_STRING})\s*,\s*"(\w+)"\s*:\s*(?=\{{)')
_INPUT_HEAD = re.compile(r'\{\s*"input"\s*:\s*"')
_XML_HEAD = re.compile(r"\s*<function=([^>\n]*)(?:>|(?=\n))")
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}|u[0-9a-fA-F]{4}|[^u])")
_HALF_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?")
_XML_STOPS = ("<parameter=", "</parameter>", "</function>")


class EagerReader(StepReader):
    """Reads one region, or a call without markers: an `Eager`. In JSON one of `keys` is that of the arguments."""

    keys = ("arguments", "parameters")

    @property
    def rest(self) -> str:
        """What no announced call has taken; after the end of the region."""
        return self._text

    @property
    def is_whole(self) -> bool:
        """Whether the arguments of every announced call have ended."""
        return self._step in (self._head, self._json_end, self._nothing)

    def finish(self) -> Iterator[str]:
        """The fragments that the end of the region decides."""
        if self._step == self._xml_value:
            yield from self._more_value(final=True)
            yield from self._close_xml()
        elif self._step == self._xml_parameter:
            yield from self._close_xml()
        elif self._step == self._json_end:
            self._text = self._text.lstrip().removeprefix("}")
        self._step = self._nothing

    def _head(self) -> Iterator[Announced]:
        blank = self._text.lstrip()
        pattern = _XML_HEAD if blank.startswith("<") else _JSON_HEAD
        found = pattern.match(self._text)
        if found is None or (pattern is _JSON_HEAD and found[2] not in self.keys):
            if len(blank) > _MAX_HEAD or (blank and blank[0] not in "{<,;"):
                self._step = self._nothing
            elif self.announced and blank[:1] in (",", ";"):
                self._text = blank[1:]
            return
        name = found[1].strip()
        if pattern is _JSON_HEAD:
            try:
                name = json.loads(found[1]).strip()
            except ValueError:
                name = ""
        tool = tool_named(name, self._tools)
        if tool is None or not tool.eager:
            self._step = self._nothing
            return
        if pattern is _JSON_HEAD and tool.custom and not _INPUT_HEAD.match(self._text, found.end()):
            if len(self._text) - found.end() > _MAX_HEAD:
                self._step = self._nothing
            return
        self.announced = True
        self._tool = tool
        self._text = self._text[found.end() :]
        yield Announced(tool)
        if pattern is _XML_HEAD:
            self._keys: list[str] = []
            self._step = self._xml_parameter
        elif tool.custom:
            self._text = _INPUT_HEAD.sub("", self._text, count=1)
            self._step = self._json_input
        else:
            self._depth, self._in_string, self._escaped = 0, False, False
            self._step = self._json_arguments

    # --- JSON ---

    def _json_arguments(self) -> Iterator[str]:
        for place, char in enumerate(self._text):
            if self._in_string:
                self._in_string = self._escaped or char != '"'
                self._escaped = char == "\\" and not self._escaped
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if not self._depth:
                    yield self._taken(place + 1)
                    self._step = self._json_end
                    return
        if self._text:
            yield self._taken(len(self._text))

    def _json_input(self) -> Iterator[str]:
        """The JSON string that is a custom tool's input, decoded."""
        out, at = [], 0
        while at < len(self._text):
            char = self._text[at]
            if char == '"':
                self._step = self._json_end
                at += 1
                break
            if char != "\\":
                out.append(char)
                at += 1
                continue
            half, found = _HALF_PAIR.fullmatch(self._text, at), _ESCAPE.match(self._text, at)
            if half or found is None:
                if not half and len(self._text) - at > 6:  # no escape at all
                    out.append(char)
                    at += 1
                    continue
                break
            out.append(_unescaped(found[0]))
            at = found.end()
        self._text = self._text[at:]
        if out:
            yield "".join(out)

    def _json_end(self) -> Iterator[str]:
        blank = self._text.lstrip()
        if self._tool.custom and blank.startswith("}") and blank[1:].lstrip()[:1] == "}":
            blank = blank[1:].lstrip()
        elif self._tool.custom and not blank[1:].strip():
            return iter(())
        if blank:
            self._text = blank.removeprefix("}")
            self._step = self._head
        return iter(())

    # --- XML ---

    def _xml_parameter(self) -> Iterator[str]:
        blank = self._text.lstrip()
        if closing := CLOSE_FUNCTION.match(self._text):
            self._text = self._text[closing.end() :]
            yield from self._close_xml()
            self._step = self._head
        elif blank.startswith("</parameter>"):
            self._text = blank.removeprefix("</parameter>")
        elif (head := PARAMETER.match(self._text)) and (head.end() < len(self._text)):
            self._open_value(head[1].strip())
            self._text = self._text[value_start(self._text, head.end()) :]
            self._step = self._xml_value
            if self._grows and not self._tool.custom:
                yield f'{self._lead()}{quoted(self._key)}: "'
        elif blank and not any(one.startswith(blank[:12]) or blank.startswith(one) for one in _XML_STOPS):
            yield from self._close_xml()
            self._step = self._nothing

    def _open_value(self, key: str) -> None:
        properties = properties_of(schema_of(self._tool))
        types = types_of(properties[key], schema_of(self._tool)) if key in properties else None
        self._key, self._skipped = key, key in self._keys or (self._tool.custom and key != "input")
        self._grows = not self._skipped and types == frozenset(("string",))

    def _lead(self) -> str:
        self._keys.append(self._key)
        return "{" if len(self._keys) == 1 else ", "

    def _xml_value(self) -> Iterator[str]:
        return self._more_value(final=False)

    def _more_value(self, *, final: bool) -> Iterator[str]:
        span = value_end(self._text, 0, keys_of(self._tool.name, self._tools), final=final)
        end, after = span if isinstance(span, tuple) else (span, span)
        ended = isinstance(span, tuple)
        if self._grows:
            shown = self._text[:end]
            if shown:
                yield shown if self._tool.custom else quoted(shown)[1:-1]
            self._text = self._text[after:]
            if ended and not self._tool.custom:
                yield '"'
        elif ended:
            if not self._skipped:
                value = value_as_json(self._key, self._text[:end], self._tool)
                yield f"{self._lead()}{quoted(self._key)}: {value}"
            self._text = self._text[after:]
        if ended:
            self._step = self._xml_parameter

    def _close_xml(self) -> Iterator[str]:
        if not self._tool.custom:
            yield "}" if self._keys else "{}"

    def _taken(self, length: int) -> str:
        taken, self._text = self._text[:length], self._text[length:]
        return taken


def _unescaped(escape: str) -> str:
    try:
        text: str = json.loads(f'"{escape}"')
        text.encode()
    except (ValueError, UnicodeEncodeError):
        return escape
    return text
