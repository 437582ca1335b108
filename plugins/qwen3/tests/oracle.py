"""Qwen3 in float64 numpy, written from the paper and the GGUF layout: the suite's ground truth.

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
    a = file.architecture
    n_head = file.metadata[f"{a}.attention.head_count"]
    n_kv = file.metadata[f"{a}.attention.head_count_kv"]
    eps = file.metadata[f"{a}.attention.layer_norm_rms_epsilon"]
    inv_freq, magnitude = frequencies(file)
    embedding = ref.tensor(file, "token_embd.weight")
    x = embedding[np.asarray(tokens)]
    for i in range(file.metadata[f"{a}.block_count"]):
        b = f"blk.{i}."
        h = ref.rms_norm(x, ref.tensor(file, b + "attn_norm.weight"), eps)
        q, k, v = project(file, b, h, n_head, n_kv)
        q = ref.rms_norm(q, ref.tensor(file, b + "attn_q_norm.weight"), eps)
        k = ref.rms_norm(k, ref.tensor(file, b + "attn_k_norm.weight"), eps)
        q, k = ref.rope(q, inv_freq, magnitude=magnitude), ref.rope(k, inv_freq, magnitude=magnitude)
        if mutation == "kv head = h % KV":
            order = np.arange(n_head).reshape(n_kv, -1).T.reshape(-1)  # the heads that share a kv head, regrouped
            o = ref.attention(q[:, np.argsort(order)], k, v, q.shape[-1] ** -0.5)
            o = o.reshape(len(x), n_head, -1)[:, order].reshape(len(x), -1)
        else:
            o = ref.attention(q, k, v, q.shape[-1] ** -0.5, 1 if mutation == "attends to itself only" else 0)
        x = x + o @ ref.tensor(file, b + "attn_output.weight").T + ref.vector_or(file, b + "attn_output.bias")
        x = x + feed_forward(file, b, ref.rms_norm(x, ref.tensor(file, b + "ffn_norm.weight"), eps), mutation)
    head = ref.tensor(file, "output.weight") if "output.weight" in file.tensors else embedding
    return ref.rms_norm(x, ref.tensor(file, "output_norm.weight"), eps) @ head.T


def frequencies(file: GGUFFile) -> tuple[ref.F64, float]:
    """Radians per position of each pair, and the magnitude of cos and sin."""
    a, keys = file.architecture, file.metadata
    n_rot = keys.get(f"{a}.rope.dimension_count") or ref.tensor(file, "blk.0.attn_k_norm.weight").size
    base = keys.get(f"{a}.rope.freq_base", 10000.0)
    factor = keys.get(f"{a}.rope.scaling.factor", 1.0)
    own = keys.get(f"{a}.rope.scaling.attn_factor", 1.0) * keys.get(f"{a}.rope.scaling.yarn_attn_factor", 1.0)
    if keys.get(f"{a}.rope.scaling.type") == "yarn":
        inv_freq, magnitude = ref.yarn(base, n_rot, factor, keys[f"{a}.rope.scaling.original_context_length"])
        return inv_freq, magnitude * own
    return base ** (-2.0 * np.arange(n_rot // 2) / n_rot) / factor, own


def project(file: GGUFFile, b: str, h: ref.F64, n_head: int, n_kv: int) -> tuple[ref.F64, ref.F64, ref.F64]:
    """q `(n, H, hd)`, k `(n, KV, hd)`, v `(n, KV, hd)`."""
    n, hd = len(h), ref.tensor(file, b + "attn_q_norm.weight").size
    if b + "attn_qkv.weight" in file.tensors:
        qkv = h @ ref.tensor(file, b + "attn_qkv.weight").T + ref.vector_or(file, b + "attn_qkv.bias")
        q, k, v = np.split(qkv, [n_head * hd, (n_head + n_kv) * hd], axis=1)
    else:
        q, k, v = (
            h @ ref.tensor(file, f"{b}attn_{s}.weight").T + ref.vector_or(file, f"{b}attn_{s}.bias") for s in "qkv"
        )
    return q.reshape(n, n_head, hd), k.reshape(n, n_kv, hd), v.reshape(n, n_kv, -1)


def feed_forward(file: GGUFFile, b: str, h: ref.F64, mutation: str) -> ref.F64:
    """The dense or routed SwiGLU of the block."""
    if b + "ffn_gate_inp.weight" not in file.tensors:
        gate, up, down = (ref.tensor(file, f"{b}ffn_{s}.weight") for s in ("gate", "up", "down"))
        if mutation == "sigmoid for SiLU":
            return (h @ up.T / (1 + np.exp(-h @ gate.T))) @ down.T
        return ref.swiglu(h, gate, up, down)
    router = ref.tensor(file, b + "ffn_gate_inp.weight")
    if b + "ffn_gate_up_exps.weight" in file.tensors:
        gate, up = np.split(ref.tensor(file, b + "ffn_gate_up_exps.weight"), 2, axis=1)
    else:
        gate, up = stack(file, b, "gate", len(router)), stack(file, b, "up", len(router))
    down, k = stack(file, b, "down", len(router)), file.metadata[f"{file.architecture}.expert_used_count"]
    y = ref.experts(h, router, gate, up, down, k=1 if mutation == "top-1 only" else k)
    if mutation == "no renormalisation":
        y = y * np.sort(ref.softmax(h @ router.T), axis=-1)[:, -k:].sum(-1, keepdims=True)
    return y


def stack(file: GGUFFile, b: str, stem: str, n_expert: int) -> ref.F64:
    """Expert weights `(E, rows, cols)`, from one tensor or from one per expert."""
    if f"{b}ffn_{stem}_exps.weight" in file.tensors:
        return ref.tensor(file, f"{b}ffn_{stem}_exps.weight")
    return np.stack([ref.tensor(file, f"{b}ffn_{stem}.{e}.weight") for e in range(n_expert)])
