"""Copies a GGUF file with tensors or keys left out, replaced or added: makes damaged and unusual files for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmhub.gguf import GGUFFile
from lmhub.gguf.writer import GGUFWriter

if TYPE_CHECKING:
    import numpy as np


def rewrite(
    source: GGUFFile,
    path: Path,
    *,
    drop: tuple[str, ...] = (),
    replace: Mapping[str, np.ndarray] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """A copy of `source` at `path`.

    `drop` names tensors and keys to leave out. `replace` holds float32 arrays, which are stored as F32 in the place of
    the tensor of that name or at the end. `metadata` replaces or adds keys.
    """
    replace, metadata = dict(replace or {}), {**source.metadata, **(metadata or {})}
    with GGUFWriter(path, None) as out:
        for key, value in metadata.items():
            if key not in drop:
                out.add(key, value)
        for name, tensor in source.tensors.items():
            if name in replace:
                out.add_tensor(name, replace.pop(name))
            elif name not in drop:
                out.add_tensor(name, tensor.data, tensor.type, tensor.shape)
        for name, values in replace.items():
            out.add_tensor(name, values)
    return path


def rename_architecture(source: GGUFFile, path: Path, arch: str) -> Path:
    """A copy of `source` at `path` that says it were of another architecture, its keys under that name."""
    old = f"{source.architecture}."
    keys = {name: value for name, value in source.metadata.items() if name.startswith(old)}
    renamed = {f"{arch}.{name.removeprefix(old)}": value for name, value in keys.items()}
    return rewrite(source, path, drop=tuple(keys), metadata={"general.architecture": arch, **renamed})
