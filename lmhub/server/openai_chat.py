"""OpenAI Chat Completions, `POST /v1/chat/completions`: the record under which the dialect registers."""

from __future__ import annotations

from lmhub.dialect import Dialect
from lmhub.server.openai_chat_encode import ChatEncoder, collect
from lmhub.server.openai_chat_parse import parse
from lmhub.server.wire import openai_error

DIALECT = Dialect(
    name="openai-chat",
    routes=("/chat/completions",),
    id_prefix="chatcmpl-",
    parse=parse,
    encoder=ChatEncoder,
    collect=collect,
    error=openai_error,
    doc="OpenAI Chat Completions, streamed and whole",
)
