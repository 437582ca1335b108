"""Whether the server is ready, loading or draining; always answered, without a key, from numbers that are at hand."""

from __future__ import annotations

import time
from typing import Any

from starlette.types import Receive, Scope, Send

from lmhub import __version__
from lmhub.hub import Hub
from lmhub.server.state import ServerState
from lmhub.server.wire import query, send_json, to_json

READY_PATHS = ("/health", "/healthz", "/readyz")
ALIVE_PATHS = ("/livez", "/", "/version", "/api/version", "/api/hello")


class Health:
    """The answers of the open routes."""

    def __init__(self, hub: Hub, state: ServerState):
        self._hub = hub
        self._state = state
        self._started_s = time.monotonic()

    async def ready(self, scope: Scope, receive: Receive, send: Send) -> None:
        """200 when requests are taken, else 503. With `?verbose=1`, what each model takes of the memory as well."""
        if self._state.phase == "ready":
            report = self._report()
            if query(scope, "verbose") == "1":
                report["plans"] = self._plans()
            await send_json(send, 200 if report["status"] == "ok" else 503, to_json(report))
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
        busy, total = sum(one.running for one in stats), sum(one.batch for one in stats)
        return {
            "status": "ok" if all(one.healthy for one in stats) else "degraded",
            "model": models[0].id if models else None,
            "models": [model.id for model in models],
            "queue_depth": sum(one.queued for one in stats),
            "busy": busy,
            "slots_total": total,
            "slots_idle": max(total - busy, 0),
            "slots": {"total": sum(one.kv_slots for one in stats), "busy": busy},
            "streams": self._state.n_active,
            "context_length": models[0].n_ctx if models else None,
            "uptime_s": round(time.monotonic() - self._started_s, 3),
            "version": __version__,
        }

    def _plans(self) -> dict[str, Any]:
        """The memory plan under which each model was loaded."""
        served = (self._hub.acquire(model.id) for model in self._hub.models)
        return {one.model.id: None if one.plan is None else one.plan.as_dict() for one in served}
