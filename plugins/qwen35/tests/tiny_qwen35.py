"""Tiny Qwen3.5 models, one for each thing that the family can do: `MODELS` and `WIDE`; for runpy, not for import."""

from __future__ import annotations

from typing import Any

from lmhub.testing.tiny import Tiny, decoder

E = 64


def qwen35(
    kinds: str = "rfr",
    *,
    arch: str = "qwen35",
    n_embd: int = E,
    n_head: int = 4,
    n_kv: int = 2,
    n_k: int = 2,
    n_v: int = 6,
    dim: int = 16,
    taps: int = 4,
    dt: str = "ssm_dt.bias",
    tied: bool = False,
    n_ff: int = 96,
    n_expert: int = 0,
    gate_shape: tuple[int, ...] = (1, E),
    fused: bool = False,
    **hparams: Any,
) -> Tiny:
    """Layers that are recurrent (r) or attention (f). Experts come with a shared one of half their number's width."""
    keys = {
        "attention.layer_norm_rms_epsilon": 1e-3,  # large enough to show where it is missing
        "rope.dimension_count": 16,
        "rope.dimension_sections": [3, 3, 2, 0],
        "attention.recurrent_layers": [kind == "r" for kind in kinds],
        "ssm.conv_kernel": taps,
        "ssm.state_size": dim,
        "ssm.group_count": n_k,
        "ssm.time_step_rank": n_v,
        "ssm.inner_size": n_v * dim,
        **hparams,
    }
    sizes: dict[str, Any] = {"n_layer": len(kinds), "n_embd": n_embd, "n_head": n_head, "n_kv": n_kv, "head_dim": 32}
    if n_expert:
        keys |= {"expert_shared_feed_forward_length": 48}
        sizes |= {"n_expert": n_expert, "n_expert_used": 3}
    model = decoder(arch, n_ff=n_ff, tied=tied, qk_norm=True, **sizes, **keys)
    added: dict[str, tuple[int, ...]] = {}
    removed = ["ffn_norm.weight"]
    for il, kind in enumerate(kinds):
        block: dict[str, tuple[int, ...]] = {"post_attention_norm.weight": (n_embd,)}
        if kind == "f":
            block["attn_q.weight"] = (2 * n_head * 32, n_embd)
        else:
            removed += [f"blk.{il}.attn_{s}.weight" for s in ("q", "k", "v", "output", "q_norm", "k_norm")]
            block |= {f"ssm_{s}.weight": (n_v, n_embd) for s in ("alpha", "beta")}
            block |= {"ssm_a": (n_v,), dt: (n_v,), "ssm_norm.weight": (dim,), "ssm_out.weight": (n_embd, n_v * dim)}
            block |= {"attn_qkv.weight": ((2 * n_k + n_v) * dim, n_embd), "attn_gate.weight": (n_v * dim, n_embd)}
            block["ssm_conv1d.weight"] = ((2 * n_k + n_v) * dim, taps)
        if n_expert:
            block |= {"ffn_gate_inp_shexp.weight": gate_shape, "ffn_down_shexp.weight": (n_embd, 48)}
            block |= {f"ffn_{s}_shexp.weight": (48, n_embd) for s in ("gate", "up")}
        if fused:
            removed += [f"blk.{il}.ffn_{s}_exps.weight" for s in ("gate", "up")]
            block["ffn_gate_up_exps.weight"] = (n_expert, 2 * n_ff, n_embd)
        added |= {f"blk.{il}.{name}": shape for name, shape in block.items()}
    return model.with_tensors({}, tuple(removed)).with_tensors(added)


def without(model: Tiny, *names: str) -> Tiny:
    """The same model with fewer keys."""
    return Tiny(model.arch, {k: v for k, v in model.hparams.items() if k not in names}, model.tensors)


MODELS = {
    # The interval says otherwise, as converters write it.
    "dense": qwen35("rrfr", **{"full_attention_interval": 4}),
    "tied": without(
        qwen35("rfrf", n_head=3, n_kv=1, n_k=4, n_v=4, tied=True, **{"full_attention_interval": 2}),
        "attention.recurrent_layers",
    ),
    "moe": qwen35("rf", arch="qwen35moe", n_expert=6, n_ff=32, n_v=4),
    # As other converters write files: which layers are recurrent told by their key heads, sections of three, a bias by
    # another name, value heads of one key head side by side, experts' gates and ups joined, the shared one's a vector.
    "other": without(
        qwen35(
            "rf",
            arch="qwen35moe",
            n_expert=5,
            n_ff=32,
            fused=True,
            gate_shape=(E,),
            n_v=4,
            taps=3,
            dt="ssm_dt",
            **{
                "attention.head_count_kv": [0, 2],
                "rope.dimension_sections": [3, 3, 2],
                "ssm.v_head_reordered": False,
                "attention.scale": 0.25,
            },
        ),
        "attention.recurrent_layers",
    ),
}
WIDE = qwen35("rf", n_embd=256, n_head=8, n_ff=256, n_k=4, n_v=8, dim=32)
