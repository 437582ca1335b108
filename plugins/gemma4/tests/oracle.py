"""Gemma 4 and Gemma 3 in float64 numpy, from the model's description and the GGUF layout: the suite's ground truth.

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
    eps, n_layer = key(file, "attention.layer_norm_rms_epsilon"), key(file, "block_count")
    embedding = ref.tensor(file, "token_embd.weight")
    x = embedding[np.asarray(tokens)] * embedding.shape[1] ** 0.5
    own = own_inputs(file, x, tokens) if key(file, "embedding_length_per_layer_input", 0) else None
    cached: dict[bool, tuple[ref.F64, ref.F64]] = {}
    first_shared = n_layer - key(file, "attention.shared_kv_layers", 0)
    for i in range(n_layer):
        b, full = f"blk.{i}.", not slides(file, i)

        def norm(x: ref.F64, name: str, b: str = b) -> ref.F64:
            return ref.rms_norm(x, ref.tensor(file, f"{b}{name}.weight"), eps)

        h = norm(x, "attn_norm")
        if i < first_shared:
            cached[full] = keys_and_values(file, b, h, full)
        o = attend(file, b, h, *cached[full], full, mutation)
        x = x + norm(o @ ref.tensor(file, b + "attn_output.weight").T, "post_attention_norm")
        f = gated(norm(x, "ffn_norm"), *(ref.tensor(file, f"{b}ffn_{s}.weight") for s in ("gate", "up", "down")))
        if b + "ffn_gate_inp.weight" in file.tensors:
            f = norm(f, "post_ffw_norm_1") + norm(experts(file, b, x, eps, mutation), "post_ffw_norm_2")
        x = x + norm(f, "post_ffw_norm")
        if own is not None:
            gate = gelu(x @ ref.tensor(file, b + "inp_gate.weight").T) * own[:, i]
            x = x + norm(gate @ ref.tensor(file, b + "proj.weight").T, "post_norm")
        x = x * ref.vector_or(file, b + "layer_output_scale.weight", 1.0)
    head = ref.tensor(file, "output.weight") if "output.weight" in file.tensors else embedding
    z = ref.rms_norm(x, ref.tensor(file, "output_norm.weight"), eps) @ head.T
    cap = key(file, "final_logit_softcapping", 0.0)
    return cap * np.tanh(z / cap) if cap else z


def key(file: GGUFFile, name: str, default: Any = None) -> Any:
    """A number of the architecture."""
    found = file.metadata.get(f"{file.architecture}.{name}", default)
    assert found is not None, name
    return found


def of_layer(value: Any, i: int) -> Any:
    """A key's value for layer i."""
    return value[i] if isinstance(value, list) else value


def slides(file: GGUFFile, i: int) -> bool:
    """Whether layer i sees a window."""
    if not key(file, "attention.sliding_window", 0):
        return False
    pattern = key(file, "attention.sliding_window_pattern", 6)
    return bool(pattern[i]) if isinstance(pattern, list) else i % pattern != pattern - 1


def heads(file: GGUFFile, b: str, stem: str, x: ref.F64, full: bool) -> ref.F64:
    """A projection `(n, heads, head_dim)`."""
    suffix = "" if full or file.architecture == "gemma3" else "_swa"
    y = x @ ref.tensor(file, f"{b}{stem}.weight").T
    return y.reshape(len(x), -1, key(file, f"attention.key_length{suffix}"))


def rotate(file: GGUFFile, x: ref.F64, full: bool) -> ref.F64:
    """By the layer's own frequencies; the pairs of a head are half a head apart."""
    base = key(file, "rope.freq_base", 10000.0) if full else key(file, "rope.freq_base_swa", 10000.0)
    dim = x.shape[-1]
    inv_freq = base ** (-2.0 * np.arange(dim // 2) / dim)
    if full:
        inv_freq = inv_freq / ref.vector_or(file, "rope_freqs.weight", 1.0) / key(file, "rope.scaling.factor", 1.0)
    return ref.rope(x, inv_freq)


def keys_and_values(file: GGUFFile, b: str, h: ref.F64, full: bool) -> tuple[ref.F64, ref.F64]:
    """What a layer caches."""
    eps = key(file, "attention.layer_norm_rms_epsilon")
    k = heads(file, b, "attn_k", h, full)
    v = heads(file, b, "attn_v", h, full) if b + "attn_v.weight" in file.tensors else k
    if file.architecture == "gemma4":
        v = ref.rms_norm(v, 1.0, eps)
    k = ref.rms_norm(k, ref.tensor(file, b + "attn_k_norm.weight"), eps)
    return rotate(file, k, full), v


def attend(file: GGUFFile, b: str, h: ref.F64, k: ref.F64, v: ref.F64, full: bool, mutation: str) -> ref.F64:
    """Attention `(n, H * head_dim)` over what a layer, or the one it shares with, has cached."""
    q = heads(file, b, "attn_q", h, full)
    q = ref.rms_norm(q, ref.tensor(file, b + "attn_q_norm.weight"), key(file, "attention.layer_norm_rms_epsilon"))
    window = 0 if full else key(file, "attention.sliding_window")
    window += {"window + 1": 1, "window - 1": -1}.get(mutation, 0) * (window > 0)
    if mutation == "no window":
        window = 0
    scale = 1.0 if file.architecture == "gemma4" else q.shape[-1] ** -0.5
    return ref.attention(rotate(file, q, full), k, v, scale, window)


def gelu(x: ref.F64) -> ref.F64:
    """The tanh form."""
    y: ref.F64 = 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))
    return y


def gated(x: ref.F64, gate: ref.F64, up: ref.F64, down: ref.F64) -> ref.F64:
    """down(gelu(gate x) * up x)"""
    return (gelu(x @ gate.T) * (x @ up.T)) @ down.T


def own_inputs(file: GGUFFile, x: ref.F64, tokens: Sequence[int]) -> ref.F64:
    """What each layer gets of each token `(n, layers, P)`: a row of a table and a projection, over sqrt(2)."""
    width = key(file, "embedding_length_per_layer_input")
    projected = (x @ ref.tensor(file, "per_layer_model_proj.weight").T / x.shape[1] ** 0.5).reshape(len(x), -1, width)
    projected = ref.rms_norm(
        projected, ref.tensor(file, "per_layer_proj_norm.weight"), key(file, "attention.layer_norm_rms_epsilon")
    )
    table = ref.tensor(file, "per_layer_token_embd.weight")[np.asarray(tokens)].reshape(projected.shape)
    return (projected + table * width**0.5) / 2**0.5


def experts(file: GGUFFile, b: str, x: ref.F64, eps: float, mutation: str) -> ref.F64:
    """The mixture: a softmax over all experts, renormalised over the chosen ones, then times each one's scale."""
    scale = ref.tensor(file, b + "ffn_gate_inp.scale") / x.shape[1] ** 0.5
    probability = ref.softmax(ref.rms_norm(x, scale, eps) @ ref.tensor(file, b + "ffn_gate_inp.weight").T)
    m = ref.rms_norm(x, ref.tensor(file, b + "pre_ffw_norm_2.weight"), eps)
    if b + "ffn_gate_up_exps.weight" in file.tensors:
        gate, up = np.split(ref.tensor(file, b + "ffn_gate_up_exps.weight"), 2, axis=1)
    else:
        gate, up = ref.tensor(file, b + "ffn_gate_exps.weight"), ref.tensor(file, b + "ffn_up_exps.weight")
    down = ref.tensor(file, b + "ffn_down_exps.weight")
    own = np.ones(len(down)) * ref.vector_or(file, b + "ffn_down_exps.scale", 1.0)
    y = np.zeros_like(x)
    for row in range(len(x)):
        chosen = np.argsort(-probability[row], kind="stable")[: key(file, "expert_used_count")]
        weight = probability[row, chosen]
        if mutation == "scaled before renormalisation":
            weight = weight * own[chosen] / (weight * own[chosen]).sum()
        elif mutation == "no renormalisation":
            weight = weight * own[chosen]
        else:
            weight = weight / weight.sum() * own[chosen]
        for e, w in zip(chosen, weight, strict=True):
            y[row] += w * gated(m[row], gate[e], up[e], down[e])
    return y
