"""Whether the grammar engine can hold a reply to a tool's schema, found out before anything runs.

Compiles grammars without a tokenizer: milliseconds each, remembered by their text. Knows no models and no requests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from lmhub.chat.tidy import tidied

MAX_SOURCE = 1 << 18  # characters of a schema
MAX_DEPTH = 64
MAX_PROPERTIES = 1000
MAX_VALUES = 2000  # of all its enums
_MAX_GRAMMAR = 20_000  # what the engine counts as size; larger ones take seconds to compile

_KEY = re.compile(r'Unimplemented keys: \["([^"]+)"')
_SAID = re.compile(r"(?:failed to compile JSON schema: )?([^\n]{1,200})")


@lru_cache(maxsize=512)
def problem(grammar: str) -> str | None:
    """What the engine has against a Lark grammar, in one line; None if nothing, or if there is no engine."""
    try:
        from llguidance import LLMatcher, LLParserLimits
    except ImportError:
        return None
    source = LLMatcher.grammar_from_lark(grammar)
    failed, messages = LLMatcher.validate_grammar_with_warnings(
        source, None, limits=LLParserLimits(max_grammar_size=_MAX_GRAMMAR)
    )
    if not failed:
        return None
    text = re.sub(r"^at \d+\(\d+\): ", "", messages[0] if messages else "it does not compile")
    found = _SAID.match(text)
    return found[1] if found else "it does not compile"


def too_large(schema: Mapping[str, Any]) -> str | None:
    """Which limit of this file a schema passes, None if it passes none."""
    n_properties = n_values = 0
    for path, value in _walk(schema, ()):
        if len(path) > 2 * MAX_DEPTH:
            return f"it is nested deeper than {MAX_DEPTH} levels"
        if path and path[-1] == "properties" and isinstance(value, Mapping):
            n_properties += len(value)
        if path and path[-1] == "enum" and isinstance(value, list):
            n_values += len(value)
    if n_properties > MAX_PROPERTIES:
        return f"it has {n_properties} properties and the limit is {MAX_PROPERTIES}"
    if n_values > MAX_VALUES:
        return f"its enums list {n_values} values and the limit is {MAX_VALUES}"
    return None


def located(schema: Mapping[str, Any], message: str) -> str:
    """`message` of the engine, with the place of the keyword that it names."""
    found = _KEY.search(message)
    if found is None:
        return message
    keyword = found[1]
    places = ("/".join(("#", *path)) for path, _ in _walk(schema, ()) if path and path[-1] == keyword)
    return f"the keyword {keyword!r} at {next(places, '#')} is not supported"


def as_object(parameters: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The schema of a tool's arguments, which are an object whether it says so or not, as the engine takes it."""
    schema: Mapping[str, Any] = tidied(parameters or {})
    return schema if "type" in schema else {**schema, "type": "object"}


def size_problem(schema: Mapping[str, Any]) -> str | None:
    """As `too_large`, the length of its text included."""
    try:
        length = len(json.dumps(schema))
    except (TypeError, ValueError, RecursionError):
        return "it is no JSON"
    if length > MAX_SOURCE:
        return f"it is {length} characters long and the limit is {MAX_SOURCE}"
    return too_large(schema)


def _walk(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    stack: list[tuple[tuple[str, ...], Any]] = [(path, value)]
    while stack:
        path, value = stack.pop()
        yield path, value
        if len(path) > 2 * MAX_DEPTH:
            continue
        if isinstance(value, Mapping):
            stack += [((*path, str(key)), item) for key, item in reversed(list(value.items()))]
        elif isinstance(value, list):
            stack += [((*path, str(place)), item) for place, item in reversed(list(enumerate(value)))]
