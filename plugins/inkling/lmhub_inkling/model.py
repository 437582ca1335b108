"""Loads an inkling file: the weight table, and `csrc/inkling.c` for every step."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from lmhub.family import LoadOptions
from lmhub.forward import RaggedModel
from lmhub.gguf import GGUFFile
from lmhub.model import MemoryPlan
from lmhub.native import bind
from lmhub.weights import Weights
from lmhub_inkling._kernels import ffi, lib
from lmhub_inkling.hparams import Hparams

NORMS = ("attn_norm", "ffn_norm")


def skipped(hp: Hparams, file: GGUFFile) -> list[str]:
    """Patterns of tensors that nothing here reads: vision, audio, and blocks behind the last one, which draft."""
    behind = {name.split(".")[1] for name in file.tensors if name.startswith("blk.")} - set(map(str, range(hp.n_layer)))
    return ["v.*", "a.*", "mm.*", *(f"blk.{il}.*" for il in sorted(behind))]


def fill_attention(c: Any, il: int, hp: Hparams, weights: Weights) -> None:
    """Norms, projections, convolutions and biases of one `inkling_layer`."""
    put, b = partial(weights.bind, ffi, c), f"blk.{il}."
    nq, nk, extent = hp.n_head * hp.head_dim, hp.n_kv[il] * hp.head_dim, hp.extents[hp.slides[il]]
    c.n_kv, c.window = hp.n_kv[il], hp.window if hp.slides[il] else 0
    for norm in NORMS:
        put(norm, weights.vector(f"{b}{norm}.weight", hp.n_embd))
    for norm in ("attn_q_norm", "attn_k_norm"):
        put(norm, weights.vector(f"{b}{norm}.weight", hp.head_dim))
    for stem, rows in (("q", nq), ("k", nk), ("v", nk), ("r", hp.n_head * hp.d_rel)):
        put(f"attn_{stem}", weights.matrix(f"{b}attn_{stem}.weight", rows, hp.n_embd))
    put("attn_output", weights.matrix(b + "attn_output.weight", hp.n_embd, nq))
    for stem, width in (("k", nk), ("v", nk), ("attn", hp.n_embd), ("mlp", hp.n_embd)):
        taps = np.array(weights.array(f"{b}shortconv_{stem}.weight", width, hp.n_taps).T, order="C")
        taps[-1] += 1.0  # what goes in is part of what comes out
        put(f"conv_{stem}", taps)
    by_distance = weights.array(b + "attn_rel_proj.weight", hp.d_rel, extent).T
    put("rel", weights.derived(np.ascontiguousarray(by_distance[::-1])))


def fill_feed_forward(c: Any, il: int, hp: Hparams, weights: Weights) -> None:
    """The dense feed-forward, or the router and the experts, of one `inkling_layer`."""
    put, b, d, ff = partial(weights.bind, ffi, c), f"blk.{il}.", hp.n_embd, hp.n_ff_expert
    c.ffn_scale = weights.vector(b + "ffn_gscale.weight", 1)[0]
    if il < hp.n_dense:
        put("ffn_gate", weights.matrix(b + "ffn_gate.weight", hp.n_ff, d))
        put("ffn_up", weights.matrix(b + "ffn_up.weight", hp.n_ff, d))
        put("ffn_down", weights.matrix(b + "ffn_down.weight", d, hp.n_ff))
        return
    put("ffn_gate_inp", weights.matrix(b + "ffn_gate_inp.weight", hp.n_expert + hp.n_shared, d))
    put("selection", weights.vector(b + "exp_probs_b.bias", hp.n_expert))
    for suffix, n_expert in (("exps", hp.n_expert), ("shexp", hp.n_shared)):
        for stem, shape in (("gate", (ff, d)), ("up", (ff, d)), ("down", (d, ff))):
            put(f"ffn_{stem}_{suffix}", weights.matrix(f"{b}ffn_{stem}_{suffix}.weight", *shape, n_expert))


def fill_model(hp: Hparams, weights: Weights) -> tuple[Any, Any]:
    """The `inkling_model` and its layers."""
    m, layers = ffi.new("inkling_model *"), ffi.new("inkling_layer[]", hp.n_layer)
    put, groups = partial(weights.bind, ffi, m), list(hp.groups().values())
    m.n_layer, m.n_embd, m.n_head, m.head_dim = hp.n_layer, hp.n_embd, hp.n_head, hp.head_dim
    m.d_rel, m.n_taps, m.n_group, m.n_vocab = hp.d_rel, hp.n_taps, len(groups), hp.n_vocab
    m.n_expert_used, m.n_shared, m.route_scale, m.rms_eps = hp.n_expert_used, hp.n_shared, hp.route_scale, hp.rms_eps
    m.cool_from, m.cool_by, m.layers = hp.cool_from, hp.cool_by if hp.cool_from else 0.0, layers
    put("token_embd", weights.table("token_embd.weight", hp.n_rows, hp.n_embd))
    put("token_embd_norm", weights.vector("token_embd_norm.weight", hp.n_embd))
    put("output_norm", weights.vector("output_norm.weight", hp.n_embd) / np.float32(hp.denominator))
    put("output", weights.matrix("output.weight", hp.n_rows, hp.n_embd))
    memory = 0
    for il, c in enumerate(layers):
        c.group = next(at for at, found in enumerate(groups) if il in found)
        c.cache, c.memory = groups[c.group].index(il), memory
        memory += hp.memory(il)
        fill_attention(c, il, hp, weights)
        fill_feed_forward(c, il, hp, weights)
    return m, layers


def load(file: GGUFFile, options: LoadOptions) -> RaggedModel:
    """The model in an open inkling file. Raises ModelFileError or UnsupportedModel naming what is wrong."""
    bind(lib, "lmhub-inkling")
    hp = Hparams.from_gguf(file)
    geometry, weights = hp.geometry(options), Weights(file, options.progress, options.borrow)
    m, layers = fill_model(hp, weights)
    weights.finish(skipped(hp, file))
    return RaggedModel(
        ffi, lib.inkling_forward, m, geometry, n_vocab=hp.n_vocab, n_ctx_train=hp.n_ctx_train, keep=(layers, weights)
    )


def plan(file: GGUFFile, options: LoadOptions) -> MemoryPlan:
    """What loading would take, from metadata and the tensor directory."""
    hp = Hparams.from_gguf(file)
    return hp.geometry(options).plan(file, options, ["token_embd.weight"])
