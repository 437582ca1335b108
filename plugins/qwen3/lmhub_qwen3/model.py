"""Loads a qwen3 or qwen3moe file and runs it: hyper-parameters, the weight table, then `csrc/qwen3.c` for every step.

The file is untrusted: every number is held to a range and every tensor to its shape before C sees it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from lmhub.errors import ModelFileError, UnsupportedModel
from lmhub.family import LoadOptions
from lmhub.forward import Geometry, RaggedModel
from lmhub.gguf import GGUFFile
from lmhub.hparams import Keys
from lmhub.kv import Layers
from lmhub.model import MemoryPlan
from lmhub.native import bind
from lmhub.rope import Rope, read_rope
from lmhub.weights import Matrix, Weights
from lmhub_qwen3._kernels import ffi, lib

SKIPPED = ("v.*", "mm.*", "mtp.*", "rope_freqs.weight")
"""Tensors of other parts that may travel in the same file: vision, draft heads, unused tables."""


@dataclass(frozen=True, slots=True)
class Hparams:
    """Sizes of one model, in elements. `n_expert` is 0 for a dense model."""

    n_layer: int
    n_embd: int
    n_head: int
    n_kv: int
    head_dim: int
    value_dim: int
    n_ff: tuple[int, ...]  # of each layer, or of each of its experts
    n_expert: int
    n_expert_used: int
    n_vocab: int
    n_ctx_train: int
    rms_eps: float

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> Hparams:
        """Raises ModelFileError for numbers out of range, UnsupportedModel for what the family does not do."""
        keys = Keys(file)
        n_block = keys.whole("block_count", 1, 1024)
        n_layer = n_block - keys.whole("nextn_predict_layers", 0, n_block - 1, 0)
        refuse_other_kinds(file, keys)
        n_head = keys.uniform("attention.head_count", n_layer, 1, 1024)
        n_kv = keys.uniform("attention.head_count_kv", n_layer, 1, n_head, n_head)
        if n_head % n_kv:
            raise ModelFileError(
                f"{file.path.name}: {n_head} query heads cannot share {n_kv} key heads evenly; convert the model again."
            )
        # Without the key, embedding_length / head_count would be wrong for nearly every Qwen3.
        head_dim = keys.whole("attention.key_length", 1, 2048, length(file, "blk.0.attn_k_norm.weight"))
        moe = keys.arch == "qwen3moe"
        n_expert = keys.whole("expert_count", 1, 4096) if moe else 0
        return cls(
            n_layer=n_layer,
            n_embd=keys.whole("embedding_length", 1, 1 << 17),
            n_head=n_head,
            n_kv=n_kv,
            head_dim=head_dim,
            value_dim=keys.whole("attention.value_length", 1, 2048, head_dim),
            n_ff=hidden_sizes(file, keys, n_layer),
            n_expert=n_expert,
            n_expert_used=keys.whole("expert_used_count", 1, n_expert) if moe else 0,
            n_vocab=length(file, "token_embd.weight"),
            n_ctx_train=keys.whole("context_length", 1, 1 << 31),
            rms_eps=keys.real("attention.layer_norm_rms_epsilon", 0.0, 1.0),
        )

    def geometry(self, options: LoadOptions) -> Geometry:
        """The shape of the KV cache."""
        return Geometry(options.kv_dtype, Layers(self.n_layer, self.n_kv, self.head_dim, self.value_dim))


def length(file: GGUFFile, name: str) -> int:
    """The slowest dimension of a tensor. Raises ModelFileError when it is missing."""
    shape = file.tensor(name).shape
    return shape[0] if shape else 1


def hidden_sizes(file: GGUFFile, keys: Keys, n_layer: int) -> tuple[int, ...]:
    """Hidden size of every layer's feed-forward, or of its experts: the key, or what the first expert's tensor says."""
    name = "expert_feed_forward_length" if keys.arch == "qwen3moe" else "feed_forward_length"
    if keys.arch == "qwen3moe" and name not in keys:
        stacked = "blk.0.ffn_down_exps.weight"
        tensor = file.tensor(stacked if stacked in file.tensors else "blk.0.ffn_down.0.weight")
        return (tensor.shape[-1],) * n_layer
    return keys.per_layer(name, n_layer, 1, 1 << 20)


def refuse_other_kinds(file: GGUFFile, keys: Keys) -> None:
    """Raises UnsupportedModel for files that are not causal language models, or that compute something else."""
    kind = ""
    classifies = "classifier.output_labels" in keys or "cls.output.weight" in file.tensors
    if classifies or file.get(f"{keys.arch}.pooling_type", 0):
        kind = "is an embedding or reranking model"
    elif not file.get(f"{keys.arch}.attention.causal", True):
        kind = "is not causal"
    elif not any(name.startswith("blk.0.") for name in file.tensors):
        kind = "has no first layer, as a draft model has none"
    elif keys.real("expert_weights_scale", 0.0, 1e6, 0.0) not in (0.0, 1.0):
        kind = "scales its experts"
    elif keys.whole("expert_gating_func", 0, 64, 1) > 1:
        kind = "routes by something else than a softmax"
    if kind:
        raise UnsupportedModel(
            f"{file.path.name} {kind}, which lmhub-qwen3 does not serve; use a chat model of the family."
        )


def fill_model(hp: Hparams, rope: Rope, weights: Weights) -> tuple[Any, Any]:
    """The `qwen3_model` and its layers."""
    m, layers = ffi.new("qwen3_model *"), ffi.new("qwen3_layer[]", hp.n_layer)
    put = partial(weights.bind, ffi, m)
    m.n_layer, m.n_embd, m.rms_eps = hp.n_layer, hp.n_embd, hp.rms_eps
    m.n_head, m.n_kv, m.head_dim, m.value_dim = hp.n_head, hp.n_kv, hp.head_dim, hp.value_dim
    m.n_expert_used, m.layers = hp.n_expert_used, layers
    m.n_pairs, m.rope_magnitude = len(rope.inv_freq), rope.magnitude
    put("inv_freq", rope.inv_freq)
    put("output_norm", weights.vector("output_norm.weight", hp.n_embd))
    put("token_embd", weights.table("token_embd.weight", hp.n_vocab, hp.n_embd))
    # A tied model may still carry its head, quantised differently: it is then meant to be used.
    head = "output.weight" if weights.has("output.weight") else "token_embd.weight"
    put("output", weights.matrix(head, hp.n_vocab, hp.n_embd))
    for il in range(hp.n_layer):
        fill_attention(layers[il], il, hp, weights)
        (fill_experts if hp.n_expert else fill_dense)(layers[il], il, hp, weights)
    return m, layers


def fill_attention(layer: Any, il: int, hp: Hparams, weights: Weights) -> None:
    """Norms and projections of one `qwen3_layer`."""
    put, b = partial(weights.bind, ffi, layer), f"blk.{il}."
    nq, nk, nv = hp.n_head * hp.head_dim, hp.n_kv * hp.head_dim, hp.n_kv * hp.value_dim
    put("attn_norm", weights.vector(b + "attn_norm.weight", hp.n_embd))
    put("ffn_norm", weights.vector(b + "ffn_norm.weight", hp.n_embd))
    put("attn_q_norm", weights.vector(b + "attn_q_norm.weight", hp.head_dim))
    put("attn_k_norm", weights.vector(b + "attn_k_norm.weight", hp.head_dim))
    put("attn_output", weights.matrix(b + "attn_output.weight", hp.n_embd, hp.n_head * hp.value_dim))
    put("attn_output_bias", weights.optional_vector(b + "attn_output.bias", hp.n_embd))
    if weights.has(b + "attn_qkv.weight"):
        put("attn_qkv", weights.matrix(b + "attn_qkv.weight", nq + nk + nv, hp.n_embd))
        bias = weights.optional_vector(b + "attn_qkv.bias", nq + nk + nv)
        biases = np.split(bias, [nq, nq + nk]) if bias is not None else [None] * 3
        for stem, part in zip("qkv", biases, strict=True):
            put(f"attn_{stem}_bias", part)
        return
    for stem, rows in (("attn_q", nq), ("attn_k", nk), ("attn_v", nv)):
        put(stem, weights.matrix(f"{b}{stem}.weight", rows, hp.n_embd))
        put(f"{stem}_bias", weights.optional_vector(f"{b}{stem}.bias", rows))


def fill_dense(layer: Any, il: int, hp: Hparams, weights: Weights) -> None:
    """The feed-forward of one dense `qwen3_layer`."""
    put, b, n_ff = partial(weights.bind, ffi, layer), f"blk.{il}.", hp.n_ff[il]
    put("ffn_gate", weights.matrix(b + "ffn_gate.weight", n_ff, hp.n_embd))
    put("ffn_up", weights.matrix(b + "ffn_up.weight", n_ff, hp.n_embd))
    put("ffn_down", weights.matrix(b + "ffn_down.weight", hp.n_embd, n_ff))


def fill_experts(layer: Any, il: int, hp: Hparams, weights: Weights) -> None:
    """The router and the experts of one `qwen3_layer`."""
    put, b, n_ff = partial(weights.bind, ffi, layer), f"blk.{il}.", hp.n_ff[il]
    put("ffn_gate_inp", weights.matrix(b + "ffn_gate_inp.weight", hp.n_expert, hp.n_embd))
    put("ffn_down", experts(weights, b + "ffn_down", hp.n_expert, hp.n_embd, n_ff))
    if weights.has(b + "ffn_gate_up_exps.weight"):
        put("ffn_gate_up", weights.matrix(b + "ffn_gate_up_exps.weight", 2 * n_ff, hp.n_embd, hp.n_expert))
        return
    put("ffn_gate", experts(weights, b + "ffn_gate", hp.n_expert, n_ff, hp.n_embd))
    put("ffn_up", experts(weights, b + "ffn_up", hp.n_expert, n_ff, hp.n_embd))


def experts(weights: Weights, stem: str, n_expert: int, rows: int, cols: int) -> Matrix:
    """One projection of all experts: a stacked tensor, or one tensor per expert in files from before these."""
    if weights.has(f"{stem}.0.weight"):
        return weights.stack([f"{stem}.{e}.weight" for e in range(n_expert)], rows, cols)
    return weights.matrix(f"{stem}_exps.weight", rows, cols, n_expert)


def load(file: GGUFFile, options: LoadOptions) -> RaggedModel:
    """The model in an open qwen3 or qwen3moe file. Raises ModelFileError or UnsupportedModel naming what is wrong."""
    bind(lib, "lmhub-qwen3")
    hp = Hparams.from_gguf(file)
    geometry, weights = hp.geometry(options), Weights(file, options.progress, options.borrow)
    m, layers = fill_model(hp, read_rope(Keys(file), hp.head_dim, hp.n_ctx_train), weights)
    block_count = Keys(file).whole("block_count", 1, 1024)
    weights.finish((*SKIPPED, *(f"blk.{i}.*" for i in range(hp.n_layer, block_count))))
    return RaggedModel(
        ffi, lib.qwen3_forward, m, geometry, n_vocab=hp.n_vocab, n_ctx_train=hp.n_ctx_train, keep=(layers, weights)
    )


def plan(file: GGUFFile, options: LoadOptions) -> MemoryPlan:
    """What loading would take, from metadata and the tensor directory."""
    tables = ("token_embd.weight",) if "output.weight" in file.tensors else ()
    return Hparams.from_gguf(file).geometry(options).plan(file, options, tables)
