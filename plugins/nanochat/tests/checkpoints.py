"""Tiny random checkpoints as nanochat writes them: names, padding and all, of every generation; and torch's file."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from lmhub_nanochat.vocabulary import BOS, END, USER

from lmhub.gguf import GGMLType
from lmhub.safetensors import write_tensors

Arrays = dict[str, np.ndarray]
SPECIALS = (BOS, USER, "<|user_end|>", "<|assistant_start|>", END, "<|python_start|>", "<|python_end|>")
SPECIALS += ("<|output_start|>", "<|output_end|>")
MERGES = ((104, 101), (32, 116), (257, 256), (108, 108))  # he, _t, _the, ll
V = 256 + len(MERGES) + len(SPECIALS)
CONFIG = {"sequence_len": 512, "vocab_size": V, "n_layer": 3, "n_head": 4, "n_kv_head": 2, "n_embd": 64}


def weights(generation: str = "G", n_layer: int = 3, d: int = 64, n_head: int = 4, n_kv: int = 2) -> Arrays:
    """The state_dict of a model of one generation (A, B, E, F, G), with rows that only pad the vocabulary."""
    rng, hd, rows = np.random.default_rng(ord(generation)), d // n_head, -(-V // 64) * 64

    def normal(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    made = {"transformer.wte.weight": normal(rows, d) * 8, "lm_head.weight": normal(rows, d) * 3}
    for i in range(n_layer):
        b = f"transformer.h.{i}."
        made |= {b + "attn.c_q.weight": normal(n_head * hd, d), b + "attn.c_k.weight": normal(n_kv * hd, d)}
        made |= {b + "attn.c_v.weight": normal(n_kv * hd, d), b + "attn.c_proj.weight": normal(d, n_head * hd)}
        made |= {b + "mlp.c_fc.weight": normal(4 * d, d), b + "mlp.c_proj.weight": normal(d, 4 * d)}
        if generation in "EFG" and i % 2 == (n_layer - 1) % 2:
            made[f"value_embeds.{i}.weight"] = normal(rows, n_kv * hd) * 4
            made[b + "attn.ve_gate.weight"] = normal(n_kv, 32 if generation == "E" else 12)
    if generation != "A":
        made |= {"resid_lambdas": normal(n_layer) + 1, "x0_lambdas": normal(n_layer)}
    if generation == "G":
        made |= {"smear_gate.weight": normal(1, 24), "smear_lambda": normal(1), "backout_lambda": normal(1)}
    return made


def tokenizer_bin() -> bytes:
    """A small vocabulary."""
    out = b"NCTOKz01" + struct.pack("<4I", 1, V, len(MERGES), len(SPECIALS))
    out += b"".join(struct.pack("<II", *pair) for pair in MERGES)
    for i, text in enumerate(SPECIALS):
        out += struct.pack("<IH", 256 + len(MERGES) + i, len(text)) + text.encode()
    return out


def save_export(folder: Path, arrays: Mapping[str, np.ndarray], config: Any = CONFIG) -> Path:
    """The layout of exports; without `config` no sizes are said."""
    folder.mkdir(exist_ok=True)
    stored = {name: (GGMLType.F32, a.shape, np.ascontiguousarray(a).tobytes) for name, a in arrays.items()}
    write_tensors(folder / "model.safetensors", stored)
    (folder / "tokenizer.bin").write_bytes(tokenizer_bin())
    if config is not None:
        (folder / "meta.json").write_text(json.dumps({"step": 1, "model_config": config}))
    return folder


def save_torch(folder: Path, arrays: Mapping[str, np.ndarray], step: int = 1, config: Any = CONFIG) -> Path:
    """nanochat's own layout, as torch.save writes it."""
    folder.mkdir(exist_ok=True)
    (folder / f"model_{step:06d}.pt").write_bytes(torch_file(arrays))
    (folder / f"meta_{step:06d}.json").write_text(json.dumps({"step": step, "model_config": config}))
    (folder / "tokenizer.bin").write_bytes(tokenizer_bin())
    return folder


def torch_file(arrays: Mapping[str, np.ndarray], pickle: bytes | None = None) -> bytes:
    """A .pt file: the memory order of an array decides its strides."""
    out, items, storages = io.BytesIO(), b"", []
    for name, a in arrays.items():
        base = a if a.base is None else a.base
        items += text(name) + tensor(str(len(storages)), a.shape, [stride // 4 for stride in a.strides], base.size)
        storages.append(base.ravel(order="K").tobytes())
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("model/data.pkl", pickle or b"\x80\x02ccollections\nOrderedDict\n)R(" + items + b"u.")
        archive.writestr("model/byteorder", "little")
        for i, data in enumerate(storages):
            archive.writestr(f"model/data/{i}", data)
    return out.getvalue()


def text(value: str) -> bytes:
    """A text in a pickle."""
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def numbers(values: Any) -> bytes:
    """A tuple of numbers in a pickle."""
    return b"(" + b"".join(b"J" + struct.pack("<i", one) for one in values) + b"t"


def tensor(key: str, shape: Any, strides: Any, numel: int, offset: int = 0, kind: str = "FloatStorage") -> bytes:
    """A tensor of torch's in a pickle."""
    storage = b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + text(key) + text("cpu")
    storage += b"J" + struct.pack("<i", numel) + b"tQ"
    args = b"(" + storage + b"J" + struct.pack("<i", offset) + numbers(shape) + numbers(strides)
    return b"ctorch._utils\n_rebuild_tensor_v2\n" + args + b"\x89ccollections\nOrderedDict\n)RtR"
