"""`response_format` of Chat Completions and Completions: what shape of JSON a reply must have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmhub.errors import RequestError
from lmhub.server.grammar_fields import ANY_OBJECT, schema_spec
from lmhub.types import GrammarSpec

NAME = "response_format"


def response_format(given: Mapping[str, Any] | None) -> GrammarSpec | None:
    """The constraint, or None for free text. Raises RequestError."""
    kind = "text" if given is None else given.get("type")
    if given is None or kind == "text":
        return None
    if kind == "json_object":
        schema = given.get("schema")
        return GrammarSpec("json_schema", ANY_OBJECT, NAME) if schema is None else schema_spec(schema, NAME)
    if kind == "json_schema":
        inner = given.get("json_schema")
        schema = inner.get("schema") if isinstance(inner, Mapping) else None
        if schema is None:
            raise RequestError(f"{NAME}.json_schema.schema is missing", NAME)
        return schema_spec(schema, NAME)
    raise RequestError(f"{NAME}.type must be text, json_object or json_schema", NAME)
