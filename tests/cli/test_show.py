"""`lmhub show`: what is said of a file, with and without its plugin, for people and for programs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmhub.cli.show import memory_line
from lmhub.gguf import GGMLType, GGUFWriter
from lmhub.testing.tiny import CHAT_TEMPLATE, tiny_gguf

np = pytest.importorskip("numpy")
Invoke = Callable[..., Any]


def test_everything_about_a_file(tiny: Path, invoke: Invoke) -> None:
    said = invoke("show", tiny)
    assert said.exit_code == 0
    facts = dict(line.split(maxsplit=1) for line in said.output.splitlines() if line[:1].isalpha())
    assert facts["architecture"] == "qwen3"
    assert facts["context"] == "256 positions"
    assert facts["tokenizer"].startswith("gpt2/qwen2, 288 tokens, bos ")
    assert "eos" in facts["tokenizer"]
    assert "<|im_end|>" in facts["tokenizer"]
    assert f"sha256 {hashlib.sha256(CHAT_TEMPLATE.encode()).hexdigest()[:12]}" in facts["template"]
    assert CHAT_TEMPLATE.splitlines()[0] in said.output
    assert facts["served"].startswith("by      lmhub-qwen3 ")
    assert "for 8 × " in facts["memory"]
    assert "of f16 cache of 256 positions" in facts["memory"]
    assert "F32" in said.output


def test_json_has_the_same_facts(tiny: Path, invoke: Invoke) -> None:
    about = json.loads(invoke("show", tiny, "--json", "--ctx", 100, "--batch", 3).stdout)
    assert about["architecture"] == "qwen3"
    assert about["bytes"] == tiny.stat().st_size
    assert about["parameters"] == sum(share["parameters"] for share in about["quantization"])
    assert about["served_by"]["plugin"] == "qwen3"
    memory = about["memory"]
    assert (memory["ctx"], memory["batch"], memory["slots"]) == (100, 3, 6)
    assert memory["totals"]["lazy"] >= 6 * memory["per_slot"] > 0
    assert "metadata" not in about


def test_the_context_is_capped_by_the_model(tiny: Path, invoke: Invoke) -> None:
    assert json.loads(invoke("show", tiny, "--json", "--ctx", 99999).stdout)["memory"]["ctx"] == 256


def test_tensors_and_metadata_are_listed(tiny: Path, invoke: Invoke) -> None:
    said = invoke("show", tiny, "--tensors", "--metadata").output
    assert "blk.1.ffn_down.weight" in said
    assert "64 × 96" in said
    assert "tokenizer.ggml.eos_token_id" in said
    assert "(288 elements)" in said
    about = json.loads(invoke("show", tiny, "--tensors", "--metadata", "--json").stdout)
    assert about["metadata"]["qwen3.block_count"] == 2
    tensors = {tensor["name"]: tensor for tensor in about["tensor_list"]}
    assert tensors["blk.1.ffn_down.weight"]["shape"] == [64, 96]
    assert len(tensors) == about["tensors"]


def test_a_mix_of_types_is_broken_down(tmp_path: Path, invoke: Invoke) -> None:
    path = tiny_gguf("qwen3", tmp_path / "q8.gguf", qk_norm=True, kind=GGMLType.Q8_0)
    shares = {share["type"]: share for share in json.loads(invoke("show", path, "--json").stdout)["quantization"]}
    assert shares.keys() == {"Q8_0", "F32"}
    assert shares["Q8_0"]["bits_per_weight"] == 8.5
    assert shares["F32"]["bits_per_weight"] == 32


def test_a_file_of_an_unknown_family(tmp_path: Path, invoke: Invoke) -> None:
    path = tiny_gguf("martian", tmp_path / "martian.gguf")
    said = invoke("show", path)
    assert said.exit_code == 0
    assert "martian" in said.output
    assert "no plugin: " in said.output
    assert "lmhub-martian" in said.output
    about = json.loads(invoke("show", path, "--json").stdout)
    assert about["served_by"]["plugin"] is None
    assert about["tokenizer"]["tokens"] == 288


def test_a_bare_file(tmp_path: Path, invoke: Invoke) -> None:
    path = tmp_path / "bare.gguf"
    with GGUFWriter(path, "martian") as out:
        out.add_tensor("x", np.ones(4, np.float32))
    said = invoke("show", path)
    assert said.exit_code == 0
    assert "tokenizer      none" in said.output
    assert "template       none" in said.output


def test_a_file_cannot_drive_the_terminal(tmp_path: Path, invoke: Invoke) -> None:
    path = tmp_path / "evil.gguf"
    with GGUFWriter(path, "mart\x1b[2Jian") as out:
        out.add("general.name", "\x1b]0;owned\x07[red]name")
        out.add("tokenizer.chat_template", "\x1b[31m line\x08\n{{ x }}")
        out.add("evil\x1bkey", "\x9b31m")
        out.add("tokenizer.ggml.tokens", ["\x1b[1m"])
        out.add("tokenizer.ggml.eos_token_id", 0)
        out.add("tokenizer.ggml.bos_token_id", 7)
        out.add_tensor("te\x1bnsor", np.ones(4, np.float32))
    for arguments in ((), ("--tensors", "--metadata"), ("--json", "--tensors", "--metadata")):
        said = invoke("show", path, *arguments)
        assert said.exit_code == 0
        assert all(char.isprintable() or char == "\n" for char in said.output)
    assert "[red]name" in said.output
    assert "bos 7 (outside the vocabulary)" in invoke("show", path).output


def test_a_split_file_is_one_model(shared: Path, invoke: Invoke) -> None:
    about = json.loads(invoke("show", shared / "zoo/llama-spm/model-f32-00002-of-00003.gguf", "--json").stdout)
    assert about["parts"] == 3
    assert about["architecture"] == "llama"


@pytest.mark.parametrize("name", ["gemma4-moe/model-q4_k_m", "kimi-k3/model-mxfp4_moe", "inkling/model-q8_0"])
def test_real_converters_files(shared: Path, name: str, invoke: Invoke) -> None:
    said = invoke("show", shared / f"zoo/{name}.gguf", "--tensors", "--metadata")
    assert said.exit_code == 0
    assert "architecture" in said.output


def test_a_plan_that_does_not_fit_says_so() -> None:
    plan = {
        "totals": {"worst": 10**15, "committed": 10**14, "mapped": 5},
        "per_slot": 1,
        "slots": 2,
        "ctx": 3,
        "kv_dtype": "f16",
        "available": 10**9,
        "machine": 10**10,
    }
    assert memory_line({**plan, "fits": False}).endswith("available, which is not enough: see `lmhub plan`")
    assert "not enough" not in memory_line({**plan, "fits": True})
    assert memory_line({"problem": "a sentence"}) == "a sentence"
