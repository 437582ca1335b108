"""Request fields that constrain the reply, under the names that servers of this kind use. Knows no dialect.

Only one of them can hold at a time, together with the dialect's own (`response_format`, `text.format`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from lmhub.errors import RequestError
from lmhub.server.fields import honoured
from lmhub.server.sampling_fields import SamplingFields
from lmhub.types import GrammarSpec

ANY_OBJECT = '{"type":"object"}'

Choices = Annotated[list[str], Meta(min_length=1)]


class StructuredOutputs(msgspec.Struct):
    """vLLM's spelling."""

    json: Any = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None


class GrammarFields(SamplingFields, kw_only=True):
    """A part of a request body, together with the sampling."""

    regex: str | None = None
    lark: str | None = None
    grammar: str | None = None
    json_schema: Any = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None


GRAMMAR_TABLE = (
    honoured("regex", "the whole reply matches this regular expression"),
    honoured("lark", "the whole reply matches this Lark grammar"),
    honoured("grammar", "the whole reply matches this GBNF grammar (llama.cpp)"),
    honoured("json_schema", "the reply matches this bare schema (llama.cpp)"),
    honoured("guided_json", "a schema, or its text (vLLM)"),
    honoured("guided_regex", "another name of `regex` (vLLM)"),
    honoured("guided_choice", "the reply is one of these strings (vLLM)"),
    honoured("guided_grammar", "a grammar, GBNF where it holds `::=`, else Lark (vLLM)"),
    honoured("structured_outputs", "one of `json`, `regex`, `choice`, `grammar`, `json_object` (vLLM)"),
)


def grammar(fields: GrammarFields, own: GrammarSpec | None) -> GrammarSpec | None:
    """The one constraint of a request, `own` being what the dialect's own field says. Raises RequestError if two."""
    found = own
    for spec in _given(fields):
        if found is not None:
            raise RequestError(f"{spec.param} and {found.param} both constrain the reply; leave one out", spec.param)
        found = spec
    return found


def schema_spec(schema: Any, param: str) -> GrammarSpec:
    """The constraint of a JSON schema, its keys in the order they came in. Raises RequestError."""
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema)
        except (msgspec.DecodeError, RecursionError):
            raise RequestError(f"{param} is text, but not the text of a JSON schema", param) from None
    if not isinstance(schema, Mapping | bool):
        raise RequestError(f"{param} must hold a JSON schema: an object, true or false", param)
    return GrammarSpec("json_schema", msgspec.json.encode(schema).decode(), param)


def _given(fields: GrammarFields) -> Iterator[GrammarSpec]:
    vllm = fields.structured_outputs or StructuredOutputs()
    for name, schema in (
        ("json_schema", fields.json_schema),
        ("guided_json", fields.guided_json),
        ("structured_outputs", vllm.json),
    ):
        if schema is not None:
            yield schema_spec(schema, name)
    for name, regex in (
        ("regex", fields.regex),
        ("guided_regex", fields.guided_regex),
        ("structured_outputs", vllm.regex),
    ):
        if regex is not None:
            yield GrammarSpec("regex", regex, name)
    if fields.lark is not None:
        yield GrammarSpec("lark", fields.lark, "lark")
    for name, text in (
        ("grammar", fields.grammar),
        ("guided_grammar", fields.guided_grammar),
        ("structured_outputs", vllm.grammar),
    ):
        if text is not None:
            yield GrammarSpec("gbnf" if name == "grammar" or "::=" in text else "lark", text, name)
    for name, choices in (("guided_choice", fields.guided_choice), ("structured_outputs", vllm.choice)):
        if choices is not None:
            yield GrammarSpec("choice", msgspec.json.encode(choices).decode(), name)
    if vllm.json_object:
        yield GrammarSpec("json_schema", ANY_OBJECT, "structured_outputs")
