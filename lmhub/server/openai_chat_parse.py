"""The request body of Chat Completions. Pure: bytes in, ChatRequest or RequestError out; knows no model.

Every field has one of three fates, and `null` is the same as leaving it out:

- honoured: the fields of `_Body` from `messages` to `think`;
- refused by name where its loss would change the answer: `_UNSUPPORTED` and the rest of `_Body`;
- ignored: everything else, whether known (`user`, `metadata`, `store`, `service_tier`, `verbosity`, `prompt_cache_key`,
  ...) or not, because clients send new bookkeeping with every release.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from lmhub.errors import RequestError
from lmhub.server.json_body import convert, decode_object
from lmhub.server.openai_chat_messages import InMessage, messages
from lmhub.types import ChatRequest, Tool

Unit = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
RepeatPenalty = Annotated[float, Meta(gt=0, le=4)]
StopString = Annotated[str, Meta(min_length=1)]

SEEDS = 2**64
EFFORTS = {"none": False, "minimal": False} | dict.fromkeys(("low", "medium", "high", "xhigh", "max", "default"), True)


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Function(msgspec.Struct):
    name: Annotated[str, Meta(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Tool(msgspec.Struct):
    type: str | None = None
    function: _Function | None = None


class _Body(msgspec.Struct):
    """The fields that mean something here. msgspec checks types and ranges; the functions below check the rest."""

    messages: list[InMessage]
    model: str | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Unit | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    min_p: Unit | None = None
    repeat_penalty: RepeatPenalty | None = None
    repetition_penalty: RepeatPenalty | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Meta(ge=-1)] | None = None
    max_tokens: Annotated[int, Meta(ge=-1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=-1)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=4)] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    tools: list[_Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    think: bool | None = None
    # Only the value that changes nothing is accepted of these:
    n: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool | None = None
    logit_bias: dict[str, Any] | list[Any] | None = None
    response_format: dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[str] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning_format: str | None = None
    thinking_budget_tokens: int | None = None
    reasoning_budget: int | None = None


_UNSUPPORTED = {
    "functions": "send `tools` instead",
    "function_call": "send `tool_choice` instead",
    "audio": "this server answers with text only",
    "prediction": "leave it out",
    "web_search_options": "this server has no web search",
    "top_logprobs": "this server returns no log probabilities",
    "reasoning": "send `reasoning_effort` instead",
} | dict.fromkeys(
    (
        *("regex", "lark", "grammar", "json_schema", "structured_outputs"),
        *("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    ),
    "this server does not constrain its output",
)


def parse(body: bytes) -> ChatRequest:
    """The conversation that a request body asks to continue. Raises RequestError naming the field."""
    value = decode_object(body)
    for name, advice in _UNSUPPORTED.items():
        if value.get(name) is not None:
            raise _unsupported(name, f"{name} is not supported: {advice}")
    fields = convert(value, _Body)
    _refuse_what_changes_the_answer(fields)
    stream_options = fields.stream_options
    if stream_options is not None and not fields.stream:
        raise RequestError("stream_options needs stream: true", "stream_options")
    kwargs = dict(fields.chat_template_kwargs or {})
    return ChatRequest(
        messages=messages(fields.messages),
        model=fields.model,
        tools=_tools(fields),
        sampling=_sampling(fields),
        max_tokens=_budget(fields),
        stop=(fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop or ()),
        reasoning=_reasoning(fields, kwargs.pop("enable_thinking", None)),
        template_kwargs=kwargs,
        stream=bool(fields.stream),
        include_usage=bool(stream_options and stream_options.include_usage),
    )


def _refuse_what_changes_the_answer(fields: _Body) -> None:
    """Refuse the fields that this server knows, does not implement, and that would make another answer right."""
    kind = (fields.response_format or {"type": "text"}).get("type")
    if kind not in ("text", "json_object", "json_schema"):
        raise RequestError("response_format.type must be text, json_object or json_schema", "response_format")
    refusals = {
        "n": (fields.n not in (None, 1), "one reply per request; send n: 1"),
        "logprobs": (bool(fields.logprobs), "this server returns no log probabilities"),
        "logit_bias": (bool(fields.logit_bias), "this server does not bias single tokens"),
        "response_format": (kind != "text", "this server does not constrain its output; ask for JSON in the prompt"),
        "parallel_tool_calls": (
            fields.parallel_tool_calls is False and bool(fields.tools),
            "this server does not limit a reply to one call; leave it out",
        ),
        "modalities": (fields.modalities not in (None, ["text"]), "this server answers with text only"),
        "add_generation_prompt": (fields.add_generation_prompt is False, "the assistant's turn is always opened"),
        "continue_final_message": (bool(fields.continue_final_message), "replies begin a new turn; leave it out"),
        "reasoning_format": (
            fields.reasoning_format not in (None, "auto", "deepseek"),
            "reasoning always comes apart from the content; send auto",
        ),
        "thinking_budget_tokens": (fields.thinking_budget_tokens not in (None, -1), "send max_tokens instead"),
        "reasoning_budget": (fields.reasoning_budget not in (None, -1), "send max_tokens instead"),
    }
    for name, (given, advice) in refusals.items():
        if given:
            raise _unsupported(name, f"this value of {name} is not supported: {advice}")


def _tools(fields: _Body) -> tuple[Tool, ...]:
    """The declared tools, or none where the choice is none. A choice that forces a call is refused."""
    tools = tuple(_tool(tool, place) for place, tool in enumerate(fields.tools or ()))
    choice = fields.tool_choice
    if choice is None or choice == "auto":
        return tools
    if choice == "none":
        return ()
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if kind not in ("required", "function", "custom", "allowed_tools"):
        raise RequestError("tool_choice must be auto, none, required or an object that names a tool", "tool_choice")
    if not tools:
        raise RequestError("tool_choice needs tools to choose from", "tool_choice")
    raise _unsupported("tool_choice", "this value of tool_choice is not supported: send auto or none")


def _tool(tool: _Tool, place: int) -> Tool:
    if tool.type not in (None, "function"):
        raise _unsupported("tools", f"tools[{place}] has the type {str(tool.type)[:100]!r}; only function is supported")
    if tool.function is None:
        raise RequestError(f"tools[{place}].function is missing", "tools")
    return Tool(tool.function.name, tool.function.description, tool.function.parameters)


def _sampling(fields: _Body) -> dict[str, float | int]:
    """Only what was given: the model's own defaults fill the rest."""
    seed = fields.seed
    if seed is not None and seed >= SEEDS:
        raise RequestError(f"seed must be below 2^64, not {str(seed)[:40]}", "seed")
    given = {
        "temperature": fields.temperature,
        "top_k": fields.top_k,
        "top_p": fields.top_p,
        "min_p": fields.min_p,
        "repeat_penalty": fields.repetition_penalty if fields.repeat_penalty is None else fields.repeat_penalty,
        "presence_penalty": fields.presence_penalty,
        "frequency_penalty": fields.frequency_penalty,
        "seed": None if seed == -1 else seed,
    }
    if fields.top_p == 0:  # a nucleus of nothing but the best token
        given |= {"temperature": 0.0, "top_p": None}
    return {name: value for name, value in given.items() if value is not None}


def _budget(fields: _Body) -> int | None:
    """The larger name wins where both are set; -1 asks for whatever the context leaves."""
    for name, value in (("max_completion_tokens", fields.max_completion_tokens), ("max_tokens", fields.max_tokens)):
        if value == 0:
            raise RequestError(f"{name} must be at least 1, not 0", name)
    budget = fields.max_tokens if fields.max_completion_tokens is None else fields.max_completion_tokens
    return None if budget == -1 else budget


def _reasoning(fields: _Body, template_switch: Any) -> bool | None:
    """Whether the model is to reason first; None leaves it to the template. The explicit switches beat the effort."""
    effort = fields.reasoning_effort
    if effort is not None and effort not in EFFORTS:
        raise RequestError(f"reasoning_effort must be one of {', '.join(EFFORTS)}", "reasoning_effort")
    if template_switch is not None and not isinstance(template_switch, bool):
        raise RequestError("chat_template_kwargs.enable_thinking must be true or false", "chat_template_kwargs")
    for switch in (template_switch, fields.enable_thinking, fields.think):
        if switch is not None:
            return switch
    return None if effort is None else EFFORTS[effort]


def _unsupported(name: str, message: str) -> RequestError:
    return RequestError(message, name, "unsupported_parameter")
