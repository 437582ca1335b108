"""nanochat in float64 numpy, from the model's description: the suite's ground truth.

Shares nothing with the plugin but the names of metadata and tensors, and expands weights with the `gguf` package. Its
`mutation` argument breaks one rule on purpose, for the rules that live in the core's kernels or in what is read.
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
    x = smeared(file, ref.rms_norm(ref.tensor(file, "token_embd.weight")[np.asarray(tokens)], 1.0, eps))
    start, middle = x, None
    stay, back = (ref.vector_or(file, name, neutral) for name, neutral in (("resid_lambdas", 1.0), ("x0_lambdas", 0.0)))
    for il in range(n_layer):
        x = np.broadcast_to(stay, n_layer)[il] * x + np.broadcast_to(back, n_layer)[il] * start
        x = x + attention(file, il, ref.rms_norm(x, 1.0, eps), tokens, mutation)
        up = ref.rms_norm(x, 1.0, eps) @ ref.tensor(file, f"blk.{il}.ffn_up.weight").T
        x = x + np.maximum(up, 0.0) ** 2 @ ref.tensor(file, f"blk.{il}.ffn_down.weight").T
        if il == n_layer // 2:
            middle = x
    assert middle is not None
    x = x - ref.vector_or(file, "backout_lambda", 0.0) * middle
    z = ref.rms_norm(x, 1.0, eps) @ ref.tensor(file, "output.weight").T
    cap = key(file, "final_logit_softcapping")
    return cap * np.tanh(z / cap)


def smeared(file: GGUFFile, e: ref.F64) -> ref.F64:
    """Embeddings with a share of the one before."""
    if "smear_gate.weight" not in file.tensors:
        return e
    w = ref.tensor(file, "smear_gate.weight")
    gate = ref.vector_or(file, "smear_lambda") / (1.0 + np.exp(-(e[1:, : w.shape[1]] @ w.T)))
    return np.concatenate([e[:1], e[1:] + gate * e[:-1]])


def attention(file: GGUFFile, il: int, h: ref.F64, tokens: Sequence[int], mutation: str) -> ref.F64:
    """What attention adds to the stream."""
    b, n, eps = f"blk.{il}.", len(h), key(file, "attention.layer_norm_rms_epsilon")
    n_head, n_kv, dim = (key(file, f"attention.{name}") for name in ("head_count", "head_count_kv", "key_length"))
    q, k, v = (
        (h @ ref.tensor(file, f"{b}attn_{s}.weight").T).reshape(n, heads, dim)
        for s, heads in (("q", n_head), ("k", n_kv), ("v", n_kv))
    )
    if b + "value_embd.weight" in file.tensors:
        w = ref.tensor(file, b + "attn_value_gate.weight")
        gate = key(file, "attention.value_gate_scale") / (1.0 + np.exp(-(h[:, : w.shape[1]] @ w.T)))
        v = v + gate[:, :, None] * ref.tensor(file, b + "value_embd.weight")[np.asarray(tokens)].reshape(v.shape)
    theta = key(file, "rope.freq_base") ** (-2.0 * np.arange(dim // 2) / dim)
    turned = theta if mutation == "turned as Llama does" else -theta
    scale = key(file, "attention.qk_scale", 1.0)
    q, k = (ref.rms_norm(ref.rope(one, turned), scale, eps) for one in (q, k))
    windows = key(file, "attention.sliding_window", 0)
    window = windows[il] if isinstance(windows, list) else windows
    window += {"window + 1": 1, "window - 1": -1}.get(mutation, 0) if window else 0
    return ref.attention(q, k, v, dim**-0.5, window) @ ref.tensor(file, b + "attn_output.weight").T


def key(file: GGUFFile, name: str, default: Any = None) -> Any:
    """A number of the architecture."""
    found = file.metadata.get(f"nanochat.{name}", default)
    assert found is not None, name
    return found
