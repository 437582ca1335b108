"""Tiny inkling models, one for each thing that the family can do: `MODELS`, `WIDE`, and `TALKS`, with the markers of
conversations. Read with runpy, not imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmhub.testing.tiny import Tiny, vocabulary


def inkling(
    kinds: str = "ssf",
    *,
    n_embd: int = 64,
    n_head: int = 4,
    head_dim: int = 32,
    n_kv: tuple[int, int] = (2, 1),
    d_rel: int = 8,
    extents: tuple[int, int] = (16, 24),
    n_dense: int = 1,
    n_ff: int = 96,
    n_expert: int = 8,
    n_ff_expert: int = 32,
    n_taps: int = 4,
    n_vocab: int = 288,
    metadata: Mapping[str, Any] | None = None,
    **hparams: Any,
) -> Tiny:
    """Layers that slide (s) or are full (f), key heads and biases for either; the first `n_dense` without experts."""
    n_layer, n_shared = len(kinds), 2
    kv = [n_kv[kind == "f"] for kind in kinds]
    keys: dict[str, Any] = {
        "block_count": n_layer,
        "context_length": 256,
        "embedding_length": n_embd,
        "feed_forward_length": n_ff,
        "attention.head_count": n_head,
        "attention.head_count_kv": kv if len(set(kv)) > 1 else kv[0],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": 1e-3,  # large enough to show where it is missing
        "attention.sliding_window": extents[0],
        "attention.sliding_window_pattern": [kind == "s" for kind in kinds],
        "expert_count": n_expert,
        "expert_used_count": 3,
        "expert_shared_count": n_shared,
        "expert_feed_forward_length": n_ff_expert,
        "expert_gating_func": 2,
        "expert_weights_scale": 2.5,
        "d_rel": d_rel,
        "rel_extent": extents[1],
        "rel_extent_swa": extents[0],
        "shortconv_kernel": n_taps,
        "dense_block_count": n_dense,
        "logit_scale_denom": 4.0,
        "log_scaling_n_floor": 20,
        "log_scaling_alpha": 0.3,
        "unpadded_vocab_size": 281,
    }
    tensors: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (n_vocab, n_embd),
        "token_embd_norm.weight": (n_embd,),
        "output_norm.weight": (n_embd,),
        "output.weight": (n_vocab, n_embd),
    }
    for i, kind in enumerate(kinds):
        nq, nk = n_head * head_dim, kv[i] * head_dim
        block: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (n_embd,),
            "attn_q.weight": (nq, n_embd),
            "attn_k.weight": (nk, n_embd),
            "attn_v.weight": (nk, n_embd),
            "attn_r.weight": (n_head * d_rel, n_embd),
            "attn_q_norm.weight": (head_dim,),
            "attn_k_norm.weight": (head_dim,),
            "attn_rel_proj.weight": (d_rel, extents[kind == "f"]),
            "attn_output.weight": (n_embd, nq),
            "shortconv_k.weight": (nk, n_taps),
            "shortconv_v.weight": (nk, n_taps),
            "shortconv_attn.weight": (n_embd, n_taps),
            "shortconv_mlp.weight": (n_embd, n_taps),
            "ffn_norm.weight": (n_embd,),
            "ffn_gscale.weight": (1,),
        }
        if i < n_dense:
            block |= {"ffn_gate.weight": (n_ff, n_embd), "ffn_up.weight": (n_ff, n_embd)}
            block["ffn_down.weight"] = (n_embd, n_ff)
        else:
            block |= {"ffn_gate_inp.weight": (n_expert + n_shared, n_embd), "exp_probs_b.bias": (n_expert,)}
            for suffix, n in (("exps", n_expert), ("shexp", n_shared)):
                block |= {f"ffn_{stem}_{suffix}.weight": (n, n_ff_expert, n_embd) for stem in ("gate", "up")}
                block[f"ffn_down_{suffix}.weight"] = (n, n_embd, n_ff_expert)
        tensors |= {f"blk.{i}.{name}": shape for name, shape in block.items()}
    return Tiny("inkling", {**keys, **hparams}, tensors, metadata or {})


MODELS = {
    "both": inkling(),
    "full": inkling("ff", n_kv=(2, 2), n_dense=0, n_taps=2, extents=(16, 300), log_scaling_n_floor=0),
    "sliding": inkling("ss", n_dense=2, extents=(16, 16)),
}
WIDE = inkling("sf", n_embd=256, n_head=4, head_dim=64, n_dense=2, n_ff=256)

ROLES = ("message_user", "message_model", "message_system", "message_tool")
KINDS = ("content_text", "content_thinking", "content_xml", "content_invoke_tool_json", "content_invoke_tool_text")
MARKERS = [f"<|{name}|>" for name in (*ROLES, *KINDS, "end_message", "content_model_end_sampling")]


def spoken() -> dict[str, Any]:
    """A vocabulary with the markers behind all else, and the padding behind them."""
    made = vocabulary(320)
    tokens, types = made["tokenizer.ggml.tokens"], made["tokenizer.ggml.token_type"]
    first = next(place for place, token in enumerate(tokens) if token.startswith("[PAD"))
    tokens[first : first + len(MARKERS)] = MARKERS
    types[first : first + len(MARKERS)] = [3] * len(MARKERS)
    end = tokens.index("<|content_model_end_sampling|>")
    ids = {f"tokenizer.ggml.{name}_token_id": end for name in ("bos", "eos")}
    return {**made, **ids, "tokenizer.ggml.pre": "inkling"}


TALKS = inkling(n_vocab=320, metadata=spoken(), unpadded_vocab_size=281 + len(MARKERS), context_length=1024)
