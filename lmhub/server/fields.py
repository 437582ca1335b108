"""What becomes of every field of a request body, in tables that parsers, documentation and `/openapi.json` share.

A field is honoured (it changes behaviour as its `doc` says), ignored (accepted, whatever it holds), or refused by name,
its `doc` being the advice that the refusal gives. Names without an entry are ignored as well: clients send new
bookkeeping with every release. Knows no dialect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from lmhub.dialect import Field
from lmhub.errors import RequestError

__all__ = ["Field", "honoured", "ignored", "json_schema", "markdown", "refuse", "refused", "unsupported"]


def honoured(name: str, doc: str) -> Field:
    """A field that changes behaviour."""
    return Field(name, "honoured", doc)


def ignored(doc: str, *names: str) -> tuple[Field, ...]:
    """Fields that share the reason for being ignored."""
    return tuple(Field(name, "ignored", doc) for name in names)


def refused(name: str, advice: str) -> Field:
    """A field that is refused by name wherever it is not null; `advice` is what the client should do instead."""
    return Field(name, "refused", advice)


def refuse(body: Mapping[str, Any], fields: Iterable[Field]) -> None:
    """Raise RequestError for the first refused field that `body` gives."""
    for field in fields:
        if field.kind == "refused" and body.get(field.name) is not None:
            raise unsupported(field.name, f"{field.name} is not supported: {field.doc}")


def unsupported(name: str, message: str) -> RequestError:
    """The refusal of a field, or of a value of it, that is known and not implemented."""
    return RequestError(message, name, "unsupported_parameter")


def markdown(fields: Sequence[Field]) -> str:
    """The table of docs/dialects.md."""
    rows = [f"| `{field.name}` | {field.kind} | {field.doc} |" for field in fields]
    return "\n".join(["| field | class | behaviour |", "|---|---|---|", *rows]) + "\n"


def json_schema(body: type[msgspec.Struct], fields: Sequence[Field]) -> dict[str, Any]:
    """The JSON schema of a body that is parsed as `body`, each property described by its field's `doc`."""
    (reference,), definitions = msgspec.json.schema_components([body], ref_template="#/$defs/{name}")
    schema = definitions.pop(reference["$ref"].removeprefix("#/$defs/"))
    docs = {field.name: field.doc for field in fields if field.kind == "honoured"}
    properties = {name: {**value, "description": docs[name]} for name, value in schema["properties"].items()}
    return {**schema, "properties": properties, "$defs": definitions}
