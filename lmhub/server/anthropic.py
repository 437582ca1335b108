"""Anthropic Messages, `POST /v1/messages`: the record under which the dialect registers."""

from __future__ import annotations

from functools import partial

from lmhub.dialect import Dialect
from lmhub.server.anthropic_encode import MessagesEncoder, collect, count
from lmhub.server.anthropic_errors import anthropic_error
from lmhub.server.anthropic_fields import FIELDS
from lmhub.server.anthropic_parse import Body, parse, parse_count
from lmhub.server.fields import json_schema
from lmhub.settings import ServerSettings


def messages_dialect(settings: ServerSettings) -> Dialect:
    """The dialect as `settings` want it: whether replies may be continued, and hosted tools left out."""
    return Dialect(
        name="anthropic-messages",
        keeps_reasoning=True,
        routes=("/messages",),
        id_prefix="msg_",
        parse=partial(parse, settings=settings),
        encoder=MessagesEncoder,
        collect=collect,
        error=anthropic_error,
        doc="Anthropic Messages, streamed and whole, and the tokens of a prompt",
        prefixes=("/messages",),
        count_routes=("/messages/count_tokens",),
        count=count,
        parse_count=partial(parse_count, settings=settings),
        fields=FIELDS,
        schema=json_schema(Body, FIELDS),
    )
