"""Loads a nanochat model: the weight table, and `csrc/nanochat.c` for every step.

What a model has is told by its tensors; its constants come from `hparams`. Reads GGUF files and checkpoint folders
alike, for `folder.py` shows those in GGUF's terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmhub.family import LoadOptions
from lmhub.forward import Geometry, RaggedModel
from lmhub.gguf import GGUFFile
from lmhub.model import Chunk, MemoryPlan
from lmhub.native import bind
from lmhub.weights import Weights
from lmhub_nanochat._kernels import ffi, lib
from lmhub_nanochat.hparams import SMEAR, Hparams
from lmhub_nanochat.state import TokenState


class NanochatModel(RaggedModel):
    """A `RaggedModel` whose C is told the token before each span, where the model smears."""

    def __init__(self, m: Any, geometry: Geometry, *, hp: Hparams, keep: Any):
        self._before = _Before() if hp.has_smear else None
        step = partial(_step, self._before)
        super().__init__(ffi, step, m, geometry, n_vocab=hp.n_vocab, n_ctx_train=hp.n_ctx_train, keep=keep)

    def forward(self, chunks: Sequence[Chunk]) -> NDArray[np.float32]:
        if self._before is None:
            return super().forward(chunks)
        self._before.take(chunks)
        starts = [chunk.state.n_tokens for chunk in chunks]
        logits = super().forward(chunks)
        for chunk, start in zip(chunks, starts, strict=True):
            assert isinstance(chunk.state, TokenState)
            chunk.state.note(start, list(chunk.tokens))
        return logits


class _Before:
    """The tokens before the chunks of a step, where C reads them; grows to the largest step so far."""

    def __init__(self) -> None:
        self.ids = np.zeros(1, np.int32)
        self.c = ffi.from_buffer("int32_t[]", self.ids)

    def take(self, chunks: Sequence[Chunk]) -> None:
        """Those of `chunks`, whose states need not be sound yet."""
        if len(chunks) > len(self.ids):
            self.ids = np.zeros(len(chunks), np.int32)
            self.c = ffi.from_buffer("int32_t[]", self.ids)
        for place, chunk in enumerate(chunks):
            self.ids[place] = chunk.state.newest if isinstance(chunk.state, TokenState) else 0


def _step(
    before: _Before | None, m: Any, context: Any, spans: Any, n_spans: int, tokens: Any, n: int, logits: Any
) -> int:
    c = ffi.NULL if before is None else before.c
    return int(lib.nanochat_forward(m, context, spans, n_spans, tokens, n, c, logits))


def fill_layer(c: Any, il: int, hp: Hparams, weights: Weights) -> None:
    """One `nanochat_layer`."""
    put, b = partial(weights.bind, ffi, c), f"blk.{il}."
    nq, nk = hp.n_head * hp.head_dim, hp.n_kv * hp.head_dim
    c.window = hp.windows[il]
    put("attn_q", weights.matrix(b + "attn_q.weight", nq, hp.n_embd))
    put("attn_k", weights.matrix(b + "attn_k.weight", nk, hp.n_embd))
    put("attn_v", weights.matrix(b + "attn_v.weight", nk, hp.n_embd))
    put("attn_output", weights.matrix(b + "attn_output.weight", hp.n_embd, nq))
    put("ffn_up", weights.matrix(b + "ffn_up.weight", hp.n_ff, hp.n_embd))
    put("ffn_down", weights.matrix(b + "ffn_down.weight", hp.n_embd, hp.n_ff))
    gate = b + "attn_value_gate.weight"
    if weights.has(gate) or weights.has(b + "value_embd.weight"):
        put("value_embd", weights.table(b + "value_embd.weight", hp.n_vocab, nk))
        put("value_gate", weights.matrix(gate, hp.n_kv, hp.n_gate))


def fill_model(hp: Hparams, weights: Weights) -> tuple[Any, Any]:
    """The `nanochat_model` and its layers."""
    m, layers = ffi.new("nanochat_model *"), ffi.new("nanochat_layer[]", hp.n_layer)
    put = partial(weights.bind, ffi, m)
    m.n_layer, m.n_embd, m.n_head, m.n_kv, m.head_dim = hp.n_layer, hp.n_embd, hp.n_head, hp.n_kv, hp.head_dim
    m.rms_eps, m.softcap, m.value_gate_scale, m.layers = hp.rms_eps, hp.softcap, hp.value_gate_scale, layers
    pairs = np.arange(hp.head_dim // 2, dtype=np.float64)
    put("inv_freq", -(hp.rope_base ** (-2.0 * pairs / hp.head_dim)))  # nanochat turns the other way than Llama
    put("ones", np.ones(hp.n_embd, np.float32))
    put("qk_norm", np.full(hp.head_dim, hp.qk_scale, np.float32))
    put("resid_lambdas", weights.optional_vector("resid_lambdas", hp.n_layer))
    put("x0_lambdas", weights.optional_vector("x0_lambdas", hp.n_layer))
    if hp.has_smear:
        put("smear_gate", weights.matrix(SMEAR, 1, hp.n_smear))
        put("smear_lambda", weights.vector("smear_lambda", 1))
    put("backout_lambda", weights.optional_vector("backout_lambda", 1))
    put("token_embd", weights.table("token_embd.weight", hp.n_vocab, hp.n_embd))
    put("output", weights.matrix("output.weight", hp.n_vocab, hp.n_embd))
    for il in range(hp.n_layer):
        fill_layer(layers[il], il, hp, weights)
    return m, layers


def load(file: GGUFFile, options: LoadOptions) -> NanochatModel:
    """The model in an open file or folder. Raises ModelFileError or UnsupportedModel naming what is wrong."""
    bind(lib, "lmhub-nanochat")
    hp = Hparams.from_file(file)
    geometry, weights = hp.geometry(options), Weights(file, options.progress, options.borrow)
    m, layers = fill_model(hp, weights)
    weights.finish()
    return NanochatModel(m, geometry, hp=hp, keep=(layers, weights))


def plan(file: GGUFFile, options: LoadOptions) -> MemoryPlan:
    """What loading would take, from metadata and the tensor directory."""
    tables = [name for name in file.tensors if name.endswith(("token_embd.weight", "value_embd.weight"))]
    return Hparams.from_file(file).geometry(options).plan(file, options, tables)
