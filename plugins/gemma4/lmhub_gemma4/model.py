"""Loads a gemma4 or gemma3 file: the weight table, and `csrc/gemma.c` for every step.

Which switches a model has is told by its sizes and its tensors, never by its name.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import numpy as np

from lmhub.family import LoadOptions
from lmhub.forward import RaggedModel
from lmhub.gguf import GGUFFile
from lmhub.hparams import Keys
from lmhub.model import MemoryPlan
from lmhub.native import bind
from lmhub.rope import Rope, frequencies, read_rope
from lmhub.weights import Weights
from lmhub_gemma4._kernels import ffi, lib
from lmhub_gemma4.hparams import Hparams

TABLE = "per_layer_token_embd.weight"
"""More than half of a small Gemma 4: a row per token is read from the file, nothing is ever packed or expanded."""


def skipped(hp: Hparams) -> tuple[str, ...]:
    """Patterns of tensors that nothing here reads: vision and audio, keys and values of layers that share others'."""
    shared = (il for il, layer in enumerate(hp.layers) if layer.source != il)
    return ("v.*", "a.*", "mm.*", *(f"blk.{il}.attn_{stem}.weight" for il in shared for stem in ("k", "v", "k_norm")))


def fill_attention(c: Any, il: int, hp: Hparams, weights: Weights) -> None:
    """Norms and projections of one `gemma_layer`."""
    put, b, layer = partial(weights.bind, ffi, c), f"blk.{il}.", hp.layers[il]
    nq, nk = layer.n_head * layer.head_dim, layer.n_kv * layer.head_dim
    c.n_head, c.n_kv, c.head_dim = layer.n_head, layer.n_kv, layer.head_dim
    c.is_full, c.window = not layer.is_sliding, hp.window if layer.is_sliding else 0
    for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
        put(norm, weights.vector(f"{b}{norm}.weight", hp.n_embd))
    put("attn_q", weights.matrix(b + "attn_q.weight", nq, hp.n_embd))
    put("attn_q_norm", weights.vector(b + "attn_q_norm.weight", layer.head_dim))
    put("attn_output", weights.matrix(b + "attn_output.weight", hp.n_embd, nq))
    if layer.source != il:
        return
    put("attn_k", weights.matrix(b + "attn_k.weight", nk, hp.n_embd))
    put("attn_k_norm", weights.vector(b + "attn_k_norm.weight", layer.head_dim))
    if layer.is_sliding or not hp.is_gemma4 or weights.has(b + "attn_v.weight"):
        put("attn_v", weights.matrix(b + "attn_v.weight", nk, hp.n_embd))


def fill_feed_forward(c: Any, il: int, hp: Hparams, weights: Weights) -> None:
    """The dense feed-forward of one `gemma_layer`, its experts, its own input, its scale."""
    put, b, layer = partial(weights.bind, ffi, c), f"blk.{il}.", hp.layers[il]
    put("ffn_gate", weights.matrix(b + "ffn_gate.weight", layer.n_ff, hp.n_embd))
    put("ffn_up", weights.matrix(b + "ffn_up.weight", layer.n_ff, hp.n_embd))
    put("ffn_down", weights.matrix(b + "ffn_down.weight", hp.n_embd, layer.n_ff))
    if weights.has(b + "ffn_gate_inp.weight") or weights.has(b + "ffn_down_exps.weight"):
        fill_experts(c, il, hp, weights)
    if hp.n_per_layer:
        put("inp_gate", weights.matrix(b + "inp_gate.weight", hp.n_per_layer, hp.n_embd))
        put("proj", weights.matrix(b + "proj.weight", hp.n_embd, hp.n_per_layer))
        put("post_norm", weights.vector(b + "post_norm.weight", hp.n_embd))
    scale = weights.optional_vector(b + "layer_output_scale.weight", 1)
    c.output_scale = 1.0 if scale is None else scale[0]


def fill_experts(c: Any, il: int, hp: Hparams, weights: Weights) -> None:
    """The router and the experts of one `gemma_layer`."""
    put, b, n_ff, n_expert = partial(weights.bind, ffi, c), f"blk.{il}.", hp.layers[il].n_ff_expert, hp.n_expert
    put("ffn_gate_inp", weights.matrix(b + "ffn_gate_inp.weight", n_expert, hp.n_embd))
    put("router_norm", weights.vector(b + "ffn_gate_inp.scale", hp.n_embd) / np.float32(np.sqrt(hp.n_embd)))
    put("expert_scale", weights.optional_vector(b + "ffn_down_exps.scale", n_expert))
    for norm in ("post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"):
        put(norm, weights.vector(f"{b}{norm}.weight", hp.n_embd))
    put("ffn_down_exps", weights.matrix(b + "ffn_down_exps.weight", hp.n_embd, n_ff, n_expert))
    if weights.has(b + "ffn_gate_up_exps.weight"):
        put("ffn_gate_up_exps", weights.matrix(b + "ffn_gate_up_exps.weight", 2 * n_ff, hp.n_embd, n_expert))
        return
    put("ffn_gate_exps", weights.matrix(b + "ffn_gate_exps.weight", n_ff, hp.n_embd, n_expert))
    put("ffn_up_exps", weights.matrix(b + "ffn_up_exps.weight", n_ff, hp.n_embd, n_expert))


def read_ropes(hp: Hparams, keys: Keys, weights: Weights) -> tuple[Rope, Rope]:
    """The rotations of sliding layers, which is never scaled, and of full ones."""
    full_dim, sliding_dim = hp.head_dims
    factors = weights.vector("rope_freqs.weight", full_dim // 2) if hp.is_gemma4 else None
    return Rope(frequencies(keys, sliding_dim, "_swa"), 1.0), read_rope(keys, full_dim, hp.n_ctx_train, factors)


def fill_model(hp: Hparams, keys: Keys, weights: Weights) -> tuple[Any, Any]:
    """The `gemma_model` and its layers."""
    m, layers = ffi.new("gemma_model *"), ffi.new("gemma_layer[]", len(hp.layers))
    put = partial(weights.bind, ffi, m)
    shapes = list(hp.cache_shapes().values())
    m.n_layer, m.n_embd, m.n_group = len(hp.layers), hp.n_embd, len(shapes)
    m.first_shared, m.n_expert_used, m.n_per_layer = len(hp.layers) - hp.n_shared, hp.n_expert_used, hp.n_per_layer
    m.rms_eps, m.attn_scale, m.softcap, m.layers = hp.rms_eps, hp.attention_scale, hp.softcap, layers
    for c, rope in zip(m.rope, read_ropes(hp, keys, weights), strict=True):
        c.n_pairs, c.magnitude = len(rope.inv_freq), rope.magnitude
        weights.bind(ffi, c, "inv_freq", rope.inv_freq)
    if hp.is_gemma4:
        put("value_norm", np.ones(max(hp.head_dims), np.float32))
    put("output_norm", weights.vector("output_norm.weight", hp.n_embd))
    put("token_embd", weights.table("token_embd.weight", hp.n_vocab, hp.n_embd))
    head = "output.weight" if weights.has("output.weight") else "token_embd.weight"
    put("output", weights.matrix(head, hp.n_vocab, hp.n_embd))
    if hp.n_per_layer:
        width = hp.n_per_layer * len(hp.layers)
        put("per_layer_token_embd", weights.table(TABLE, hp.n_vocab, width))
        put("per_layer_model_proj", weights.matrix("per_layer_model_proj.weight", width, hp.n_embd))
        put("per_layer_proj_norm", weights.vector("per_layer_proj_norm.weight", hp.n_per_layer))
    for il, layer in enumerate(hp.layers):
        c = layers[il]
        c.group, c.cache = next(
            (group, own.index(layer.source)) for group, own in enumerate(shapes) if layer.source in own
        )
        fill_attention(c, il, hp, weights)
        fill_feed_forward(c, il, hp, weights)
    return m, layers


def load(file: GGUFFile, options: LoadOptions) -> RaggedModel:
    """The model in an open gemma4 or gemma3 file. Raises ModelFileError or UnsupportedModel naming what is wrong."""
    bind(lib, "lmhub-gemma4")
    hp = Hparams.from_gguf(file)
    geometry, weights = hp.geometry(options), Weights(file, options.progress, options.borrow)
    m, layers = fill_model(hp, Keys(file), weights)
    weights.finish(skipped(hp))
    return RaggedModel(
        ffi, lib.gemma_forward, m, geometry, n_vocab=hp.n_vocab, n_ctx_train=hp.n_ctx_train, keep=(layers, weights)
    )


def plan(file: GGUFFile, options: LoadOptions) -> MemoryPlan:
    """What loading would take, from metadata and the tensor directory."""
    hp = Hparams.from_gguf(file)
    unpacked = [TABLE, *(name for name in file.tensors if any(fnmatchcase(name, one) for one in skipped(hp)))]
    return hp.geometry(options).plan(file, options, unpacked)
