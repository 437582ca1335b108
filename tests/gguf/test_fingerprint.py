"""The identity of a model changes with whatever changes its rows, and with nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmhub.gguf import GGUFWriter, open_gguf
from lmhub.gguf import fingerprint as module
from lmhub.gguf.fingerprint import NUMERICS, fingerprints, identity


def write(path: Path, tensor: np.ndarray[Any, Any] | None = None, name: str = "w", **changed: Any) -> Path:
    values: dict[str, Any] = {
        "general.name": "Name A",
        "general.file_type": 7,
        "toy.block_count": 2,
        "toy.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["a", "b", "ab", "ä"],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.chat_template": "{{ a }}",
    }
    values |= {key.replace("__", "."): value for key, value in changed.items()}
    with GGUFWriter(path, "toy") as out:
        for key, value in values.items():
            out.add(key, value)
        out.add_tensor(name, np.zeros((64, 1024), np.float32) if tensor is None else tensor)
    return path


def made(path: Path) -> tuple[str, str]:
    with open_gguf(path) as file:
        return fingerprints(file)


def edges(at: int) -> np.ndarray[Any, Any]:
    tensor = np.zeros((64, 1024), np.float32)
    tensor.flat[at] = 1
    return tensor


def test_the_same_model_elsewhere_is_the_same(tmp_path: Path) -> None:
    assert made(write(tmp_path / "a.gguf")) == made(write(tmp_path / "b.gguf"))


@pytest.mark.parametrize(
    "changed",
    [
        {"toy__block_count": 3},
        {"toy__block_count": 2.0},
        {"toy__rope__freq_base": 10001.0},
        {"toy__rope__scaling": "yarn"},
        {"name": "v"},
        {"tensor": edges(0)},
        {"tensor": edges(1023)},
        {"tensor": edges(-1)},
        {"tensor": np.zeros((1024, 64), np.float32)},
    ],
    ids=str,
)
def test_what_changes_rows_changes_the_model(tmp_path: Path, changed: dict[str, Any]) -> None:
    model, tokenizer = made(write(tmp_path / "a.gguf"))
    other = made(write(tmp_path / "b.gguf", **changed))
    assert other[0] != model and other[1] == tokenizer


@pytest.mark.parametrize(
    "changed",
    [{"general__name": "Name B"}, {"general__file_type": 8}, {"tokenizer__chat_template": "{{ b }}"}],
    ids=str,
)
def test_texts_and_notes_change_nothing(tmp_path: Path, changed: dict[str, Any]) -> None:
    assert made(write(tmp_path / "a.gguf")) == made(write(tmp_path / "b.gguf", **changed))


@pytest.mark.parametrize(
    "changed",
    [
        {"tokenizer__ggml__tokens": ["b", "a", "ab", "ä"]},
        {"tokenizer__ggml__merges": ["b a"]},
        {"tokenizer__ggml__eos_token_id": 2},
    ],
    ids=str,
)
def test_the_tokenizer_has_its_own(tmp_path: Path, changed: dict[str, Any]) -> None:
    model, tokenizer = made(write(tmp_path / "a.gguf"))
    other = made(write(tmp_path / "b.gguf", **changed))
    assert other[0] == model and other[1] != tokenizer


def test_the_identity_names_all_of_it(tmp_path: Path) -> None:
    with open_gguf(write(tmp_path / "a.gguf")) as file:
        model, tokenizer = fingerprints(file)
        line = f"model={model} tokenizer={tokenizer} numerics={NUMERICS}"
        assert identity(file) == line
        assert identity(file, more=("isa=avx2", "lmhub-toy=0.1")) == f"{line} isa=avx2 lmhub-toy=0.1"


def test_fingerprints_are_remembered_while_the_file_is_the_same(tmp_path: Path) -> None:
    path, folder = write(tmp_path / "a.gguf"), tmp_path / "kv"
    with open_gguf(path) as file:
        first = identity(file, folder)
    cache = folder / "fingerprints.json"
    assert folder.stat().st_mode & 0o777 == 0o700 and cache.stat().st_mode & 0o777 == 0o600
    stored = json.loads(cache.read_text())
    (key,) = stored["files"]
    stored["files"][key] = ["remembered", "tokens"]
    cache.write_text(json.dumps(stored))
    with open_gguf(path) as file:
        assert identity(file, folder).startswith("model=remembered tokenizer=tokens ")
    os.utime(path, ns=(5, 5))
    with open_gguf(path) as file:
        assert identity(file, folder) == first
    write(path, toy__block_count=3)
    with open_gguf(path) as file:
        assert identity(file, folder) != first
    assert len(json.loads(cache.read_text())["files"]) == 3


def test_a_file_that_was_replaced_after_opening_is_not_taken_for_the_open_one(tmp_path: Path) -> None:
    path, folder = write(tmp_path / "a.gguf"), tmp_path / "kv"
    with open_gguf(path) as file:
        os.replace(write(tmp_path / "b.gguf", toy__block_count=3), path)
        old = identity(file, folder)
    with open_gguf(path) as file:
        assert identity(file, folder) == identity(file) != old


@pytest.mark.parametrize("content", ["", "{", "[]", '{"v":1,"files":[]}', '{"v":2,"files":{}}', "[" * 100_000])
def test_a_damaged_cache_is_replaced(tmp_path: Path, content: str) -> None:
    path, folder = write(tmp_path / "a.gguf"), tmp_path / "kv"
    folder.mkdir()
    (folder / "fingerprints.json").write_text(content)
    with open_gguf(path) as file:
        assert identity(file, folder) == identity(file)
    assert len(json.loads((folder / "fingerprints.json").read_text())["files"]) == 1


def test_a_cache_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    path, folder = write(tmp_path / "a.gguf"), tmp_path / "kv"
    folder.mkdir()
    (tmp_path / "else").write_text('{"v":1,"files":{}}')
    (folder / "fingerprints.json").symlink_to(tmp_path / "else")
    with open_gguf(path) as file:
        identity(file, folder)
    assert (tmp_path / "else").read_text() == '{"v":1,"files":{}}'
    assert not (folder / "fingerprints.json").is_symlink()


def test_a_folder_that_cannot_be_written_to_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with open_gguf(write(tmp_path / "a.gguf")) as file:
        assert identity(file, tmp_path / "file") == identity(file)


def test_the_cache_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CACHED", 3)
    path, folder = write(tmp_path / "a.gguf"), tmp_path / "kv"
    for time_ns in range(6):
        os.utime(path, ns=(time_ns, time_ns))
        with open_gguf(path) as file:
            identity(file, folder)
    kept = json.loads((folder / "fingerprints.json").read_text())["files"]
    assert sorted(int(key.split(":")[-1]) for key in kept) == [3, 4, 5]
