"""OpenAI Chat Completions, `POST /v1/chat/completions`: the record under which the dialect registers."""

from __future__ import annotations

from functools import partial

from lmhub.dialect import Dialect
from lmhub.server.fields import json_schema
from lmhub.server.openai_chat_encode import ChatEncoder, collect
from lmhub.server.openai_chat_parse import FIELDS, ChatBody, parse
from lmhub.server.wire import openai_error, to_json
from lmhub.settings import ServerSettings


def chat_dialect(settings: ServerSettings) -> Dialect:
    """The dialect with the limits of `settings`."""
    both = settings.reasoning_field == "both"
    return Dialect(
        name="openai-chat",
        routes=("/chat/completions",),
        id_prefix="chatcmpl-",
        parse=partial(parse, settings=settings),
        encoder=partial(ChatEncoder, both=both),
        collect=partial(collect, both=both),
        error=openai_error,
        doc="OpenAI Chat Completions, streamed and whole",
        count_routes=("/chat/completions/input_tokens",),
        count=lambda n_tokens: to_json({"object": "response.input_tokens", "input_tokens": n_tokens}),
        fields=FIELDS,
        schema=json_schema(ChatBody, FIELDS),
    )
