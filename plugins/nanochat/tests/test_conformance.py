"""The conformance suite on models of three generations; test_mutants.py holds the others to the oracle as well."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

from lmhub.testing.conformance import FamilyConformance

TINY = run_path(str(Path(__file__).with_name("tiny_nanochat.py")))


class TestNanochat(FamilyConformance):
    plugin = "lmhub_nanochat"
    models = {name: TINY["MODELS"][name] for name in ("latest", "sigma2", "first")}  # noqa: RUF012
    optional = ("resid_lambdas", "x0_lambdas", "backout_lambda")
    wide = TINY["WIDE"]
