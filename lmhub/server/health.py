"""Whether the server is ready, loading or draining; always answered, without a key, from numbers that are at hand."""

from __future__ import annotations

import time
from typing import Any

from starlette.types import Receive, Scope, Send

from lmhub import __version__
from lmhub.hub import Hub
from lmhub.server.state import ServerState
from lmhub.server.wire import send_json, to_json

READY_PATHS = ("/health", "/healthz", "/readyz")
ALIVE_PATHS = ("/livez", "/", "/version", "/api/version", "/api/hello")


class Health:
    """The answers of the open routes."""

    def __init__(self, hub: Hub, state: ServerState):
        self._hub = hub
        self._state = state
        self._started_s = time.monotonic()

    async def ready(self, scope: Scope, receive: Receive, send: Send) -> None:
        """200 when requests are taken, else 503."""
        if self._state.phase == "ready":
            await send_json(send, 200, to_json(self._report()))
        elif self._state.phase == "loading":
            error = {"message": "Loading model", "type": "unavailable_error", "param": None, "code": None}
            body = to_json({"status": "loading model", "error": error})
            await send_json(send, 503, body, [("retry-after", "2")])
        else:
            await send_json(send, 503, to_json({"status": "draining"}))

    async def alive(self, scope: Scope, receive: Receive, send: Send) -> None:
        """200 whenever the process runs."""
        await send_json(send, 200, to_json({"name": "lmhub", "version": __version__}))

    def _report(self) -> dict[str, Any]:
        models = self._hub.models
        stats = [self._hub.acquire(model.id).engine.stats() for model in models]
        return {
            "status": "ok",
            "model": models[0].id if models else None,
            "models": [model.id for model in models],
            "queue_depth": sum(one.queued for one in stats),
            "busy": sum(one.running for one in stats),
            "slots_total": sum(one.batch for one in stats),
            "slots_idle": sum(one.batch - one.running for one in stats),
            "context_length": models[0].n_ctx if models else None,
            "uptime_s": round(time.monotonic() - self._started_s, 3),
            "version": __version__,
        }
