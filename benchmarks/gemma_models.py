"""Writes full-size Gemma 4 and DiffusionGemma files with random weights, to measure speed without a download.

    python benchmarks/gemma_models.py --geometry gemma4-e2b --type q4_k_m OUT.gguf
    python benchmarks/gemma_models.py --geometry gemma4-26b-a4b --layers 6 --type q4_k_m OUT.gguf

Sizes are those of the public models; `random_model.py` says what the rest is. Cut to fewer layers, a model keeps the
order of its kinds of layers, and of those that share keys as large a part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from random_model import TYPES, Matrix, RandomModel, Recipe, command

from lmhub.gguf import GGMLType

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gemma:
    """The sizes of a Gemma 4. Every `period`-th layer is full; pairs are of sliding layers and of full ones."""

    n_layer: int
    period: int
    n_embd: int
    n_ff: int
    n_head: int
    n_kv: tuple[int, int]
    window: int
    head_dim: tuple[int, int] = (256, 512)
    n_shared: int = 0
    n_per_layer: int = 0
    n_expert: int = 0
    n_expert_used: int = 0
    n_ff_expert: int = 0
    canvas: int = 0
    n_vocab: int = 262144

    @property
    def arch(self) -> str:
        """The architecture of its files."""
        return "diffusion-gemma" if self.canvas else "gemma4"

    def is_full(self, layer: int) -> bool:
        """Whether that layer sees all positions."""
        return layer % self.period == self.period - 1

    def ff(self, layer: int) -> int:
        """The width of its dense feed-forward: twice as much in layers that share keys."""
        return self.n_ff * (2 if layer >= self.n_layer - self.n_shared else 1)


E2B = Gemma(35, 5, 1536, 6144, 8, (1, 1), 512, n_shared=20, n_per_layer=256)
A4B = Gemma(30, 6, 2816, 2112, 16, (8, 2), 1024, n_expert=128, n_expert_used=8, n_ff_expert=704)
GEOMETRIES = {"gemma4-e2b": E2B, "gemma4-26b-a4b": A4B, "diffusion-gemma-26b-a4b": replace(A4B, canvas=256)}


def cut(g: Gemma, n_layer: int) -> Gemma:
    """The same with fewer layers, which must be whole periods. Raises ValueError."""
    if n_layer % g.period or not 0 < n_layer <= g.n_layer:
        raise ValueError(f"takes --layers that are a multiple of {g.period}, up to {g.n_layer}")
    shared = g.n_shared * n_layer // g.n_layer // g.period * g.period
    return replace(g, n_layer=n_layer, n_shared=shared)


def matrices(g: Gemma) -> Iterator[tuple[str, Shape, float]]:
    """(name, shape, gain) of every weight; its standard deviation is the gain over the root of its columns."""
    yield "token_embd.weight", (g.n_vocab, g.n_embd), 1.0
    if g.n_per_layer:
        yield "per_layer_token_embd.weight", (g.n_vocab, g.n_layer * g.n_per_layer), 1.0
        yield "per_layer_model_proj.weight", (g.n_layer * g.n_per_layer, g.n_embd), 1.0
    if g.canvas:
        for stem, shape in (("gate", (g.n_ff, g.n_embd)), ("up", (g.n_ff, g.n_embd)), ("down", (g.n_embd, g.n_ff))):
            yield f"self_cond_{stem}.weight", shape, 1.0
    for layer in range(g.n_layer):
        b, full = f"blk.{layer}.", g.is_full(layer)
        nq, nk = g.n_head * g.head_dim[full], g.n_kv[full] * g.head_dim[full]
        yield b + "attn_q.weight", (nq, g.n_embd), 1.0
        if layer < g.n_layer - g.n_shared:
            yield b + "attn_k.weight", (nk, g.n_embd), 1.0
            if not (full and g.n_expert):
                yield b + "attn_v.weight", (nk, g.n_embd), 1.0
        yield b + "attn_output.weight", (g.n_embd, nq), 0.5
        yield b + "ffn_gate.weight", (g.ff(layer), g.n_embd), 1.0
        yield b + "ffn_up.weight", (g.ff(layer), g.n_embd), 1.0
        yield b + "ffn_down.weight", (g.n_embd, g.ff(layer)), 0.5
        if g.n_per_layer:
            yield b + "inp_gate.weight", (g.n_per_layer, g.n_embd), 1.0
            yield b + "proj.weight", (g.n_embd, g.n_per_layer), 0.5
        if g.n_expert:
            yield b + "ffn_gate_inp.weight", (g.n_expert, g.n_embd), 1.0
            yield b + "ffn_gate_up_exps.weight", (g.n_expert, 2 * g.n_ff_expert, g.n_embd), 1.0
            yield b + "ffn_down_exps.weight", (g.n_expert, g.n_embd, g.n_ff_expert), 0.5


def vectors(g: Gemma) -> Iterator[tuple[str, int]]:
    """(name, size) of every norm and scale."""
    yield "output_norm.weight", g.n_embd
    if g.n_per_layer:
        yield "per_layer_proj_norm.weight", g.n_per_layer
    if g.canvas:
        yield "self_cond_pre_norm.weight", g.n_embd
    norms = ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"]
    norms += ["post_norm"] if g.n_per_layer else []
    norms += ["pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"] if g.n_expert else []
    for layer in range(g.n_layer):
        b, dim = f"blk.{layer}.", g.head_dim[g.is_full(layer)]
        yield from ((f"{b}{norm}.weight", g.n_embd) for norm in norms)
        yield b + "attn_q_norm.weight", dim
        if layer < g.n_layer - g.n_shared:
            yield b + "attn_k_norm.weight", dim
        yield b + "layer_output_scale.weight", 1
        if g.canvas:
            yield b + "enc_layer_output_scale.weight", 1
        if g.n_expert:
            yield b + "ffn_gate_inp.scale", g.n_embd


def hyperparameters(g: Gemma) -> dict[str, Any]:
    """The keys of the architecture that the public files carry."""
    full = [g.is_full(layer) for layer in range(g.n_layer)]
    keys: dict[str, Any] = {
        "block_count": g.n_layer,
        "context_length": 131072,
        "embedding_length": g.n_embd,
        "feed_forward_length": [g.ff(layer) for layer in range(g.n_layer)] if g.n_shared else g.n_ff,
        "attention.head_count": g.n_head,
        "attention.head_count_kv": [g.n_kv[kind] for kind in full] if g.n_kv[0] != g.n_kv[1] else g.n_kv[0],
        "attention.key_length": g.head_dim[1],
        "attention.value_length": g.head_dim[1],
        "attention.key_length_swa": g.head_dim[0],
        "attention.value_length_swa": g.head_dim[0],
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.sliding_window": g.window,
        "attention.sliding_window_pattern": [not kind for kind in full],
        "attention.shared_kv_layers": g.n_shared,
        "embedding_length_per_layer_input": g.n_per_layer,
        "rope.freq_base": 1e6,
        "rope.freq_base_swa": 1e4,
        "rope.dimension_count": g.head_dim[1],
        "rope.dimension_count_swa": g.head_dim[0],
        "final_logit_softcapping": 30.0,
    }
    if g.n_expert:
        keys |= {"expert_count": g.n_expert, "expert_used_count": g.n_expert_used}
        keys |= {"expert_feed_forward_length": g.n_ff_expert}
    return keys


def typed(g: Gemma, recipe: Recipe) -> Iterator[Matrix]:
    """Every weight as public files have it: the table that is the head in the better type, some never quantised."""
    for name, shape, gain in matrices(g):
        kind = recipe.type_of(name, shape, g.n_layer, "token_embd.weight")
        if name.endswith("ffn_gate_inp.weight"):
            kind = GGMLType.F32
        elif name == "per_layer_model_proj.weight":
            kind = GGMLType.BF16
        yield name, shape, gain / math.sqrt(shape[-1]), kind


def model(g: Gemma, recipe: Recipe) -> RandomModel:
    """The tables of a file."""
    turned = np.where(np.arange(g.head_dim[1] // 2) < g.head_dim[1] // 8, 1.0, 1e30).astype(np.float32)
    ones = [("rope_freqs.weight", turned), *((name, np.ones(size, np.float32)) for name, size in vectors(g))]
    others = {"diffusion.canvas_length": g.canvas} if g.canvas else {}
    return RandomModel(g.arch, hyperparameters(g), g.n_vocab, ones, typed(g, recipe), others=others)


if __name__ == "__main__":
    command("Write a full-size Gemma 4 GGUF file with random weights.", GEOMETRIES, TYPES, "q4_k_m", cut, model)
