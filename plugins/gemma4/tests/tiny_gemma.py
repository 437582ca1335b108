"""Tiny Gemma models: one for each thing that the family can do. `MODELS` and `WIDE`; read with runpy, not imported."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lmhub.testing.tiny import Tiny, decoder

E, WINDOW, FACTORS = 64, 16, "rope_freqs.weight"


def gemma3(n_layer: int = 4, **hparams: Any) -> Tiny:
    """Sliding layers and one full one, in periods of three."""
    keys = {
        "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": 3,
        "rope.freq_base": 1e6,
        "attention.layer_norm_rms_epsilon": 1e-3,  # large enough to show where it is missing
        **hparams,
    }
    model = decoder("gemma3", n_layer=n_layer, n_embd=E, n_head=4, n_kv=2, head_dim=32, tied=True, qk_norm=True, **keys)
    norms = ("post_attention_norm", "post_ffw_norm")
    return model.with_tensors({f"blk.{i}.{norm}.weight": (E,) for i in range(n_layer) for norm in norms})


def gemma4(
    kinds: str = "ssfsf",
    *,
    n_embd: int = E,
    n_ff: int | list[int] = 96,
    n_head: int = 4,
    n_kv: tuple[int, int] = (2, 1),
    n_shared: int = 0,
    n_per_layer: int = 0,
    n_expert: int = 0,
    n_ff_expert: int = 32,
    values: str = "sf",
    **hparams: Any,
) -> Tiny:
    """Layers that slide (s) or are full (f), with key heads for either; only those of `values` have value weights."""
    n_layer, n_vocab, dims = len(kinds), 288, {"s": 32, "f": 64}
    kv = [n_kv[kind == "f"] for kind in kinds]
    keys: dict[str, Any] = {
        "block_count": n_layer,
        "context_length": 256,
        "embedding_length": n_embd,
        "feed_forward_length": n_ff,
        "attention.head_count": n_head,
        "attention.head_count_kv": kv if len(set(kv)) > 1 else kv[0],
        "attention.key_length": dims["f"],
        "attention.value_length": dims["f"],
        "attention.key_length_swa": dims["s"],
        "attention.value_length_swa": dims["s"],
        "attention.layer_norm_rms_epsilon": 1e-3,
        "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": [kind == "s" for kind in kinds],
        "attention.shared_kv_layers": n_shared,
        "embedding_length_per_layer_input": n_per_layer,
        "rope.freq_base": 1e6,
        "rope.freq_base_swa": 3e4,
        "rope.dimension_count": dims["f"],
        "rope.dimension_count_swa": dims["s"],
        "final_logit_softcapping": 30.0,
    }
    if n_expert:
        keys |= {"expert_count": n_expert, "expert_used_count": 3, "expert_feed_forward_length": n_ff_expert}
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (n_vocab, n_embd), FACTORS: (dims["f"] // 2,)}
    for i, kind in enumerate(kinds):
        ff = n_ff[i] if isinstance(n_ff, list) else n_ff
        nq, nk = n_head * dims[kind], kv[i] * dims[kind]
        block: dict[str, tuple[int, ...]] = {
            "attn_q.weight": (nq, n_embd),
            "attn_output.weight": (n_embd, nq),
            "attn_q_norm.weight": (dims[kind],),
            "ffn_gate.weight": (ff, n_embd),
            "ffn_up.weight": (ff, n_embd),
            "ffn_down.weight": (n_embd, ff),
        }
        if i < n_layer - 1:  # behind the last layer a norm would undo it
            block["layer_output_scale.weight"] = (1,)
        norms = ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"]
        if i < n_layer - n_shared:
            block |= {"attn_k.weight": (nk, n_embd), "attn_k_norm.weight": (dims[kind],)}
            block |= {"attn_v.weight": (nk, n_embd)} if kind in values else {}
        if n_per_layer:
            block |= {"inp_gate.weight": (n_per_layer, n_embd), "proj.weight": (n_embd, n_per_layer)}
            norms.append("post_norm")
        if n_expert:
            block |= {"ffn_gate_inp.weight": (n_expert, n_embd), "ffn_gate_inp.scale": (n_embd,)}
            block |= {"ffn_gate_up_exps.weight": (n_expert, 2 * n_ff_expert, n_embd)}
            block |= {"ffn_down_exps.weight": (n_expert, n_embd, n_ff_expert), "ffn_down_exps.scale": (n_expert,)}
            norms += ["pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"]
        block |= {f"{norm}.weight": (n_embd,) for norm in norms}
        tensors |= {f"blk.{i}.{name}": shape for name, shape in block.items()}
    if n_per_layer:
        tensors["per_layer_token_embd.weight"] = (n_vocab, n_layer * n_per_layer)
        tensors["per_layer_model_proj.weight"] = (n_layer * n_per_layer, n_embd)
        tensors["per_layer_proj_norm.weight"] = (n_per_layer,)
    tensors["output_norm.weight"] = (n_embd,)
    return Tiny("gemma4", {**keys, **hparams}, tensors)


def split_experts() -> Tiny:
    """Gate and up of every expert in tensors of their own, and no scales."""
    added = {f"blk.{i}.ffn_{s}_exps.weight": (6, 32, E) for i in range(3) for s in ("gate", "up")}
    return gemma4("ssf", n_expert=6).with_tensors(added, removed=("gate_up_exps.weight", "ffn_down_exps.scale"))


def plain() -> Tiny:
    """Without what a file may leave out: output scales, a softcap, keys that have defaults."""
    model = gemma4("sf").with_tensors({"output.weight": (288, E)}, removed=("output_scale.weight",))
    gone = ("softcapping", "shared_kv_layers", "per_layer_input", "dimension_count", "dimension_count_swa")
    return replace(model, hparams={k: v for k, v in model.hparams.items() if not k.endswith(gone)})


MODELS = {
    "e2b": gemma4("ssfsfssf", n_kv=(1, 1), n_shared=3, n_per_layer=24, n_ff=[64] * 5 + [128] * 3),
    "dense": gemma4("ssfsf", values="s"),
    "moe": gemma4("ssf", n_expert=6, values="s"),
    "moe_split": split_experts(),
    "plain": plain(),
    "gemma3": gemma3(**{"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}),
    "gemma3_array": gemma3(**{"attention.sliding_window_pattern": [False, True, True, False]}),
    "gemma3_full": gemma3(2, **{"attention.sliding_window": 0}),
}
WIDE = gemma4("sfsf", n_embd=256, n_ff=256, n_head=8, n_kv=(2, 4), n_per_layer=256, n_shared=2)
