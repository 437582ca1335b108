"""What an import may load: heavy modules only where they are used. Asserts on loaded modules, not on milliseconds."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {
    "numpy",
    "typer",
    "rich",
    "starlette",
    "uvicorn",
    "tokenizers",
    "jinja2",
    "msgspec",
    "_cffi_backend",
    "lmhub._native",
}


def loaded_after(statement: str) -> set[str]:
    """The heavy modules that a fresh interpreter holds after `statement`."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return HEAVY & set(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "allowed"),
    [
        ("import lmhub", set()),
        ("import lmhub; lmhub.Family, lmhub.Caps, lmhub.hookimpl, lmhub.get_include()", set()),
        ("import lmhub.types, lmhub.errors, lmhub.settings, lmhub.plugins, lmhub.model", set()),
        ("import lmhub_qwen3", set()),
        ("import lmhub_llama", set()),
        ("import lmhub_gemma4", set()),
        ("import lmhub_diffusion_gemma", set()),
        ("import lmhub_qwen35", set()),
        ("import lmhub_nanochat", set()),
        ("import lmhub_inkling", set()),
        ("import lmhub.testing.plugin", set()),
        ("import lmhub.cli", {"typer", "rich"}),
        ("import lmhub.gguf", set()),
    ],
)
def test_import_stays_light(statement: str, allowed: set[str]) -> None:
    assert loaded_after(statement) <= allowed


def test_a_heavy_import_would_be_seen() -> None:
    assert loaded_after("import numpy") == {"numpy"}
