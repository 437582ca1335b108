"""Breaks the forward pass on purpose, one rule at a time, and demands that the comparison with the oracle notices.

Three kinds of mutant. Those in C are built from a changed copy of `csrc`. Those in what the plugin reads from the file
are played by giving it a changed file and the oracle the right one. Those in the core's kernels are played by breaking
the oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from lmhub.family import LoadOptions
from lmhub.gguf import open_gguf
from lmhub.testing import drive
from lmhub.testing.mutants import Mutant, Mutants, agrees
from lmhub.testing.rewrite import rewrite
from lmhub.testing.tiny import Tiny, decoder, write

PROJECT = Path(__file__).parents[1]
N_CTX = 128

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


MODELS = {"dense": DENSE, "moe": MOE, "fused": fused()}

NORMS = """\
    lmk->rms_norm(c, s->q, s->q, l->attn_q_norm, n * H, hd, m->rms_eps);
    lmk->rms_norm(c, s->k, s->k, l->attn_k_norm, n * KV, hd, m->rms_eps);
"""
ROTATIONS = """\
    lmk->rope(c, s->q, s->cs, n, m->n_head, m->head_dim, m->n_pairs, LMK_ROPE_HALVES);
    lmk->rope(c, s->k, s->cs, n, m->n_kv, m->head_dim, m->n_pairs, LMK_ROPE_HALVES);
"""
RESIDUAL = """\
    lmk->add(c, s->x, s->h, n * m->n_embd);
    return 0;
}

/* x += W_down("""


MUTANTS = [
    Mutant("none", "", ""),
    Mutant("norms after the rotation", NORMS + ROTATIONS, ROTATIONS + NORMS),
    Mutant("no query norm", NORMS.splitlines()[0], ""),
    Mutant("no key norm", NORMS.splitlines()[1], ""),
    Mutant("neighbours rotated", "LMK_ROPE_HALVES", "LMK_ROPE_PAIRS"),
    Mutant("keys not rotated", ROTATIONS.splitlines()[1], ""),
    Mutant("no YaRN magnitude", "m->rope_magnitude", "1.0"),
    Mutant("scale of d / H", "sqrtf((float)hd)", "sqrtf((float)m->n_embd / H)"),
    Mutant("no scale", "1.0f / sqrtf((float)hd)", "1.0f"),
    Mutant("another eps", "l->attn_norm, n, m->n_embd, m->rms_eps", "l->attn_norm, n, m->n_embd, 1e-6f"),
    Mutant("another eps for heads", "n * H, hd, m->rms_eps", "n * H, hd, 1e-6f"),
    Mutant("attention norm for the feed-forward", "l->ffn_norm", "l->attn_norm"),
    Mutant("no norm before the head", "lmk->rms_norm(s->c, s->h, s->x, m->output_norm, n,", "memcpy(s->h, s->x, n * "
           "m->n_embd * sizeof(float)); if (0) lmk->rms_norm(s->c, s->h, s->x, m->output_norm, n,"),
    Mutant("head taken as tied", "&m->output,", "&m->token_embd,"),
    Mutant("values from the keys' weight", "&l->attn_k, &l->attn_v };", "&l->attn_k, &l->attn_k };"),
    Mutant("no query bias", "if (l->attn_q_bias)", "if (0)"),
    Mutant("no key bias", "if (l->attn_k_bias)", "if (0)"),
    Mutant("no value bias", "if (l->attn_v_bias)", "if (0)"),
    Mutant("no output bias", "if (l->attn_output_bias)", "if (0)"),
    Mutant("no residual around attention", RESIDUAL, RESIDUAL.replace("lmk->add(c, s->x, s->h, n * m->n_embd)",
           "memcpy(s->x, s->h, n * m->n_embd * sizeof(float))")),
    Mutant("SiLU of the wrong half", "gate, gate, up, n, ff, ff", "gate, up, gate, n, ff, ff"),
    Mutant("one cache for all layers", "il, s->spans", "0, s->spans"),
    Mutant("first row instead of the last", "lmk_keep_wanted(s->x,", "lmk_keep_wanted(s->h,"),
    Mutant("router before the norm", "&l->ffn_gate_inp, s->h", "&l->ffn_gate_inp, s->x", "moe"),
    Mutant("one expert fewer", ".k = m->n_expert_used", ".k = m->n_expert_used - 1", "moe"),
    Mutant("expert weights ignored", "if (lmk->linear_experts(c, y,",
           "for (int64_t i = 0; i < slots; i++) r.weight[i] = 1.0f / r.k;\n    if (lmk->linear_experts(c, y,", "moe"),
    Mutant("fused halves swapped", "wide, wide + ff, slots", "wide + ff, wide, slots", "fused"),
    Mutant("fused values from the keys", "s->n, nq + nk, nv", "s->n, nq, nv", "fused"),
]  # fmt: skip


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModuleType]:
    """Every mutant's model module."""
    return Mutants(PROJECT, "lmhub_qwen3", "qwen3.c", tmp_path_factory.mktemp("mutants")).build(MUTANTS)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: write(root / f"{name}.gguf", tiny) for name, tiny in MODELS.items()}


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_mutants_of_the_c_code(
    mutant: Mutant, modules: dict[str, ModuleType], files: dict[str, Path], oracle: Callable[..., np.ndarray]
) -> None:
    for name in MODELS if mutant.name == "none" else (mutant.model,):
        file = open_gguf(files[name])
        model = modules[mutant.name].load(file, LoadOptions(n_ctx=N_CTX, kv_dtype="f32"))
        tokens = drive.random_tokens(60, model.n_vocab)
        assert agrees(model, oracle(file, tokens), tokens) == (mutant.name == "none")


FILE_MUTANTS = {
    "YaRN ignored": {"drop": ("qwen3.rope.scaling.type", "qwen3.rope.scaling.factor")},
    "YaRN taken as linear": {"metadata": {"qwen3.rope.scaling.type": "linear"}},
    "default rope base": {"drop": ("qwen3.rope.freq_base",)},
    "default YaRN context": {"drop": ("qwen3.rope.scaling.original_context_length",)},
    "one added to norms": {"replace": ("norm.weight", lambda w: w + 1)},
    "embedding scaled": {"replace": ("token_embd.weight", lambda w: w * np.float32(8))},
    "query rows as if interleaved": {
        "replace": ("attn_q.weight", lambda w: w.reshape(-1, 2, 16, 64).swapaxes(1, 2).reshape(w.shape).copy())
    },
}


@pytest.mark.parametrize("name", FILE_MUTANTS)
def test_mutants_of_what_is_read(
    name: str, files: dict[str, Path], tmp_path: Path, oracle: Callable[..., np.ndarray]
) -> None:
    source, change = open_gguf(files["dense"]), dict(FILE_MUTANTS[name])
    if "replace" in change:
        ending, function = change["replace"]
        values = {n: t.data.view(np.float32).reshape(t.shape) for n, t in source.tensors.items() if n.endswith(ending)}
        change["replace"] = {n: function(w) for n, w in values.items()}
    model = drive.load("lmhub_qwen3", rewrite(source, tmp_path / "mutant.gguf", **change), N_CTX)
    tokens = drive.random_tokens(60, model.n_vocab)
    assert not agrees(model, oracle(source, tokens), tokens)


@pytest.mark.parametrize(
    ("mutation", "name"),
    [
        ("kv head = h % KV", "dense"),
        ("attends to itself only", "dense"),
        ("sigmoid for SiLU", "dense"),
        ("no renormalisation", "moe"),
        ("top-1 only", "moe"),
    ],
)
def test_mutants_of_the_kernels(
    mutation: str, name: str, files: dict[str, Path], oracle: Callable[..., np.ndarray]
) -> None:
    file, model = open_gguf(files[name]), drive.load("lmhub_qwen3", files[name], N_CTX)
    check = partial(agrees, model, tokens=drive.random_tokens(60, model.n_vocab))
    assert check(want=oracle(file, drive.random_tokens(60, model.n_vocab)))
    assert not check(want=oracle(file, drive.random_tokens(60, model.n_vocab), mutation))
