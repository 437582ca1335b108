"""The HTTP edge. `serve` runs it, `create_app` builds it, `generate.py` is the life of one request.

Dialects (`openai_chat.py`) are pure: bytes to ChatRequest, events to bytes. Nothing here knows model files or kernels.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lmhub.server.app import create_app as create_app
    from lmhub.server.run import serve as serve

__all__ = ["create_app", "serve"]

# Resolved on first use: the hub asks this package for its dialects and must not import the servers with them.
_HOMES = {"create_app": "lmhub.server.app", "serve": "lmhub.server.run"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lmhub.server' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
