"""The messages of a Chat Completions request, as clients write them: contents as a string, as parts, or not at all.

What a template wants of a conversation (one system message, alternating turns) is not this file's business.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec

from lmhub.errors import RequestError
from lmhub.server.tools_json import custom_arguments
from lmhub.types import Message, Part, Reasoning, Role, Text, ToolCall, ToolResult

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_MEDIA = ("image_url", "input_image", "input_audio", "file", "input_file", "video_url")


class InPart(msgspec.Struct):
    """One content part. Only text parts have `text`."""

    type: str
    text: str | None = None


class InFunction(msgspec.Struct):
    """The function of a call in the history. Clients replay arguments as JSON text, as an object, or not at all."""

    name: str
    arguments: str | dict[str, Any] | None = None


class InCustom(msgspec.Struct):
    """A freeform call in the history; its input is text."""

    name: str
    input: str | None = None


class InCall(msgspec.Struct):
    """A call in the history."""

    id: str | None = None
    function: InFunction | None = None
    custom: InCustom | None = None


class InMessage(msgspec.Struct):
    """One message. Fields that no template reads (`name`, `annotations`, ...) are dropped."""

    role: str
    content: str | list[InPart] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[InCall] | None = None
    tool_call_id: str | None = None


def messages(given: Sequence[InMessage]) -> tuple[Message, ...]:
    """The conversation. Raises RequestError with the param `messages` and the place in the message."""
    if not given:
        _refuse("messages", "is empty; at least one message is required")
    return tuple(_message(message, f"messages[{place}]") for place, message in enumerate(given))


def _message(given: InMessage, path: str) -> Message:
    if given.role == "function":
        _refuse(f"{path}.role", "is function, which is out of use; send tool")
    if given.role not in ROLES:
        _refuse(f"{path}.role", f"is an unknown role {given.role[:100]!r}; known: {', '.join(ROLES)}")
    role = ROLES[given.role]
    if given.tool_calls and role != "assistant":
        _refuse(f"{path}.tool_calls", "belongs to the assistant's messages only")
    if role == "tool":
        return Message(role, (ToolResult(given.tool_call_id or "", "".join(_texts(given, path))),))
    if role == "assistant":
        return Message(role, _assistant(given, path))
    if given.content is None:
        _refuse(f"{path}.content", "is missing")
    return Message(role, tuple(map(Text, _texts(given, path))))


def _assistant(given: InMessage, path: str) -> tuple[Part, ...]:
    reasoning = given.reasoning_content or given.reasoning
    calls = [_call(call, f"{path}.tool_calls[{place}]") for place, call in enumerate(given.tool_calls or ())]
    if given.content is None and not calls and reasoning is None and given.refusal is None:
        _refuse(f"{path}.content", "is missing; only a message with tool_calls may go without")
    parts: list[Part] = [Reasoning(reasoning)] if reasoning else []
    parts += map(Text, _texts(given, path)) if given.content is not None else []
    return (*parts, *calls)


def _texts(given: InMessage, path: str) -> list[str]:
    """The texts of the content, which most models see as one; what a refusal said is dropped."""
    if not isinstance(given.content, list):
        return [given.content or ""]
    return [_part(part, f"{path}.content[{place}]") for place, part in enumerate(given.content)]


def _part(part: InPart, path: str) -> str:
    if part.type == "refusal":
        return ""
    if part.type in _MEDIA:
        raise RequestError(
            f"{path} is of type {part.type}, and this server reads text only; leave it out",
            "messages",
            "unsupported_parameter",
        )
    if part.type not in ("text", "input_text", "output_text"):
        _refuse(path, f"is of an unknown type {part.type[:100]!r}; send text")
    if part.text is None:
        _refuse(f"{path}.text", "is missing")
    return part.text


def _call(call: InCall, path: str) -> ToolCall:
    if call.custom is not None:
        return ToolCall(call.id or "", call.custom.name, custom_arguments(call.custom.input or ""))
    if call.function is None:
        _refuse(f"{path}.function", "is missing")
    arguments = call.function.arguments
    if isinstance(arguments, dict):
        arguments = json.dumps(arguments, ensure_ascii=False)  # with the blanks of the templates' own `tojson`
    # Text that is no JSON goes on as it is: models write such calls, and clients replay them.
    return ToolCall(call.id or "", call.function.name, arguments or "{}")


def _refuse(path: str, problem: str) -> NoReturn:
    raise RequestError(f"{path} {problem}", "messages")
