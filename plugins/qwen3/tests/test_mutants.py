"""Breaks the forward pass on purpose, one rule at a time, and demands that the comparison with the oracle notices."""

from __future__ import annotations

from functools import partial

import numpy as np

from lmhub.testing.mutants import FamilyMutants, FileMutant, Mutant
from lmhub.testing.tiny import Tiny, decoder

YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32}
KEYS = {"attention.layer_norm_rms_epsilon": 0.02, **YARN}
DENSE = decoder("qwen3", qk_norm=True, biases=True, **KEYS)
MOE = decoder("qwen3moe", qk_norm=True, n_expert=6, n_expert_used=3, n_ff=64)


def fused() -> Tiny:
    """Fused projections in both halves of the block."""
    added = {f"blk.{i}.attn_qkv.weight": (320, 64) for i in range(2)}
    added |= {f"blk.{i}.ffn_gate_up_exps.weight": (6, 128, 64) for i in range(2)}
    gone = ("attn_q.weight", "attn_k.weight", "attn_v.weight", "ffn_gate_exps.weight", "ffn_up_exps.weight")
    return MOE.with_tensors(added, removed=gone)


NORMS = """\
    lmk->rms_norm(c, s->q, s->q, l->attn_q_norm, n * H, hd, m->rms_eps);
    lmk->rms_norm(c, s->k, s->k, l->attn_k_norm, n * KV, hd, m->rms_eps);
"""
ROTATIONS = """\
    lmk->rope(c, s->q, s->cs, n, m->n_head, m->head_dim, m->n_pairs, LMK_ROPE_HALVES);
    lmk->rope(c, s->k, s->cs, n, m->n_kv, m->head_dim, m->n_pairs, LMK_ROPE_HALVES);
"""
BOTH = """\
    lmk->norm_rope(c, s->q, l->attn_q_norm, m->rms_eps, s->cs, n, m->n_head, m->head_dim, m->n_pairs, LMK_ROPE_HALVES);
    lmk->norm_rope(c, s->k, l->attn_k_norm, m->rms_eps, s->cs, n, m->n_kv, m->head_dim, m->n_pairs, LMK_ROPE_HALVES);
"""
RESIDUAL = "return lmk->linear_add(c, s->x, &l->attn_output,"

shared = partial(Mutant, file="lmk_ffn.h")

MUTANTS = (
    Mutant("norms after the rotation", BOTH, ROTATIONS + NORMS),
    Mutant("no query norm", BOTH.splitlines()[0], ROTATIONS.splitlines()[0]),
    Mutant("no key norm", BOTH.splitlines()[1], ROTATIONS.splitlines()[1]),
    Mutant("neighbours rotated", "LMK_ROPE_HALVES", "LMK_ROPE_PAIRS"),
    Mutant("keys not rotated", BOTH.splitlines()[1], NORMS.splitlines()[1]),
    Mutant("no YaRN magnitude", "m->rope_magnitude", "1.0"),
    Mutant("scale of d / H", "sqrtf((float)hd)", "sqrtf((float)m->n_embd / H)"),
    Mutant("no scale", "1.0f / sqrtf((float)hd)", "1.0f"),
    Mutant("another eps", "l->attn_norm, n, m->n_embd, m->rms_eps", "l->attn_norm, n, m->n_embd, 1e-6f"),
    Mutant("another eps for heads", "l->attn_q_norm, m->rms_eps", "l->attn_q_norm, 1e-6f"),
    Mutant("attention norm for the feed-forward", "l->ffn_norm", "l->attn_norm"),
    Mutant("no norm before the head", "lmk->rms_norm(s->c, s->h, s->x, m->output_norm, n,", "memcpy(s->h, s->x, n * "
           "m->n_embd * sizeof(float)); if (0) lmk->rms_norm(s->c, s->h, s->x, m->output_norm, n,"),
    Mutant("head taken as tied", "&m->output,", "&m->token_embd,"),
    Mutant("values from the keys' weight", "&l->attn_k, &l->attn_v };", "&l->attn_k, &l->attn_k };"),
    Mutant("no query bias", "if (l->attn_q_bias)", "if (0)"),
    Mutant("no key bias", "if (l->attn_k_bias)", "if (0)"),
    Mutant("no value bias", "if (l->attn_v_bias)", "if (0)"),
    Mutant("no output bias", "l->attn_output_bias, s->o", "NULL, s->o"),
    Mutant("no residual around attention", RESIDUAL,
           "memset(s->x, 0, (size_t)(n * m->n_embd) * sizeof(float));\n    " + RESIDUAL),
    shared("SiLU of the wrong half", "gate, up, LMK_SILU", "up, gate, LMK_SILU"),
    Mutant("one cache for all layers", "il, s->spans", "0, s->spans"),
    Mutant("first row instead of the last", "lmk_keep_wanted(s->x,", "lmk_keep_wanted(s->h,"),
    shared("router before the norm", "e->router, h, n", "e->router, x, n", "moe"),
    Mutant("one expert fewer", ".k = m->n_expert_used", ".k = m->n_expert_used - 1", "moe"),
    shared("expert weights ignored", "if (lmk->linear_experts(c, y,",
           "for (int64_t i = 0; i < slots; i++) r.weight[i] = 1.0f / r.k;\n    if (lmk->linear_experts(c, y,", "moe"),
    shared("fused halves swapped", "wide, wide + ff, slots", "wide + ff, wide, slots", "fused"),
    shared("split halves swapped", "e->gate, e->up, LMK_SILU", "e->up, e->gate, LMK_SILU", "moe"),
    Mutant("fused values from the keys", "s->n, nq + nk, nv", "s->n, nq, nv", "fused"),
)  # fmt: skip


FILE_MUTANTS = (
    FileMutant("YaRN ignored", drop=("rope.scaling.type", "rope.scaling.factor")),
    FileMutant("YaRN taken as linear", metadata={"rope.scaling.type": "linear"}),
    FileMutant("default rope base", drop=("rope.freq_base",)),
    FileMutant("default YaRN context", drop=("rope.scaling.original_context_length",)),
    FileMutant("one added to norms", ending="norm.weight", change=lambda w: w + 1),
    FileMutant("embedding scaled", ending="token_embd.weight", change=lambda w: w * np.float32(8)),
    FileMutant(
        "query rows as if interleaved",
        ending="attn_q.weight",
        change=lambda w: w.reshape(-1, 2, 16, 64).swapaxes(1, 2).reshape(w.shape),
    ),
)


class TestQwen3Mutants(FamilyMutants):
    plugin, source = "lmhub_qwen3", "qwen3.c"
    models = {"dense": DENSE, "moe": MOE, "fused": fused()}  # noqa: RUF012
    mutants = MUTANTS
    file_mutants = FILE_MUTANTS
    mutations = (
        ("kv head = h % KV", "dense"),
        ("attends to itself only", "dense"),
        ("sigmoid for SiLU", "dense"),
        ("no renormalisation", "moe"),
        ("top-1 only", "moe"),
    )
