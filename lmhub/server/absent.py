"""Routes that clients know and that this server answers with 501, unless a plugin's dialect serves them."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from lmhub.errors import NotSupported

_EMBEDDINGS = "no served model makes embeddings; a plugin can bring them"
_RERANK = "no served model ranks documents; a plugin can bring it"
_MANAGEMENT = "this server does not manage model files; name them on its command line"
_STATE = "this server does not change its properties, and does not save or restore slots"

ABSENT: dict[tuple[str, str], str] = {
    **{("POST", path): _EMBEDDINGS for path in ("/embeddings", "/embedding")},
    **{("POST", path): _RERANK for path in ("/rerank", "/reranking", "/v2/rerank")},
    **{("POST", f"/api/{verb}"): _MANAGEMENT for verb in ("pull", "push", "create", "copy")},
    ("DELETE", "/api/delete"): _MANAGEMENT,
    ("POST", "/props"): _STATE,
    ("POST", "/slots/{id}"): _STATE,
    ("POST", "/responses/compact"): "compaction is a feature of the hosted service; shorten the conversation instead",
}


class Absent:
    """Refuses with `reason`."""

    def __init__(self, reason: str):
        self._reason = reason

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raise NotSupported."""
        raise NotSupported(self._reason, "model" if self._reason in (_EMBEDDINGS, _RERANK) else None)
