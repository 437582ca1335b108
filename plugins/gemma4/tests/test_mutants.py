"""Breaks the forward pass on purpose, one rule at a time, and demands that the comparison with the oracle notices.

Most are what other engines have got wrong with these models.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from runpy import run_path

from lmhub.testing.mutants import FamilyMutants, FileMutant, Mutant

TINY = run_path(str(Path(__file__).with_name("tiny_gemma.py")))

VALUES_FROM = "if (m->value_norm) lmk->rms_norm(c, v, l->attn_v.data ? v : k, m->value_norm,"
VALUES_NORMED = f"    {VALUES_FROM} n * l->n_kv, hd, m->rms_eps);\n"
KEYS_NORMED = "    lmk->rms_norm(c, k, k, l->attn_k_norm, n * l->n_kv, hd, m->rms_eps);\n"
QUERIES_NORMED = "    lmk->rms_norm(c, q, q, l->attn_q_norm, n * l->n_head, hd, m->rms_eps);\n"
KEYS_ROTATED, QUERIES_ROTATED = (
    f"    lmk->rope(c, {s}, s->cs[l->is_full], n, l->{heads}, l->head_dim, m->rope[l->is_full].n_pairs, "
    "LMK_ROPE_HALVES);\n"
    for s, heads in (("k", "n_kv"), ("q", "n_head"))
)
KEYS, QUERIES = (
    f"    lmk->norm_rope(c, {s}, l->attn_{s}_norm, m->rms_eps, s->cs[l->is_full], n, l->{heads}, l->head_dim, "
    "m->rope[l->is_full].n_pairs,\n                   LMK_ROPE_HALVES);\n"
    for s, heads in (("k", "n_kv"), ("q", "n_head"))
)
EMBEDDING_SCALED = "    scale(s, s->x, n * d, sqrtf((float)d));\n"
OWN_INPUTS = "    if (m->n_per_layer && own_inputs(m, s, tokens)) return -1;\n"
OWN_INPUT = "        if (m->n_per_layer && own_input(m, il, s)) return -1;\n"
OUTPUT_SCALED = "        scale(s, s->x, s->n * m->n_embd, l->output_scale);\n"
UNSCALED = "    scale(s, s->x, n * d, 1.0f / l->output_scale);\n"
FEED_FORWARD_ADDED = "    add_normed(m, s, l->post_ffw_norm);\n"
ADDED = "lmk->add(s->c, s->x, s->h, n * m->n_embd)"
DIVIDED = "    scale(s, projected, all, 1.0f / sqrtf((float)m->n_embd));\n"
PROJECTED_NORMED = "    lmk->rms_norm(c, projected, projected,"
SLIDING_ROPE, SOURCE = (
    'frequencies(keys, sliding_dim, "_swa")',
    "first_shared - 1 - slides[:first_shared][::-1].index(kind)",
)
HAS_VALUES = "if layer.is_sliding or not hp.is_gemma4 or"


def off(statement: str) -> tuple[str, str]:
    """A statement, and what it becomes when it is left out."""
    return statement, "if (0) " + statement


model, hparams = partial(Mutant, file="lmhub_gemma4/model.py"), partial(Mutant, file="lmhub_gemma4/hparams.py")

MUTANTS = (
    Mutant("embedding not scaled", EMBEDDING_SCALED, ""),
    Mutant("queries not normed", QUERIES, QUERIES_ROTATED),
    Mutant("keys not normed", KEYS, KEYS_ROTATED),
    Mutant("values not normed", VALUES_FROM, VALUES_FROM.replace("m->value_norm", "0", 1), "e2b"),
    Mutant("values from normed keys", VALUES_NORMED + KEYS, KEYS_NORMED + VALUES_NORMED + KEYS_ROTATED),
    Mutant("values from rotated keys", "    lmk->kv_append(", VALUES_NORMED + "    lmk->kv_append("),
    Mutant("values of gemma3 normed", VALUES_FROM, "lmk->rms_norm(c, v, v, l->attn_k_norm,", "gemma3"),
    Mutant("keys not rotated", KEYS, KEYS_NORMED),
    Mutant("queries not rotated", QUERIES, QUERIES_NORMED),
    Mutant("neighbours rotated", "LMK_ROPE_HALVES", "LMK_ROPE_PAIRS"),
    Mutant("one rotation for all", "s->cs[l->is_full]", "s->cs[0]", "gemma3"),
    Mutant("rotations swapped", "s->cs[l->is_full]", "s->cs[!l->is_full]", "gemma3"),
    Mutant("one group of caches", "to[i].kv += i / n_spans;", "", "gemma3"),
    Mutant("one cache for all layers", "lmk->attend(c, o, q, l->cache,", "lmk->attend(c, o, q, 0,"),
    Mutant("no window", "m->attn_scale, window", "m->attn_scale, 0", "gemma3"),
    Mutant("a window everywhere", "m->attn_scale, window", "m->attn_scale, 16", "gemma3"),
    Mutant("scaled queries", "l->n_head, m->attn_scale", "l->n_head, 1.0f / sqrtf((float)hd)"),
    Mutant("attention not normed", "add_normed(m, s, l->post_attention_norm)", ADDED),
    Mutant("feed-forward not normed", "add_normed(m, s, l->post_ffw_norm)", ADDED),
    Mutant("SiLU for GELU", "&l->ffn_up, LMK_GELU", "&l->ffn_up, LMK_SILU"),
    Mutant("SiLU for GELU of experts", "lmk->gelu_mul(c, act", "lmk->silu_mul(c, act", "moe"),
    Mutant("SiLU for GELU of own inputs", "lmk->gelu_mul(s->c, gate", "lmk->silu_mul(s->c, gate", "e2b"),
    Mutant("output scale before the own input", OWN_INPUT + OUTPUT_SCALED, OUTPUT_SCALED + OWN_INPUT, "e2b"),
    Mutant("output scale of the branch", FEED_FORWARD_ADDED, UNSCALED + FEED_FORWARD_ADDED),
    Mutant("no output scale", OUTPUT_SCALED, ""),
    Mutant("no softcap", "if (m->softcap > 0.0f)", "if (0)"),
    Mutant("head taken as tied", "&m->output,", "&m->token_embd,", "plain"),
    Mutant("own input not normed", "add_normed(m, s, l->post_norm)", ADDED, "e2b"),
    Mutant("own input of another layer", "s->own + il *", "s->own + (il > 0) *", "e2b"),
    Mutant("own inputs divided once more", PROJECTED_NORMED, DIVIDED + PROJECTED_NORMED, "e2b"),
    Mutant("own inputs of the scaled embedding", OWN_INPUTS + EMBEDDING_SCALED, EMBEDDING_SCALED + OWN_INPUTS, "e2b"),
    Mutant("own table not scaled", "scale = sqrtf((float)j->P)", "scale = 1.0f", "e2b"),
    Mutant("own inputs not halved", "half = sqrtf(0.5f)", "half = 1.0f", "e2b"),
    Mutant("rotations of other rows", *off("lmk_keep_wanted(s->cs[i],"), "e2b"),
    Mutant("own inputs of other rows", *off("lmk_keep_wanted(s->own"), "e2b"),
    Mutant("positions of other rows", "span->n_past += span->n - n;", "", "e2b"),
    Mutant("router fed like the feed-forward", "h, s->x, l->router_norm", "h, s->x, l->ffn_norm", "moe"),
    Mutant("router fed like the experts", "h, s->x, l->router_norm", "h, s->x, l->pre_ffw_norm_2", "moe"),
    Mutant("experts fed like the feed-forward", "h, s->x, l->pre_ffw_norm_2", "h, s->x, l->ffn_norm", "moe"),
    Mutant("no scale of experts", "r.weight[i] *=", "0.0f *", "moe"),
    Mutant("scale of the wrong expert", "l->expert_scale[r.expert[i]]", "l->expert_scale[i % r.k]", "moe"),
    Mutant("one expert fewer", ".k = m->n_expert_used", ".k = m->n_expert_used - 1", "moe"),
    Mutant("fused halves swapped", "wide, wide + ff, slots", "wide + ff, wide, slots", "moe"),
    Mutant("split halves swapped", "&l->ffn_gate_exps, &l->ffn_up_exps", "&l->ffn_up_exps, &l->ffn_gate_exps",
           "moe_split"),
    Mutant("dense half not normed", *off("lmk->rms_norm(c, s->h, s->h, l->post_ffw_norm_1,"), "moe"),
    Mutant("experts' half not normed", *off("lmk->rms_norm(c, mixed,"), "moe"),
    Mutant("experts alone", "lmk->add(c, s->h, mixed, n * d)", "memcpy(s->h, mixed, n * d * sizeof(float))", "moe"),
    model("router's norm not divided", " / np.float32(np.sqrt(hp.n_embd))", "", "moe"),
    model("factors ignored", "n_ctx_train, factors)", "n_ctx_train, None)"),
    model("factors of sliding layers", SLIDING_ROPE, SLIDING_ROPE + " / factors[: sliding_dim // 2]"),
    model("one base for all", SLIDING_ROPE, "frequencies(keys, sliding_dim)", "gemma3"),
    model("scaling of sliding layers", SLIDING_ROPE, SLIDING_ROPE + " / 8", "gemma3"),
    model("keys for values of sliding layers", HAS_VALUES, "if not layer.is_sliding and", "e2b"),
    hparams("keys of the first layer of a kind", SOURCE, "slides.index(kind)", "e2b"),
    hparams("scale of 27B", "len(self.layers) == 62", "True", "gemma3"),
    hparams("period from its beginning", "il % period != period - 1", "il % period != 0", "gemma3"),
    hparams("a window of one more", "window=window(keys)", "window=window(keys) + 1", "gemma3"),
)  # fmt: skip


class TestGemmaMutants(FamilyMutants):
    plugin, source = "lmhub_gemma4", "gemma.c"
    models = {name: TINY["MODELS"][name] for name in ("e2b", "dense", "moe", "moe_split", "plain", "gemma3")}  # noqa: RUF012
    mutants = MUTANTS
    # Files of either generation hold the norms as they are multiplied.
    file_mutants = tuple(
        FileMutant(f"one added to norms of {name}", name, ending="norm.weight", change=lambda w: w + 1)
        for name in ("e2b", "gemma3")
    )
    mutations = (
        ("window + 1", "e2b"),
        ("window - 1", "e2b"),
        ("window + 1", "gemma3"),
        ("window - 1", "gemma3"),
        ("no window", "dense"),
        ("no renormalisation", "moe"),
        ("scaled before renormalisation", "moe"),
    )
