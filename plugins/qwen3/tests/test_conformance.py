"""The conformance suite on tiny qwen3 and qwen3moe models, one for each thing that the family can do."""

from __future__ import annotations

from functools import partial

from lmhub.testing.conformance import FamilyConformance
from lmhub.testing.tiny import Tiny, decoder

dense = partial(decoder, "qwen3", qk_norm=True)
moe = partial(decoder, "qwen3moe", qk_norm=True, n_expert=6, n_expert_used=3, n_ff=64)


def fused_qkv() -> Tiny:
    """One tensor for the three projections, and one for their biases."""
    model = dense()
    rows = sum(model.tensors[f"blk.0.attn_{s}.weight"][0] for s in "qkv")
    shapes: dict[str, tuple[int, ...]] = {"weight": (rows, 64), "bias": (rows,)}
    added = {f"blk.{i}.attn_qkv.{part}": shape for i in range(2) for part, shape in shapes.items()}
    return model.with_tensors(added, removed=("attn_q.weight", "attn_k.weight", "attn_v.weight"))


def fused_gate_up() -> Tiny:
    """Gate and up of every expert in one matrix."""
    added = {f"blk.{i}.ffn_gate_up_exps.weight": (6, 128, 64) for i in range(2)}
    return moe().with_tensors(added, removed=("ffn_gate_exps.weight", "ffn_up_exps.weight"))


def one_tensor_per_expert() -> Tiny:
    """The layout of files from before experts were stacked."""
    shapes = {"gate": (64, 64), "up": (64, 64), "down": (64, 64)}
    added = {f"blk.{i}.ffn_{s}.{e}.weight": shape for i in range(2) for s, shape in shapes.items() for e in range(6)}
    return moe().with_tensors(added, removed=("_exps.weight",))


def no_key_length() -> Tiny:
    """Head sizes are then those of the norms, not embedding_length / head_count."""
    model = dense(tied=True)
    kept = {k: v for k, v in model.hparams.items() if k not in ("attention.key_length", "attention.value_length")}
    return Tiny(model.arch, kept, model.tensors)


YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
    "rope.scaling.attn_factor": 1.1,
}


class TestQwen3(FamilyConformance):
    plugin = "lmhub_qwen3"
    models = {  # noqa: RUF012
        "untied": dense(),
        "tied": dense(tied=True, n_head=4, n_kv=4),
        "no_key_length": no_key_length(),
        "yarn": dense(**YARN),
        "linear": dense(**{"rope.scaling.type": "linear", "rope.scaling.factor": 3.0}),
        "biases": dense(biases=True),
        "fused_qkv": fused_qkv(),
        "moe": moe(),
        "moe_fused": fused_gate_up(),
        "moe_old": one_tensor_per_expert(),
    }
    substitutes = ("attn_qkv.weight", "ffn_gate_up_exps.weight", ".0.weight", "blk.0.attn_k_norm.weight")
    wide = dense(n_embd=256, n_head=8, n_ff=256)
    damaged = {  # noqa: RUF012
        "untied": [
            ("block_count", 0),
            ("block_count", 10**6),
            ("block_count", 3),
            ("nextn_predict_layers", 2),
            ("embedding_length", 0),
            ("embedding_length", 2**40),
            ("embedding_length", "64"),
            ("attention.head_count", 5),
            ("attention.head_count_kv", 0),
            ("attention.head_count_kv", 4),
            ("attention.key_length", -1),
            ("attention.key_length", 4096),
            ("attention.value_length", 64),
            ("rope.dimension_count", 31),
            ("rope.dimension_count", 48),
            ("rope.freq_base", float("nan")),
            ("feed_forward_length", [96]),
            ("feed_forward_length", 2**31),
            ("attention.layer_norm_rms_epsilon", float("inf")),
            ("context_length", 0),
        ],
        "moe": [("expert_count", 0), ("expert_used_count", 0), ("expert_used_count", 7)],
    }
