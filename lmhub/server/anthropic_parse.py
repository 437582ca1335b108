"""The request body of Messages. Pure: bytes in, ChatRequest or RequestError out; knows no model.

`null` is the same as leaving a field out. What each field does is told in anthropic_fields.py.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from lmhub.errors import RequestError
from lmhub.server.anthropic_messages import InMessage, conversation, system_message
from lmhub.server.anthropic_tools import InTool, InToolChoice, choice_of, tools_of
from lmhub.server.denoising_fields import DenoisingFields, denoising, drafts
from lmhub.server.fields import unsupported
from lmhub.server.grammar_fields import schema_spec
from lmhub.server.json_body import convert, decode_object
from lmhub.server.sampling_fields import NO_TOP_K, SEEDS, RepeatPenalty, StopString, Unit
from lmhub.settings import ServerSettings
from lmhub.types import ChatRequest, GrammarSpec

log = logging.getLogger("lmhub.server")


@dataclass(frozen=True, slots=True)
class Echo:
    """What the encoder wants to know of a request."""

    omit_thinking: bool = False


class Thinking(msgspec.Struct):
    """Whether the model thinks before it answers, for how long, and whether the client is shown it."""

    type: str
    budget_tokens: Annotated[int, Meta(ge=1)] | None = None
    display: str | None = None


class Format(msgspec.Struct):
    """What the reply must look like."""

    type: str
    schema: dict[str, Any] | bool | None = None


class OutputConfig(msgspec.Struct):
    """Form of the reply, and how much thought to give it."""

    format: Format | None = None
    effort: str | None = None


class Body(msgspec.Struct):
    """The fields that mean something here. msgspec checks types and ranges; the functions below check the rest."""

    model: str | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    messages: list[InMessage] | None = None
    system: str | list[dict[str, Any]] | None = None
    stream: bool | None = None
    temperature: Unit | None = None
    top_p: Unit | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    stop_sequences: list[StopString] | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: Format | None = None
    tools: list[InTool] | None = None
    tool_choice: InToolChoice | None = None
    min_p: Unit | None = None
    repeat_penalty: RepeatPenalty | None = None
    seed: Annotated[int, Meta(ge=-1)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    regex: str | None = None
    lark: str | None = None
    ignore_eos: bool | None = None
    denoising: DenoisingFields | None = None
    sse_ping_interval: Annotated[float, Meta(ge=-1)] | None = None


def parse(body: bytes, settings: ServerSettings) -> ChatRequest:
    """The conversation that a request body asks to continue. Raises RequestError naming the field."""
    request = parse_count(body, settings)
    if request.max_tokens is None:
        raise _required("max_tokens")
    return request


def parse_count(body: bytes, settings: ServerSettings) -> ChatRequest:
    """The same for a count, which has no budget."""
    value = decode_object(body)
    for name in ("mcp_servers", "container"):
        if value.get(name) and settings.strict_tools:
            raise unsupported(name, f"{name} needs a hosted service, which this server is not; leave it out")
        if value.get(name):
            log.warning("%s was ignored: what it offers to the model needs a hosted service", name)
    return _request(convert(value, Body), settings)


def _request(fields: Body, settings: ServerSettings) -> ChatRequest:
    if fields.model is None:
        raise _required("model")
    if fields.messages is None:
        raise _required("messages")
    turns, prefill = conversation(fields.messages)
    tools = tools_of(fields.tools or (), stream=bool(fields.stream), strict=settings.strict_tools)
    choice = choice_of(fields.tool_choice, tools)
    kwargs = dict(fields.chat_template_kwargs or {})
    reasoning = _reasoning(fields, kwargs)
    grammar = None if choice.mode == "any" else _grammar(fields)  # clients send both, and mean the call
    if prefill and not settings.prefill:
        raise RequestError(
            "the last of messages is the assistant's; this server wants a user message there", "messages"
        )
    if prefill:
        _check_prefill(reasoning, choice.mode == "any", grammar)
    return ChatRequest(
        messages=(*system_message(fields.system), *turns),
        model=fields.model,
        tools=tools,
        sampling=_sampling(fields),
        max_tokens=fields.max_tokens,
        stop=tuple(fields.stop_sequences or ()),
        reasoning=reasoning,
        reasoning_budget=fields.thinking.budget_tokens if fields.thinking is not None and reasoning else None,
        template_kwargs=kwargs,
        tool_choice=choice,
        parallel_tool_calls=not (fields.tool_choice is not None and fields.tool_choice.disable_parallel_tool_use),
        grammar=grammar,
        continue_final=prefill,
        ignore_eos=bool(fields.ignore_eos),
        stream=bool(fields.stream),
        include_usage=True,
        denoising=denoising(fields.denoising),
        drafts=drafts(fields.denoising),
        ping_s=fields.sse_ping_interval,
        lenient=True,
        echo=Echo(omit_thinking=fields.thinking is not None and fields.thinking.display == "omitted"),
    )


def _reasoning(fields: Body, kwargs: dict[str, Any]) -> bool | None:
    """Whether the model is to reason first; the template's own switch, taken out of `kwargs`, beats `thinking`."""
    kind = None if fields.thinking is None else fields.thinking.type
    if kind not in (None, "enabled", "adaptive", "between_tools", "disabled"):
        raise RequestError(
            f"thinking.type must be enabled, adaptive, between_tools or disabled, not {kind[:100]!r}", "thinking.type"
        )
    reasoning = None if kind is None else kind != "disabled"
    switch = kwargs.pop("enable_thinking", None)
    if switch is not None and not isinstance(switch, bool):
        raise RequestError("chat_template_kwargs.enable_thinking must be true or false", "chat_template_kwargs")
    if switch is not None:
        reasoning = switch
    if reasoning and fields.output_config is not None and fields.output_config.effort is not None:
        kwargs.setdefault("reasoning_effort", fields.output_config.effort)
    return reasoning


def _grammar(fields: Body) -> GrammarSpec | None:
    """What the reply must match. Raises RequestError where two fields constrain it."""
    specs: list[GrammarSpec] = []
    configured = None if fields.output_config is None else fields.output_config.format
    for given, name in ((configured, "output_config.format"), (fields.output_format, "output_format")):
        spec = None if given is None else _schema(given, name)
        if spec is not None and not specs:  # one is the beta's spelling of the other
            specs.append(spec)
    specs += [GrammarSpec("regex", fields.regex, "regex")] if fields.regex is not None else []
    specs += [GrammarSpec("lark", fields.lark, "lark")] if fields.lark is not None else []
    if len(specs) > 1:
        raise RequestError(f"{specs[0].param} and {specs[1].param} both constrain the reply; send one", specs[1].param)
    return specs[0] if specs else None


def _schema(given: Format, name: str) -> GrammarSpec | None:
    if given.type == "text":
        return None
    if given.type != "json_schema":
        raise RequestError(f"{name}.type must be json_schema or text, not {given.type[:100]!r}", name)
    if given.schema is None:
        raise RequestError(f"{name}.schema is missing", name)
    if given.schema is False:
        raise RequestError(f"{name}.schema is false, which nothing matches", name)
    return schema_spec(given.schema, name)


def _sampling(fields: Body) -> dict[str, float | int]:
    """Only what was given: the model's own defaults fill the rest."""
    if fields.seed is not None and fields.seed >= SEEDS:
        raise RequestError(f"seed must be below 2^64, not {str(fields.seed)[:40]}", "seed")
    given = {
        "temperature": fields.temperature,
        "top_k": 0 if fields.top_k == -1 else fields.top_k and min(fields.top_k, NO_TOP_K),
        "top_p": fields.top_p,
        "min_p": fields.min_p,
        "repeat_penalty": fields.repeat_penalty,
        "seed": None if fields.seed == -1 else fields.seed,
    }
    if fields.top_p == 0:  # a nucleus of nothing but the best token
        given |= {"temperature": 0.0, "top_p": None}
    return {name: value for name, value in given.items() if value is not None}


def _check_prefill(reasoning: bool | None, forced: bool, grammar: GrammarSpec | None) -> None:
    for given, what in ((reasoning, "thinking"), (forced, "a forced tool"), (grammar, "a constrained reply")):
        if given:
            raise RequestError(
                f"the last of messages is the assistant's, and a reply that continues it cannot have {what}; "
                "end with a user message",
                "messages",
            )


def _required(name: str) -> RequestError:
    return RequestError(f"{name} is required", name)
