"""Writes full-size Inkling files with random weights, to measure speed without a download.

    python benchmarks/inkling_models.py --geometry inkling-small --layers 3 --type ud-iq1_s OUT.gguf

Sizes are those of the public models, the mixtures of types those of the public files; `random_model.py` says what the
rest is. Cut to fewer layers, a model keeps one dense layer, experts in all others, and its last layer is full.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from random_model import Matrix, RandomModel, command

from lmhub.gguf import GGMLType


@dataclass(frozen=True, slots=True)
class Inkling:
    """The sizes of an Inkling. Pairs are of sliding layers and of full ones, of which the last of each `period` is."""

    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_kv: tuple[int, int]
    n_ff_expert: int
    n_dense: int = 2
    period: int = 6
    head_dim: int = 128
    n_expert: int = 256
    n_expert_used: int = 6
    n_shared: int = 2
    d_rel: int = 16
    extents: tuple[int, int] = (512, 1024)
    n_taps: int = 4
    n_vocab: int = 201024

    def is_full(self, layer: int) -> bool:
        """Whether that layer sees all positions."""
        return layer % self.period == self.period - 1 or layer == self.n_layer - 1


@dataclass(frozen=True, slots=True)
class Mixture:
    """The types of the experts: of those that widen, and of those that narrow."""

    wide: GGMLType
    back: GGMLType

    def type_of(self, name: str) -> GGMLType:
        """What the public files have beside their experts is the same in all of them, or nearly."""
        if "_exps" in name:
            return self.back if "down" in name else self.wide
        if any(part in name for part in ("ffn_gate_inp", "rel_proj", "shortconv")):
            return GGMLType.F32
        if "attn_r." in name:
            return GGMLType.Q8_0
        if name == "output.weight":
            return GGMLType.Q4_K
        return GGMLType.Q6_K if "attn_v" in name or "down" in name else GGMLType.Q5_K


GEOMETRIES = {
    "inkling-small": Inkling(42, 4096, 16384, 32, (8, 8), 2048),
    "inkling": Inkling(66, 6144, 24576, 64, (16, 8), 3072),
}
TYPES = {
    "ud-iq1_s": Mixture(GGMLType.IQ1_S, GGMLType.IQ2_XXS),
    "ud-q2_k_xl": Mixture(GGMLType.IQ2_XS, GGMLType.IQ3_XXS),
    "ud-q4_k_xl": Mixture(GGMLType.Q4_K, GGMLType.Q5_K),
}


def cut(g: Inkling, n_layer: int) -> Inkling:
    """The same with fewer layers. Raises ValueError."""
    if not 1 < n_layer <= g.n_layer:
        raise ValueError(f"has {g.n_layer} layers; --layers takes 2 to {g.n_layer}")
    return g if n_layer == g.n_layer else replace(g, n_layer=n_layer, n_dense=1)


def matrices(g: Inkling) -> Iterator[tuple[str, tuple[int, ...], float]]:
    """(name, shape, std) of every weight. Experts count for less, for their weights have a sum of 8 or so."""
    yield "token_embd.weight", (g.n_vocab, g.n_embd), 1.0
    yield "output.weight", (g.n_vocab, g.n_embd), 3 * (g.n_embd / 256) / math.sqrt(g.n_embd)
    for layer in range(g.n_layer):
        full, nq = g.is_full(layer), g.n_head * g.head_dim
        nk = g.n_kv[full] * g.head_dim
        shapes: list[tuple[str, tuple[int, ...], float]] = [
            ("attn_q", (nq, g.n_embd), 1.0),
            ("attn_k", (nk, g.n_embd), 1.0),
            ("attn_v", (nk, g.n_embd), 1.0),
            ("attn_r", (g.n_head * g.d_rel, g.n_embd), 1.0),
            ("attn_rel_proj", (g.d_rel, g.extents[full]), 1.0),
            ("attn_output", (g.n_embd, nq), 0.5),
            *((f"shortconv_{stem}", (nk, g.n_taps), 0.2) for stem in "kv"),
            *((f"shortconv_{stem}", (g.n_embd, g.n_taps), 0.2) for stem in ("attn", "mlp")),
        ]
        if layer < g.n_dense:
            shapes += gated("", g.n_ff, g.n_embd, 0.5)
        else:
            shapes.append(("ffn_gate_inp", (g.n_expert + g.n_shared, g.n_embd), 1.0))
            shapes += gated("_exps", g.n_ff_expert, g.n_embd, 0.1, g.n_expert)
            shapes += gated("_shexp", g.n_ff_expert, g.n_embd, 0.1, g.n_shared)
        yield from ((f"blk.{layer}.{stem}.weight", shape, gain / math.sqrt(shape[-1])) for stem, shape, gain in shapes)


def gated(suffix: str, n_ff: int, n_embd: int, gain: float, *experts: int) -> list[tuple[str, tuple[int, ...], float]]:
    """(stem, shape, gain) of a feed-forward."""
    wide = (*experts, n_ff, n_embd)
    narrow = (f"ffn_down{suffix}", (*experts, n_embd, n_ff), gain)
    return [(f"ffn_gate{suffix}", wide, 1.0), (f"ffn_up{suffix}", wide, 1.0), narrow]


def vectors(g: Inkling) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """(name, values) of every norm, of the scales, and of what is added where experts are chosen."""
    yield from ((f"{name}.weight", np.ones(g.n_embd, np.float32)) for name in ("token_embd_norm", "output_norm"))
    for layer in range(g.n_layer):
        for norm in ("attn_norm", "ffn_norm"):
            yield f"blk.{layer}.{norm}.weight", np.ones(g.n_embd, np.float32)
        for norm in ("attn_q_norm", "attn_k_norm"):
            yield f"blk.{layer}.{norm}.weight", np.ones(g.head_dim, np.float32)
        yield f"blk.{layer}.ffn_gscale.weight", np.ones(1, np.float32)
        if layer >= g.n_dense:
            yield f"blk.{layer}.exp_probs_b.bias", np.zeros(g.n_expert, np.float32)


def hyperparameters(g: Inkling) -> dict[str, Any]:
    """The keys of the architecture that the public files carry."""
    full = [g.is_full(layer) for layer in range(g.n_layer)]
    return {
        "block_count": g.n_layer,
        "context_length": 1 << 20,
        "embedding_length": g.n_embd,
        "feed_forward_length": g.n_ff,
        "attention.head_count": g.n_head,
        "attention.head_count_kv": [g.n_kv[kind] for kind in full],
        "attention.key_length": g.head_dim,
        "attention.value_length": g.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.sliding_window": g.extents[0],
        "attention.sliding_window_pattern": [not kind for kind in full],
        "expert_count": g.n_expert,
        "expert_used_count": g.n_expert_used,
        "expert_shared_count": g.n_shared,
        "expert_feed_forward_length": g.n_ff_expert,
        "expert_weights_scale": 8.0,
        "expert_gating_func": 2,
        "d_rel": g.d_rel,
        "rel_extent": g.extents[1],
        "rel_extent_swa": g.extents[0],
        "shortconv_kernel": g.n_taps,
        "dense_block_count": g.n_dense,
        "logit_scale_denom": g.n_embd / 256,
        "log_scaling_n_floor": 128000,
        "log_scaling_alpha": 0.1,
        "unpadded_vocab_size": g.n_vocab,
    }


def model(g: Inkling, mixture: Mixture) -> RandomModel:
    """The tables of a file. Its vocabulary is a made-up one, so that no row of it is padding."""

    def typed() -> Iterator[Matrix]:
        return ((name, shape, std, mixture.type_of(name)) for name, shape, std in matrices(g))

    return RandomModel("inkling", hyperparameters(g), g.n_vocab, vectors(g), typed(), "inkling")


if __name__ == "__main__":
    command("Write a full-size Inkling GGUF file with random weights.", GEOMETRIES, TYPES, "ud-q2_k_xl", cut, model)
