"""The dialects that lmhub brings itself. `create_app` registers a `Builtin` as a plugin: they use the hook too."""

from __future__ import annotations

from collections.abc import Sequence

from lmhub.dialect import Dialect
from lmhub.hookspecs import hookimpl
from lmhub.server.anthropic import messages_dialect
from lmhub.server.openai_chat import chat_dialect
from lmhub.server.openai_completions import completions_dialect
from lmhub.server.responses import responses_dialect
from lmhub.settings import ServerSettings


class Builtin:
    """Makes the dialects as the settings want them."""

    def __init__(self, settings: ServerSettings):
        self._settings = settings

    @hookimpl
    def lmhub_dialects(self) -> Sequence[Dialect]:
        """OpenAI Chat Completions, Completions and Responses, and Anthropic Messages."""
        settings = self._settings
        responses = responses_dialect(settings.responses_store, strict_tools=settings.strict_tools)
        return [chat_dialect(settings), completions_dialect(settings), responses, messages_dialect(settings)]
