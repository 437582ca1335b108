"""From the text of a parameter to JSON, as the tool's schema says: `5` is a number for one and a string for another.

Schemas are hints here, not law: nothing is validated, and whatever a schema says that this file does not understand
means "any type".
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from lmhub.chat.hermes import DECODER

Types = frozenset[str] | None  # None: nothing is known

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_MAX_LITERAL = 1 << 16  # characters, and
_MAX_BRACKETS = 100  # of what is read as a Python literal: its parser recurses
_MAX_REFERENCES = 32
_KEYWORDS = frozenset(("true", "false"))


def properties_of(schema: Any) -> Mapping[str, Any]:
    """The properties that an object schema declares, references and compositions looked through."""
    found: dict[str, Any] = {}
    for part in _flattened(schema, schema):
        properties = part.get("properties")
        if isinstance(properties, Mapping):
            found = {**properties, **found}
    return found


def types_of(schema: Any, root: Any) -> Types:
    """The JSON types that `schema`, a part of `root`, allows; None if it does not say."""
    types: set[str] = set()
    alternatives = _alternatives(schema, root, _MAX_REFERENCES)
    for one in alternatives:
        named = _named_types(one, root)
        if named is None:
            return None
        types |= named
    return frozenset(types) if types else None


def as_json(text: str, types: Types) -> str:
    """`text` as JSON text of one of `types`; numbers letter by letter. A string where nothing else fits."""
    if types == frozenset(("string",)):
        return quoted(text)
    written = text.strip()
    if types is None:
        fits = written[:1] in ("{", "[") or written in _KEYWORDS or _NUMBER.fullmatch(written)
        return (_json(written) if fits else None) or quoted(text)
    found = _json(written) or _literal(written)
    if found is None:
        return quoted(text)
    kind = _type_of(found)
    if kind in types or (kind == "number" and "integer" in types and "string" not in types):
        return found
    if "string" in types or kind == "null":
        return quoted(text)
    if kind == "string" and types & {"integer", "number", "boolean", "object", "array"}:
        inner = _json(json.loads(found).strip())  # a value in quotes that it should not have
        return inner if inner is not None and _type_of(inner) in types else found
    return found


def quoted(text: str) -> str:
    """`text` as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def resolved(schema: Any, root: Any) -> Any:
    """What `schema` refers to within `root` (`#/...` only), or `schema` itself."""
    for _ in range(_MAX_REFERENCES):
        pointer = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(pointer, str) or not pointer.startswith("#"):
            return schema
        target: Any = root
        for step in pointer[1:].split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, Mapping) or key not in target:
                return {}
            target = target[key]
        schema = target
    return {}


def _flattened(schema: Any, root: Any, depth: int = 0) -> Iterable[Mapping[str, Any]]:
    schema = resolved(schema, root)
    if not isinstance(schema, Mapping) or depth > _MAX_REFERENCES:
        return
    yield schema
    for keyword in ("allOf", "anyOf", "oneOf"):
        for part in _list(schema.get(keyword))[:_MAX_REFERENCES]:
            yield from _flattened(part, root, depth + 8)


def _alternatives(schema: Any, root: Any, left: int) -> list[Any]:
    schema = resolved(schema, root)
    if not isinstance(schema, Mapping) or "type" in schema or left <= 0:
        return [schema]
    for keyword in ("anyOf", "oneOf"):
        if parts := _list(schema.get(keyword)):
            return [one for part in parts for one in _alternatives(part, root, left // 2)]
    parts = _list(schema.get("allOf"))
    return _alternatives(parts[0], root, left // 2) if parts else [schema]


def _named_types(schema: Any, root: Any) -> set[str] | None:
    if not isinstance(schema, Mapping):
        return None
    named = schema.get("type")
    values = [schema["const"]] if "const" in schema else _list(schema.get("enum"))
    if isinstance(named, str):
        types = {named}
    elif isinstance(named, list) and named and all(isinstance(one, str) for one in named):
        types = set(named)
    elif values:
        types = {_type_of(json.dumps(value)) for value in values}
    elif "properties" in schema:
        types = {"object"}
    elif "items" in schema:
        types = {"array"}
    else:
        return None
    return types | {"null"} if schema.get("nullable") is True else types


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _json(text: str) -> str | None:
    try:
        DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    return text


def _literal(text: str) -> str | None:
    """`text` as a Python literal, which histories show to models and models write after them."""
    if len(text) > _MAX_LITERAL or sum(map(text.count, "([{-+~")) > _MAX_BRACKETS:
        return None
    try:
        value = ast.literal_eval(text)
        return json.dumps(value, ensure_ascii=False, allow_nan=False) if _is_plain(value) else None
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | float)


def _type_of(text: str) -> str:
    first = text[:1]
    known = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}
    return known.get(first) or ("number" if any(mark in text for mark in ".eE") else "integer")
