"""Llama in float64 numpy, written from the paper and the GGUF layout: the suite's ground truth.

Shares nothing with the plugin: reads the file's keys itself and expands weights with the `gguf` package. Its `mutation`
argument breaks one rule on purpose, for the rules that live in the core's kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lmhub.gguf import GGUFFile
from lmhub.testing import reference as ref


def logits(file: GGUFFile, tokens: Sequence[int], mutation: str = "") -> ref.F64:
    """Logits `(n, n_vocab)` of every position of one sequence."""
    keys = file.metadata
    n_head = keys["llama.attention.head_count"]
    n_kv = keys.get("llama.attention.head_count_kv", n_head)
    eps = keys["llama.attention.layer_norm_rms_epsilon"]
    window = 0 if mutation == "no window" else keys.get("llama.attention.sliding_window", 0)
    embedding = ref.tensor(file, "token_embd.weight")
    head_dim = keys.get("llama.attention.key_length", embedding.shape[1] // n_head)
    inv_freq, magnitude = frequencies(file, head_dim)
    x = embedding[np.asarray(tokens)]
    n = len(x)
    for i in range(keys["llama.block_count"]):
        b = f"blk.{i}."
        h = ref.rms_norm(x, ref.tensor(file, b + "attn_norm.weight"), eps)
        q, k, v = (
            h @ ref.tensor(file, f"{b}attn_{s}.weight").T + ref.vector_or(file, f"{b}attn_{s}.bias") for s in "qkv"
        )
        q = ref.rope(q.reshape(n, n_head, head_dim), inv_freq, pairs=True, magnitude=magnitude)
        k = ref.rope(k.reshape(n, n_kv, head_dim), inv_freq, pairs=True, magnitude=magnitude)
        o = ref.attention(q, k, v.reshape(n, n_kv, -1), head_dim**-0.5, window)
        x = x + o @ ref.tensor(file, b + "attn_output.weight").T + ref.vector_or(file, b + "attn_output.bias")
        x = x + feed_forward(file, b, ref.rms_norm(x, ref.tensor(file, b + "ffn_norm.weight"), eps))
    head = ref.tensor(file, "output.weight") if "output.weight" in file.tensors else embedding
    return ref.rms_norm(x, ref.tensor(file, "output_norm.weight"), eps) @ head.T


def frequencies(file: GGUFFile, head_dim: int) -> tuple[ref.F64, float]:
    """Radians per position of each pair, and the magnitude of cos and sin."""
    keys = file.metadata
    n_rot = keys.get("llama.rope.dimension_count", head_dim)
    base, factor = keys.get("llama.rope.freq_base", 10000.0), keys.get("llama.rope.scaling.factor", 1.0)
    if keys.get("llama.rope.scaling.type") == "yarn":
        return ref.yarn(base, n_rot, factor, keys["llama.rope.scaling.original_context_length"])
    inv_freq = base ** (-2.0 * np.arange(n_rot // 2) / n_rot) / factor
    return inv_freq / ref.vector_or(file, "rope_freqs.weight", 1.0), 1.0


def feed_forward(file: GGUFFile, b: str, h: ref.F64) -> ref.F64:
    """The dense or routed SwiGLU of the block."""
    if b + "ffn_gate_inp.weight" not in file.tensors:
        return ref.swiglu(h, *(ref.tensor(file, f"{b}ffn_{s}.weight") for s in ("gate", "up", "down")))
    router = ref.tensor(file, b + "ffn_gate_inp.weight")
    gate, up, down = (stack(file, b, stem, len(router)) for stem in ("gate", "up", "down"))
    return ref.experts(h, router, gate, up, down, k=file.metadata["llama.expert_used_count"])


def stack(file: GGUFFile, b: str, stem: str, n_expert: int) -> ref.F64:
    """Expert weights `(E, rows, cols)`, from one tensor or from one per expert."""
    if f"{b}ffn_{stem}_exps.weight" in file.tensors:
        return ref.tensor(file, f"{b}ffn_{stem}_exps.weight")
    return np.stack([ref.tensor(file, f"{b}ffn_{stem}.{e}.weight") for e in range(n_expert)])
