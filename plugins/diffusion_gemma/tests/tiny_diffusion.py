"""Tiny DiffusionGemma models, made of the tiny Gemma 4 ones beside this plugin. `MODELS`; read with runpy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from runpy import run_path
from typing import Any

from lmhub.testing.tiny import Tiny

GEMMA = run_path(str(Path(__file__).parents[2] / "gemma4" / "tests" / "tiny_gemma.py"))


def diffusion(kinds: str = "ssf", size: int = 12, n_ff: int = 96, **options: Any) -> Tiny:
    """A Gemma 4 with canvases of `size` positions."""
    model: Tiny = GEMMA["gemma4"](kinds, n_ff=n_ff, **options)
    n_embd = GEMMA["E"]
    added: dict[str, tuple[int, ...]] = {
        "self_cond_pre_norm.weight": (n_embd,),
        "self_cond_gate.weight": (n_ff, n_embd),
        "self_cond_up.weight": (n_ff, n_embd),
        "self_cond_down.weight": (n_embd, n_ff),
        **{f"blk.{i}.{mode}layer_output_scale.weight": (1,) for i in range(len(kinds)) for mode in ("", "enc_")},
    }
    return replace(
        model.with_tensors(added),
        arch="diffusion-gemma",
        metadata={**model.metadata, "diffusion.canvas_length": size},
    )


MODELS = {"moe": diffusion(n_expert=6, values="s"), "dense": diffusion("sfs", size=20)}
