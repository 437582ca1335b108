"""The conformance suite on tiny Qwen3.5 models, one for each thing that the family can do."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

from lmhub.testing.conformance import FamilyConformance

TINY = run_path(str(Path(__file__).with_name("tiny_qwen35.py")))


class TestQwen35(FamilyConformance):
    plugin = "lmhub_qwen35"
    models = TINY["MODELS"]
    optional = ("output.weight",)
    substitutes = ("gate_up_exps.weight", "ssm_dt")
    wide = TINY["WIDE"]
