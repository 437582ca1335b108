"""Gemma against stored logits of transformers and llama.cpp, on golden models beside the repository (else skipped).

The windows of these models are 16 positions; the prompts have up to 600.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lmhub.testing import drive
from lmhub.testing.golden import Golden

N_CTX = 700
F32_FOLDERS = ["gemma3", "gemma4-e2b", "gemma4-31b", "gemma4-moe"]
QUANTISED = [
    *((folder, "q8_0") for folder in F32_FOLDERS),
    *((folder, "q4_k_m") for folder in ("gemma3", "gemma4-moe", "gemma4-k256")),
]


@pytest.mark.parametrize("folder", F32_FOLDERS)
def test_every_position_of_float32_files(zoo: Path, folder: str) -> None:
    model = drive.load("lmhub_gemma4", zoo / folder / "model-f32.gguf", N_CTX)
    Golden(zoo / folder / "golden.npz").check_exact(model)


@pytest.mark.parametrize("folder", F32_FOLDERS)
def test_greedy_continuations(zoo: Path, folder: str) -> None:
    model = drive.load("lmhub_gemma4", zoo / folder / "model-f32.gguf", N_CTX)
    Golden(zoo / folder / "golden.npz").check_greedy(model)


@pytest.mark.parametrize(("folder", "kind"), QUANTISED)
def test_quantised_files_are_as_close_as_an_8_bit_engine(zoo: Path, folder: str, kind: str) -> None:
    model = drive.load("lmhub_gemma4", zoo / folder / f"model-{kind}.gguf", N_CTX)
    Golden(zoo / folder / "golden.npz").check_quantised(model, kind)


@pytest.mark.parametrize(("folder", "file"), [("gemma4-e2b", "q8_0"), ("gemma4-moe", "q4_k_m"), ("gemma3", "f32")])
def test_cuts_and_neighbours_do_not_matter(zoo: Path, folder: str, file: str) -> None:
    model = drive.load("lmhub_gemma4", zoo / folder / f"model-{file}.gguf", N_CTX)
    Golden(zoo / folder / "golden.npz").check_cuts_and_neighbours(model, ("rand5", "text", "rand130"), N_CTX)
