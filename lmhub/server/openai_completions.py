"""OpenAI's older Completions, `POST /v1/completions`: the record under which the dialect registers."""

from __future__ import annotations

from functools import partial

from lmhub.dialect import Dialect
from lmhub.server.fields import json_schema
from lmhub.server.openai_completions_encode import CompletionEncoder, collect
from lmhub.server.openai_completions_parse import FIELDS, CompletionBody, parse
from lmhub.server.wire import openai_error
from lmhub.settings import ServerSettings


def completions_dialect(settings: ServerSettings) -> Dialect:
    """The dialect with the limits of `settings`."""
    return Dialect(
        name="openai-completions",
        routes=("/completions",),
        id_prefix="cmpl-",
        parse=partial(parse, settings=settings),
        encoder=CompletionEncoder,
        collect=collect,
        error=openai_error,
        doc="OpenAI Completions: raw continuation of texts and token ids, without a chat template",
        fields=FIELDS,
        schema=json_schema(CompletionBody, FIELDS),
    )
