"""What people pass to the Python API (OpenAI-style dicts, options), checked and turned into the records of `types.py`.

For the Python API only: the HTTP dialects check bytes from strangers and have parsers of their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from lmhub.errors import RequestError
from lmhub.types import (
    Denoising,
    GrammarSpec,
    Message,
    Part,
    Reasoning,
    Role,
    SamplingParams,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
)

MAX_LOGPROBS = 20

_BOUNDS: dict[str, tuple[float, float]] = {
    "temperature": (0, 100),
    "top_k": (0, 2**31 - 1),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "repeat_penalty": (1e-3, 100),
    "presence_penalty": (-100, 100),
    "frequency_penalty": (-100, 100),
    "repeat_last_n": (-1, 2**31 - 1),
    "seed": (0, 2**64 - 1),
}
_DENOISING: dict[str, tuple[float, float]] = {
    "steps": (1, 1000),
    "t_min": (1e-3, 100),
    "t_max": (1e-3, 100),
    "entropy_bound": (0, 1e9),
    "stability": (0, 1000),
    "confidence": (0, 1e9),
}
_WHOLE = frozenset(field.name for kind in (SamplingParams, Denoising) for field in fields(kind) if field.type == "int")
_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


def message_from(given: Message | Mapping[str, Any], where: str) -> Message:
    """A Message from `{"role", "content"}`, with `tool_calls`, `tool_call_id`, `reasoning_content` where they apply.

    `where` names the message in errors. Raises RequestError.
    """
    if isinstance(given, Message):
        return given
    if not isinstance(given, Mapping) or str(given.get("role")) not in _ROLES:
        raise RequestError(f"{where} must be a dict with a role out of {', '.join(_ROLES)}", f"{where}.role")
    known = {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content"}
    if unknown := set(given) - known:
        name = min(map(str, unknown))
        raise RequestError(f"{where} has the unknown key {name!r}; known are {', '.join(sorted(known))}", where)
    content = _text(given.get("content"), where)
    if given["role"] == "tool":
        call_id = given.get("tool_call_id")
        if not isinstance(call_id, str):
            raise RequestError(f"{where} answers a tool call and needs its tool_call_id", f"{where}.tool_call_id")
        return Message("tool", (ToolResult(call_id, content),))
    parts: list[Part] = []
    if thought := given.get("reasoning_content"):
        parts.append(Reasoning(thought))
    if content:
        parts.append(Text(content))
    parts += [_call(call, f"{where}.tool_calls[{at}]") for at, call in enumerate(given.get("tool_calls") or ())]
    return Message(_ROLES[given["role"]], tuple(parts))


def tool_from(given: Tool | Mapping[str, Any], where: str) -> Tool:
    """A Tool from `{"name", "description", "parameters", "strict"}`, bare or as the "function" of one.

    Raises RequestError.
    """
    if isinstance(given, Tool):
        return given
    function = given.get("function", given) if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(f"{where} must be a dict with the name of a function", f"{where}.name")
    strict = function.get("strict") is True
    return Tool(function["name"], function.get("description"), function.get("parameters"), strict=strict)


def sampling_from(sampling: Mapping[str, float]) -> dict[str, float | int]:
    """The given sampling options, once they are known and within bounds; None is "not given". Raises RequestError."""
    return _numbers(sampling, _BOUNDS, "sampling options")


def denoising_from(denoising: Mapping[str, float] | None) -> dict[str, float | int]:
    """How a diffusion model is to denoise (fields of Denoising), likewise. Raises RequestError."""
    return _numbers(denoising or {}, _DENOISING, "those of denoising")


def _numbers(
    options: Mapping[str, float], bounds: Mapping[str, tuple[float, float]], kind: str
) -> dict[str, float | int]:
    given: dict[str, float | int] = {}
    for name, value in options.items():
        if name not in bounds:
            raise RequestError(f"there is no option {name}; {kind} are {', '.join(bounds)}", name)
        if value is None:
            continue
        low, high = bounds[name]
        whole = name in _WHOLE
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not low <= value <= high:
            wanted = "a whole number" if whole else "a number"
            raise RequestError(f"{name} must be {wanted} from {low:g} to {high:g}, not {value!r}", name)
        given[name] = value
    return given


def budget_from(max_tokens: int | None) -> int | None:
    """`max_tokens`, once it is a number of tokens or None. Raises RequestError."""
    if max_tokens is not None and (not isinstance(max_tokens, int) or max_tokens < 1):
        raise RequestError(f"max_tokens must be a whole number of at least 1, not {max_tokens!r}", "max_tokens")
    return max_tokens


def grammar_from(json_schema: Mapping[str, Any] | bool | None, grammar: GrammarSpec | None) -> GrammarSpec | None:
    """What a reply must match, out of the two ways to say it. Raises RequestError if both are given."""
    if json_schema is None:
        return grammar
    if grammar is not None:
        raise RequestError("json_schema and grammar exclude each other; give one of them", "grammar")
    try:
        return GrammarSpec("json_schema", json.dumps(json_schema), "json_schema")
    except (TypeError, ValueError):
        raise RequestError("json_schema must be a schema as json.dumps takes it", "json_schema") from None


def choice_from(tool_choice: str) -> ToolChoice:
    """auto, none, any, or the name of the tool to be called."""
    modes: dict[str, ToolChoice] = {"auto": ToolChoice("auto"), "none": ToolChoice("none"), "any": ToolChoice("any")}
    return modes.get(tool_choice) or ToolChoice("any", (tool_choice,))


def alternatives_from(logprobs: int | None) -> int | None:
    """`logprobs`, once it is a number of alternatives or None. Raises RequestError."""
    if logprobs is not None and (isinstance(logprobs, bool) or not 0 <= logprobs <= MAX_LOGPROBS):
        raise RequestError(f"logprobs must be a whole number from 0 to {MAX_LOGPROBS}, not {logprobs!r}", "logprobs")
    return logprobs


def stops_from(stop: str | Sequence[str]) -> tuple[str, ...]:
    """The stop strings of one or several. Raises RequestError."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if not all(isinstance(one, str) and one for one in stops):
        raise RequestError("stop must hold strings that are not empty", "stop")
    return stops


def _text(content: Any, where: str) -> str:
    """The text of `content`: a string, None, or a list of `{"type": "text", "text": ...}`."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = (
        [part.get("text") if isinstance(part, Mapping) else None for part in content]
        if isinstance(content, list)
        else [None]
    )
    if not all(isinstance(text, str) for text in texts):
        raise RequestError(f"the content of {where} must be a string or a list of text parts", f"{where}.content")
    return "".join(str(text) for text in texts)


def _call(given: Any, where: str) -> ToolCall:
    if isinstance(given, ToolCall):
        return given
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(f"{where} must hold an id and a function with name and arguments", where)
    arguments = function.get("arguments", "{}")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(str(given.get("id", "")), function["name"], text)
