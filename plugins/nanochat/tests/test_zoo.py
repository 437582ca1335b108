"""nanochat against stored logits and ids of its own code and of transformers, on golden models (else skipped).

The windows of `nanochat-swa` are 129 positions; the prompts have up to 600.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lmhub_nanochat.folder import Options, open_folder
from lmhub_nanochat.model import load

from lmhub.family import LoadOptions
from lmhub.testing.golden import Golden
from lmhub.tokenize import load_tokenizer

N_CTX = 700
FOLDERS = ["nanochat", "nanochat-swa", "nanochat-hf"]


def opened(folder: Path, kv_dtype: str = "f32") -> Any:
    file = open_folder(folder, Options())
    assert file is not None
    return load(file, LoadOptions(n_ctx=N_CTX, kv_dtype=kv_dtype))


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_position(zoo: Path, folder: str) -> None:
    Golden(zoo / folder / "golden.npz").check_exact(opened(zoo / folder / "checkpoint"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_greedy_continuations(zoo: Path, folder: str) -> None:
    Golden(zoo / folder / "golden.npz").check_greedy(opened(zoo / folder / "checkpoint"))


@pytest.mark.parametrize(("folder", "middle"), [("nanochat", "rand130"), ("nanochat-swa", "rand200")])
def test_cuts_and_neighbours_do_not_matter(zoo: Path, folder: str, middle: str) -> None:
    model = opened(zoo / folder / "checkpoint", "f16")
    Golden(zoo / folder / "golden.npz").check_cuts_and_neighbours(model, ("rand5", "text", middle), N_CTX)


@pytest.mark.parametrize("folder", FOLDERS)
def test_token_ids(zoo: Path, folder: str) -> None:
    """Of tokenizer.bin, and of tokenizer.json in the folder that has one."""
    file = open_folder(zoo / folder / "checkpoint")
    assert file is not None
    tokenizer = load_tokenizer(file.metadata)
    for row in json.loads((zoo / folder / "tokens.json").read_text())["rows"]:
        assert tokenizer.encode(row["text"]) == row["ids_plain"], row["text"]
        assert tokenizer.encode(row["text"], special=True) == row["ids_special"], row["text"]
        assert tokenizer.decode(row["ids_plain"]) == row["text"]
