"""A pass over a canvas in float64 numpy, from the model's description and the GGUF layout: the suite's ground truth.

Shares nothing with the plugin. Prefix and canvas go through the layers side by side; a mask says who sees whom. Its
`mutation` breaks one rule on purpose, so that tests can show that the comparison would notice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lmhub.gguf import GGUFFile
from lmhub.testing import reference as ref


def logits(
    file: GGUFFile, prompt: Sequence[int], canvas: Sequence[int], told: ref.F64 | None = None, mutation: str = ""
) -> ref.F64:
    """Logits `(canvas, n_vocab)` behind `prompt`; `told` are the probabilities of the last pass, of the same shape."""
    n, embedding = len(prompt), ref.tensor(file, "token_embd.weight")
    root = embedding.shape[1] ** 0.5
    x = np.concatenate(
        [embedding[np.asarray(prompt)] * root, begun(file, embedding[np.asarray(canvas)] * root, told, mutation)]
    )
    for i in range(key(file, "block_count")):
        x = layer(file, i, x, n, mutation)
    z = norm(file, x[n:], "output_norm") @ embedding.T
    cap = key(file, "final_logit_softcapping")
    return cap * np.tanh(z / cap)


def begun(file: GGUFFile, u: ref.F64, told: ref.F64 | None, mutation: str) -> ref.F64:
    """The embeddings of a canvas with what the model is told of its last pass."""
    embedding = ref.tensor(file, "token_embd.weight")
    if told is not None and mutation != "told nothing":
        expected = told @ embedding * embedding.shape[1] ** 0.5
        h = expected if mutation == "expectation not normed" else norm(file, expected, "self_cond_pre_norm")
        gate, up, down = (ref.tensor(file, f"self_cond_{stem}.weight") for stem in ("gate", "up", "down"))
        u = u + (gelu(h @ gate.T) * (h @ up.T)) @ down.T
    return u if mutation == "canvas not normed" else ref.rms_norm(u, 1.0, key(file, "attention.layer_norm_rms_epsilon"))


def layer(file: GGUFFile, i: int, x: ref.F64, n: int, mutation: str) -> ref.F64:
    """One block for the prefix, the first `n` rows, and the canvas."""
    b = f"blk.{i}."
    x = x + norm(file, attention(file, i, norm(file, x, b + "attn_norm"), n, mutation), b + "post_attention_norm")
    h = norm(file, x, b + "ffn_norm")
    gate, up, down = (ref.tensor(file, f"{b}ffn_{stem}.weight") for stem in ("gate", "up", "down"))
    f = (gelu(h @ gate.T) * (h @ up.T)) @ down.T
    if b + "ffn_gate_inp.weight" in file.tensors:
        f = norm(file, f, b + "post_ffw_norm_1") + norm(file, experts(file, b, x), b + "post_ffw_norm_2")
    x = x + norm(file, f, b + "post_ffw_norm")
    scales = [ref.tensor(file, f"{b}{mode}layer_output_scale.weight")[0] for mode in ("enc_", "")]
    if mutation == "one scale for both":
        scales[0] = scales[1]
    return x * np.where(np.arange(len(x)) < n, *scales)[:, None]


def attention(file: GGUFFile, i: int, h: ref.F64, n: int, mutation: str) -> ref.F64:
    """The output projection of attention; queries are taken as they are, values are normed without a weight."""
    b, slides = f"blk.{i}.", bool(key(file, "attention.sliding_window_pattern")[i])
    dim = key(file, "attention.key_length_swa" if slides else "attention.key_length")
    base = key(file, "rope.freq_base_swa" if slides else "rope.freq_base")
    inv_freq = base ** (-2.0 * np.arange(dim // 2) / dim)
    if not slides:
        inv_freq = inv_freq / ref.tensor(file, "rope_freqs.weight")
    q, k = (heads(file, f"{b}attn_{stem}.weight", h, dim) for stem in "qk")
    v = heads(file, b + "attn_v.weight", h, dim) if b + "attn_v.weight" in file.tensors else k
    v = ref.rms_norm(v, 1.0, key(file, "attention.layer_norm_rms_epsilon"))
    q, k = (ref.rope(norm(file, one, f"{b}attn_{stem}_norm"), inv_freq) for one, stem in ((q, "q"), (k, "k")))
    k, v = (np.repeat(one, q.shape[1] // k.shape[1], axis=1) for one in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k)
    scores = np.where(
        visible(len(h), n, key(file, "attention.sliding_window") if slides else 0, mutation), scores, -np.inf
    )
    o = np.einsum("hij,jhd->ihd", ref.softmax(scores), v).reshape(len(h), -1)
    y: ref.F64 = o @ ref.tensor(file, b + "attn_output.weight").T
    return y


def visible(n_all: int, n: int, window: int, mutation: str) -> np.ndarray:
    """Who sees whom `(row, key)`: the prefix as ever; a canvas all of itself, and what its first position would see."""
    row, column = np.arange(n_all)[:, None], np.arange(n_all)[None, :]
    first = n + (mutation == "a window one shorter") - (mutation == "a window one longer")
    at = np.where(row < n, row, row if mutation == "a window of each row" else first)
    seen = (column <= row) & ((row - column < window) | (window == 0) | (row >= n))
    seen &= (window == 0) | (at - column < window)
    inside = (row >= n) & (column >= n)
    if mutation == "a canvas that looks back only":
        return np.asarray(np.where(inside, column <= row, seen))
    return np.asarray(seen | inside)


def experts(file: GGUFFile, b: str, x: ref.F64) -> ref.F64:
    """The mixture, as in Gemma 4."""
    scale = ref.tensor(file, b + "ffn_gate_inp.scale") / x.shape[1] ** 0.5
    eps = key(file, "attention.layer_norm_rms_epsilon")
    probability = ref.softmax(ref.rms_norm(x, scale, eps) @ ref.tensor(file, b + "ffn_gate_inp.weight").T)
    m, own = norm(file, x, b + "pre_ffw_norm_2"), ref.tensor(file, b + "ffn_down_exps.scale")
    gate, up = np.split(ref.tensor(file, b + "ffn_gate_up_exps.weight"), 2, axis=1)
    down, y = ref.tensor(file, b + "ffn_down_exps.weight"), np.zeros_like(x)
    for row in range(len(x)):
        chosen = np.argsort(-probability[row], kind="stable")[: key(file, "expert_used_count")]
        weight = probability[row, chosen] / probability[row, chosen].sum() * own[chosen]
        for e, w in zip(chosen, weight, strict=True):
            y[row] += w * ((gelu(m[row] @ gate[e].T) * (m[row] @ up[e].T)) @ down[e].T)
    return y


def heads(file: GGUFFile, name: str, h: ref.F64, dim: int) -> ref.F64:
    """A projection `(n, heads, dim)`."""
    return (h @ ref.tensor(file, name).T).reshape(len(h), -1, dim)


def norm(file: GGUFFile, x: ref.F64, name: str) -> ref.F64:
    """With the weight of that name."""
    return ref.rms_norm(x, ref.tensor(file, f"{name}.weight"), key(file, "attention.layer_norm_rms_epsilon"))


def gelu(x: ref.F64) -> ref.F64:
    """The tanh form."""
    y: ref.F64 = 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))
    return y


def key(file: GGUFFile, name: str) -> Any:
    """A number of the architecture."""
    return file.metadata[f"{file.architecture}.{name}"]
