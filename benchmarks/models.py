"""Writes full-size Qwen3 and Qwen3.5 files with random weights, to measure speed and memory without a download.

    python benchmarks/models.py --geometry qwen3-0.6b --type q8_0 OUT.gguf
    python benchmarks/models.py --geometry qwen35-35b-a3b --layers 8 --type q4_k_m OUT.gguf

The sizes and the size of the vocabulary are those of the public models; `random_model.py` says what the rest is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from random_model import TYPES, Matrix, RandomModel, Recipe, command

from lmhub.gguf import GGMLType


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """What a Qwen3.5 has beside: delta nets in three of four layers, heads of `dim`, an expert for every row."""

    n_k: int
    n_v: int
    n_ff_shared: int = 0
    dim: int = 128
    taps: int = 4


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes of a model. `n_ff` is the width of the feed-forward part, or of each of `n_expert` experts."""

    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_kv: int
    head_dim: int
    n_vocab: int
    n_ctx: int = 40960
    n_expert: int = 0
    n_expert_used: int = 0
    tied: bool = True
    delta: DeltaNet | None = None

    @property
    def arch(self) -> str:
        """The architecture of its files."""
        return ("qwen35" if self.delta else "qwen3") + ("moe" if self.n_expert else "")

    def delta_of(self, layer: int) -> DeltaNet | None:
        """The sizes of a layer that is a delta net; None where it is attention."""
        return None if layer % 4 == 3 else self.delta


GEOMETRIES = {
    "qwen3-0.6b": Geometry(28, 1024, 3072, 16, 8, 128, 151936),
    "qwen3-1.7b": Geometry(28, 2048, 6144, 16, 8, 128, 151936),
    "qwen3-30b-a3b": Geometry(48, 2048, 768, 32, 4, 128, 151936, n_expert=128, n_expert_used=8, tied=False),
    "qwen35-0.8b": Geometry(24, 1024, 3584, 8, 2, 256, 248320, 262144, delta=DeltaNet(16, 16)),
    "qwen35-35b-a3b": Geometry(
        40,
        2048,
        512,
        16,
        2,
        256,
        248320,
        262144,
        n_expert=256,
        n_expert_used=8,
        tied=False,
        delta=DeltaNet(16, 32, 512),
    ),
    "small": Geometry(6, 384, 1024, 6, 2, 64, 8192),
    "small-moe": Geometry(4, 512, 256, 8, 2, 64, 8192, n_expert=16, n_expert_used=4, tied=False),
}


def matrices(geometry: Geometry) -> Iterator[tuple[str, tuple[int, ...], float]]:
    """(name, shape, std) of every weight. 1 / sqrt(cols) keeps the variance; writes to the residual get half."""
    g = geometry
    # Rows of norm 3 give logits with a standard deviation of 3, as trained models have.
    yield "token_embd.weight", (g.n_vocab, g.n_embd), 3 / math.sqrt(g.n_embd)
    if not g.tied:
        yield "output.weight", (g.n_vocab, g.n_embd), 3 / math.sqrt(g.n_embd)
    for layer in range(g.n_layer):
        for stem, shape, gain in [*mixer(g, layer), *feed_forward(g)]:
            yield f"blk.{layer}.{stem}.weight", shape, gain / math.sqrt(shape[-1])


Shapes = list[tuple[str, tuple[int, ...], float]]


def mixer(g: Geometry, layer: int) -> Shapes:
    """(stem, shape, gain) of a layer's attention or delta net."""
    delta, n_q, n_kv = g.delta_of(layer), g.n_head * g.head_dim, g.n_kv * g.head_dim
    if delta is None:
        return [
            ("attn_q", ((2 if g.delta else 1) * n_q, g.n_embd), 1.0),  # with gates in a Qwen3.5
            ("attn_k", (n_kv, g.n_embd), 1.0),
            ("attn_v", (n_kv, g.n_embd), 1.0),
            ("attn_output", (g.n_embd, n_q), 0.5),
        ]
    n_value = delta.n_v * delta.dim
    n_conv = n_value + 2 * delta.n_k * delta.dim
    return [
        ("attn_qkv", (n_conv, g.n_embd), 1.0),
        ("attn_gate", (n_value, g.n_embd), 1.0),
        ("ssm_alpha", (delta.n_v, g.n_embd), 1.0),
        ("ssm_beta", (delta.n_v, g.n_embd), 1.0),
        ("ssm_conv1d", (n_conv, delta.taps), 1.0),
        ("ssm_out", (g.n_embd, n_value), 0.5),
    ]


def feed_forward(g: Geometry) -> Shapes:
    """(stem, shape, gain) of a layer's feed-forward part."""

    def gated(suffix: str, n_ff: int, *experts: int) -> Shapes:
        wide, back = (*experts, n_ff, g.n_embd), (*experts, g.n_embd, n_ff)
        return [(f"ffn_gate{suffix}", wide, 1.0), (f"ffn_up{suffix}", wide, 1.0), (f"ffn_down{suffix}", back, 0.5)]

    if not g.n_expert:
        return gated("", g.n_ff)
    routed = [("ffn_gate_inp", (g.n_expert, g.n_embd), 1.0), *gated("_exps", g.n_ff, g.n_expert)]
    if g.delta is None:
        return routed
    return [*routed, ("ffn_gate_inp_shexp", (1, g.n_embd), 1.0), *gated("_shexp", g.delta.n_ff_shared)]


def vectors(g: Geometry) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """(name, values) of every norm, and of the gates of delta nets: heads that forget within 3 rows up to 300."""
    yield "output_norm.weight", np.ones(g.n_embd, np.float32)
    for layer in range(g.n_layer):
        delta, norms = g.delta_of(layer), {"attn_norm": g.n_embd}
        norms["post_attention_norm" if g.delta else "ffn_norm"] = g.n_embd
        norms |= {"ssm_norm": delta.dim} if delta else {"attn_q_norm": g.head_dim, "attn_k_norm": g.head_dim}
        for norm, size in norms.items():
            yield f"blk.{layer}.{norm}.weight", np.ones(size, np.float32)
        if delta:
            yield f"blk.{layer}.ssm_dt.bias", np.zeros(delta.n_v, np.float32)
            yield f"blk.{layer}.ssm_a", -np.geomspace(0.005, 0.5, delta.n_v, dtype=np.float32)


def typed(geometry: Geometry, recipe: Recipe) -> Iterator[Matrix]:
    """Every weight with its type. Routers and convolutions stay in F32."""
    for name, shape, std in matrices(geometry):
        head = "token_embd.weight" if geometry.tied else "output.weight"
        kind = recipe.type_of(name, shape, geometry.n_layer, head)
        yield name, shape, std, GGMLType.F32 if "ffn_gate_inp" in name or "conv1d" in name else kind


def hyperparameters(geometry: Geometry) -> dict[str, Any]:
    """The keys of the architecture that the public files carry."""
    keys: dict[str, Any] = {
        "block_count": geometry.n_layer,
        "context_length": geometry.n_ctx,
        "embedding_length": geometry.n_embd,
        "feed_forward_length": geometry.n_ff,
        "attention.head_count": geometry.n_head,
        "attention.head_count_kv": geometry.n_kv,
        "attention.key_length": geometry.head_dim,
        "attention.value_length": geometry.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e7 if geometry.delta else 1e6,
    }
    if geometry.n_expert:
        keys |= {
            "expert_count": geometry.n_expert,
            "expert_used_count": geometry.n_expert_used,
            "expert_feed_forward_length": geometry.n_ff,
        }
    if delta := geometry.delta:
        keys |= {
            "expert_shared_feed_forward_length": delta.n_ff_shared,
            "full_attention_interval": 4,
            "rope.dimension_count": 64,
            "rope.dimension_sections": [11, 11, 10, 0],
            "ssm.conv_kernel": delta.taps,
            "ssm.state_size": delta.dim,
            "ssm.group_count": delta.n_k,
            "ssm.time_step_rank": delta.n_v,
            "ssm.inner_size": delta.n_v * delta.dim,
        }
    return keys


def cut(geometry: Geometry, n_layer: int) -> Geometry:
    """The same with fewer layers. Raises ValueError."""
    if not 0 < n_layer <= geometry.n_layer:
        raise ValueError(f"has {geometry.n_layer} layers; --layers takes 1 to {geometry.n_layer}")
    return replace(geometry, n_layer=n_layer)


def model(g: Geometry, recipe: Recipe) -> RandomModel:
    """The tables of a file."""
    pre = "qwen35" if g.delta else "qwen2"
    return RandomModel(g.arch, hyperparameters(g), g.n_vocab, vectors(g), typed(g, recipe), pre)


if __name__ == "__main__":
    command("Write a full-size Qwen3 or Qwen3.5 GGUF file with random weights.", GEOMETRIES, TYPES, "q8_0", cut, model)
