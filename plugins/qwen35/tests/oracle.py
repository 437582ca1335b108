"""Qwen3.5 in float64 numpy, from the model's description and the GGUF layout: the suite's ground truth.

Shares nothing with the plugin: reads the file's keys itself and expands weights with the `gguf` package. Its `mutation`
argument breaks one rule on purpose, for the rules that live in the core's kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lmhub.gguf import GGUFFile
from lmhub.testing import reference as ref


def logits(file: GGUFFile, tokens: Sequence[int], mutation: str = "") -> ref.F64:
    """Logits `(n, n_vocab)` of every position of one sequence."""
    eps, embedding = key(file, "attention.layer_norm_rms_epsilon"), ref.tensor(file, "token_embd.weight")
    x = embedding[np.asarray(tokens)]
    for i in range(key(file, "block_count") - key(file, "nextn_predict_layers", 0)):
        b = f"blk.{i}."
        h = ref.rms_norm(x, ref.tensor(file, b + "attn_norm.weight"), eps)
        mixer = delta_net if b + "ssm_a" in file.tensors else attention
        x = x + mixer(file, b, h, mutation)
        h = ref.rms_norm(x, ref.tensor(file, b + "post_attention_norm.weight"), eps)
        x = x + feed_forward(file, b, h, mutation)
    head = ref.tensor(file, "output.weight") if "output.weight" in file.tensors else embedding
    return ref.rms_norm(x, ref.tensor(file, "output_norm.weight"), eps) @ head.T


def key(file: GGUFFile, name: str, default: Any = None) -> Any:
    """A number of the architecture."""
    found = file.metadata.get(f"{file.architecture}.{name}", default)
    assert found is not None, name
    return found


def sigmoid(x: ref.F64) -> ref.F64:
    """The logistic function."""
    return 1.0 / (1.0 + np.exp(-x))


def attention(file: GGUFFile, b: str, h: ref.F64, mutation: str) -> ref.F64:
    """Gated attention of one sequence, `(n, d)`."""
    n, eps, dim = len(h), key(file, "attention.layer_norm_rms_epsilon"), key(file, "attention.key_length")
    r = (h @ ref.tensor(file, b + "attn_q.weight").T).reshape(n, -1, 2, dim)
    k, v = ((h @ ref.tensor(file, f"{b}attn_{s}.weight").T).reshape(n, -1, dim) for s in "kv")
    q, gate = r[:, :, 0], r[:, :, 1]
    n_rot = key(file, "rope.dimension_count")
    inv_freq = key(file, "rope.freq_base") ** (-2.0 * np.arange(n_rot // 2) / n_rot)
    q, k = (
        ref.rope(ref.rms_norm(y, ref.tensor(file, f"{b}attn_{s}_norm.weight"), eps), inv_freq)
        for y, s in ((q, "q"), (k, "k"))
    )
    if mutation == "kv head = h % KV":
        k, v = (np.tile(y, (1, q.shape[1] // y.shape[1], 1)) for y in (k, v))
    o = ref.attention(q, k, v, key(file, "attention.scale", 0.0) or dim**-0.5).reshape(gate.shape)
    gates = {"attention gate is SiLU": ref.silu(gate), "no attention gate": np.ones_like(gate)}
    return (o * gates.get(mutation, sigmoid(gate))).reshape(n, -1) @ ref.tensor(file, b + "attn_output.weight").T


def convolved(file: GGUFFile, b: str, u: ref.F64, mutation: str) -> ref.F64:
    """The short convolution of every channel, and SiLU."""
    taps = ref.tensor(file, b + "ssm_conv1d.weight")
    if mutation == "taps reversed":
        taps = taps[:, ::-1]
    n_taps = taps.shape[1]
    padded = np.concatenate([np.zeros((n_taps - 1, u.shape[1])), u])
    y: ref.F64 = sum(taps[:, j] * padded[j : j + len(u)] for j in range(n_taps))
    return y if mutation == "no SiLU after the convolution" else ref.silu(y)


def delta_net(file: GGUFFile, b: str, h: ref.F64, mutation: str) -> ref.F64:
    """A gated delta net, row by row, `(n, d)`."""
    n, eps, dim = len(h), key(file, "attention.layer_norm_rms_epsilon"), key(file, "ssm.state_size")
    n_k, n_v = key(file, "ssm.group_count"), key(file, "ssm.time_step_rank")
    y = convolved(file, b, h @ ref.tensor(file, b + "attn_qkv.weight").T, mutation)
    q, k, v = (part.reshape(n, -1, dim) for part in np.split(y, [n_k * dim, 2 * n_k * dim], axis=1))
    q, k = (part / np.sqrt((part**2).sum(-1, keepdims=True) + eps) for part in (q, k))
    q = q if mutation == "no 1 / sqrt(S)" else q / dim**0.5
    tiled = bool(file.metadata.get(f"{file.architecture}.ssm.v_head_reordered", True))
    heads = np.arange(n_v) % n_k if tiled != (mutation == "grouped heads") else np.arange(n_v) // (n_v // n_k)
    q, k = q[:, heads], k[:, heads]

    dt = ref.tensor(file, b + ("ssm_dt" if b + "ssm_dt" in file.tensors else "ssm_dt.bias"))
    dt = np.zeros_like(dt) if mutation == "no dt bias" else dt
    a = ref.tensor(file, b + "ssm_a")
    a = -np.exp(a) if mutation == "ssm_a exponentiated again" else a
    decay = np.exp(np.log1p(np.exp(h @ ref.tensor(file, b + "ssm_alpha.weight").T + dt)) * a)
    beta = sigmoid(h @ ref.tensor(file, b + "ssm_beta.weight").T)
    m, o = np.zeros((n_v, dim, dim)), np.zeros((n, n_v, dim))
    for i in range(n):
        old = m
        m = m * decay[i, :, None, None]
        seen = old if mutation == "change from the undecayed state" else m
        change = beta[i, :, None] * (v[i] - np.einsum("hvk,hk->hv", seen, k[i]))
        after = m + change[:, :, None] * k[i][:, None, :]
        o[i] = np.einsum("hvk,hk->hv", m if mutation == "output before the change" else after, q[i])
        m = after
        for kind, bits in (("float16", 0), ("bfloat16", 16)):
            if mutation == f"state in {kind}":
                short = m.astype(np.float32)
                m = (short.astype(np.float16) if not bits else rounded(short)).astype(np.float64)

    z = (h @ ref.tensor(file, b + "attn_gate.weight").T).reshape(n, n_v, dim)
    norm = ref.tensor(file, b + "ssm_norm.weight") + (mutation == "one added to ssm_norm")
    gate = sigmoid(z) if mutation == "z gate is a sigmoid" else ref.silu(z)
    o = ref.rms_norm(o * gate, norm, eps) if mutation == "gate before the norm" else ref.rms_norm(o, norm, eps) * gate
    return o.reshape(n, -1) @ ref.tensor(file, b + "ssm_out.weight").T


def rounded(x: np.ndarray) -> np.ndarray:
    """float32 cut to bfloat16, to nearest."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def feed_forward(file: GGUFFile, b: str, h: ref.F64, mutation: str) -> ref.F64:
    """The SwiGLU of the block: dense, or routed with the shared expert beside it."""

    def weights(kind: str) -> list[ref.F64]:
        return [ref.tensor(file, f"{b}ffn_{s}{kind}.weight") for s in ("gate", "up", "down")]

    if b + "ffn_gate_inp.weight" not in file.tensors:
        return ref.swiglu(h, *weights(""))
    if b + "ffn_gate_up_exps.weight" in file.tensors:
        gate, up = np.split(ref.tensor(file, b + "ffn_gate_up_exps.weight"), 2, axis=1)
        down = ref.tensor(file, b + "ffn_down_exps.weight")
    else:
        gate, up, down = weights("_exps")
    router, k = ref.tensor(file, b + "ffn_gate_inp.weight"), key(file, "expert_used_count")
    y = ref.experts(h, router, gate, up, down, k=k)
    if mutation == "no renormalisation":
        y = y * np.sort(ref.softmax(h @ router.T), axis=-1)[:, -k:].sum(-1, keepdims=True)
    shared = sigmoid(h @ ref.tensor(file, b + "ffn_gate_inp_shexp.weight").reshape(-1, 1))
    return y + ref.swiglu(h, *weights("_shexp")) * (1.0 if mutation == "no shared gate" else shared)
