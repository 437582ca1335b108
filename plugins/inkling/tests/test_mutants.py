"""Breaks the forward pass on purpose, one rule at a time, and demands that the comparison with the oracle notices."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from runpy import run_path

from lmhub.testing.mutants import FamilyMutants, FileMutant, Mutant

TINY = run_path(str(Path(__file__).with_name("tiny_inkling.py")))

both, model = partial(Mutant, model="both"), partial(Mutant, model="both", file="lmhub_inkling/model.py")
KEYS_CONVOLVED = "    convolve(m, s, k, raw_k, l->conv_k, nk, l->memory);\n"
KEYS_NORMED = "    lmk->rms_norm(c, k, k, l->attn_k_norm, n * l->n_kv, hd, m->rms_eps);\n"
COPIED = "    memcpy({}, {}, (size_t)(n * {}) * sizeof(float));\n"
COOLED = "    if (!l->window && m->cool_by != 0.0f) cool(m, s, q, r);\n"

MUTANTS = (
    both("scale of one over the root", "1.0f / (float)m->head_dim", "1.0f / sqrtf((float)m->head_dim)"),
    both("norm before the convolution", KEYS_CONVOLVED, KEYS_NORMED.replace("k, k,", "raw_k, raw_k,") + KEYS_CONVOLVED),
    both("no convolution of keys", KEYS_CONVOLVED, COPIED.format("k", "raw_k", "nk")),
    both(
        "no convolution of values",
        "    convolve(m, s, v, raw_v, l->conv_v, nk, l->memory + last * nk);\n",
        COPIED.format("v", "raw_v", "nk"),
    ),
    both(
        "no convolution of attention",
        "    convolve(m, s, s->h, raw_o, l->conv_attn, d, l->memory + 2 * last * nk);\n",
        COPIED.format("s->h", "raw_o", "d"),
    ),
    both("keys' memory for values", "nk, l->memory + last * nk", "nk, l->memory"),
    both("no norm of keys", KEYS_NORMED, ""),
    both("no norm of queries", "    lmk->rms_norm(c, q, q, l->attn_q_norm, n * m->n_head, hd, m->rms_eps);\n", ""),
    both("no norm of embeddings", "    lmk->rms_norm(c, s->x, s->x, m->token_embd_norm, n, d, m->rms_eps);\n", ""),
    both("queries grow in sliding layers too", "if (!l->window && m->cool_by", "if (m->cool_by"),
    both("queries never grow", COOLED, ""),
    both("biases do not grow", "r[row * nr + d] *= by;", ";"),
    both(
        "biases scaled as scores are",
        "r + first * nr, n * m->n_head)) return -1;",
        "r + first * nr, n * m->n_head)) return -1;\n"
        "        for (int64_t i = 0; i < n * m->n_head * rel.rows; i++) bias[i] /= (float)m->head_dim;",
    ),
    both("growth counted from zero", "n_past + j + 1) / m->cool_from", "n_past + j) / m->cool_from"),
    both("window of one less", "1.0f / (float)m->head_dim, l->window", "1.0f / (float)m->head_dim, l->window - 1"),
    both("full layers see as far as biases reach", "l->window, bias", "rel.rows, bias"),
    both("experts by logits", "1.0f / (1.0f + expf(-z[e])) +", "z[e] +"),
    both("the selection weighs too", "(z[expert[i]])", "(z[expert[i]] + j->l->selection[expert[i]])"),
    both("a softmax of logits", "log_sigmoid(z[n_expert + i])", "z[n_expert + i]"),
    both("shared experts stand aside", "sum += shared[i] =", "shared[i] ="),
    both("shared experts are not scaled", "shared[i] *= scale", "shared[i] /= sum"),
    both("no scale of layers with experts", "m->route_scale * j->l->ffn_scale", "m->route_scale"),
    both("no scale of dense layers", "y[i] *= l->ffn_scale", "(void)y"),
    both(
        "no shared experts",
        "return add_experts(s, y, h, &l->ffn_gate_shexp",
        "return 0 && add_experts(s, y, h, &l->ffn_gate_shexp",
    ),
    model("no denominator", " / np.float32(hp.denominator)", ""),
    model("taps without the row itself", "        taps[-1] += 1.0", "        taps[-1] += 0.0"),
    model("biases the other way round", "by_distance[::-1]", "by_distance"),
)


class TestInklingMutants(FamilyMutants):
    plugin, source = "lmhub_inkling", "inkling.c"
    models = TINY["MODELS"]
    mutants = MUTANTS
    file_mutants = (
        FileMutant("another window", "both", metadata={"attention.sliding_window": 15}),
        FileMutant("growth from elsewhere", "both", metadata={"log_scaling_n_floor": 21}),
        FileMutant("another scale of routes", "both", metadata={"expert_weights_scale": 1.0}),
        FileMutant("taps reversed", "both", ending="shortconv_mlp.weight", change=lambda taps: taps[:, ::-1]),
        FileMutant("no selection", "both", ending="exp_probs_b.bias", change=lambda values: 0 * values),
    )
