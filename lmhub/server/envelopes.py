"""Which dialect frames an error: decided by the path alone, before anything about the request can fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lmhub.dialect import Dialect
from lmhub.errors import LmhubError
from lmhub.server.body import RawHeaders
from lmhub.server.wire import openai_error, to_json

Frame = Callable[[LmhubError], bytes]


class Envelopes:
    """Frames errors like the dialect of whose routes or prefixes a path is one, or extends one; else like OpenAI."""

    def __init__(self, dialects: Sequence[Dialect]):
        self._by_prefix: dict[str, Frame] = {"/api": _ollama}
        for dialect in dialects:
            paths = (*dialect.routes, *dialect.count_routes, *dialect.prefixes)
            self._by_prefix |= dict.fromkeys(paths, dialect.error)

    def of(self, path: str, headers: RawHeaders) -> Frame:
        """What frames the errors of a request to `path`, with or without its `/v1`.

        The list of models is shared: a client that names an Anthropic version reads it as Anthropic's.
        """
        path = path.removeprefix("/v1")
        if _extends(path, "/models") and any(name == b"anthropic-version" for name, _ in headers):
            path = "/messages"
        prefixes = [prefix for prefix in self._by_prefix if _extends(path, prefix)]
        return self._by_prefix[max(prefixes, key=len)] if prefixes else openai_error


def _extends(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix + "/")


def _ollama(error: LmhubError) -> bytes:
    return to_json({"error": str(error)})
