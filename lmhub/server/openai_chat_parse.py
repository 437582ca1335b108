"""The request body of Chat Completions. Pure: bytes in, ChatRequest or RequestError out; knows no model.

`FIELDS` says what becomes of every field: the honoured ones are those of `ChatBody`, and `null` is the same as leaving
one out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from lmhub.errors import RequestError
from lmhub.server.denoising_fields import denoising, drafts
from lmhub.server.fields import Field, honoured, ignored, refuse, refused, unsupported
from lmhub.server.grammar_fields import GRAMMAR_TABLE, grammar
from lmhub.server.json_body import convert, decode_object
from lmhub.server.openai_chat_messages import InMessage, messages
from lmhub.server.reasoning_fields import (
    REASONING_TABLE,
    ReasoningFields,
    reasoning,
    reasoning_budget,
    template_kwargs,
)
from lmhub.server.response_format import response_format
from lmhub.server.sampling_fields import SAMPLING_TABLE, logit_bias, sampling, stops
from lmhub.server.tools_json import choice_of, tool_of
from lmhub.settings import ServerSettings
from lmhub.types import ChatRequest, GrammarSpec, Tool, ToolChoice

Budget = Annotated[int, Meta(ge=-1)]


class StreamOptions(msgspec.Struct):
    """How to stream; what else it holds (`include_obfuscation`) is dropped."""

    include_usage: bool | None = None


class ReasoningOptions(msgspec.Struct):
    """OpenRouter's spelling."""

    effort: str | None = None
    enabled: bool | None = None
    exclude: bool | None = None
    max_tokens: Budget | None = None


class ChatBody(ReasoningFields, kw_only=True):
    """The fields that mean something. msgspec checks types and ranges; the functions below check the rest."""

    messages: list[InMessage]
    model: str | None = None
    max_tokens: Budget | None = None
    max_completion_tokens: Budget | None = None
    n: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    reasoning: ReasoningOptions | None = None
    reasoning_format: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    modalities: list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    timings_per_token: bool | None = None


FIELDS: tuple[Field, ...] = (
    honoured("messages", "the conversation, contents as text or text parts; see below"),
    honoured("model", "picks the model where several are served; one answers to every name without `--strict-model`"),
    honoured("max_tokens", "at least 1; -1 or nothing is the rest of the context, or `--default-max-tokens`"),
    honoured("max_completion_tokens", "wins over `max_tokens`"),
    honoured("n", "1 to `--max-n` replies; with a seed, reply i uses seed + i"),
    honoured("logprobs", "log probabilities of the tokens of the content"),
    honoured("top_logprobs", "0 to 20 alternatives for each token; needs `logprobs`"),
    honoured("response_format", "`text`, `json_object` (with an optional `schema`) or `json_schema`; it is enforced"),
    honoured("tools", "`function` and `custom`; other types are refused"),
    honoured("tool_choice", "`none`, `auto`, `required`, a function or custom tool by name, or `allowed_tools`"),
    honoured("parallel_tool_calls", "false ends the reply behind its first call"),
    honoured("reasoning_effort", "`none` and `minimal` switch reasoning off; `low`, `medium`, `high`, `xhigh`, `max` "
             "and `default` on, without effect on a model that cannot reason; a template that refuses one of them gets "
             "the nearest that it knows"),
    honoured("reasoning", "`effort`, `enabled`, `max_tokens`; `exclude` leaves the reasoning out (OpenRouter)"),
    honoured("reasoning_format", "`none` leaves the reasoning in the content, between `<think>` and `</think>`; `auto` "
             "and `deepseek` change nothing"),
    honoured("add_generation_prompt", "true closes a trailing assistant message; false continues it"),
    honoured("continue_final_message", "the reply continues the last message, which is the assistant's; without it a "
             "trailing assistant message is continued as well, unless `--no-prefill` is set"),
    honoured("modalities", "`text` only"),
    honoured("stream", "server-sent events"),
    honoured("stream_options", "`include_usage` adds a last chunk with the usage; needs `stream: true`"),
    honoured("timings_per_token", "`timings` at the end of the reply, as llama.cpp reports them"),
    *REASONING_TABLE,
    *GRAMMAR_TABLE,
    *SAMPLING_TABLE,
    *ignored("changes nothing here", "verbosity"),
    refused("functions", "send `tools` instead"),
    refused("function_call", "send `tool_choice` instead"),
    refused("audio", "this server answers with text only"),
    refused("prediction", "leave it out"),
    refused("web_search_options", "this server has no web search"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChatEcho:
    """What the encoder remembers of a request."""

    custom_tools: frozenset[str] = frozenset()
    reasoning: str = "apart"  # "apart", "inline" (in the content) or "none"
    timings: bool = False


def parse(body: bytes, settings: ServerSettings) -> ChatRequest:
    """The conversation that a request body asks to continue. Raises RequestError naming the field."""
    value = decode_object(body)
    refuse(value, FIELDS)
    fields = convert(value, ChatBody)
    if fields.modalities not in (None, ["text"]):
        raise unsupported("modalities", "modalities may hold text only: this server answers with text only")
    given_tools = tuple(tool_of(tool, place) for place, tool in enumerate(fields.tools or ()))
    choice = choice_of(fields.tool_choice, given_tools)
    tools = () if choice.mode == "none" else given_tools
    turns = messages(fields.messages)
    return ChatRequest(
        messages=turns,
        model=fields.model,
        tools=tools,
        sampling=sampling(fields),
        max_tokens=_budget(fields),
        stop=stops(fields),
        reasoning=_reasoning(fields),
        reasoning_budget=_reasoning_budget(fields),
        template_kwargs=template_kwargs(fields, _effort(fields)[0]),
        tool_choice=choice if tools else ToolChoice(),
        parallel_tool_calls=fields.parallel_tool_calls is not False,
        grammar=_grammar(fields, choice),
        continue_final=_continues(fields, turns[-1].role == "assistant", settings),
        n=choices(fields.n, settings),
        logprobs=_logprobs(fields),
        logit_bias=logit_bias(fields.logit_bias),
        ignore_eos=bool(fields.ignore_eos),
        return_token_ids=bool(fields.return_token_ids),
        stream=bool(fields.stream),
        include_usage=includes_usage(fields.stream_options, fields.stream),
        denoising=denoising(fields.denoising),
        drafts=drafts(fields.denoising),
        ping_s=fields.sse_ping_interval,
        echo=_echo(fields, tools),
    )


def choices(n: int | None, settings: ServerSettings) -> int:
    """The number of replies. Raises RequestError above the limit."""
    if n is not None and n > settings.max_n:
        raise RequestError(f"n is {n} and this server makes at most {settings.max_n} replies to one request", "n")
    return n or 1


def includes_usage(options: StreamOptions | None, stream: bool | None) -> bool:
    """Whether a stream ends with its usage. Raises RequestError for options of no stream."""
    if options is not None and not stream:
        raise RequestError("stream_options needs stream: true", "stream_options")
    return bool(options and options.include_usage)


def _echo(fields: ChatBody, tools: tuple[Tool, ...]) -> ChatEcho | None:
    if fields.reasoning_format not in (None, "auto", "none", "deepseek"):
        raise RequestError("reasoning_format must be auto, deepseek or none", "reasoning_format")
    reasoning = "inline" if fields.reasoning_format == "none" else "apart"
    if fields.reasoning is not None and fields.reasoning.exclude:
        reasoning = "none"
    custom = frozenset(tool.name for tool in tools if tool.custom)
    echo = ChatEcho(custom, reasoning, bool(fields.timings_per_token))
    return None if echo == ChatEcho() else echo


def _grammar(fields: ChatBody, choice: ToolChoice) -> GrammarSpec | None:
    """A forced call has its own grammar, and clients send both: the call wins."""
    spec = grammar(fields, response_format(fields.response_format))
    return None if choice.mode == "any" else spec


def _budget(fields: ChatBody) -> int | None:
    """The larger name wins where both are set; -1 asks for whatever the context leaves."""
    for name, value in (("max_completion_tokens", fields.max_completion_tokens), ("max_tokens", fields.max_tokens)):
        if value == 0:
            raise RequestError(f"{name} must be at least 1, not 0", name)
    budget = fields.max_tokens if fields.max_completion_tokens is None else fields.max_completion_tokens
    return None if budget == -1 else budget


def _logprobs(fields: ChatBody) -> int | None:
    if fields.top_logprobs and not fields.logprobs:
        raise RequestError("top_logprobs needs logprobs: true", "top_logprobs")
    return fields.top_logprobs or 0 if fields.logprobs else None


def _reasoning(fields: ChatBody) -> bool | None:
    """Whether the model is to reason first; None leaves it to the template."""
    given = fields.reasoning or ReasoningOptions()
    wanted = reasoning(fields, *_effort(fields))
    if _reasoning_budget(fields) == 0:
        return False
    return given.enabled if wanted is None else wanted


def _effort(fields: ChatBody) -> tuple[str | None, str]:
    """The effort, and the field that holds it."""
    if fields.reasoning_effort is None and fields.reasoning is not None:
        return fields.reasoning.effort, "reasoning.effort"
    return fields.reasoning_effort, "reasoning_effort"


def _reasoning_budget(fields: ChatBody) -> int | None:
    budget = reasoning_budget(fields)
    given = fields.reasoning.max_tokens if fields.reasoning else None
    return budget if budget is not None else None if given == -1 else given


def _continues(fields: ChatBody, ends_with_assistant: bool, settings: ServerSettings) -> bool:
    """Whether the reply continues the last message. Raises RequestError where that makes no sense."""
    opens, continues = fields.add_generation_prompt, fields.continue_final_message
    if opens and continues:
        raise RequestError("continue_final_message excludes add_generation_prompt; send one", "continue_final_message")
    if continues and not ends_with_assistant:
        raise RequestError(
            "continue_final_message needs a last message of the assistant; add one", "continue_final_message"
        )
    if opens is False and not ends_with_assistant:
        raise unsupported("add_generation_prompt", "add_generation_prompt: false needs a last message of the assistant")
    if not ends_with_assistant or opens or continues:
        return bool(continues)
    if not settings.prefill and opens is None:
        raise RequestError(
            "the last message is the assistant's; end with what is to be answered, or set continue_final_message",
            "messages",
        )
    return True
