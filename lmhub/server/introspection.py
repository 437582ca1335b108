"""`GET /props` and `GET /slots`: what llama.cpp's page and scripts ask a server about itself. No text of a prompt."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.types import Receive, Scope, Send

from lmhub import __version__
from lmhub.engine import SlotStats
from lmhub.errors import LmhubError
from lmhub.hub import Served
from lmhub.server.names import Names
from lmhub.server.state import ServerState
from lmhub.server.wire import query, send_json, to_json


class Introspection:
    """The answers; `?model=` picks one of several models."""

    def __init__(self, names: Names, state: ServerState):
        self._names = names
        self._state = state

    async def props(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Context, slots, template, defaults."""
        await send_json(send, 200, to_json(_props(self._served(scope))))

    async def slots(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One entry for each sequence that may run at once. With `?fail_on_no_slot=1`, 503 when none is idle."""
        served = self._served(scope)
        stats = served.engine.stats()
        if query(scope, "fail_on_no_slot") == "1" and stats.running - stats.paused >= stats.batch:
            raise NoSlot(f"all {stats.batch} slots are busy; try again later")
        idle = SlotStats(0, 0, 0, 0)
        slots = [
            {
                "id": id,
                "n_ctx": served.model.n_ctx,
                "is_processing": slot is not idle,
                "is_paused": slot.is_paused,
                "n_past": slot.n_past,
                "n_prompt_tokens": slot.n_prompt,
                "n_decoded": slot.n_decoded,
                "cached_tokens": slot.n_cached,
            }
            for id, slot in enumerate((*stats.slots, *[idle] * (stats.batch - len(stats.slots))))
        ]
        await send_json(send, 200, to_json(slots))

    def _served(self, scope: Scope) -> Served:
        self._state.check()
        return self._names.served(query(scope, "model"))


class NoSlot(LmhubError):
    """No slot is idle, and the client wanted to know."""

    status = 503
    kind = "unavailable_error"


def _props(served: Served) -> dict[str, Any]:
    model = served.model
    tokenizer = model.tokenizer
    template = model.metadata.get("tokenizer.chat_template")
    marks = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
    return {
        "default_generation_settings": {"n_ctx": model.n_ctx, "params": asdict(model.sampling)},
        "total_slots": served.engine.stats().batch,
        "model_alias": model.id,
        "model_path": f"{model.id}.gguf",
        "modalities": {"vision": False, "audio": False},
        "chat_template": template if isinstance(template, str) else "",
        "chat_template_caps": {
            "supports_tools": model.tools is not None,
            "supports_tool_calls": model.tools is not None,
            "supports_reasoning": model.think is not None,
        },
        **{name: "" if id is None else tokenizer.token_text(id) for name, id in marks.items()},
        "build_info": f"lmhub {__version__}",
        "is_sleeping": False,
    }
