"""What makes a model this model: `identity(file)`, a text that is equal only where saved rows mean the same.

Hashes what determines a model's keys and values without reading all of it: metadata, tensor directory, file sizes, and
both ends of each tensor. Knows nothing of the rows themselves: `State.layout` says what their bytes are.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lmhub.gguf.reader import GGUFFile

NUMERICS = 5
"""Bumped whenever the bits of keys, values or logits change: whatever was saved before is then worth nothing."""

_EDGE = 4096  # bytes at either end of a tensor
_VERSION = 1  # of how fingerprints are made
_CACHE = "fingerprints.json"
_CACHE_MAX = 1 << 20  # bytes
_CACHED = 64  # models that the cache remembers


def identity(file: GGUFFile, folder: Path | None = None, more: Sequence[str] = ()) -> str:
    """One line that names the model, its tokenizer, NUMERICS and `more`, in this order.

    `more` is what else changes the bits of rows: the instruction set that runs, the version of the family's plugin,
    overrides. With a folder, fingerprints are kept in `fingerprints.json` there, for as long as the files are the same.
    """
    model, tokenizer = _cached(file, folder) if folder is not None else fingerprints(file)
    return " ".join((f"model={model}", f"tokenizer={tokenizer}", f"numerics={NUMERICS}", *more))


def fingerprints(file: GGUFFile) -> tuple[str, str]:
    """SHA-256 of the model and of its tokenizer, as hex. Reads 8 KiB of each tensor.

    The model's covers the metadata except for the tokenizer's and `general.*` (names, notes on the quantisation; the
    architecture is kept), the tensor directory, the size of each part, and both ends of each tensor. The tokenizer's
    covers its metadata except for chat templates.
    """
    model, tokenizer = {}, {}
    for key, value in file.metadata.items():
        if key.startswith("tokenizer."):
            if not key.startswith("tokenizer.chat_template"):
                tokenizer[key] = value
        elif not key.startswith("general.") or key == "general.architecture":
            model[key] = value
    directory = [[t.name, t.type.name, list(t.shape), t.offset] for t in file.tensors.values()]
    hashed = hashlib.sha256(_canonical([model, directory, [stat.st_size for stat in file.stats]]))
    for tensor in file.tensors.values():
        data = tensor.data
        hashed.update(data[:_EDGE].data)
        hashed.update(data[-_EDGE:].data)
    return hashed.hexdigest(), hashlib.sha256(_canonical(tokenizer)).hexdigest()


def _canonical(value: Any) -> bytes:
    """JSON that depends on nothing but the value, and that tells 1 from 1.0 and from true."""
    return json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":")).encode()


def _cached(file: GGUFFile, folder: Path) -> tuple[str, str]:
    parts = ((stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in file.stats)
    key = ",".join(":".join(map(str, part)) for part in parts)
    known = _read(folder / _CACHE)
    found = known.get(key)
    if isinstance(found, list) and len(found) == 2 and all(isinstance(text, str) for text in found):
        return found[0], found[1]
    made = fingerprints(file)
    kept = [(other, value) for other, value in known.items() if other != key][1 - _CACHED :]
    _write(folder / _CACHE, {"v": _VERSION, "files": dict([*kept, (key, made)])})
    return made


def _read(path: Path) -> Mapping[str, Any]:
    """What the cache holds; nothing where it is missing, damaged or of another version."""
    with suppress(OSError, ValueError, RecursionError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(fd, "rb") as cache:
            stored = json.loads(cache.read(_CACHE_MAX))
        if isinstance(stored, dict) and stored.get("v") == _VERSION and isinstance(stored.get("files"), dict):
            files: dict[str, Any] = stored["files"]
            return files
    return {}


def _write(path: Path, value: Any) -> None:
    """Replace the cache as a whole. Where that is impossible, fingerprints are made again next time."""
    part = path.with_name(f".tmp-{os.getpid()}-{secrets.token_hex(8)}")
    with suppress(OSError):
        os.makedirs(path.parent, 0o700, exist_ok=True)
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with open(fd, "wb") as cache:
                cache.write(json.dumps(value).encode())
            os.replace(part, path)
        except OSError:
            with suppress(OSError):
                os.unlink(part)
