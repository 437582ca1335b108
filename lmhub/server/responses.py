"""OpenAI Responses, `POST /v1/responses`: the record under which the dialect registers.

responses_parse -> responses_history (store) -> responses_input, responses_tools -> ChatRequest
events -> responses_output (responses_items) -> responses_encode -> bytes, store
"""

from __future__ import annotations

from functools import partial

from lmhub.dialect import Dialect
from lmhub.errors import LmhubError, RequestError
from lmhub.server.fields import json_schema
from lmhub.server.responses_encode import ResponsesEncoder, collect, count
from lmhub.server.responses_fields import FIELDS
from lmhub.server.responses_pages import pages
from lmhub.server.responses_parse import Body, ResponsesParser
from lmhub.server.responses_seal import Seal
from lmhub.server.responses_store import ResponseStore
from lmhub.server.wire import openai_error_object, to_json

_PARAMS = {  # what the model's side calls by the names of Chat Completions
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "logprobs": "top_logprobs",
}


def responses_dialect(store_size: int, *, strict_tools: bool = False) -> Dialect:
    """The dialect with a store of its own for `store_size` responses; 0 keeps none."""
    store, seal = ResponseStore(store_size), Seal()
    return Dialect(
        name="openai-responses",
        keeps_reasoning=True,
        routes=("/responses",),
        id_prefix="resp_",
        parse=ResponsesParser(store, seal, strict_tools=strict_tools).parse,
        encoder=partial(ResponsesEncoder, store=store, seal=seal),
        collect=partial(collect, store=store, seal=seal),
        error=_error,
        doc="OpenAI Responses, streamed and whole, with the last replies kept in memory to go on from",
        prefixes=("/responses",),
        count_routes=("/responses/input_tokens",),
        count=count,
        pages=pages(store),
        fields=FIELDS,
        schema=json_schema(Body, FIELDS),
    )


def _error(error: LmhubError) -> bytes:
    """A failure in the OpenAI envelope, its `param` in the words of this dialect."""
    envelope = openai_error_object(error)
    if isinstance(error, RequestError) and error.param in _PARAMS:
        envelope["error"]["param"] = _PARAMS[error.param]
    return to_json(envelope)
