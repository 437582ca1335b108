"""The network of the demo model in PyTorch: Qwen3's dense decoder, small. Knows no data and no training.

Written after the Qwen3 technical report: pre-norm RMSNorm, grouped-query attention with a norm on every query and key
head, rotary positions over halves of a head, SwiGLU, tied embeddings, no biases.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fused import HEAD, Attended, Gated, Normed


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the network, in elements. All are multiples of 32, so that every matrix can be stored as Q8_0."""

    n_vocab: int = 3072
    n_layer: int = 4
    n_embd: int = 256
    n_head: int = 4
    n_kv: int = 2
    head_dim: int = HEAD
    n_ff: int = 640
    rope_base: float = 100_000.0
    rms_eps: float = 1e-6


class Block(nn.Module):
    """One layer. Projections of one input are one matrix here; the export cuts them apart."""

    def __init__(self, s: Shape):
        super().__init__()
        self.s = s
        self.attn_norm, self.ffn_norm = (nn.Parameter(torch.ones(s.n_embd)) for _ in range(2))
        self.q_norm, self.k_norm = (nn.Parameter(torch.ones(s.head_dim)) for _ in range(2))
        self.qkv = matrix((s.n_head + 2 * s.n_kv) * s.head_dim, s.n_embd)
        self.gate_up = matrix(2 * s.n_ff, s.n_embd)
        # Writes to the residual stream start small, so that its size does not depend on the depth.
        self.out = matrix(s.n_embd, s.n_head * s.head_dim, (2 * s.n_layer) ** -0.5)
        self.down = matrix(s.n_embd, s.n_ff, (2 * s.n_layer) ** -0.5)

    def forward(self, x: Tensor, shape: tuple[int, int], angles: tuple[Tensor, Tensor]) -> Tensor:
        """The residual stream (batch * time, n_embd) float32 -> the same; `shape` is (batch, time)."""
        s = self.s
        qkv = linear(Normed.apply(x, self.attn_norm, s.rms_eps), self.qkv)
        y = Attended.apply(qkv.view(*shape, -1), self.q_norm, self.k_norm, angles, s.n_head, s.rms_eps)
        x = x + linear(y.flatten(0, 1), self.out)
        return x + linear(Gated.apply(linear(Normed.apply(x, self.ffn_norm, s.rms_eps), self.gate_up)), self.down)


class Network(nn.Module):
    """Token ids to logits."""

    def __init__(self, s: Shape):
        super().__init__()
        self.s = s
        self.embed = nn.Parameter(torch.randn(s.n_vocab, s.n_embd) * 0.02)
        self.blocks = nn.ModuleList(Block(s) for _ in range(s.n_layer))
        self.norm = nn.Parameter(torch.ones(s.n_embd))
        self.frequencies = s.rope_base ** (-torch.arange(0, s.head_dim, 2) / s.head_dim)

    def forward(self, ids: Tensor, positions: Tensor, wanted: Tensor) -> Tensor:
        """Logits (n, n_vocab) at `wanted` (n,): places in `ids` and `positions`, which are (batch, time), flattened."""
        turns = positions[:, :, None] * self.frequencies
        angles = turns.cos(), turns.sin()
        x = F.embedding(ids.flatten(), self.embed)
        for block in self.blocks:
            x = block(x, tuple(ids.shape), angles)
        return linear(Normed.apply(x[wanted], self.norm, self.s.rms_eps), self.embed)


def matrix(rows: int, columns: int, gain: float = 1.0) -> nn.Parameter:
    """A weight that keeps the size of its input, times `gain`."""
    return nn.Parameter(torch.randn(rows, columns) * gain * columns**-0.5)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """bfloat16 (n, columns) times a float32 weight (rows, columns), rounded for the product."""
    return F.linear(x, weight.to(torch.bfloat16))
