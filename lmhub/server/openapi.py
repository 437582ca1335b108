"""`GET /openapi.json`: the request bodies of every dialect, from the records that parse them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lmhub import __version__
from lmhub.dialect import Dialect
from lmhub.server.fields import json_schema
from lmhub.server.tokens import DETOKENIZE_FIELDS, TOKENIZE_FIELDS, DetokenizeBody, TokenizeBody


def description(dialects: Sequence[Dialect]) -> dict[str, Any]:
    """An OpenAPI 3.1 document. Paths have their `/v1`; without it they are served as well."""
    components: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for dialect in dialects:
        if dialect.schema is None:
            continue
        reference = _add(components, dialect.name, dialect.schema)
        for route in (*dialect.routes, *dialect.count_routes):
            paths[f"/v1{route}"] = {"post": _operation(f"{dialect.name}{route}", reference, dialect.doc)}
    chat = next((dialect for dialect in dialects if "/chat/completions" in dialect.routes), None)
    utilities: dict[str, Mapping[str, Any]] = {
        "tokenize": json_schema(TokenizeBody, TOKENIZE_FIELDS),
        "detokenize": json_schema(DetokenizeBody, DETOKENIZE_FIELDS),
    }
    if chat is not None and chat.schema is not None:
        utilities["apply-template"] = chat.schema
    for name, schema in utilities.items():
        paths[f"/{name}"] = {"post": _operation(name, _add(components, name, schema), "Tokens and templates")}
    return {
        "openapi": "3.1.0",
        "info": {"title": "lmhub", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"bearer": []}],
    }


def _add(components: dict[str, Any], name: str, schema: Mapping[str, Any]) -> str:
    """Add a schema and its `$defs` under names of their own; the reference to it."""
    text = json.dumps(schema).replace('"#/$defs/', f'"#/components/schemas/{name}.')
    moved = json.loads(text)
    for inner, definition in moved.pop("$defs", {}).items():
        components[f"{name}.{inner}"] = definition
    components[name] = moved
    return f"#/components/schemas/{name}"


def _operation(id: str, reference: str, doc: str) -> dict[str, Any]:
    body = {"required": True, "content": {"application/json": {"schema": {"$ref": reference}}}}
    answers = {
        "200": {"description": "the reply, whole or as server-sent events"},
        "default": {"description": "an error in the dialect's envelope"},
    }
    return {"operationId": id.replace("/", "-"), "summary": doc, "requestBody": body, "responses": answers}
