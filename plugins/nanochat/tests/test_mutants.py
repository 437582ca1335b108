"""Breaks the forward pass on purpose, one rule at a time, and demands that the comparison with the oracle notices."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np

from lmhub.family import LoadOptions
from lmhub.gguf import open_gguf
from lmhub.model import Chunk
from lmhub.testing import drive
from lmhub.testing.mutants import UNCHANGED, FamilyMutants, Mutant, Mutants

TINY = run_path(str(Path(__file__).with_name("tiny_nanochat.py")))

SMEAR = "    if (m->smear_lambda && smear(m, s)) return -1;\n"
KEEP_X0 = "    memcpy(s->x0, s->x, (size_t)(n * d) * sizeof(float));\n"
SPAN_BEFORE = "else if (span->n_past > 0)"
ALL_LAYERS = "if (m->resid_lambdas || m->x0_lambdas)"
CAPPED = "    lmk->softcap(s->c, logits, n * m->output.rows, m->softcap);\n"


def off(statement: str) -> tuple[str, str]:
    """A statement, and what it becomes when it is left out."""
    return statement, "if (0) " + statement


latest = partial(Mutant, model="latest")
model = partial(Mutant, model="latest", file="lmhub_nanochat/model.py")

MUTANTS = (
    latest("turned as Llama does", "LMK_ROPE_HALVES", "LMK_ROPE_PAIRS"),
    model("another sign", '"inv_freq", -(', '"inv_freq", +('),
    latest("queries not turned", *off("lmk->rope(c, q,")),
    latest("keys not turned", *off("lmk->rope(c, k,")),
    latest("queries not normed", *off("lmk->rms_norm(c, q, q,")),
    latest("keys not normed", *off("lmk->rms_norm(c, k, k,")),
    latest("keys not sharpened", "lmk->rms_norm(c, k, k, m->qk_norm,", "lmk->rms_norm(c, k, k, m->ones,"),
    latest("attention not scaled", "1.0f / sqrtf((float)hd)", "1.0f"),
    latest("no window", "l->window);", "0);"),
    latest("values of the token before", "&l->value_embd, s->tokens", "&l->value_embd, s->tokens - (n > 1)"),
    latest("no gate of values", "v[j] += g[i] * row[j]", "v[j] += row[j]"),
    latest("gate of another head", "v[j] += g[i] * row[j]", "v[j] += g[i - i % KV] * row[j]"),
    latest("gate of the stream", "&l->value_gate, s->h,", "&l->value_gate, s->x,"),
    latest("gate doubled", "m->value_gate_scale)", "2.0f)"),
    Mutant("gate tripled", "m->value_gate_scale)", "3.0f)", "sigma2"),
    latest("no smear", SMEAR, ""),
    latest("smear of what was smeared", "s->h + (t - 1) * d", "s->x + (t - 1) * d"),
    latest("smear lost between steps", SPAN_BEFORE, "else if (0)"),
    latest("smear of nothing", SPAN_BEFORE, "else"),
    latest("token before not normed", *off("lmk->rms_norm(c, before,")),
    latest("start taken before the smear", SMEAR + KEEP_X0, KEEP_X0 + SMEAR),
    latest("start not normed", *off("lmk->rms_norm(c, s->x, s->x, m->ones, n, d,")),
    latest("no share of the start", "mix(s, s->x, stay, s->x0, back,", "mix(s, s->x, stay, s->x0, 0.0f,"),
    latest("lambdas of the first layer", "m->resid_lambdas[il]", "m->resid_lambdas[0]"),
    latest("no lambdas before the first layer", ALL_LAYERS, ALL_LAYERS.replace("if (", "if (il && (") + ")"),
    latest("GELU's absence: relu alone", "j->y[i] * j->y[i] : 0.0f", "j->y[i] : 0.0f"),
    latest("square without relu", "j->y[i] > 0.0f ?", "1 ?"),
    latest("middle one layer earlier", "il == m->n_layer / 2", "il == m->n_layer / 2 - 1"),
    Mutant("middle of an odd number", "il == m->n_layer / 2", "il == (m->n_layer + 1) / 2", "odd"),
    latest("middle added", "-*m->backout_lambda", "*m->backout_lambda"),
    latest("middle of other rows", *off("lmk_keep_wanted(s->middle,")),
    latest("middle taken out behind the norm", "m->ones, n, d, m->rms_eps);\n    if (lmk->linear(s->c, logits,",
           "m->ones, n, d, 0.5f);\n    if (lmk->linear(s->c, logits,"),
    latest("no softcap", CAPPED, ""),
    latest("head taken as tied", "&m->output,", "&m->token_embd,"),
    model("one window for all", "hp.windows[il]", "hp.windows[0]"),
)  # fmt: skip


class TestNanochatMutants(FamilyMutants):
    plugin, source = "lmhub_nanochat", "nanochat.c"
    models = TINY["MODELS"]
    mutants = MUTANTS
    mutations = (("turned as Llama does", "latest"), ("window + 1", "latest"), ("window - 1", "latest"))

    def test_the_token_before_is_each_sequence_s_own(self, built: Mutants, files: Mapping[str, Path]) -> None:
        """Which only a step of several sequences can show."""
        broken = Mutant("token before of the first sequence", "before + i * d", "before", "latest")
        for mutant in (UNCHANGED, broken):
            [module] = built.build([mutant]).values()
            model = module.load(open_gguf(files["latest"]), LoadOptions(n_ctx=self.n_ctx, kv_dtype="f32"))
            assert are_independent(model) == (mutant is UNCHANGED)


def are_independent(model: Any) -> bool:
    """Whether two sequences in one step, each with a past, go on as they do alone."""
    tokens = drive.random_tokens(60, model.n_vocab)
    pasts, rest = (tokens[:20], tokens[30:45]), tokens[45:]
    states = [model.new_state(64) for _ in pasts]
    for state, past in zip(states, pasts, strict=True):
        drive.logits_of(model, past, state=state)
    mixed = model.forward([Chunk(state, rest, "all") for state in states]).copy()
    alone = [drive.logits_of(model, [*past, *rest])[len(past) :] for past in pasts]
    return bool(mixed.tobytes() == np.concatenate(alone).tobytes())
