"""Qwen3 against stored logits of transformers and llama.cpp, on golden models beside the repository (else skipped)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lmhub.model import Chunk
from lmhub.testing import drive
from lmhub.testing.golden import Golden

N_CTX = 700
F32_FOLDERS = ["qwen3", "qwen3-untied", "qwen3-yarn", "qwen3moe"]
QUANTISED = [
    *(("qwen3", kind) for kind in ("q8_0", "q4_k_m")),
    ("qwen3-untied", "q8_0"),
    *(
        ("qwen3-k256", kind)
        for kind in ["iq4_nl", "iq4_xs", "q2_k", "q3_k_m", "q4_0", "q4_1", "q4_k_m", "q5_0", "q5_1", "q5_k_m", "q6_k"]
    ),
    ("qwen3moe", "q8_0"),
    ("qwen3moe-k256", "q4_k_m"),
]


@pytest.mark.parametrize("folder", F32_FOLDERS)
def test_every_position_of_float32_files(zoo: Path, folder: str) -> None:
    model = drive.load("lmhub_qwen3", zoo / folder / "model-f32.gguf", N_CTX)
    Golden(zoo / folder / "golden.npz").check_exact(model)


@pytest.mark.parametrize("folder", F32_FOLDERS)
def test_greedy_continuations(zoo: Path, folder: str) -> None:
    model = drive.load("lmhub_qwen3", zoo / folder / "model-f32.gguf", N_CTX)
    Golden(zoo / folder / "golden.npz").check_greedy(model)


@pytest.mark.parametrize(("folder", "kind"), QUANTISED)
def test_quantised_files_are_as_close_as_an_8_bit_engine(zoo: Path, folder: str, kind: str) -> None:
    model = drive.load("lmhub_qwen3", zoo / folder / f"model-{kind}.gguf", N_CTX)
    Golden(zoo / folder / "golden.npz").check_quantised(model, kind)


def test_a_real_vocabulary(zoo: Path) -> None:
    """Q8_0 with 151936 tokens: the stored 64 largest logits, with the tolerance of 8-bit activations."""
    model = drive.load("lmhub_qwen3", zoo / "qwen3-realvocab" / "model-q8_0.gguf", N_CTX)
    golden = Golden(zoo / "qwen3-realvocab" / "golden.npz")
    for prompt in golden.prompts:
        ids, want = golden.arrays[f"{prompt}.top_ids"], golden.arrays[f"{prompt}.top_logits"]
        state = model.new_state(N_CTX)
        for at, token in enumerate(golden.tokens(prompt)[:40]):
            row = model.forward([Chunk(state, [token])])[0]
            assert np.abs(row[ids[at]] - want[at]).mean() < 0.3, f"{prompt}, position {at}"
            assert len(set(np.argsort(-row)[:10]) & set(ids[at][:64].tolist())) >= 9


@pytest.mark.parametrize(("folder", "file"), [("qwen3", "f32"), ("qwen3", "q4_k_m"), ("qwen3moe", "q8_0")])
def test_cuts_and_neighbours_do_not_matter(zoo: Path, folder: str, file: str) -> None:
    model = drive.load("lmhub_qwen3", zoo / folder / f"model-{file}.gguf", N_CTX)
    Golden(zoo / folder / "golden.npz").check_cuts_and_neighbours(model, ("rand5", "text", "rand130"), N_CTX)
