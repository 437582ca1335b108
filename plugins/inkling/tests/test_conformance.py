"""The conformance suite on tiny inkling models, one for each thing that the family can do."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

from lmhub.testing.conformance import FamilyConformance

TINY = run_path(str(Path(__file__).with_name("tiny_inkling.py")))


class TestInkling(FamilyConformance):
    plugin = "lmhub_inkling"
    models = TINY["MODELS"]
    optional = ()
    wide = TINY["WIDE"]
