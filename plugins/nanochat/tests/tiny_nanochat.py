"""Tiny nanochat models as GGUF files, one for each generation, with what tells it from the others."""

from __future__ import annotations

from typing import Any

from lmhub.testing.tiny import Tiny

E, V = 64, 288


def nanochat(
    n_layer: int = 3,
    *,
    n_embd: int = E,
    n_head: int = 4,
    n_kv: int = 2,
    head_dim: int = 32,
    n_ff: int = 128,
    lambdas: bool = True,
    gate: int = 12,
    smear: int = 24,
    backout: bool = True,
    windows: int | list[int] = 0,
    **hparams: Any,
) -> Tiny:
    """`gate`, `smear`: channels that these read; 0: the model has neither value embeddings nor smear."""
    keys: dict[str, Any] = {
        "block_count": n_layer,
        "context_length": 256,
        "embedding_length": n_embd,
        "feed_forward_length": n_ff,
        "attention.head_count": n_head,
        "attention.head_count_kv": n_kv,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": 1e-3,  # large enough to show where it is missing
        "attention.sliding_window": windows,
        "rope.freq_base": 1e5,
        "final_logit_softcapping": 15.0,
        "attention.qk_scale": 1.2,
    }
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (V, n_embd), "output.weight": (V, n_embd)}
    if lambdas:
        tensors |= {"resid_lambdas": (n_layer,), "x0_lambdas": (n_layer,)}
    if smear:
        keys["smear_length"] = smear
        tensors |= {"smear_gate.weight": (1, smear), "smear_lambda": (1,)}
    if backout:
        tensors["backout_lambda"] = (1,)
    if gate:
        keys |= {"attention.value_gate_length": gate, "attention.value_gate_scale": 3.0}
    nq, nk = n_head * head_dim, n_kv * head_dim
    for i in range(n_layer):
        block: dict[str, tuple[int, ...]] = {
            "attn_q.weight": (nq, n_embd),
            "attn_k.weight": (nk, n_embd),
            "attn_v.weight": (nk, n_embd),
            "attn_output.weight": (n_embd, nq),
            "ffn_up.weight": (n_ff, n_embd),
            "ffn_down.weight": (n_embd, n_ff),
        }
        if gate and i % 2 == (n_layer - 1) % 2:
            block |= {"value_embd.weight": (V, nk), "attn_value_gate.weight": (n_kv, gate)}
        tensors |= {f"blk.{i}.{name}": shape for name, shape in block.items()}
    return Tiny("nanochat", {**keys, **hparams}, tensors)


MODELS = {
    "latest": nanochat(4, windows=[17, 17, 17, 65]),
    "odd": nanochat(3, n_kv=4, windows=[65, 17, 65]),
    "sigma2": nanochat(
        2, gate=32, smear=0, backout=False, **{"attention.qk_scale": 1.0, "attention.value_gate_scale": 2.0}
    ),
    "lambdas": nanochat(2, gate=0, smear=0, backout=False, windows=17, **{"rope.freq_base": 1e4}),
    "first": nanochat(2, gate=0, smear=0, backout=False, lambdas=False, n_kv=1),
}
WIDE = nanochat(2, n_embd=256, n_head=4, n_kv=4, head_dim=64, n_ff=256, gate=256, smear=256)
