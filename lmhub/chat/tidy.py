"""Makes a JSON schema palatable to the grammar engine without changing what it asserts.

Keywords that assert nothing, or nothing that can be enforced (`format` is an annotation unless it is known), come off;
everything else stays, in its order. Values such as those of `const` and `default` are never touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown")
)
_MAPS = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
_LISTS = frozenset(("anyOf", "oneOf", "allOf", "prefixItems"))
_OTHERS = frozenset(("not", "if", "then", "else", "propertyNames"))
_SINGLE = frozenset(
    ("items", "additionalItems", "unevaluatedItems", "contains", "additionalProperties", "unevaluatedProperties")
)
_IDLE = {"uniqueItems": False, "unevaluatedProperties": True, "unevaluatedItems": True, "propertyNames": True}


def tidied(schema: Any) -> Any:
    """`schema` without `x-guidance`, formats that nobody knows, and keywords set to what holds without them."""
    if not isinstance(schema, Mapping):
        return schema
    return {key: _value(key, value) for key, value in schema.items() if not _is_idle(key, value)}


def _is_idle(key: str, value: Any) -> bool:
    if key == "x-guidance":  # settings of the engine, which are not the client's
        return True
    if key == "format":
        return isinstance(value, str) and value not in FORMATS
    if key == "propertyNames":
        return value in (True, {}, {"type": "string"})
    return key in _IDLE and value is _IDLE[key]


def _value(key: str, value: Any) -> Any:
    if key in _MAPS and isinstance(value, Mapping):
        return {name: tidied(one) for name, one in value.items()}
    if key in (*_LISTS, "items") and isinstance(value, list):
        return [tidied(one) for one in value]
    return tidied(value) if key in _SINGLE or key in _OTHERS else value
