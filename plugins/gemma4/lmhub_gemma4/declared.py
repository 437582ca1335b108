"""Schemas of tools as Gemma 4's chat templates can show them: references resolved, one type each, no name left out.

The templates know a part of JSON schema. Of what they do not know they show nothing, or something broken: parameters
without a type lose a brace, and those that are named like a keyword vanish.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmhub.chat.traced import hidden, joined
from lmhub.chat.values import resolved

_KEYWORDS = frozenset(("description", "type", "properties", "required", "nullable"))
_MAX_DEPTH = 12  # of what is shown of schemas that hold themselves


def shown(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a tool's parameters; see `ToolStyle.schema`."""
    found = _shown(parameters, parameters, 0)
    return found if found["type"] == "object" else {"type": "object"}


def _shown(schema: Any, root: Any, depth: int) -> dict[str, Any]:
    """A schema with a single `type`, and of the rest what a value of that type can have."""
    schema, nullable = _branch(schema, root)
    kinds = schema.get("type", "")
    named = [kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if isinstance(kind, str) and kind]
    nullable = nullable or schema.get("nullable") is True or "null" in named
    kind = next((kind for kind in named if kind != "null"), "null" if named else _guessed(schema)).lower()
    out: dict[str, Any] = {"type": kind}
    if isinstance(schema.get("description"), str):
        out["description"] = schema["description"]
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        out["enum"] = [one for one in schema["enum"] if one is not None]
    if nullable and kind != "null":
        out["nullable"] = True
    if kind == "array":
        out["items"] = _shown(schema.get("items", {}), root, depth + 1) if depth < _MAX_DEPTH else {"type": "object"}
    if kind == "object":
        properties = schema.get("properties") if depth < _MAX_DEPTH else None
        members = properties.items() if isinstance(properties, Mapping) else ()
        out["properties"] = {_name(name): _shown(one, root, depth + 1) for name, one in members}
        required = schema.get("required")
        out["required"] = [one for one in required if isinstance(one, str)] if isinstance(required, list) else []
    return out


def _branch(schema: Any, root: Any) -> tuple[Mapping[str, Any], bool]:
    """What the schema refers to, of alternatives the first that is not null, and whether null is another one."""
    nullable = False
    for _ in range(_MAX_DEPTH):
        found = resolved(schema, root)
        found = found if isinstance(found, Mapping) else {}
        parts = next((found[key] for key in ("anyOf", "oneOf", "allOf") if isinstance(found.get(key), list)), [])
        given = [one for one in parts if isinstance(one, Mapping)]
        if "type" in found or not given:
            return found, nullable
        others = [one for one in given if one.get("type") != "null"]
        nullable = nullable or len(others) < len(given)
        chosen = resolved((others or given)[0], root)
        own = {key: found[key] for key in ("description",) if key in found}
        schema = {**(chosen if isinstance(chosen, Mapping) else {}), **own}
    return {}, nullable


def _guessed(schema: Mapping[str, Any]) -> str:
    """The type of a schema that names none."""
    values = schema.get("enum") or [schema.get("const", "")]
    if "properties" in schema or "items" in schema:
        return "object" if "properties" in schema else "array"
    first = values[0] if isinstance(values, list) else ""
    if isinstance(first, bool):
        return "boolean"
    return "number" if isinstance(first, int | float) else "string"


def _name(name: str) -> str:
    """A property's name, which the templates must not take for a keyword."""
    return joined((hidden("\ue000"), name)) if name in _KEYWORDS else name
