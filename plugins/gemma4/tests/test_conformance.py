"""The conformance suite on tiny Gemma models, one for each thing that the family can do."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

from lmhub.testing.conformance import FamilyConformance

TINY = run_path(str(Path(__file__).with_name("tiny_gemma.py")))


class TestGemma(FamilyConformance):
    plugin = "lmhub_gemma4"
    models = TINY["MODELS"]
    optional = ("output.weight", "output_scale.weight", "ffn_down_exps.scale", "attn_v.weight")
    substitutes = ("gate_up_exps.weight",)
    wide = TINY["WIDE"]
