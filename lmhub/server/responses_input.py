"""Input items to messages. Clients replay whatever they once got, so what no template has a place for is left out.

Neighbouring items of the assistant (text, reasoning, calls) are one turn, and so are neighbouring outputs of tools.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from lmhub.errors import RequestError
from lmhub.server.fields import unsupported
from lmhub.server.json_body import convert
from lmhub.server.responses_tools import flattened
from lmhub.server.tools_json import custom_arguments
from lmhub.types import Message, Part, Reasoning, Role, Text, ToolCall, ToolResult

log = logging.getLogger("lmhub.server")

Value = Mapping[str, Any]

_ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_MEDIA = ("input_image", "input_file", "input_audio", "image_url", "file", "video_url")
_HOSTED = (  # item types, and beginnings of item types
    *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "computer_call"),
    *("mcp_", "local_shell_call", "shell_call", "apply_patch_call", "tool_search", "compaction", "context_compaction"),
    *("additional_tools", "program"),
)


class _Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None


class _Call(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any]
    call_id: str | None = None
    namespace: str | None = None


class _CustomCall(msgspec.Struct):
    name: str
    input: str
    call_id: str | None = None
    namespace: str | None = None


class _Output(msgspec.Struct):
    output: str | list[Any] | dict[str, Any] | None = None
    call_id: str | None = None


class _Turns:
    """Messages under construction."""

    def __init__(self) -> None:
        self.turns: list[tuple[Role, list[Part]]] = []

    def add(self, role: Role, *parts: Part) -> None:
        """Extend the last turn if it is the assistant's or the tools', else begin one."""
        if role in ("assistant", "tool") and self.turns and self.turns[-1][0] == role:
            self.turns[-1][1].extend(parts)
        else:
            self.turns.append((role, list(parts)))


def kind_of(item: Value, path: str) -> str:
    """The type of an item; two kinds go without saying. Raises RequestError."""
    kind = item.get("type")
    if kind is None:
        if item.get("role") is not None:
            return "message"
        if isinstance(item.get("id"), str):
            return "item_reference"
        raise RequestError(f"{path}.type is missing, and there is neither a role nor an id to tell it by", "input")
    if not isinstance(kind, str):
        raise RequestError(f"{path}.type must be a string", "input")
    return kind


def messages(items: Iterable[tuple[Value, str]], unseal: Callable[[object], str | None]) -> tuple[Message, ...]:
    """The conversation that `(item, path)` pairs tell. References must have been resolved. Raises RequestError.

    A turn in which the assistant only reasoned is left out: nothing came of it.
    """
    turns = _Turns()
    calls: set[str] = set()
    dropped: list[str] = []
    for item, path in items:
        kind = kind_of(item, path)
        if kind == "message":
            turns.add(*_message(item, path))
        elif kind == "function_call":
            call = _converted(item, _Call, path)
            arguments = call.arguments
            if not isinstance(arguments, str):
                arguments = json.dumps(arguments, ensure_ascii=False)  # with the blanks of the templates' own `tojson`
            calls.add(call.call_id or "")
            name = flattened(call.name, call.namespace)
            turns.add("assistant", ToolCall(call.call_id or "", name, arguments or "{}"))
        elif kind == "custom_tool_call":
            custom = _converted(item, _CustomCall, path)
            calls.add(custom.call_id or "")
            name = flattened(custom.name, custom.namespace)
            turns.add("assistant", ToolCall(custom.call_id or "", name, custom_arguments(custom.input)))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            output = _converted(item, _Output, path)
            turns.add("tool", ToolResult(output.call_id or "", _output(output.output, f"{path}.output")))
        elif kind == "reasoning":
            turns.add("assistant", *(Reasoning(text) for text in _reasoning(item, unseal)))
        elif kind.startswith(_HOSTED):
            result = _hosted_result(item, calls) if kind.endswith("_output") else None
            if result is None:
                dropped.append(kind)
            else:
                turns.add("tool", result)
        else:
            raise RequestError(f"{path} is of an unsupported item type {kind[:100]!r}; leave it out", "input")
    if dropped:
        log.info("left out input items that no model can read: %s", ", ".join(sorted(set(dropped))))
    return tuple(
        Message(role, tuple(parts))
        for role, parts in turns.turns
        if role != "assistant" or not all(isinstance(part, Reasoning) for part in parts)
    )


def text_of(content: str | Sequence[Any] | None, path: str) -> str:
    """All text of a content, joined without a separator; what a refusal said is dropped. Raises RequestError."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(_part(part, f"{path}[{place}]") for place, part in enumerate(content))


def _message(item: Value, path: str) -> tuple[Role, Part]:
    given = _converted(item, _Message, path)
    if given.role not in _ROLES:
        raise RequestError(f"{path}.role is unknown: {given.role[:100]!r}; known: {', '.join(_ROLES)}", "input")
    if given.content is None and given.role != "assistant":
        raise RequestError(f"{path}.content is missing", "input")
    return _ROLES[given.role], Text(text_of(given.content, f"{path}.content"))


def _part(part: Any, path: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise RequestError(f"{path} must be an object", "input")
    kind = part.get("type")
    if kind == "refusal":
        return ""
    if kind in _MEDIA:
        raise unsupported("input", f"{path} is of type {kind}, and this server reads text only; leave it out")
    if kind not in _TEXTS:
        raise RequestError(f"{path} is of an unknown type {str(kind)[:100]!r}; send input_text", "input")
    text = part.get("text")
    if not isinstance(text, str):
        raise RequestError(f"{path}.text must be a string", "input")
    return text


def _output(output: str | list[Any] | dict[str, Any] | None, path: str) -> str:
    """What a tool answered, as text; an object is its JSON text.

    The model is told of a picture that it cannot see: refused, it would end the session for good, being history.
    """
    if isinstance(output, dict):
        return json.dumps(output, ensure_ascii=False)
    if isinstance(output, list):
        output = [_unseen(part) if isinstance(part, Mapping) else part for part in output]
    return text_of(output, path)


def _unseen(part: Value) -> Value:
    kind = part.get("type")
    return {"type": "text", "text": f"[{kind} left out: this model reads text only]"} if kind in _MEDIA else part


def _reasoning(item: Value, unseal: Callable[[object], str | None]) -> list[str]:
    """What was thought: from our own blob, else in the clear. A summary is not what the model thought."""
    text = unseal(item.get("encrypted_content"))
    if text is None and isinstance(item.get("content"), list):
        parts = [part for part in item["content"] if isinstance(part, Mapping) and part.get("type") == "reasoning_text"]
        text = "".join(part["text"] for part in parts if isinstance(part.get("text"), str))
    return [text] if text else []


def _hosted_result(item: Value, calls: set[str]) -> ToolResult | None:
    """The text that a hosted tool's output carries for a call that the model is shown."""
    call_id, output = item.get("call_id"), item.get("output")
    if not isinstance(call_id, str) or call_id not in calls or not isinstance(output, str | list):
        return None
    try:
        return ToolResult(call_id, text_of(output, "output"))
    except RequestError:
        return None


def _converted(item: Value, kind: type[Any], path: str) -> Any:
    try:
        return convert(item, kind)
    except RequestError as error:
        raise RequestError(f"{path}.{error}", "input") from None
