"""Recognises a nanochat checkpoint and opens it as the GGUF file that it might be: metadata, tokenizer, tensors.

    H   config.json (model_type nanochat), model*.safetensors, tokenizer.json    transformers, first generation only
    T   model_STEP.pt, meta_STEP.json, tokenizer.pkl                             nanochat's own
    S   model.safetensors, tokenizer.bin, perhaps meta.json or config.json       exports

Tensors stay where they lie. The rows that only pad the vocabulary are cut off here, so that nothing behind this file
sees them. Knows no kernels.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmhub.errors import LmhubError, ModelFileError
from lmhub.gguf import GGUFFile, Part, Tensor
from lmhub.gguf.parse import TensorInfo
from lmhub.safetensors import open_tensors, read_json
from lmhub_nanochat.config import MAX_LENGTH, Config, checked_pattern, from_hugging_face, from_meta, from_tensors
from lmhub_nanochat.generations import FIRST, generation_of, windows
from lmhub_nanochat.torch_file import open_torch
from lmhub_nanochat.vocabulary import MAGIC, read_vocabulary

MAX_CONFIG = 1 << 22  # bytes of a configuration, which may hold a whole training log
_STEP = re.compile(r"model_(\d{1,12})\.pt\Z")
_NAMES = {
    "transformer.wte.weight": "token_embd.weight",
    "model.embed_tokens.weight": "token_embd.weight",
    "lm_head.weight": "output.weight",
}
_BLOCK = re.compile(r"(?:transformer\.h|model\.layers)\.(\d+)\.(.+)\Z")
_IN_BLOCK = {
    "attn.c_q.weight": "attn_q.weight",
    "attn.c_k.weight": "attn_k.weight",
    "attn.c_v.weight": "attn_v.weight",
    "attn.c_proj.weight": "attn_output.weight",
    "attn.ve_gate.weight": "attn_value_gate.weight",
    "mlp.c_fc.weight": "ffn_up.weight",
    "mlp.c_proj.weight": "ffn_down.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "mlp.fc1.weight": "ffn_up.weight",
    "mlp.fc2.weight": "ffn_down.weight",
}
_VALUES = re.compile(r"value_embeds\.(\d+)\.weight\Z")
_BUFFERS = ("cos", "sin")


@dataclass(frozen=True, slots=True)
class Options:
    """What a folder does not say, or says wrongly: how it is to be read. None: as the folder says."""

    head_dim: int | None = None
    sequence_len: int | None = None
    window_pattern: str | None = None
    softcap: float | None = None

    @classmethod
    def checked(cls, options: Mapping[str, Any]) -> Options:
        """From the plugin's flags. Raises LmhubError."""
        head_dim, length = options.get("nanochat-head-dim"), options.get("nanochat-sequence-len")
        pattern, softcap = options.get("nanochat-window-pattern"), options.get("nanochat-softcap")
        if head_dim is not None and not 2 <= head_dim <= 2048:
            raise LmhubError(f"--nanochat-head-dim is {head_dim}, but must be from 2 to 2048")
        if length is not None and not 1 <= length <= MAX_LENGTH:
            raise LmhubError(f"--nanochat-sequence-len is {length}, but must be from 1 to {MAX_LENGTH}")
        if softcap is not None and not 1e-3 <= softcap <= 1e6:
            raise LmhubError(f"--nanochat-softcap is {softcap:g}, but must be from 0.001 to 1000000")
        return cls(head_dim, length, checked_pattern("--nanochat-window-pattern", pattern), softcap)


def open_folder(path: Path, options: Options | None = None) -> GGUFFile | None:
    """The checkpoint in a folder, or of a step (`model_000992.pt`); None where there is none. Raises LmhubError."""
    options = options or Options()
    steps = [path] if _STEP.search(path.name) else _steps(path)
    if path.is_dir() and (path / "config.json").is_file():
        config = read_json(path / "config.json", MAX_CONFIG)
        if config.get("model_type") == "nanochat":
            return _hugging_face(path, config, options)
    if steps:
        return _torch(steps[-1], options)
    return _safetensors(path, options) if _is_export(path) else None


def _steps(folder: Path) -> list[Path]:
    """The checkpoints of a folder, the latest step last."""
    found = {int(match[1]): one for one in folder.glob("model_*.pt") if (match := _STEP.search(one.name))}
    return [found[step] for step in sorted(found)]


def _is_export(folder: Path) -> bool:
    tokenizer = folder / "tokenizer.bin"
    if not (folder / "model.safetensors").is_file() or not tokenizer.is_file():
        return False
    with open(tokenizer, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _hugging_face(folder: Path, config: Mapping[str, Any], options: Options) -> GGUFFile:
    parts, tensors = open_tensors(folder)
    with _Closing(parts):
        vocabulary = read_vocabulary([folder])
        return _assembled(folder, parts, tensors, from_hugging_face(folder.name, config), vocabulary, options)


def _torch(path: Path, options: Options) -> GGUFFile:
    meta = path.with_name(path.name.replace("model_", "meta_", 1)).with_suffix(".json")
    if not meta.is_file():
        raise ModelFileError(f"{meta.name} is missing beside {path.name}; copy it from the training machine, too.")
    found = read_json(meta, MAX_CONFIG)
    folder = path.parent
    part, tensors = open_torch(path)
    with _Closing([part]):
        vocabulary = read_vocabulary(
            [folder, folder / "tokenizer", folder.resolve().parents[1] / "tokenizer", *_base()]
        )
        return _assembled(folder, [part], tensors, from_meta(meta.name, found), vocabulary, options)


def _base() -> list[Path]:
    """Where nanochat keeps the tokenizer that it trained last."""
    base = os.environ.get("NANOCHAT_BASE_DIR")
    return [Path(base) / "tokenizer"] if base else []


def _safetensors(folder: Path, options: Options) -> GGUFFile:
    parts, tensors = open_tensors(folder)
    with _Closing(parts):
        vocabulary = read_vocabulary([folder])
        config = None
        for name in ("meta.json", "config.json"):
            if config is None and (folder / name).is_file():
                found = read_json(folder / name, MAX_CONFIG)
                config = from_meta(name, found) if "model_config" in found or "n_layer" in found else None
        if config is None:
            n_vocab = len(vocabulary["tokenizer.ggml.tokens"])
            config = from_tensors(folder.name, _stripped(tensors), n_vocab, options.head_dim)
        return _assembled(folder, parts, tensors, config, vocabulary, options)


class _Closing:
    """Gives the files back where something is wrong with them."""

    def __init__(self, parts: list[Part]):
        self._parts = parts

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for part in self._parts if kind is not None else ():
            part.close()


def _stripped(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors without the prefix of compiled modules, and without tables that are made anew."""
    plain = {name.removeprefix("_orig_mod."): tensor for name, tensor in tensors.items()}
    return {name: tensor for name, tensor in plain.items() if name not in _BUFFERS}


def _assembled(
    path: Path,
    parts: list[Part],
    tensors: Mapping[str, Tensor],
    config: Config,
    vocabulary: Mapping[str, Any],
    options: Options,
) -> GGUFFile:
    """The folder as a file."""
    plain = _stripped(tensors)
    generation = generation_of(path.name, plain, config.window_pattern is not None)
    length = options.sequence_len or config.sequence_len
    named = {tensor.name: tensor for name, one in plain.items() if (tensor := _renamed(name, one, config.vocab_size))}
    if config.is_tied and "output.weight" not in named and "token_embd.weight" in named:
        named["output.weight"] = named["token_embd.weight"].called("output.weight")
    pattern = options.window_pattern or config.window_pattern or "L"
    metadata = {
        "general.architecture": "nanochat",
        "general.name": path.resolve().name,
        "nanochat.generation": generation.name,
        "nanochat.context_length": length,
        "nanochat.vocab_size": config.vocab_size,
        "nanochat.block_count": config.n_layer,
        "nanochat.embedding_length": config.n_embd,
        "nanochat.feed_forward_length": _rows(named, "blk.0.ffn_up.weight", 4 * config.n_embd),
        "nanochat.attention.head_count": config.n_head,
        "nanochat.attention.head_count_kv": config.n_kv_head,
        "nanochat.attention.key_length": config.head_dim,
        "nanochat.attention.value_length": config.head_dim,
        "nanochat.attention.layer_norm_rms_epsilon": config.rms_eps,
        "nanochat.attention.sliding_window": windows(generation, pattern, length, config.n_layer),
        "nanochat.attention.qk_scale": generation.qk_scale,
        "nanochat.rope.freq_base": config.rope_base or generation.rope_base,
        "nanochat.final_logit_softcapping": options.softcap or config.softcap,
    }
    gates = [tensor for name, tensor in named.items() if name.endswith("attn_value_gate.weight")]
    if gates:
        metadata["nanochat.attention.value_gate_length"] = gates[0].shape[-1] if gates[0].shape else 0
        metadata["nanochat.attention.value_gate_scale"] = generation.gate_scale
    if generation is not FIRST and "smear_gate.weight" in named:
        metadata["nanochat.smear_length"] = (
            named["smear_gate.weight"].shape[-1] if named["smear_gate.weight"].shape else 0
        )
    return GGUFFile(parts, path=path, metadata={**metadata, **vocabulary}, tensors=named)


def _rows(tensors: Mapping[str, Tensor], name: str, default: int) -> int:
    tensor = tensors.get(name)
    return tensor.shape[0] if tensor is not None and tensor.shape else default


def _renamed(name: str, tensor: Tensor, n_vocab: int) -> Tensor | None:
    """The tensor under its name in GGUF's terms, without rows of padding; a name that means nothing here is kept."""
    target, is_table = _NAMES.get(name), name in _NAMES
    if match := _VALUES.match(name):
        target, is_table = f"blk.{int(match[1])}.value_embd.weight", True
    elif (match := _BLOCK.match(name)) and match[2] in _IN_BLOCK:
        target = f"blk.{int(match[1])}.{_IN_BLOCK[match[2]]}"
    if tensor.shape == ():  # a lambda that was saved as a number
        return Tensor(TensorInfo(target or name, tensor.type, (1,), tensor.offset, tensor.nbytes), tensor.part)
    if is_table and len(tensor.shape) == 2 and tensor.shape[0] > n_vocab:
        return tensor.called(target or name, n_vocab)
    return tensor.called(target or name)
