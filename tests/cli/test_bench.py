"""`lmhub bench`: what it counts and what it prints. How fast anything is, is not asserted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmhub.cli.bench import decode_bytes
from lmhub.gguf import GGMLType, open_gguf
from lmhub.testing.tiny import tiny_gguf

Invoke = Callable[..., Any]


def test_a_report(tiny: Path, invoke: Invoke) -> None:
    said = invoke("bench", tiny, "--prefill", 20, "--decode", 5, "--runs", 2, "--json")
    assert said.exit_code == 0, said.output
    report = json.loads(said.stdout)
    assert len(report["prefill"]["seconds"]) == len(report["decode"]["seconds"]) == 2
    assert report["decode"]["tokens_per_s"] > 0
    floor = report["floor"]
    assert floor["tokens_per_s"] == pytest.approx(floor["bandwidth_bytes_per_s"] / floor["weight_bytes_per_token"])
    assert floor["reached_percent"] == pytest.approx(100 * report["decode"]["tokens_per_s"] / floor["tokens_per_s"])


def test_a_report_for_people(tiny: Path, invoke: Invoke) -> None:
    said = invoke("bench", tiny, "--prefill", 20, "--decode", 5, "--runs", 1)
    assert [line.split("  ")[0] for line in said.stdout.splitlines()] == [
        "model",
        "prefill",
        "decode",
        "memory floor",
        "reached",
    ]


def test_more_than_the_context_holds(tiny: Path, invoke: Invoke) -> None:
    said = invoke("bench", tiny, "--prefill", 250, "--decode", 50)
    assert said.exit_code == 2
    assert said.stderr == "lmhub: tiny has a context of 256, 300 are asked for; lower --prefill or --decode\n"


def bytes_of(path: Path) -> tuple[int, dict[str, int]]:
    with open_gguf(path) as file:
        return decode_bytes(file), {name: tensor.nbytes for name, tensor in file.tensors.items()}


def test_a_tied_embedding_is_read_whole(tmp_path: Path) -> None:
    touched, sizes = bytes_of(tiny_gguf("x", tmp_path / "tied.gguf", tied=True))
    assert touched == sum(sizes.values())


def test_an_embedding_of_its_own_costs_one_row(tmp_path: Path) -> None:
    touched, sizes = bytes_of(tiny_gguf("x", tmp_path / "untied.gguf", tied=False, n_vocab=288))
    embedding = sizes["token_embd.weight"]
    assert touched == sum(sizes.values()) - embedding + embedding // 288


def test_only_the_used_experts_count(tmp_path: Path) -> None:
    path = tiny_gguf("x", tmp_path / "moe.gguf", tied=True, n_expert=8, n_expert_used=2, kind=GGMLType.Q8_0)
    touched, sizes = bytes_of(path)
    experts = sum(size for name, size in sizes.items() if "_exps" in name)
    assert experts > 0
    assert touched == sum(sizes.values()) - experts + experts // 4
