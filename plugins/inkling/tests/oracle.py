"""Inkling in float64 numpy, from the model's description and the GGUF layout: the suite's ground truth.

Shares nothing with the plugin: reads the file's keys itself and expands weights with the `gguf` package.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lmhub.gguf import GGUFFile
from lmhub.testing import reference as ref


def logits(file: GGUFFile, tokens: Sequence[int]) -> ref.F64:
    """Logits `(n, n_vocab)` of every position of one sequence."""
    x = norm(file, "token_embd_norm", ref.tensor(file, "token_embd.weight")[np.asarray(tokens)])
    for i in range(key(file, "block_count") - key(file, "nextn_predict_layers", 0)):
        b = f"blk.{i}."
        o = attend(file, i, norm(file, b + "attn_norm", x)) @ ref.tensor(file, b + "attn_output.weight").T
        x = x + convolved(file, b + "shortconv_attn", o)
        h, scale = norm(file, b + "ffn_norm", x), ref.tensor(file, b + "ffn_gscale.weight")[0]
        if b + "ffn_gate_inp.weight" in file.tensors:
            y = experts(file, b, h, scale)
        else:
            y = scale * ref.swiglu(h, *(ref.tensor(file, f"{b}ffn_{stem}.weight") for stem in ("gate", "up", "down")))
        x = x + convolved(file, b + "shortconv_mlp", y)
    z: ref.F64 = norm(file, "output_norm", x) / key(file, "logit_scale_denom") @ ref.tensor(file, "output.weight").T
    return z[:, : key(file, "unpadded_vocab_size", 0) or z.shape[1]]


def key(file: GGUFFile, name: str, default: Any = None) -> Any:
    """A number of the architecture."""
    found = file.metadata.get(f"inkling.{name}", default)
    assert found is not None, name
    return found


def norm(file: GGUFFile, name: str, x: ref.F64) -> ref.F64:
    """RMS norm over the last axis."""
    return ref.rms_norm(x, ref.tensor(file, name + ".weight"), key(file, "attention.layer_norm_rms_epsilon", 1e-6))


def convolved(file: GGUFFile, name: str, x: ref.F64) -> ref.F64:
    """x `(n, width)` and what its last rows, zeros before the first, add to it by the taps `(width, K)`."""
    taps = ref.tensor(file, name + ".weight")
    padded = np.concatenate([np.zeros((taps.shape[1] - 1, x.shape[1])), x])
    y = x.copy()
    for t in range(taps.shape[1]):
        y += taps[:, t] * padded[t : t + len(x)]
    return y


def slides(file: GGUFFile, i: int) -> bool:
    """Whether layer i sees a window."""
    pattern = file.metadata.get("inkling.attention.sliding_window_pattern")
    return bool(pattern[i]) if isinstance(pattern, list) else i % 6 != 5


def attend(file: GGUFFile, i: int, h: ref.F64) -> ref.F64:
    """Attention `(n, H * head_dim)` of layer i over normed rows `(n, d)`, with a learned bias by distance."""
    b, n, dim = f"blk.{i}.", len(h), key(file, "attention.key_length")
    q, k, v, r = (h @ ref.tensor(file, f"{b}attn_{stem}.weight").T for stem in "qkvr")
    k, v = convolved(file, b + "shortconv_k", k), convolved(file, b + "shortconv_v", v)
    q = norm(file, b + "attn_q_norm", q.reshape(n, -1, dim))
    k, v = norm(file, b + "attn_k_norm", k.reshape(n, -1, dim)), v.reshape(n, -1, dim)
    by_distance = ref.tensor(file, b + "attn_rel_proj.weight")
    bias = r.reshape(n, q.shape[1], -1) @ by_distance  # (n, H, extent)
    floor, alpha = key(file, "log_scaling_n_floor", 0), key(file, "log_scaling_alpha", 0.0)
    if floor and not slides(file, i):
        grown = 1 + alpha * np.log(np.maximum((np.arange(n) + 1) / floor, 1))[:, None, None]
        q, bias = q * grown, bias * grown
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = np.einsum("ihd,jhd->ihj", q, k) / dim
    distance = np.arange(n)[:, None] - np.arange(n)
    near = (distance >= 0) & (distance < bias.shape[-1])
    at = np.broadcast_to(np.where(near, distance, 0)[:, None], scores.shape)
    scores += np.where(near[:, None], np.take_along_axis(bias, at, -1), 0)
    hidden = (distance < 0) | (slides(file, i) & (distance >= key(file, "attention.sliding_window", 512)))
    weights = ref.softmax(np.where(hidden[:, None], -np.inf, scores))
    return np.einsum("ihj,jhd->ihd", weights, v).reshape(n, -1)


def experts(file: GGUFFile, b: str, h: ref.F64, scale: float) -> ref.F64:
    """The mixture: sigmoids, normalised over the chosen experts and those that every row goes to."""
    n_expert, k = key(file, "expert_count"), key(file, "expert_used_count")
    gate, up, down = (ref.tensor(file, f"{b}ffn_{stem}_exps.weight") for stem in ("gate", "up", "down"))
    shared = [ref.tensor(file, f"{b}ffn_{stem}_shexp.weight") for stem in ("gate", "up", "down")]
    sigmoid = 1 / (1 + np.exp(-h @ ref.tensor(file, b + "ffn_gate_inp.weight").T))
    selection = ref.tensor(file, b + "exp_probs_b.bias")
    y = np.zeros_like(h)
    for row in range(len(h)):
        chosen = np.argsort(-(sigmoid[row, :n_expert] + selection), kind="stable")[:k]
        weight = sigmoid[row, [*chosen, *range(n_expert, sigmoid.shape[1])]]
        weight = weight / weight.sum() * key(file, "expert_weights_scale", 1.0) * scale
        for e, w in zip(chosen, weight[:k], strict=True):
            y[row] += w * ref.swiglu(h[row], gate[e], up[e], down[e])
        for e, w in enumerate(weight[k:]):
            y[row] += w * ref.swiglu(h[row], *(stack[e] for stack in shared))
    return y
