"""Loads a llama file and runs it: hyper-parameters, the weight table, then `csrc/llama.c` for every step.

The file is untrusted: every number is held to a range and every tensor to its shape before C sees it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lmhub.family import LoadOptions
from lmhub.fields import Fields
from lmhub.forward import Geometry, RaggedModel
from lmhub.gguf import GGUFFile
from lmhub.hparams import Keys
from lmhub.kv import Layers
from lmhub.model import MemoryPlan
from lmhub.native import bind
from lmhub.rope import Rope, read_rope
from lmhub.weights import Weights
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
        n_head, n_kv = keys.heads(n_layer)
        n_expert = keys.whole("expert_count", 0, 4096, 0)
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
            n_vocab=keys.rows_of("token_embd.weight"),
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
    m.n_layer, m.n_embd, m.rms_eps, m.window = hp.n_layer, hp.n_embd, hp.rms_eps, hp.window
    m.n_head, m.n_kv, m.head_dim, m.value_dim = hp.n_head, hp.n_kv, hp.head_dim, hp.value_dim
    m.n_expert_used, m.layers = hp.n_expert_used, layers
    fields = Fields(ffi, m, weights)
    fields.rope(rope)
    fields.ends(hp.n_vocab, hp.n_embd)
    for il in range(hp.n_layer):
        fill_layer(Fields(ffi, layers[il], weights, f"blk.{il}."), hp, hp.n_ff[il])
    return m, layers


def fill_layer(fields: Fields, hp: Hparams, n_ff: int) -> None:
    """The weights of one `llama_layer`."""
    fields.vector("attn_norm", hp.n_embd)
    fields.vector("ffn_norm", hp.n_embd)
    fields.projection("attn_q", hp.n_head * hp.head_dim, hp.n_embd)
    fields.projection("attn_k", hp.n_kv * hp.head_dim, hp.n_embd)
    fields.projection("attn_v", hp.n_kv * hp.value_dim, hp.n_embd)
    fields.projection("attn_output", hp.n_embd, hp.n_head * hp.value_dim)
    if hp.n_expert:
        fields.routed_feed_forward(hp.n_embd, n_ff, hp.n_expert)
    else:
        fields.feed_forward(hp.n_embd, n_ff)


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
    return Hparams.from_gguf(file).geometry(options).plan(file, options)
