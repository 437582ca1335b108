"""Loads a qwen3 or qwen3moe file and runs it: hyper-parameters, the weight table, then `csrc/qwen3.c` for every step.

The file is untrusted: every number is held to a range and every tensor to its shape before C sees it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lmhub.family import LoadOptions
from lmhub.fields import Fields
from lmhub.forward import Geometry, RaggedModel
from lmhub.gguf import GGUFFile
from lmhub.hparams import Keys, refuse_other_kinds
from lmhub.kv import Layers
from lmhub.model import MemoryPlan
from lmhub.native import bind
from lmhub.rope import Rope, read_rope
from lmhub.weights import Weights
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
        refuse_other_kinds(keys, "lmhub-qwen3")
        n_head, n_kv = keys.heads(n_layer)
        # Without the key, embedding_length / head_count would be wrong for nearly every Qwen3.
        head_dim = keys.whole("attention.key_length", 1, 2048, keys.rows_of("blk.0.attn_k_norm.weight"))
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
            n_vocab=keys.rows_of("token_embd.weight"),
            n_ctx_train=keys.whole("context_length", 1, 1 << 31),
            rms_eps=keys.real("attention.layer_norm_rms_epsilon", 0.0, 1.0),
        )

    def geometry(self, options: LoadOptions) -> Geometry:
        """The shape of the KV cache."""
        return Geometry(options.kv_dtype, Layers(self.n_layer, self.n_kv, self.head_dim, self.value_dim))


def hidden_sizes(file: GGUFFile, keys: Keys, n_layer: int) -> tuple[int, ...]:
    """Hidden size of every layer's feed-forward, or of its experts: the key, or what the first expert's tensor says."""
    name = "expert_feed_forward_length" if keys.arch == "qwen3moe" else "feed_forward_length"
    if keys.arch == "qwen3moe" and name not in keys:
        stacked = "blk.0.ffn_down_exps.weight"
        tensor = file.tensor(stacked if stacked in file.tensors else "blk.0.ffn_down.0.weight")
        return (tensor.shape[-1],) * n_layer
    return keys.per_layer(name, n_layer, 1, 1 << 20)


def fill_model(hp: Hparams, rope: Rope, weights: Weights) -> tuple[Any, Any]:
    """The `qwen3_model` and its layers."""
    m, layers = ffi.new("qwen3_model *"), ffi.new("qwen3_layer[]", hp.n_layer)
    m.n_layer, m.n_embd, m.rms_eps = hp.n_layer, hp.n_embd, hp.rms_eps
    m.n_head, m.n_kv, m.head_dim, m.value_dim = hp.n_head, hp.n_kv, hp.head_dim, hp.value_dim
    m.n_expert_used, m.layers = hp.n_expert_used, layers
    fields = Fields(ffi, m, weights)
    fields.rope(rope)
    fields.ends(hp.n_vocab, hp.n_embd)
    for il in range(hp.n_layer):
        layer = Fields(ffi, layers[il], weights, f"blk.{il}.")
        fill_attention(layer, il, hp, weights)
        fill_feed_forward(layer, hp, hp.n_ff[il])
    return m, layers


def fill_attention(layer: Fields, il: int, hp: Hparams, weights: Weights) -> None:
    """Norms and projections of one `qwen3_layer`."""
    nq, nk, nv = hp.n_head * hp.head_dim, hp.n_kv * hp.head_dim, hp.n_kv * hp.value_dim
    layer.vector("attn_norm", hp.n_embd)
    layer.vector("ffn_norm", hp.n_embd)
    layer.vector("attn_q_norm", hp.head_dim)
    layer.vector("attn_k_norm", hp.head_dim)
    layer.projection("attn_output", hp.n_embd, hp.n_head * hp.value_dim)
    if layer.has("attn_qkv"):
        layer.matrix("attn_qkv", nq + nk + nv, hp.n_embd)
        bias = weights.optional_vector(f"blk.{il}.attn_qkv.bias", nq + nk + nv)
        biases = np.split(bias, [nq, nq + nk]) if bias is not None else [None] * 3
        for stem, part in zip("qkv", biases, strict=True):
            layer.put(f"attn_{stem}_bias", part)
        return
    for stem, rows in (("attn_q", nq), ("attn_k", nk), ("attn_v", nv)):
        layer.projection(stem, rows, hp.n_embd)


def fill_feed_forward(layer: Fields, hp: Hparams, n_ff: int) -> None:
    """The feed-forward of one `qwen3_layer`: dense, or routed with gate and up of each expert apart or joined."""
    if not hp.n_expert:
        layer.feed_forward(hp.n_embd, n_ff)
    elif layer.has("ffn_gate_up_exps"):
        layer.matrix("ffn_gate_inp", hp.n_expert, hp.n_embd)
        layer.experts("ffn_gate_up", 2 * n_ff, hp.n_embd, hp.n_expert)
        layer.experts("ffn_down", hp.n_embd, n_ff, hp.n_expert)
    else:
        layer.routed_feed_forward(hp.n_embd, n_ff, hp.n_expert)


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
    return Hparams.from_gguf(file).geometry(options).plan(file, options)
