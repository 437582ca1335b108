"""GGUF files with tensors or keys left out, replaced or added: damaged and unusual ones, for tests.

`rewrite` writes such a file. `changed` gives what opening it would give, without writing and reading everything else
again: for families, which are asked about many files, and to which it is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmhub.gguf import GGMLType, GGUFFile
from lmhub.gguf.parse import TensorInfo
from lmhub.gguf.reader import Copied, Tensor
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


def changed(
    source: GGUFFile,
    *,
    drop: tuple[str, ...] = (),
    replace: Mapping[str, np.ndarray] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> GGUFFile:
    """The open `source` with the changes that `rewrite` would write. Its path, and what is untouched, are shared."""
    file = copy(source)
    file.metadata = {key: value for key, value in {**source.metadata, **(metadata or {})}.items() if key not in drop}
    added = {name: _in_memory(name, values) for name, values in (replace or {}).items()}
    file.tensors = {
        name: tensor for name, tensor in {**source.tensors, **added}.items() if name not in drop or name in added
    }
    return file


def _in_memory(name: str, values: np.ndarray) -> Tensor:
    """A float32 tensor that lies in no file."""
    data = values.tobytes()
    return Tensor(TensorInfo(name, GGMLType.F32, values.shape, 0, len(data)), Copied(data))


def rename_architecture(source: GGUFFile, path: Path, arch: str) -> Path:
    """A copy of `source` at `path` that says it were of another architecture, its keys under that name."""
    old = f"{source.architecture}."
    keys = {name: value for name, value in source.metadata.items() if name.startswith(old)}
    renamed = {f"{arch}.{name.removeprefix(old)}": value for name, value in keys.items()}
    return rewrite(source, path, drop=tuple(keys), metadata={"general.architecture": arch, **renamed})
