"""lmhub serves local language models; families are plugins.

Importing this package loads nothing heavy: public names resolve on first use.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lmhub.api import Model as Model
    from lmhub.api import open as open
    from lmhub.family import HERMES as HERMES
    from lmhub.family import LLAMA3 as LLAMA3
    from lmhub.family import XML as XML
    from lmhub.family import Advice as Advice
    from lmhub.family import Caps as Caps
    from lmhub.family import Family as Family
    from lmhub.family import LoadOptions as LoadOptions
    from lmhub.family import ThinkMarkers as ThinkMarkers
    from lmhub.family import ToolStyle as ToolStyle
    from lmhub.hookspecs import hookimpl as hookimpl
    from lmhub.hub import Hub as Hub

__version__ = "0.1.0"

_PUBLIC = {
    "Advice": "lmhub.family",
    "Caps": "lmhub.family",
    "Family": "lmhub.family",
    "HERMES": "lmhub.family",
    "LLAMA3": "lmhub.family",
    "Hub": "lmhub.hub",
    "LoadOptions": "lmhub.family",
    "Model": "lmhub.api",
    "ThinkMarkers": "lmhub.family",
    "ToolStyle": "lmhub.family",
    "XML": "lmhub.family",
    "hookimpl": "lmhub.hookspecs",
    "open": "lmhub.api",
}

__all__ = [*_PUBLIC, "__version__", "get_include"]  # noqa: PLE0604 - the names of _PUBLIC resolve lazily


def get_include() -> str:
    """The directory of `lmk.h`, for compiling a plugin's kernels."""
    return str(Path(__file__).parent / "include")


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'lmhub' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value
