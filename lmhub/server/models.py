"""The served models, as one document that OpenAI's, Anthropic's, vLLM's and llama.cpp's readers all understand."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from starlette.types import Receive, Scope, Send

from lmhub.errors import UnknownModel
from lmhub.hub import Hub
from lmhub.loaded import LoadedModel
from lmhub.server.state import ServerState
from lmhub.server.wire import send_json, to_json


class Models:
    """`GET /v1/models` and `GET /v1/models/{id}`."""

    def __init__(self, hub: Hub, state: ServerState):
        self._hub = hub
        self._state = state

    async def list(self, scope: Scope, receive: Receive, send: Send) -> None:
        """All served models."""
        self._state.check()
        entries = [model_entry(model) for model in self._hub.models]
        ids = [entry["id"] for entry in entries]
        page = {"has_more": False, "first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}
        await send_json(send, 200, to_json({"object": "list", "data": entries, **page}))

    async def one(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The model whose id is the rest of the path. Raises UnknownModel."""
        self._state.check()
        wanted = scope["path_params"]["id"]
        for model in self._hub.models:
            if model.id == wanted:
                await send_json(send, 200, to_json(model_entry(model)))
                return
        served = ", ".join(model.id for model in self._hub.models) or "none"
        raise UnknownModel(f"model {wanted[:200]!r} is not served here; served: {served}", param="model")


def model_entry(model: LoadedModel) -> dict[str, Any]:
    """One model. `created` is fixed when the model is loaded; lengths are in tokens, `size` is in bytes."""
    name = model.metadata.get("general.name")
    return {
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": "lmhub",
        "type": "model",
        "display_name": name if isinstance(name, str) else model.id,
        "created_at": datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "max_input_tokens": model.n_ctx,
        "max_tokens": model.n_ctx,
        "context_length": model.n_ctx,
        "max_model_len": model.n_ctx,
        "capabilities": {
            "chat": True,
            "tools": model.tools is not None,
            "reasoning": model.think is not None,
            "json_schema": False,
            "vision": False,
            "embeddings": False,
        },
        "meta": {
            "n_ctx": model.n_ctx,
            "n_ctx_train": model.model.n_ctx_train,
            "n_vocab": model.model.n_vocab,
            "n_params": model.n_params,
            "size": model.nbytes,
            "ftype": model.quantization,
        },
    }
