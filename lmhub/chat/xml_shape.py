"""The XML convention for tool calls as a grammar: parameter by parameter, as far as a schema can be written so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmhub.chat import hermes
from lmhub.chat.lark import VALUE_END, free_text, json_rule, literal, xml_shape_of_input
from lmhub.chat.values import resolved, types_of
from lmhub.types import Tool


def shape(tool: Tool, rule: str, schema: Mapping[str, Any] | None, exact: bool) -> str:
    """Lark lines in which `rule` is the text between the markers for one call of `tool`; see `ToolStyle`.

    Parameters come in the order of the schema, the required ones first. Where `exact` enforcement is asked for and
    the schema says more than this form can hold a text to, the call is JSON, which `calls.parse_calls` reads as well.
    """
    if tool.custom:
        return xml_shape_of_input(tool, rule)
    head, end = literal(f"\n<function={tool.name}>\n"), literal("</function>\n")
    if schema is None:
        key = f'"<parameter=" /[^>\\n]{{1,200}}/ ">\\n" {rule}_t'
        return f"{rule}: {head} ({key})* {end}\n{free_text(rule + '_t')}"
    properties, required = schema.get("properties", {}), schema.get("required", ())
    if not _is_list_of_properties(schema, properties, required) or (exact and _says_more(properties, schema)):
        return hermes.shape(tool, rule, schema, exact) if exact else shape(tool, rule, None, exact)
    if not properties and schema.get("additionalProperties", True) is True:
        return shape(tool, rule, None, exact)
    lines, order = [free_text(rule + "_t")], []
    for place, key in enumerate(sorted(properties, key=lambda key: key not in required)):
        name = f"{rule}_p{place}"
        order.append(name if key in required else f"{name}?")
        lines.append(_parameter_rule(name, f"{rule}_t", key, properties[key], schema))
    return f"{rule}: {' '.join((head, *order, end))}\n{''.join(lines)}"


_ANNOTATIONS = {
    *("$schema", "$id", "$comment", "$defs", "definitions"),
    *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
}
_OF_OBJECTS = _ANNOTATIONS | {"type", "properties", "required", "additionalProperties"}
_OF_STRINGS = _ANNOTATIONS | {"type", "enum", "const"}
_COMPOSED = {"anyOf", "oneOf", "allOf", "not", "if", "$ref", "patternProperties"}


def _is_list_of_properties(schema: Mapping[str, Any], properties: Any, required: Any) -> bool:
    """Whether an object schema can be written parameter by parameter."""
    return (
        not _COMPOSED & schema.keys()
        and isinstance(properties, Mapping)
        and isinstance(required, list | tuple)
        and all(key in properties for key in required)
        and all(key and key == key.strip() and not set(key) & set(">\n") for key in properties)
    )


def _says_more(properties: Mapping[str, Any], root: Mapping[str, Any]) -> bool:
    """Whether a schema holds the arguments, or a property that is free text here, to more than this form can."""
    if root.keys() - _OF_OBJECTS or (not properties and isinstance(root.get("additionalProperties"), Mapping)):
        return True
    for one in properties.values():
        schema = resolved(one, root)
        types = types_of(schema, root)
        if schema is True or schema == {} or (types is not None and "string" not in types):
            continue
        if not isinstance(schema, Mapping) or schema.keys() - _OF_STRINGS:
            return True
        if _choices(schema) is None and {"enum", "const"} & schema.keys():
            return True
    return False


def _parameter_rule(name: str, text: str, key: str, schema: Any, root: Mapping[str, Any]) -> str:
    head = literal(f"<parameter={key}>\n")
    schema = resolved(schema, root)
    types = types_of(schema, root)
    choices = _choices(schema) if isinstance(schema, Mapping) else None
    if choices:
        return f"{name}: {head} ({' | '.join(map(literal, choices))}) {literal(VALUE_END)}\n"
    if types is None or "string" in types:
        return f"{name}: {head} {text}\n"
    definitions = {word: root[word] for word in ("$defs", "definitions") if word in root}
    return f"{name}: {head} {name}_v {literal(VALUE_END)}\n{name}_v: {json_rule({**schema, **definitions})}\n"


def _choices(schema: Mapping[str, Any]) -> list[str] | None:
    """The strings that a schema lists, if that is all it allows."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
        return values
    return None
