"""The request body of Responses: bytes in, ChatRequest or RequestError out; knows no model.

What becomes of each field is told in responses_fields.py. Pure but for the store, which it reads for
`previous_response_id` and item references.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from lmhub.errors import RequestError
from lmhub.server.denoising_fields import denoising, drafts
from lmhub.server.fields import refuse, unsupported
from lmhub.server.grammar_fields import ANY_OBJECT, grammar, schema_spec
from lmhub.server.json_body import convert, decode_object
from lmhub.server.reasoning_fields import ReasoningFields, reasoning, reasoning_budget, template_kwargs
from lmhub.server.responses_fields import FIELDS
from lmhub.server.responses_history import additional_tools, effective
from lmhub.server.responses_input import messages, text_of
from lmhub.server.responses_record import Asked
from lmhub.server.responses_seal import Seal
from lmhub.server.responses_store import ResponseStore
from lmhub.server.responses_tools import choice, declared, echoed
from lmhub.server.sampling_fields import logit_bias, sampling, stops
from lmhub.types import ChatRequest, GrammarSpec, Message, Text, ToolChoice

_FORMAT = "text.format"
_SUMMARIES = ("auto", "concise", "detailed")
_REPEATED = ("safety_identifier", "user", "prompt_cache_key")  # bookkeeping that the response object repeats


class _TextOptions(msgspec.Struct):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class _ReasoningOptions(msgspec.Struct):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class Body(ReasoningFields, kw_only=True):
    """The fields that mean something here. msgspec checks types and ranges; the functions below check the rest."""

    input: str | list[dict[str, Any]] | None = None
    instructions: str | list[dict[str, Any]] | None = None
    model: str | None = None
    max_output_tokens: Annotated[int, Meta(ge=-1)] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    text: _TextOptions | None = None
    reasoning: _ReasoningOptions | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    truncation: str | None = None
    background: bool | None = None
    continue_final_message: bool | None = None


class ResponsesParser:
    """Parses bodies; holds what they may refer to."""

    def __init__(self, store: ResponseStore, seal: Seal, *, strict_tools: bool = False):
        """`strict_tools` refuses hosted tools instead of leaving them out."""
        self._store, self._seal, self._strict_tools = store, seal, strict_tools

    def parse(self, body: bytes) -> ChatRequest:
        """The conversation that a request body asks to continue. Raises RequestError naming the field."""
        value = decode_object(body)
        refuse(value, FIELDS)
        fields = convert(value, Body)
        _refuse_what_changes_the_answer(fields)
        pairs = effective(fields.input, fields.previous_response_id, self._store)
        conversation = messages(((given.value, path) for given, path in pairs), self._seal.open)
        if not conversation:
            raise RequestError("input holds nothing that a model can read; at least one message is required", "input")
        given_tools = [*(fields.tools or ()), *additional_tools(pairs)]
        tools = declared(given_tools, strict=self._strict_tools)
        chosen = choice(fields.tool_choice, tools)
        constraint = grammar(fields, _text_format(fields.text))
        options = fields.reasoning or _ReasoningOptions()
        asked = Asked(
            _repeated(fields, value),
            tuple(given for given, _ in pairs),
            store=bool(self._store.size) and fields.store is not False,
            summarise=_summary(options) is not None,
            encrypt="reasoning.encrypted_content" in (fields.include or ()),
            namespaces=tools.namespaces,
        )
        return ChatRequest(
            messages=(*_instructions(fields.instructions), *conversation),
            model=fields.model,
            tools=() if chosen.mode == "none" else tuple(tools.tools),
            tool_choice=chosen if tools.tools and chosen.mode != "none" else ToolChoice(),
            parallel_tool_calls=fields.parallel_tool_calls is not False,
            sampling=sampling(fields),
            max_tokens=_budget(fields),
            stop=stops(fields),
            reasoning=reasoning(fields, options.effort, "reasoning.effort"),
            reasoning_budget=reasoning_budget(fields),
            template_kwargs=template_kwargs(fields, options.effort),
            # One client library sends a forced call and a format together, and means the call.
            grammar=None if chosen.mode == "any" else constraint,
            continue_final=bool(fields.continue_final_message) and conversation[-1].role == "assistant",
            logprobs=_logprobs(fields),
            logit_bias=logit_bias(fields.logit_bias),
            ignore_eos=bool(fields.ignore_eos),
            return_token_ids=bool(fields.return_token_ids),
            stream=bool(fields.stream),
            denoising=denoising(fields.denoising),
            drafts=drafts(fields.denoising),
            ping_s=fields.sse_ping_interval,
            echo=asked,
        )


def _refuse_what_changes_the_answer(fields: Body) -> None:
    if fields.background:
        raise unsupported(
            "background", "background: true is not supported: a reply ends with its connection; leave it out"
        )
    if fields.truncation not in (None, "auto", "disabled"):
        raise RequestError("truncation must be auto or disabled", "truncation")
    if fields.truncation == "auto":
        raise unsupported("truncation", "truncation: auto is not supported: nothing is dropped unasked; send disabled")
    if fields.stream_options is not None and not fields.stream:
        raise RequestError("stream_options needs stream: true", "stream_options")


def _instructions(given: str | list[dict[str, Any]] | None) -> tuple[Message, ...]:
    """The leading system text."""
    if isinstance(given, list):
        for place, item in enumerate(given):
            if item.get("type", "message") != "message":
                raise RequestError(f"instructions[{place}] must be a message or a string", "instructions")
        try:
            given = "\n\n".join(text_of(item.get("content"), "instructions") for item in given)
        except RequestError as error:
            raise RequestError(str(error), "instructions") from None
    return (Message("system", (Text(given),)),) if given else ()


def _text_format(text: _TextOptions | None) -> GrammarSpec | None:
    given = text.format if text else None
    kind = "text" if given is None else given.get("type")
    if given is None or kind == "text":
        return None
    schema = given.get("schema")
    if kind == "json_object" and schema is None:
        return GrammarSpec("json_schema", ANY_OBJECT, _FORMAT)
    if kind not in ("json_object", "json_schema"):
        raise RequestError(f"{_FORMAT}.type must be text, json_object or json_schema", _FORMAT)
    if schema is None:
        raise RequestError(f"{_FORMAT}.schema is missing", _FORMAT)
    return schema_spec(schema, _FORMAT)


def _summary(options: _ReasoningOptions) -> str | None:
    """The kind of summary that is asked for; all of them are the reasoning itself."""
    summary = options.generate_summary if options.summary is None else options.summary
    if summary is not None and summary not in (*_SUMMARIES, "none"):
        raise RequestError(f"reasoning.summary must be one of {', '.join(_SUMMARIES)}", "reasoning.summary")
    return None if summary == "none" else summary


def _budget(fields: Body) -> int | None:
    if fields.max_output_tokens == 0:
        raise RequestError("max_output_tokens must be at least 1, not 0", "max_output_tokens")
    return None if fields.max_output_tokens == -1 else fields.max_output_tokens


def _logprobs(fields: Body) -> int | None:
    wanted = "message.output_text.logprobs" in (fields.include or ()) or fields.top_logprobs
    return fields.top_logprobs or 0 if wanted else None


def _repeated(fields: Body, value: Mapping[str, Any]) -> dict[str, Any]:
    """What the response object repeats of the request."""
    text = fields.text or _TextOptions()
    options = fields.reasoning or _ReasoningOptions()
    metadata = value.get("metadata")
    bookkeeping = {name: value.get(name) for name in _REPEATED}
    return {
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "metadata": metadata if isinstance(metadata, dict) else {},
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "previous_response_id": fields.previous_response_id or None,
        "reasoning": {"effort": options.effort, "summary": _summary(options)},
        "text": {"format": text.format or {"type": "text"}, "verbosity": text.verbosity or "medium"},
        "tool_choice": "auto" if fields.tool_choice is None else fields.tool_choice,
        "tools": echoed(fields.tools or ()),
        "top_logprobs": fields.top_logprobs or 0,
        **{name: one if isinstance(one, str) else None for name, one in bookkeeping.items()},
    }
