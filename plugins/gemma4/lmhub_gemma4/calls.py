"""Reads Gemma 4's tool calls: `call:NAME{key:value,...}` between their markers, strings between quotation tokens.

    value: <|"|>any text<|"|> | {key:value,...} | [value,...] | number | true | false | null

Text within quotation tokens is raw: nothing in it is an escape. What models get wrong around it is put right: JSON in
the place of this notation, other quotes, words without any, brackets that were never closed. Numbers stay as the model
wrote them, keys in its order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from lmhub.chat.hermes import DECODER
from lmhub.chat.values import as_json, properties_of, quoted, resolved, types_of
from lmhub.types import Tool
from lmhub_gemma4 import QUOTE

_NAME = re.compile(r"\s*(?:call\s*:\s*([^\s{(\[]{1,256})\s*|([\w.-]{1,256})\s*(?=[{(]))")
_BLANK = re.compile(r"\s*")
KEY = re.compile(r"([^:={}\[\],]{1,256}?)\s*[:=]")
# What a value without quotation tokens ends at, by the bracket around it: in an object, a comma may be part of it.
_END = {
    "{": r"\s{0,64}(?=(?:,\s{0,64}){0,9}(?:[}\])]|$)|(?:,\s{0,64}){1,9}[^:={}\[\],]{1,256}[:=])",
    "[": r"\s{0,64}(?=[,\]}]|$)",
}
_WORD = {bracket: re.compile(".*?" + end, re.DOTALL) for bracket, end in _END.items()}
_CLOSING_QUOTE = {quote + bracket: re.compile(quote + end) for quote in "\"'" for bracket, end in _END.items()}
_SAID = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}


def parse_calls(text: str, tools: Sequence[Tool] = (), cut: bool = False) -> Sequence[tuple[str, str]] | None:
    """The call between two markers as a (name, JSON text of the arguments) pair; None if it is none. Never raises.

    `tools` tell strings from numbers where the notation does not. A text that was `cut` off is not completed.
    """
    head = _NAME.match(text)
    if head is None:
        return None
    name, body = head[1] or head[2], text[head.end() :]
    schema = next((tool.parameters for tool in tools if tool.name == name), None) or {}
    try:
        return [(name, _as_it_is(body) or _Reader(body, schema, cut).arguments())]
    except (ValueError, RecursionError):
        return None


def _as_it_is(body: str) -> str | None:
    """Arguments that are JSON already, in one pair of braces or two."""
    for candidate in (body, body[1:]):
        try:
            _, end = DECODER.raw_decode(candidate)
        except (ValueError, RecursionError):
            continue
        if candidate.startswith("{") and not candidate[end:].strip("} \n"):
            return candidate[:end]
    return None


class _Reader:
    """Reads one value after the other, from `at` on. Raises ValueError for what cannot be meant."""

    def __init__(self, text: str, schema: Any, cut: bool):
        self._text, self._root, self._cut = text, schema, cut
        self._at = 0

    def arguments(self) -> str:
        """The whole text as a JSON object; no arguments at all are an empty one."""
        if not self._text.strip():
            self._must_be_whole()
            return "{}"
        if self._text[0] not in "{(":
            raise ValueError("arguments are an object")
        self._at = 1
        return self._object(self._root)

    def _must_be_whole(self) -> None:
        if self._cut:
            raise ValueError("the reply was cut off")

    def _skip(self) -> str:
        """Blanks; then the next letter, "" at the end."""
        found = _BLANK.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return self._text[self._at : self._at + 1]

    def _ended(self, closers: str) -> bool:
        """Whether a bracket closes here, commas and blanks before it skipped. The end closes all of them."""
        while self._skip() == ",":
            self._at += 1
        letter = self._text[self._at : self._at + 1]
        if not letter:
            self._must_be_whole()
            return True
        self._at += letter in closers
        return letter in closers

    def _object(self, schema: Any) -> str:
        properties = properties_of(resolved(schema, self._root))
        members: dict[str, str] = {}
        while not self._ended("})"):
            key = self._key()
            if key in members:
                raise ValueError("a key occurs twice")
            members[key] = self._value(properties.get(key), "{")
        return "{" + ",".join(f"{quoted(key)}:{value}" for key, value in members.items()) + "}"

    def _list(self, schema: Any) -> str:
        found = resolved(schema, self._root)
        of_items = found.get("items") if isinstance(found, Mapping) else None
        values = []
        while not self._ended("]"):
            values.append(self._value(of_items, "["))
        return "[" + ",".join(values) + "]"

    def _key(self) -> str:
        if self._text.startswith((QUOTE, '"'), self._at):
            key = self._quoted() if self._text.startswith(QUOTE, self._at) else self._written('"', ":")
            if self._skip() not in (":", "="):
                raise ValueError("a key without a value")
            self._at += 1
            return key
        found = KEY.match(self._text, self._at)
        if found is None:
            raise ValueError("a key is expected")
        self._at = found.end()
        return found[1].strip()

    def _value(self, schema: Any, within: str) -> str:
        """The JSON text of the value; `within` is the bracket around it."""
        types = None if schema is None else types_of(schema, self._root)
        letter = self._skip()
        if letter in ("{", "["):
            self._at += 1
            return self._object(schema) if letter == "{" else self._list(schema)
        if self._text.startswith(QUOTE, self._at) or letter in ('"', "'"):
            text = self._written(letter, within) if letter in ('"', "'") else self._quoted()
            return quoted(text) if types is None or "string" in types else as_json(text, types)
        found = _WORD[within].match(self._text, self._at)
        self._at = found.end() if found else len(self._text)
        word = found[0].strip() if found else ""
        if not word or self._at == len(self._text):
            self._must_be_whole()
        if word in _SAID and types != frozenset(("string",)):
            return _SAID[word]
        return as_json(word, types)

    def _quoted(self) -> str:
        """The raw text between two quotation tokens; without the second one, up to the last brace."""
        start = self._at + len(QUOTE)
        end = self._text.find(QUOTE, start)
        if end < 0:
            self._must_be_whole()
            brace = self._text.rfind("}")
            self._at = brace if brace >= start else len(self._text)
            return self._text[start : self._at]
        self._at = end + len(QUOTE)
        return self._text[start:end]

    def _written(self, quote: str, within: str) -> str:
        """A string between ordinary quotes: JSON where it is, otherwise raw up to a quote that a value can end with."""
        with suppress(ValueError):
            text, end = DECODER.raw_decode(self._text, self._at)
            if within == ":" or re.match(_END[within], self._text[end : end + 300]):
                self._at = end
                return str(text)
        found = _CLOSING_QUOTE[quote + within].search(self._text, self._at + 1) if within != ":" else None
        if found is None:
            raise ValueError("a string does not end")
        start, self._at = self._at + 1, found.start() + 1
        return self._text[start : found.start()]
