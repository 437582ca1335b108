"""The dialects that lmhub brings itself. `create_app` registers this module as a plugin: they use the hook too."""

from __future__ import annotations

from collections.abc import Sequence

from lmhub.dialect import Dialect
from lmhub.hookspecs import hookimpl
from lmhub.server.openai_chat import DIALECT


@hookimpl
def lmhub_dialects() -> Sequence[Dialect]:
    """OpenAI Chat Completions."""
    return [DIALECT]
