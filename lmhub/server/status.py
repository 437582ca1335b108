"""`GET /v1/lmhub/status`: what the server is doing now, as one JSON object; the status panel of the page reads it.

The same numbers as `/metrics`, from the same snapshots of the engines. Counters only grow: whoever asks twice has the
rates between. No text of a prompt.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from starlette.types import Receive, Scope, Send

from lmhub import __version__
from lmhub.hub import Hub, Served
from lmhub.machine import memory, resident
from lmhub.server.metrics import Metrics
from lmhub.server.state import ServerState
from lmhub.server.wire import send_json, to_json


class Status:
    """The answer. `clock_s` in it is of a clock that never jumps, for rates."""

    def __init__(self, hub: Hub, state: ServerState, metrics: Metrics):
        self._hub = hub
        self._state = state
        self._metrics = metrics
        self._started_s = time.monotonic()

    async def show(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Everything, read at this moment; never waits for a step. Answered while models load as well."""
        machine, now_s = memory(), time.monotonic()
        report = {
            "version": __version__,
            "phase": self._state.phase,
            "clock_s": now_s,
            "uptime_s": round(now_s - self._started_s, 3),
            "requests": self._state.n_active,
            "memory": {"process": resident(), "available": machine.available, "total": machine.total},
            "models": [self._model(self._hub.acquire(model.id)) for model in self._hub.models],
        }
        await send_json(send, 200, to_json(report), [("cache-control", "no-store")])

    def _model(self, served: Served) -> dict[str, Any]:
        id, stats = served.model.id, served.engine.stats()
        prefill, decode = self._metrics.last_rates(id)
        return {
            "id": id,
            "healthy": stats.healthy,
            "running": stats.running,
            "queued": stats.queued,
            "paused": stats.paused,
            "batch": stats.batch,
            "queue": stats.queue,
            "kv_slots": stats.kv_slots,
            "parked": stats.parked,
            "n_ctx": served.model.n_ctx,
            "finished": stats.finished,
            "prompt_tokens": stats.prompt_tokens,
            "completion_tokens": stats.completion_tokens,
            "prefill_tokens": stats.prefill_tokens,
            "decode_tokens": stats.decode_tokens,
            "cached_tokens": sum(stats.reused.values()),
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            "last_prefill_per_s": prefill,
            "last_decode_per_s": decode,
            "experts": None if served.model.shelf is None else asdict(served.model.shelf.numbers()),
            "slots": [asdict(slot) for slot in stats.slots],
            "memory": None if served.plan is None else served.plan.as_dict()["totals"],
        }
