"""Writes a checkpoint anew, in another layout or type: a GGUF file, an export of safetensors, or a transformers folder.

    lmhub nanochat export ~/.cache/nanochat/chatsft_checkpoints/d20 d20.gguf --type q8_0

What is exported is what was read: every layout gives the same logits, to the bit where the type stays the same. Knows
no forward pass.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from lmhub.errors import LmhubError, UnsupportedModel
from lmhub.gguf import GGMLType, GGUFFile, GGUFWriter, Tensor
from lmhub.gguf.quant import dequantize, quantize
from lmhub.safetensors import write_tensors
from lmhub_nanochat.config import EPSILON, SOFTCAP
from lmhub_nanochat.generations import FIRST
from lmhub_nanochat.template import TEMPLATE
from lmhub_nanochat.vocabulary import as_bin, as_json

KINDS = {"f32": GGMLType.F32, "f16": GGMLType.F16, "bf16": GGMLType.BF16, "q8_0": GGMLType.Q8_0}
LAYOUTS = ("safetensors", "hf")
_NANOCHAT = {
    "token_embd.weight": "transformer.wte.weight",
    "output.weight": "lm_head.weight",
    "attn_q.weight": "transformer.h.{}.attn.c_q.weight",
    "attn_k.weight": "transformer.h.{}.attn.c_k.weight",
    "attn_v.weight": "transformer.h.{}.attn.c_v.weight",
    "attn_output.weight": "transformer.h.{}.attn.c_proj.weight",
    "attn_value_gate.weight": "transformer.h.{}.attn.ve_gate.weight",
    "value_embd.weight": "value_embeds.{}.weight",
    "ffn_up.weight": "transformer.h.{}.mlp.c_fc.weight",
    "ffn_down.weight": "transformer.h.{}.mlp.c_proj.weight",
}
_TRANSFORMERS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output.weight": "lm_head.weight",
    "attn_q.weight": "model.layers.{}.self_attn.q_proj.weight",
    "attn_k.weight": "model.layers.{}.self_attn.k_proj.weight",
    "attn_v.weight": "model.layers.{}.self_attn.v_proj.weight",
    "attn_output.weight": "model.layers.{}.self_attn.o_proj.weight",
    "ffn_up.weight": "model.layers.{}.mlp.fc1.weight",
    "ffn_down.weight": "model.layers.{}.mlp.fc2.weight",
}
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)\Z")


def export(file: GGUFFile, target: Path, kind: str | None = None, layout: str = "safetensors") -> None:
    """Write the open checkpoint `file` to `target`: a GGUF file where it ends so, else a folder of that layout.

    `kind` is the type of the matrices (`KINDS`; None: as they are); small tensors keep theirs. Raises LmhubError.
    """
    if file.architecture != "nanochat":
        raise UnsupportedModel(f"{file.path.name} is no nanochat model; only these can be exported")
    if kind is not None and kind not in KINDS:
        raise LmhubError(f"the type {kind!r} is not written; choose one of {', '.join(KINDS)}")
    if target.exists():
        raise LmhubError(f"{target.name} exists already; remove it, or choose another name")
    wanted = None if kind is None else KINDS[kind]
    if target.suffix == ".gguf":
        _write_gguf(file, target, wanted)
        return
    if wanted is GGMLType.Q8_0:
        raise LmhubError("safetensors hold no q8_0; choose f32, f16 or bf16, or a target that ends with .gguf")
    if layout not in LAYOUTS:
        raise LmhubError(f"the layout {layout!r} is not written; choose one of {', '.join(LAYOUTS)}")
    if layout == "hf" and file.get("nanochat.generation") != FIRST.name:
        raise UnsupportedModel(
            f"{file.path.name} is of a later generation ({file.get('nanochat.generation')}) than transformers knows, "
            f"which would leave out its tensors; export it as safetensors or GGUF"
        )
    target.mkdir(parents=True)
    names = _NANOCHAT if layout == "safetensors" else _TRANSFORMERS
    stored = {_called(name, names): _stored(tensor, wanted) for name, tensor in file.tensors.items()}
    write_tensors(target / "model.safetensors", stored)
    if layout == "safetensors":
        (target / "tokenizer.bin").write_bytes(as_bin(file.metadata))
        _write_json(target / "meta.json", {"model_config": _model_config(file)})
    else:
        _write_json(target / "tokenizer.json", as_json(file.metadata))
        _write_json(target / "tokenizer_config.json", _tokenizer_config(file))
        _write_json(target / "config.json", _config(file, wanted))


def _called(name: str, names: Mapping[str, str]) -> str:
    """The name of a tensor in another layout; what has none there keeps its own."""
    match = _BLOCK.match(name)
    return names.get(match[2], name).format(match[1]) if match else names.get(name, name)


def _kind(tensor: Tensor, wanted: GGMLType | None) -> GGMLType:
    """The type to store: vectors, gates and what does not divide into blocks stay what they are."""
    is_small = len(tensor.shape) < 2 or tensor.name.endswith("_gate.weight")
    if wanted is None or is_small or tensor.shape[-1] % wanted.block_elements:
        return tensor.type
    return wanted


def _data(tensor: Tensor, kind: GGMLType) -> Any:
    """Its bytes as that type: uint8."""
    return tensor.data if kind is tensor.type else quantize(dequantize(tensor), kind)


def _stored(tensor: Tensor, wanted: GGMLType | None) -> tuple[GGMLType, tuple[int, ...], Callable[[], bytes]]:
    kind = _kind(tensor, wanted)
    if kind.block_elements > 1:
        raise LmhubError(f"{tensor.name} is {kind.name}, which safetensors do not hold; choose a type (--type f32)")
    return kind, tensor.shape, lambda: _data(tensor, kind).tobytes()


def _write_gguf(file: GGUFFile, target: Path, wanted: GGMLType | None) -> None:
    with GGUFWriter(target, file.architecture) as out:
        for key, value in file.metadata.items():
            if key != "general.architecture":
                out.add(key, value)
        for name, tensor in file.tensors.items():
            kind = _kind(tensor, wanted)
            out.add_tensor(name, partial(_data, tensor, kind), kind, tensor.shape)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _model_config(file: GGUFFile) -> dict[str, Any]:
    """The sizes in nanochat's terms, and what is not as its code has it."""
    length, windows = _number(file, "context_length"), file.get("nanochat.attention.sliding_window")
    config = {
        "sequence_len": length,
        "vocab_size": _number(file, "vocab_size"),
        "n_layer": _number(file, "block_count"),
        "n_head": _number(file, "attention.head_count"),
        "n_kv_head": _number(file, "attention.head_count_kv"),
        "n_embd": _number(file, "embedding_length"),
    }
    if any(windows):
        config["window_pattern"] = "".join("L" if one == length + 1 else "S" for one in windows)
    eps, cap = _number(file, "attention.layer_norm_rms_epsilon"), _number(file, "final_logit_softcapping")
    unusual = {"rms_norm_eps": (eps, EPSILON), "final_logit_softcapping": (cap, SOFTCAP)}
    config |= {key: value for key, (value, usual) in unusual.items() if value != usual}
    if file.get("nanochat.generation") == FIRST.name and (base := _number(file, "rope.freq_base")) != FIRST.rope_base:
        config["rope_theta"] = base
    return config


def _config(file: GGUFFile, wanted: GGMLType | None) -> dict[str, Any]:
    """transformers' config.json."""
    kind = wanted or file.tensor("output.weight").type
    names = {GGMLType.F32: "float32", GGMLType.F16: "float16", GGMLType.BF16: "bfloat16"}
    return {
        "architectures": ["NanoChatForCausalLM"],
        "model_type": "nanochat",
        "attention_bias": False,
        "bos_token_id": file.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.get("tokenizer.ggml.eos_token_id"),
        "dtype": names.get(kind, "float32"),
        "final_logit_softcapping": _number(file, "final_logit_softcapping"),
        "hidden_act": "relu2",
        "hidden_size": _number(file, "embedding_length"),
        "intermediate_size": _number(file, "feed_forward_length"),
        "max_position_embeddings": _number(file, "context_length"),
        "num_attention_heads": _number(file, "attention.head_count"),
        "num_hidden_layers": _number(file, "block_count"),
        "num_key_value_heads": _number(file, "attention.head_count_kv"),
        "rms_norm_eps": _number(file, "attention.layer_norm_rms_epsilon"),
        "rope_parameters": {"rope_theta": _number(file, "rope.freq_base"), "rope_type": "default"},
        "tie_word_embeddings": False,
        "vocab_size": _number(file, "vocab_size"),
    }


def _tokenizer_config(file: GGUFFile) -> dict[str, Any]:
    words = file.metadata["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": words[file.metadata["tokenizer.ggml.bos_token_id"]],
        "eos_token": words[file.metadata["tokenizer.ggml.eos_token_id"]],
        "chat_template": TEMPLATE,
    }


def _number(file: GGUFFile, name: str) -> Any:
    return file.metadata[f"nanochat.{name}"]
