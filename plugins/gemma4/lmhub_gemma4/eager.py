"""Hands on the arguments of Gemma 4's calls while they are written, as fragments of JSON text.

Strings at the top level grow letter by letter; every other value is handed on when its end is known, and read as
`calls` reads whole ones. So the fragments of a call that is written as it should be join to what the whole would be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from lmhub.chat.steps import Announced, StepReader
from lmhub.chat.values import properties_of, quoted, types_of
from lmhub.types import Tool
from lmhub_gemma4 import QUOTE
from lmhub_gemma4.calls import KEY, parse_calls

_HEAD = re.compile(r"\s*call\s*:\s*([^\s{(\[]{1,256})\s*\{\s*(?=[^\s{])")
_MAX_HEAD = 4096  # characters before the arguments
_PLAIN = re.compile(r"(?:-?\d[\d.eE+-]*|true|false|null)(?=\s*(?:\}|,\s*[^:={}\[\],]{1,256}[:=]))")
_DOUBTFUL = re.compile(r'[}\s]*(?:<\|?"?\|?)?\Z')  # the end of a string that may not belong to it


class EagerReader(StepReader):
    """Reads one region: an `lmhub.chat.call_items.Eager`."""

    def __init__(self, tools: Sequence[Tool]):
        super().__init__(tools)
        self.is_whole = True
        self._keys: set[str] = set()

    @property
    def rest(self) -> str:
        """What no announced call has taken: nothing, for a region holds one call."""
        return "" if self.announced else self._text

    def finish(self) -> Iterator[str]:
        """The fragments that the end of the region decides."""
        if self._step == self._string:
            text = self._text.rpartition("}")[0] if "}" in self._text else self._text
            yield text if self._tool.custom else quoted(text)[1:]
        elif self._step == self._value:
            yield from self._read(self._text)
        if self._step not in (self._head, self._nothing) and not self._tool.custom:
            yield "}" if self._keys else "{}"
        self._step = self._nothing

    def _nothing(self) -> Iterator[str]:
        self._text = "" if self.announced else self._text
        return iter(())

    def _head(self) -> Iterator[Announced]:
        found = _HEAD.match(self._text)
        if found is None:
            if len(self._text) > _MAX_HEAD:
                self._step = self._nothing
            return
        tool = next((one for one in self._tools if one.name == found[1]), None)
        if tool is None or not tool.eager or self._text.startswith('"', found.end()):  # JSON comes whole
            self._step = self._nothing
            return
        self.announced, self.is_whole, self._tool = True, False, tool
        self._text = self._text[found.end() :]
        yield Announced(tool)
        self._step = self._key

    def _key(self) -> Iterator[str]:
        self._text = self._text.lstrip(", \n\t\r")
        if self._text.startswith("}"):
            if not self._tool.custom:
                yield "}" if self._keys else "{}"
            self.is_whole, self._step = True, self._nothing
            return
        found = KEY.match(self._text)
        if found is None or not self._text[found.end() :].strip():
            return
        self._name, self._text = found[1].strip(), self._text[found.end() :].lstrip()
        self._step = self._value

    def _value(self) -> Iterator[str]:
        if self._text.startswith(QUOTE):
            properties = properties_of(self._tool.parameters or {})
            types = types_of(properties[self._name], self._tool.parameters) if self._name in properties else None
            if self._name not in self._keys and (types is None or "string" in types or self._tool.custom):
                self._text = self._text[len(QUOTE) :]
                if not self._tool.custom:
                    yield f'{self._lead()}{quoted(self._name)}:"'
                self._step = self._string
                return
        end = _value_end(self._text)
        if end is not None:
            taken, self._text = self._text[:end], self._text[end:]
            yield from self._read(taken)
            self._step = self._key

    def _read(self, text: str) -> Iterator[str]:
        """A whole value, as `calls` reads it."""
        found = parse_calls(f"call:{self._tool.name}{{{self._name}:{text}}}", self._tools)
        if found and self._name not in self._keys and not self._tool.custom and len(found[0][1]) > len("{}"):
            lead = self._lead()
            yield lead + found[0][1][1:-1]

    def _lead(self) -> str:
        first = not self._keys
        self._keys.add(self._name)
        return "{" if first else ","

    def _string(self) -> Iterator[str]:
        text, quote, rest = self._text.partition(QUOTE)
        if quote:
            self._text, self._step = rest, self._key
        else:
            doubtful = _DOUBTFUL.search(text)
            at = doubtful.start() if doubtful else len(text)
            text, self._text = text[:at], text[at:]
        shown = text if self._tool.custom else quoted(text)[1:-1]
        if quote and not self._tool.custom:
            shown += '"'
        if shown:
            yield shown


def _value_end(text: str) -> int | None:
    """Where a value ends that is no string between quotation tokens, or is within brackets; None: not known yet."""
    if text[:1] not in ("{", "["):
        if text.startswith(QUOTE):
            end = text.find(QUOTE, len(QUOTE))
            return None if end < 0 else end + len(QUOTE)
        found = _PLAIN.match(text)
        return found.end() if found else None
    depth, at = 0, 0
    while at < len(text) and text[at] not in "\"'":  # what is written as JSON waits for the end
        if text.startswith(QUOTE, at):
            at = text.find(QUOTE, at + len(QUOTE))
            if at < 0:
                return None
            at += len(QUOTE)
            continue
        depth += (text[at] in "{[") - (text[at] in "}]")
        at += 1
        if depth == 0:
            return at
    return None
