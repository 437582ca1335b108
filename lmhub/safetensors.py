"""Reads and writes the tensors of a Hugging Face folder: `model.safetensors`, or the shards that its index names.

The format: eight bytes that say how long the header is, the header as JSON (name -> dtype, shape, [begin, end]), the
bytes. The files are untrusted: whatever has a size is compared with what is there before anything of that size is made.
Knows no architecture and no configuration; nothing is copied but tensors that do not lie where kernels can read them.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from itertools import pairwise
from mmap import mmap
from pathlib import Path
from typing import Any

from lmhub.errors import ModelFileError, quoted
from lmhub.gguf import Copied, GGMLType, Part, Tensor, tensors_of
from lmhub.gguf.parse import MAX_NAME, MAX_TENSORS, Damaged, Header, TensorInfo, shown

SUFFIX = ".safetensors"
MAX_HEADER = 1 << 24  # bytes; 20,000 tensors take two million
MAX_JSON = 1 << 26  # bytes of any other JSON file of a folder: a vocabulary of 256,000 tokens takes 20 million
MAX_SHARDS = 4096
MAX_DIMS = 8

DTYPES = {
    "F64": GGMLType.F64,
    "F32": GGMLType.F32,
    "F16": GGMLType.F16,
    "BF16": GGMLType.BF16,
    "I64": GGMLType.I64,
    "I32": GGMLType.I32,
    "I16": GGMLType.I16,
    "I8": GGMLType.I8,
}


def read_json(path: Path, limit: int = MAX_JSON) -> dict[str, Any]:
    """The object in a JSON file of a model's folder. Raises ModelFileError."""
    try:
        with open(path, "rb") as file:
            data = file.read(limit + 1)
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path.name} cannot be read ({type(error).__name__}); check the folder.") from None
    if len(data) > limit:
        raise ModelFileError(f"{path.name} is longer than the {limit} bytes that lmhub reads; download it again.")
    try:
        found = parse_json(data)
    except Damaged as damage:
        raise ModelFileError(f"{path.name}: {damage}; download it again.") from None
    return found


def parse_json(data: bytes) -> dict[str, Any]:
    """The object that `data` holds. Raises Damaged, also for a key that occurs twice."""
    try:
        found = json.loads(data, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        raise Damaged("it holds no JSON that can be read") from None
    if not isinstance(found, dict):
        raise Damaged("it holds JSON, but no object")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise Damaged(f"the key {quoted(key)} occurs twice")
        made[key] = value
    return made


def parse_header(buf: mmap | bytes) -> Header:
    """The directory of one file, or `Damaged`. Each tensor then lies in the buffer, alone."""
    size = len(buf)
    length = int.from_bytes(buf[:8], "little")
    if size < 8 or length > size - 8:
        raise Damaged(f"it is no safetensors file, or not all of it: it has {size} bytes, fewer than its header says")
    if length > MAX_HEADER:
        raise Damaged(f"its header of {length} bytes is longer than the {MAX_HEADER} that lmhub reads")
    entries = parse_json(bytes(buf[8 : 8 + length]))
    entries.pop("__metadata__", None)
    if len(entries) > MAX_TENSORS:
        raise Damaged(f"it has {len(entries)} tensors, more than the {MAX_TENSORS} that lmhub reads")
    infos = sorted((_entry(name, entry, 8 + length, size) for name, entry in entries.items()), key=lambda e: e.offset)
    for before, after in pairwise(infos):
        if before.offset + before.nbytes > after.offset:
            raise Damaged(f"the tensors {shown(before.name)} and {shown(after.name)} overlap")
    return Header(0, {}, tuple(infos), 8)


def _entry(name: str, entry: Any, start: int, size: int) -> TensorInfo:
    what = "the tensor " + shown(name)
    if len(name) > MAX_NAME or not isinstance(entry, dict) or not name.isprintable():
        raise Damaged(f"{what} has no entry that can be read")
    dtype, shape, at = entry.get("dtype"), _sizes(entry.get("shape")), _sizes(entry.get("data_offsets"))
    if not isinstance(dtype, str) or dtype not in DTYPES:
        kind = shown(dtype) if isinstance(dtype, str) else "that is none"
        raise Damaged(f"{what} has a type {kind}, and lmhub reads {', '.join(DTYPES)}")
    if shape is None or len(shape) > MAX_DIMS or 0 in shape:
        raise Damaged(f"{what} has no shape of 1 to {MAX_DIMS} sizes")
    if at is None or len(at) != 2 or not at[0] <= at[1] <= size - start:
        raise Damaged(f"{what} does not lie within the file of {size} bytes")
    nbytes = math.prod(shape) * DTYPES[dtype].block_bytes
    if at[1] - at[0] != nbytes:
        raise Damaged(f"{what} has {at[1] - at[0]} bytes where its shape asks for {nbytes}")
    return TensorInfo(name, DTYPES[dtype], shape, start + at[0], nbytes)


def _sizes(value: Any) -> tuple[int, ...] | None:
    """A list of sizes; None for anything else."""
    if isinstance(value, list) and all(type(one) is int and 0 <= one < 1 << 48 for one in value):
        return tuple(value)
    return None


def open_tensors(folder: Path) -> tuple[list[Part], dict[str, Tensor]]:
    """The files of a folder, mapped, and their tensors by name. Raises ModelFileError for what is missing or wrong."""
    index = folder / f"model{SUFFIX}.index.json"
    names = [f"model{SUFFIX}"]
    wanted: dict[str, Any] = {}
    if not (folder / names[0]).exists() and index.exists():
        wanted = read_json(index).get("weight_map") or {}
        names = _shards(index, wanted)
    parts: list[Part] = []
    try:
        for name in names:
            parts.append(Part(folder / name, parse_header))
        tensors = {name: _readable(tensor) for name, tensor in tensors_of(parts).items()}
        if missing := next((name for name in wanted if name not in tensors), None):
            raise ModelFileError(
                f"{index.name} names the tensor {shown(missing)}, which no shard holds; download again."
            )
    except BaseException:
        for part in parts:
            part.close()
        raise
    return parts, tensors


def _shards(index: Path, wanted: Any) -> list[str]:
    if not isinstance(wanted, dict) or not all(isinstance(name, str) for name in wanted.values()):
        raise ModelFileError(f"{index.name} has no weight_map of names; download it again.")
    names = sorted(set(wanted.values()))
    if not 1 <= len(names) <= MAX_SHARDS:
        raise ModelFileError(f"{index.name} names {len(names)} files, not 1 to {MAX_SHARDS}; download it again.")
    for name in names:
        if Path(name).name != name or not name.endswith(SUFFIX):
            raise ModelFileError(f"{index.name} names {quoted(name)}, which is no {SUFFIX} file beside it.")
    return names


def _readable(tensor: Tensor) -> Tensor:
    """The tensor itself where its elements are aligned, as in every file of the usual writers; else a copy."""
    size = tensor.type.block_bytes
    if tensor.offset % size == 0:
        return tensor
    info = TensorInfo(tensor.name, tensor.type, tensor.shape, 0, tensor.nbytes)
    return Tensor(info, Copied(tensor.data.data))


def write_tensors(path: Path, tensors: Mapping[str, tuple[GGMLType, tuple[int, ...], Callable[[], bytes]]]) -> None:
    """Write a file of these tensors: type, shape, and what gives their bytes when their turn comes.

    The file appears under its name only when it is complete. Raises ValueError for a type that the format lacks.
    """
    names = {kind: name for name, kind in DTYPES.items()}
    directory, end = {}, 0
    for name, (kind, shape, _) in tensors.items():
        if kind not in names:
            raise ValueError(f"the format has no type {kind.name}")
        start, end = end, end + math.prod(shape) * kind.block_bytes
        directory[name] = {"dtype": names[kind], "shape": list(shape), "data_offsets": [start, end]}
    header = json.dumps(directory, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    part = path.with_name(path.name + ".part")
    try:
        with open(part, "wb") as out:
            out.write(len(header).to_bytes(8, "little") + header)
            for _, (_, _, data) in tensors.items():
                out.write(data())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
