"""Breaks the forward pass on purpose, one rule at a time, and demands that the comparison with the oracle notices."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from runpy import run_path

import numpy as np

from lmhub.testing.mutants import FamilyMutants, FileMutant, Mutant

TINY = run_path(str(Path(__file__).with_name("tiny_qwen35.py")))

NORM_Q, NORM_K = (
    f"    lmk->rms_norm(c, {s}, {s}, l->attn_{s}_norm, n * {h}, hd, m->rms_eps);\n" for s, h in ("qH", ("k", "KV"))
)
ROPE_Q, ROPE_K = (
    f"    lmk->rope(c, {s}, s->cs, n, m->n_{h}, m->head_dim, m->n_pairs, LMK_ROPE_HALVES);\n"
    for s, h in (("q", "head"), ("k", "kv"))
)
BOTH_Q, BOTH_K = (
    f"    lmk->norm_rope(c, {s}, l->attn_{s}_norm, m->rms_eps, s->cs, n, m->n_{h}, m->head_dim, m->n_pairs, "
    "LMK_ROPE_HALVES);\n"
    for s, h in (("q", "head"), ("k", "kv"))
)
O_NORM, O_GATE = (
    "    lmk->rms_norm(c, o, o, l->ssm_norm, n * m->n_v, S, m->rms_eps);\n",
    "    lmk->silu_mul(c, o, z, o, n, V, V);\n",
)
SECOND_HALF = "j->r + 2 * i * j->dim"


def off(statement: str) -> tuple[str, str]:
    """A statement, and what it becomes when it is left out."""
    return statement, "if (0) " + statement.lstrip()


hparams = partial(Mutant, file="lmhub_qwen35/hparams.py")
model = partial(Mutant, file="lmhub_qwen35/model.py")

MUTANTS = (
    Mutant("norms after the rotation", BOTH_Q + BOTH_K, ROPE_Q + ROPE_K + NORM_Q + NORM_K),
    Mutant("neighbours rotated", "LMK_ROPE_HALVES", "LMK_ROPE_PAIRS"),
    Mutant("keys not rotated", BOTH_K, NORM_K),
    Mutant("gate for the query", SECOND_HALF, SECOND_HALF + " + j->dim"),
    Mutant("q and gate as two halves", SECOND_HALF, "j->r + i / 4 * 8 * j->dim + i % 4 * j->dim"),
    Mutant("query for the gate", "o, r + hd, n * H", "o, r, n * H"),
    Mutant("no attention gate", *off("lmk->sigmoid_mul(c, o, r + hd")),
    Mutant("no scale", "m->n_head, m->attn_scale, 0", "m->n_head, 1.0f, 0"),
    Mutant("one cache for all layers", "l->cache, s->spans", "0, s->spans", "tied"),
    Mutant("one memory for all layers", "l->memory", "0"),
    Mutant("convolution of values over that of keys", "l->memory + past * QK, s", "l->memory, s"),
    Mutant("matrices over convolutions", "l->memory + past * (QK + V)", "l->memory"),
    Mutant("no SiLU after the convolution", "m->taps, V, 1,", "m->taps, V, 0,"),
    Mutant("queries and keys not of length one", *off("lmk->rms_norm(c, qk, qk,")),
    Mutant("eps of a mean for that of a sum", "m->rms_eps / (float)S", "m->rms_eps"),
    Mutant("keys for queries", ".q = qk, .k = qk + QK / 2", ".q = qk + QK / 2, .k = qk"),
    Mutant("no 1 / sqrt(S)", ".scale = 1.0f / sqrtf((float)S)", ".scale = 1.0f"),
    Mutant("grouped heads", ".grouped = m->grouped", ".grouped = 1"),
    Mutant("tiled heads", ".grouped = m->grouped", ".grouped = 0", "other"),
    Mutant("no dt bias", "(double)*decay + (double)j->dt_bias[h]", "(double)*decay"),
    Mutant("dt bias of another head", "j->dt_bias[h]", "j->dt_bias[h ? h - 1 : 0]"),
    Mutant("ssm_a exponentiated again", "softplus * (double)j->ssm_a[h]", "softplus * -exp((double)j->ssm_a[h])"),
    Mutant("no softplus", "t > 20.0 ? t : log1p(exp(t))", "t > 0.0 ? t : 0.0"),
    Mutant("alpha and beta swapped", "{ u, z, decay, beta }", "{ u, z, beta, decay }"),
    Mutant("no beta", "1.0 / (1.0 + exp(-(double)*beta))", "1.0"),
    Mutant("gate before the norm", O_NORM + O_GATE, O_GATE + O_NORM),
    Mutant("z gate of the wrong half", "c, o, z, o, n", "c, o, o, z, n"),
    Mutant("no norm of heads", *off(O_NORM)),
    Mutant("mixer's norm for the feed-forward", "s->x, l->post_attention_norm", "s->x, l->attn_norm"),
    Mutant("feed-forward not normed", *off("lmk->rms_norm(c, s->h, s->x, l->post_attention_norm")),
    Mutant("head taken as tied", "&m->output,", "&m->token_embd,"),
    Mutant("one expert fewer", ".k = m->n_expert_used", ".k = m->n_expert_used - 1", "moe"),
    Mutant("no shared expert", "s->n) || shared_expert(m, l, s)", "s->n)", "moe"),
    Mutant("no shared gate", *off("lmk->sigmoid_mul(c, r.weight"), "moe"),
    model("convolution's taps reversed", "delta.taps).T", "delta.taps).T[::-1]"),
    model("values' taps those of keys", "taps[:, delta.qk_dim :]", "taps[:, : delta.value_dim]"),
    hparams("scale of the key ignored", 'keys.real("attention.scale", 0.0, 1e3, 0.0) or ', "", "other"),
)  # fmt: skip


class TestQwen35Mutants(FamilyMutants):
    plugin, source = "lmhub_qwen35", "qwen35.c"
    models = TINY["MODELS"]
    mutants = MUTANTS
    file_mutants = (
        FileMutant("one added to norms", ending="attn_norm.weight", change=lambda w: w + 1),
        FileMutant("one added to ssm_norm", ending="ssm_norm.weight", change=lambda w: w + 1),
        FileMutant(
            "rotation of the whole head",
            drop=("rope.dimension_count",),
            metadata={"rope.dimension_sections": [16, 0, 0]},
        ),
        FileMutant("default rope base", drop=("rope.freq_base",)),
        FileMutant("logarithms of decays", ending="ssm_a", change=lambda w: -np.log(-w) - 9.0),
    )
    mutations = tuple(
        (name, model)
        for model, names in {
            "dense": (
                *("kv head = h % KV", "attention gate is SiLU", "no attention gate", "taps reversed"),
                *("no SiLU after the convolution", "no 1 / sqrt(S)", "grouped heads", "no dt bias"),
                *("ssm_a exponentiated again", "change from the undecayed state", "output before the change"),
                *("state in float16", "state in bfloat16", "one added to ssm_norm", "z gate is a sigmoid"),
                "gate before the norm",
            ),
            "moe": ("no renormalisation", "no shared gate"),
        }.items()
        for name in names
    )
