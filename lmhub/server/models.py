"""The served models, as one document that OpenAI's, Anthropic's, vLLM's and llama.cpp's readers all understand."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from lmhub.hub import Hub
from lmhub.loaded import LoadedModel
from lmhub.server.names import Names
from lmhub.server.state import ServerState
from lmhub.server.wire import send_json, to_json


class Models:
    """`GET /v1/models` and `GET /v1/models/{id}`."""

    def __init__(self, hub: Hub, names: Names, state: ServerState):
        self._hub = hub
        self._names = names
        self._state = state

    async def list(self, scope: Scope, receive: Receive, send: Send) -> None:
        """All served models. Codex, which says its version, reads `models` as a list of its own."""
        self._state.check()
        entries = [self._entry(model) for model in self._hub.models]
        ids = [entry["id"] for entry in entries]
        query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        describe = codex_entry if "client_version" in query else brief_entry
        page = {"has_more": False, "first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}
        models = [describe(model) for model in self._hub.models]
        await send_json(send, 200, to_json({"object": "list", "data": entries, **page, "models": models}))

    async def one(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The model whose id or alias is the rest of the path. Raises UnknownModel."""
        self._state.check()
        wanted = scope["path_params"]["id"]
        id = self._names.resolve(wanted)
        if id is None:
            raise self._names.unknown(wanted)
        await send_json(send, 200, to_json(self._entry(self._hub.acquire(id).model)))

    def _entry(self, model: LoadedModel) -> dict[str, Any]:
        return {**model_entry(model), "aliases": self._names.aliases(model.id)}


def model_entry(model: LoadedModel) -> dict[str, Any]:
    """One model. `created` is fixed when the model is loaded; lengths are in tokens, `size` is in bytes."""
    embedding = model.metadata.get(f"{model.metadata.get('general.architecture')}.embedding_length")
    return {
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": "lmhub",
        "type": "model",
        "display_name": _display_name(model),
        "lifecycle": "active",
        "created_at": datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "max_input_tokens": model.n_ctx,
        "max_tokens": model.n_ctx,
        "context_length": model.n_ctx,
        "max_model_len": model.n_ctx,
        "capabilities": {
            "chat": True,
            "tools": model.tools is not None,
            "reasoning": model.think is not None,
            "json_schema": True,
            "vision": False,
            "embeddings": False,
        },
        "meta": {
            "n_ctx": model.n_ctx,
            "n_ctx_train": model.model.n_ctx_train,
            "n_vocab": model.model.n_vocab,
            "n_embd": embedding if isinstance(embedding, int) else None,
            "n_params": model.n_params,
            "size": model.nbytes,
            "ftype": model.quantization,
        },
    }


def brief_entry(model: LoadedModel) -> dict[str, Any]:
    """One model as llama.cpp lists it beside OpenAI's list."""
    details = {
        "parameter_size": str(model.n_params),
        "quantization_level": model.quantization,
        "family": model.family.name,
    }
    return {"name": model.id, "model": model.id, "type": "model", "capabilities": ["completion"], "details": details}


def codex_entry(model: LoadedModel) -> dict[str, Any]:
    """One model as Codex CLI wants it; without, it assumes a context of its own."""
    reasons = model.think is not None
    return {
        "slug": model.id,
        "display_name": _display_name(model),
        "description": f"{model.family.name} model served by lmhub",
        "default_reasoning_level": "medium" if reasons else None,
        "supported_reasoning_levels": [
            {"effort": effort, "description": f"{effort} effort"} for effort in ("low", "medium", "high") if reasons
        ],
        "shell_type": "shell_command",
        "visibility": "list",
        "supported_in_api": True,
        "priority": 0,
        "upgrade": None,
        "base_instructions": "",
        "supports_reasoning_summaries": reasons,
        "support_verbosity": False,
        "default_verbosity": None,
        "apply_patch_tool_type": "freeform",
        "truncation_policy": {"mode": "tokens", "limit": max(model.n_ctx // 4, 1)},
        "supports_parallel_tool_calls": True,
        "context_window": model.n_ctx,
        "experimental_supported_tools": [],
        "input_modalities": ["text"],
    }


def _display_name(model: LoadedModel) -> str:
    name = model.metadata.get("general.name")
    return name if isinstance(name, str) else model.id
