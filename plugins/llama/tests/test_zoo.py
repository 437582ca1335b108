"""Llama against stored logits of transformers and llama.cpp, on golden models beside the repository (else skipped)."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmhub.testing import drive
from lmhub.testing.golden import Golden

N_CTX = 700
F32_FOLDERS = ["llama", "llama3-rope", "llama-spm"]
QUANTISED = [("llama", "q8_0"), ("llama3-rope", "q8_0"), ("llama-spm", "q8_0"), ("llama-k256", "q4_k_m")]


@pytest.mark.parametrize("folder", F32_FOLDERS)
def test_every_position_of_float32_files(zoo: Path, folder: str) -> None:
    model = drive.load("lmhub_llama", zoo / folder / "model-f32.gguf", N_CTX)
    Golden(zoo / folder / "golden.npz").check_exact(model)


@pytest.mark.parametrize("folder", F32_FOLDERS)
def test_greedy_continuations(zoo: Path, folder: str) -> None:
    model = drive.load("lmhub_llama", zoo / folder / "model-f32.gguf", N_CTX)
    Golden(zoo / folder / "golden.npz").check_greedy(model)


@pytest.mark.parametrize("file", ["f16", "bf16", "f32-00001-of-00003", "f32-00003-of-00003"])
def test_other_forms_of_the_same_weights(zoo: Path, file: str) -> None:
    """The zoo's weights are BF16 numbers, so these files hold the same values as the F32 file."""
    model = drive.load("lmhub_llama", zoo / "llama-spm" / f"model-{file}.gguf", N_CTX)
    Golden(zoo / "llama-spm" / "golden.npz").check_exact(model)


@pytest.mark.parametrize(("folder", "kind"), QUANTISED)
def test_quantised_files_are_as_close_as_an_8_bit_engine(zoo: Path, folder: str, kind: str) -> None:
    model = drive.load("lmhub_llama", zoo / folder / f"model-{kind}.gguf", N_CTX)
    Golden(zoo / folder / "golden.npz").check_quantised(model, kind)


@pytest.mark.parametrize(("folder", "file"), [("llama", "f32"), ("llama3-rope", "q8_0"), ("llama-spm", "bf16")])
def test_cuts_and_neighbours_do_not_matter(zoo: Path, folder: str, file: str) -> None:
    model = drive.load("lmhub_llama", zoo / folder / f"model-{file}.gguf", N_CTX)
    Golden(zoo / folder / "golden.npz").check_cuts_and_neighbours(model, ("rand5", "text", "rand40"), N_CTX)
