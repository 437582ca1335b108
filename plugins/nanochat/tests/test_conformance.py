"""The conformance suite on tiny nanochat models, one for each generation."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

from lmhub.testing.conformance import FamilyConformance

TINY = run_path(str(Path(__file__).with_name("tiny_nanochat.py")))


class TestNanochat(FamilyConformance):
    plugin = "lmhub_nanochat"
    models = TINY["MODELS"]
    optional = ("resid_lambdas", "x0_lambdas", "backout_lambda")
    wide = TINY["WIDE"]
