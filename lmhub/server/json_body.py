"""From request bytes to a typed record, with errors that name the field. Knows no dialect."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from lmhub.errors import RequestError

MAX_DEPTH = 128  # levels of nesting; what comes after (templates, schemas) recurses as well

T = TypeVar("T")

_BOM = b"\xef\xbb\xbf"
# A surrogate pair, half of one, or any other escape (so that an escaped backslash before a "u" is not taken for one).
_ESCAPE = re.compile(rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(\\u[dD][89a-fA-F]..)|\\.", re.DOTALL)
_TYPES = {"int": "an integer", "float": "a number", "str": "a string", "bool": "true or false"} | {
    "array": "an array",
    "object": "an object",
    "null": "null",
}


def decode_object(body: bytes) -> dict[str, Any]:
    """The JSON object that `body` spells. Half a surrogate pair becomes U+FFFD. Raises RequestError."""
    try:
        value = _decode(body.removeprefix(_BOM))
    except msgspec.DecodeError as error:
        raise RequestError(f"request body is not valid JSON: {error}") from None
    except RecursionError:
        raise _too_deep() from None
    if not isinstance(value, dict):
        raise RequestError("request body must be a JSON object")
    _check_depth(value)
    return value


def convert(value: Mapping[str, Any], kind: type[T]) -> T:
    """`value` as the record `kind`, a msgspec Struct. Raises RequestError that names the path of the field.

    Unknown fields are dropped, booleans and strings are not numbers, and `64.0` is an integer at the top level.
    """
    whole = {k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in value.items()}
    try:
        return msgspec.convert(whole, kind)
    except msgspec.ValidationError as error:
        raise _field_error(str(error)) from None


def param(path: str) -> str:
    """The `param` of an error at `path`: dotted, cut at the first array (`messages[2].content` -> `messages`)."""
    return path.partition("[")[0]


def _decode(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        if "surrogate" not in str(error):
            raise
    return msgspec.json.decode(_ESCAPE.sub(lambda match: rb"\ufffd" if match[1] else match[0], body))


def _check_depth(value: Any) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        inner: list[Any] = []
        for one in level:
            inner += one.values() if isinstance(one, dict) else one
        level = [one for one in inner if isinstance(one, dict | list)]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> RequestError:
    return RequestError(f"request body is nested deeper than {MAX_DEPTH} levels, the limit; flatten it")


def _field_error(message: str) -> RequestError:
    """A msgspec message ("Expected `int | null`, got `str` - at `$.seed`") in the words of this server."""
    message, _, place = message.partition(" - at `$.")
    path = place.rstrip("`")
    if missing := re.fullmatch(r"Object missing required field `(.*)`", message):
        path = f"{path}.{missing[1]}" if path else missing[1]
        return RequestError(f"{path} is missing", param(path))
    if wrong := re.fullmatch(r"Expected `([^`]*)`, got `(\w+)`", message):
        wanted = " or ".join(_TYPES.get(name, name) for name in wrong[1].split(" | ") if name != "null")
        return RequestError(f"{path} must be {wanted}, not {_TYPES.get(wrong[2], wrong[2])}", param(path))
    limit = re.sub(r"Expected `(\w+)`", lambda match: f"must be {_TYPES.get(match[1], match[1])}", message)
    return RequestError(f"{path} {limit}", param(path))
