"""Which dialect frames an error: decided by the path alone, before anything about the request can fail."""

from __future__ import annotations

from collections.abc import Sequence

from lmhub.dialect import Dialect
from lmhub.errors import LmhubError
from lmhub.server.wire import openai_error


class Envelopes:
    """Frames errors like the dialect whose route a path is or extends; like OpenAI where there is none."""

    def __init__(self, dialects: Sequence[Dialect]):
        self._by_route = {route: dialect.error for dialect in dialects for route in dialect.routes}

    def frame(self, path: str, error: LmhubError) -> bytes:
        """The body of `error` for a request to `path`, with or without its `/v1`."""
        path = path.removeprefix("/v1")
        routes = [route for route in self._by_route if path == route or path.startswith(route + "/")]
        return self._by_route[max(routes, key=len)](error) if routes else openai_error(error)
