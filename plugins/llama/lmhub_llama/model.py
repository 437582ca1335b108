"""Loads a llama file and runs it: hyper-parameters, the weight table, then `csrc/llama.c` for every step.

The file is untrusted: every number is held to a range and every tensor to its shape before C sees it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from lmhub.errors import ModelFileError
from lmhub.family import LoadOptions
from lmhub.forward import Geometry, RaggedModel
from lmhub.gguf import GGUFFile
from lmhub.hparams import Keys
from lmhub.kv import Layers
from lmhub.model import MemoryPlan
from lmhub.native import bind
from lmhub.rope import Rope, read_rope
from lmhub.weights import Matrix, Weights
from lmhub_llama._kernels import ffi, lib


@dataclass(frozen=True, slots=True)
class Hparams:
    """Sizes of one model, in elements. `n_expert` is 0 for a dense model, `window` 0 where attention sees all."""

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
    window: int

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> Hparams:
        """Raises ModelFileError for numbers out of range, UnsupportedModel for layers that are not alike."""
        keys = Keys(file)
        n_layer = keys.whole("block_count", 1, 1024)
        n_embd = keys.whole("embedding_length", 1, 1 << 17)
        n_head = keys.uniform("attention.head_count", n_layer, 1, 1024)
        n_kv = keys.uniform("attention.head_count_kv", n_layer, 1, n_head, n_head)
        if n_head % n_kv:
            raise ModelFileError(
                f"{file.path.name}: {n_head} query heads cannot share {n_kv} key heads evenly; convert the model again."
            )
        n_expert = keys.whole("expert_count", 0, 4096, 0)
        vocabulary = file.tensor("token_embd.weight").shape
        return cls(
            n_layer=n_layer,
            n_embd=n_embd,
            n_head=n_head,
            n_kv=n_kv,
            head_dim=keys.whole("attention.key_length", 1, 2048, n_embd // n_head),
            value_dim=keys.whole("attention.value_length", 1, 2048, n_embd // n_head),
            n_ff=keys.per_layer("feed_forward_length", n_layer, 1, 1 << 20),
            n_expert=n_expert,
            n_expert_used=keys.whole("expert_used_count", 1, n_expert) if n_expert else 0,
            n_vocab=vocabulary[0] if vocabulary else 1,
            n_ctx_train=keys.whole("context_length", 1, 1 << 31),
            rms_eps=keys.real("attention.layer_norm_rms_epsilon", 0.0, 1.0),
            window=keys.whole("attention.sliding_window", 0, 1 << 31, 0),
        )

    def geometry(self, options: LoadOptions) -> Geometry:
        """The shape of the KV cache."""
        return Geometry(options.kv_dtype, Layers(self.n_layer, self.n_kv, self.head_dim, self.value_dim))


def fill_model(hp: Hparams, rope: Rope, weights: Weights) -> tuple[Any, Any]:
    """The `llama_model` and its layers."""
    m, layers = ffi.new("llama_model *"), ffi.new("llama_layer[]", hp.n_layer)
    put = partial(weights.bind, ffi, m)
    m.n_layer, m.n_embd, m.rms_eps, m.window = hp.n_layer, hp.n_embd, hp.rms_eps, hp.window
    m.n_head, m.n_kv, m.head_dim, m.value_dim = hp.n_head, hp.n_kv, hp.head_dim, hp.value_dim
    m.n_expert_used, m.layers = hp.n_expert_used, layers
    m.n_pairs, m.rope_magnitude = len(rope.inv_freq), rope.magnitude
    put("inv_freq", rope.inv_freq)
    put("output_norm", weights.vector("output_norm.weight", hp.n_embd))
    put("token_embd", weights.table("token_embd.weight", hp.n_vocab, hp.n_embd))
    head = "output.weight" if weights.has("output.weight") else "token_embd.weight"
    put("output", weights.matrix(head, hp.n_vocab, hp.n_embd))
    for il in range(hp.n_layer):
        fill_attention(layers[il], il, hp, weights)
        (fill_experts if hp.n_expert else fill_dense)(layers[il], il, hp, weights)
    return m, layers


def fill_attention(layer: Any, il: int, hp: Hparams, weights: Weights) -> None:
    """Norms and projections of one `llama_layer`."""
    put, b = partial(weights.bind, ffi, layer), f"blk.{il}."
    put("attn_norm", weights.vector(b + "attn_norm.weight", hp.n_embd))
    put("ffn_norm", weights.vector(b + "ffn_norm.weight", hp.n_embd))
    for stem, rows, cols in (
        ("attn_q", hp.n_head * hp.head_dim, hp.n_embd),
        ("attn_k", hp.n_kv * hp.head_dim, hp.n_embd),
        ("attn_v", hp.n_kv * hp.value_dim, hp.n_embd),
        ("attn_output", hp.n_embd, hp.n_head * hp.value_dim),
    ):
        put(stem, weights.matrix(f"{b}{stem}.weight", rows, cols))
        put(f"{stem}_bias", weights.optional_vector(f"{b}{stem}.bias", rows))


def fill_dense(layer: Any, il: int, hp: Hparams, weights: Weights) -> None:
    """The feed-forward of one dense `llama_layer`."""
    put, b, n_ff = partial(weights.bind, ffi, layer), f"blk.{il}.", hp.n_ff[il]
    put("ffn_gate", weights.matrix(b + "ffn_gate.weight", n_ff, hp.n_embd))
    put("ffn_up", weights.matrix(b + "ffn_up.weight", n_ff, hp.n_embd))
    put("ffn_down", weights.matrix(b + "ffn_down.weight", hp.n_embd, n_ff))


def fill_experts(layer: Any, il: int, hp: Hparams, weights: Weights) -> None:
    """The router and the experts of one `llama_layer`, as Mixtral has them."""
    put, b, n_ff = partial(weights.bind, ffi, layer), f"blk.{il}.", hp.n_ff[il]
    put("ffn_gate_inp", weights.matrix(b + "ffn_gate_inp.weight", hp.n_expert, hp.n_embd))
    put("ffn_gate", experts(weights, b + "ffn_gate", hp.n_expert, n_ff, hp.n_embd))
    put("ffn_up", experts(weights, b + "ffn_up", hp.n_expert, n_ff, hp.n_embd))
    put("ffn_down", experts(weights, b + "ffn_down", hp.n_expert, hp.n_embd, n_ff))


def experts(weights: Weights, stem: str, n_expert: int, rows: int, cols: int) -> Matrix:
    """One projection of all experts: a stacked tensor, or one tensor per expert in files from before these."""
    if weights.has(f"{stem}.0.weight"):
        return weights.stack([f"{stem}.{e}.weight" for e in range(n_expert)], rows, cols)
    return weights.matrix(f"{stem}_exps.weight", rows, cols, n_expert)


def load(file: GGUFFile, options: LoadOptions) -> RaggedModel:
    """The model in an open llama file. Raises ModelFileError or UnsupportedModel naming what is wrong."""
    bind(lib, "lmhub-llama")
    hp = Hparams.from_gguf(file)
    geometry, weights = hp.geometry(options), Weights(file, options.progress, options.borrow)
    factors = None
    if weights.has("rope_freqs.weight"):
        tensor = file.tensor("rope_freqs.weight")
        factors = weights.vector("rope_freqs.weight", tensor.n_elements if len(tensor.shape) == 1 else hp.head_dim // 2)
    m, layers = fill_model(hp, read_rope(Keys(file), hp.head_dim, hp.n_ctx_train, factors), weights)
    weights.finish()
    return RaggedModel(
        ffi, lib.llama_forward, m, geometry, n_vocab=hp.n_vocab, n_ctx_train=hp.n_ctx_train, keep=(layers, weights)
    )


def plan(file: GGUFFile, options: LoadOptions) -> MemoryPlan:
    """What loading would take, from metadata and the tensor directory."""
    tables = ("token_embd.weight",) if "output.weight" in file.tensors else ()
    return Hparams.from_gguf(file).geometry(options).plan(file, options, tables)
