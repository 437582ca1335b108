"""Loads a qwen35 or qwen35moe file: the weight table, and `csrc/qwen35.c` for every step."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from lmhub.errors import ModelFileError
from lmhub.family import LoadOptions
from lmhub.fields import Fields
from lmhub.forward import RaggedModel
from lmhub.gguf import GGUFFile
from lmhub.hparams import Keys
from lmhub.model import MemoryPlan
from lmhub.native import bind
from lmhub.rope import Rope, read_rope
from lmhub.weights import Weights
from lmhub_qwen35._kernels import ffi, lib
from lmhub_qwen35.hparams import Hparams


def skipped(hp: Hparams) -> tuple[str, ...]:
    """Patterns of tensors that nothing here reads: vision, and the blocks that predict further tokens."""
    return ("v.*", "mm.*", "mtp.*", "rope_freqs.weight", *(f"blk.{il}.*" for il in range(hp.n_layer, hp.n_block)))


def fill_model(hp: Hparams, rope: Rope, weights: Weights) -> tuple[Any, Any]:
    """The `qwen35_model` and its layers."""
    m, layers = ffi.new("qwen35_model *"), ffi.new("qwen35_layer[]", hp.n_layer)
    fields, delta = Fields(ffi, m, weights), hp.delta
    m.n_layer, m.n_embd, m.rms_eps, m.layers = hp.n_layer, hp.n_embd, hp.rms_eps, layers
    m.n_head, m.n_kv, m.head_dim, m.attn_scale = hp.n_head, hp.n_kv, hp.head_dim, hp.attention_scale
    m.taps, m.n_k, m.n_v, m.state_dim, m.grouped = delta.taps, delta.n_k, delta.n_v, delta.head_dim, delta.grouped
    m.n_expert_used = hp.n_expert_used
    fields.rope(rope)
    fields.ends(hp.n_vocab, hp.n_embd)
    fields.put("unit", np.full(delta.head_dim, delta.head_dim**-0.5, np.float32))
    for il, is_recurrent in enumerate(hp.is_recurrent):
        layer, n_before = Fields(ffi, layers[il], weights, f"blk.{il}."), sum(hp.is_recurrent[:il])
        layers[il].cache, layers[il].memory = il - n_before, n_before * delta.n_floats
        layer.vector("attn_norm", hp.n_embd)
        layer.vector("post_attention_norm", hp.n_embd)
        if is_recurrent:
            fill_delta(layer, il, hp, weights)
        else:
            fill_attention(layer, hp)
        if hp.n_expert:
            fill_experts(layer, il, hp, weights)
        else:
            layer.feed_forward(hp.n_embd, hp.n_ff[il])
    return m, layers


def fill_attention(layer: Fields, hp: Hparams) -> None:
    """Norms and projections of an attention layer."""
    nq, nk = hp.n_head * hp.head_dim, hp.n_kv * hp.head_dim
    layer.matrix("attn_q", 2 * nq, hp.n_embd)
    layer.matrix("attn_k", nk, hp.n_embd)
    layer.matrix("attn_v", nk, hp.n_embd)
    layer.vector("attn_q_norm", hp.head_dim)
    layer.vector("attn_k_norm", hp.head_dim)
    layer.matrix("attn_output", hp.n_embd, nq)


def fill_delta(layer: Fields, il: int, hp: Hparams, weights: Weights) -> None:
    """Projections, convolution and gates of a delta-net layer. Raises ModelFileError for gates that grow."""
    b, delta = f"blk.{il}.", hp.delta
    width = delta.qk_dim + delta.value_dim
    layer.matrix("attn_qkv", width, hp.n_embd)
    layer.matrix("attn_gate", delta.value_dim, hp.n_embd)
    layer.matrix("ssm_alpha", delta.n_v, hp.n_embd)
    layer.matrix("ssm_beta", delta.n_v, hp.n_embd)
    taps = weights.array(b + "ssm_conv1d.weight", width, delta.taps).T
    layer.put("conv_qk", np.ascontiguousarray(taps[:, : delta.qk_dim]))
    layer.put("conv_v", np.ascontiguousarray(taps[:, delta.qk_dim :]))
    short = b + "ssm_dt"  # in some converters' files
    layer.put("dt_bias", weights.vector(short if weights.has(short) else short + ".bias", delta.n_v))
    decay = weights.vector(b + "ssm_a", delta.n_v)
    if not (decay < 0).all():
        raise ModelFileError(
            f"The tensor {b}ssm_a has values that are not below 0, as if it held logarithms; convert the model again."
        )
    layer.put("ssm_a", decay)
    layer.vector("ssm_norm", delta.head_dim)
    layer.matrix("ssm_out", hp.n_embd, delta.value_dim)


def fill_experts(layer: Fields, il: int, hp: Hparams, weights: Weights) -> None:
    """The router, the experts, and the one that every row goes to."""
    d, n_ff = hp.n_embd, hp.n_ff[il]
    if layer.has("ffn_gate_up_exps"):
        layer.matrix("ffn_gate_inp", hp.n_expert, d)
        layer.experts("ffn_gate_up", 2 * n_ff, d, hp.n_expert)
        layer.experts("ffn_down", d, n_ff, hp.n_expert)
    else:
        layer.routed_feed_forward(d, n_ff, hp.n_expert)
    layer.put("ffn_gate_inp_shexp", weights.row(f"blk.{il}.ffn_gate_inp_shexp.weight", d))
    layer.matrix("ffn_gate_shexp", hp.n_ff_shared, d)
    layer.matrix("ffn_up_shexp", hp.n_ff_shared, d)
    layer.matrix("ffn_down_shexp", d, hp.n_ff_shared)


def load(file: GGUFFile, options: LoadOptions) -> RaggedModel:
    """The model in an open qwen35 or qwen35moe file. Raises ModelFileError or UnsupportedModel naming what is wrong."""
    bind(lib, "lmhub-qwen35")
    hp = Hparams.from_gguf(file)
    geometry, weights = hp.geometry(options), Weights(file, options.progress, options.borrow)
    m, layers = fill_model(hp, read_rope(Keys(file), hp.head_dim, hp.n_ctx_train), weights)
    weights.finish(skipped(hp))
    return RaggedModel(
        ffi, lib.qwen35_forward, m, geometry, n_vocab=hp.n_vocab, n_ctx_train=hp.n_ctx_train, keep=(layers, weights)
    )


def plan(file: GGUFFile, options: LoadOptions) -> MemoryPlan:
    """What loading would take, from metadata and the tensor directory."""
    hp = Hparams.from_gguf(file)
    unpacked = [name for name in file.tensors if any(fnmatchcase(name, one) for one in skipped(hp))]
    unpacked += [name for name in file.tensors if name.endswith("ssm_conv1d.weight")]
    if "output.weight" in file.tensors:
        unpacked.append("token_embd.weight")
    return hp.geometry(options).plan(file, options, unpacked)
