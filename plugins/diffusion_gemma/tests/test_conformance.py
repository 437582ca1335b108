"""The conformance suite of diffusion families on tiny DiffusionGemma models."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

from lmhub.testing.block_conformance import BlockConformance

TINY = run_path(str(Path(__file__).with_name("tiny_diffusion.py")))


class TestDiffusionGemma(BlockConformance):
    plugin = "lmhub_diffusion_gemma"
    models = TINY["MODELS"]
    optional = ("output.weight", ".layer_output_scale.weight", "ffn_down_exps.scale", "attn_v.weight")
    substitutes = ("gate_up_exps.weight",)
