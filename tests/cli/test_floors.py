"""The arithmetic of `lmhub bench`: what a step has to read and to compute, reckoned by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmhub.cli.floors import Costs, Machine, Matrix, Span, Work, costs, decode_bytes
from lmhub.gguf import GGMLType, open_gguf
from lmhub.testing.tiny import decoder, tiny_gguf, write


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


def test_a_table_of_rows_per_layer_costs_one_row(tmp_path: Path) -> None:
    name, tiny = "per_layer_token_embd.weight", decoder("x", tied=True)
    path = write(tmp_path / "tables.gguf", tiny.with_tensors({name: (288, 64)}))
    touched, sizes = bytes_of(path)
    assert touched == sum(sizes.values()) - sizes[name] + sizes[name] // 288


def test_only_the_used_experts_count(tmp_path: Path) -> None:
    path = tiny_gguf("x", tmp_path / "moe.gguf", tied=True, n_expert=8, n_expert_used=2, kind=GGMLType.Q8_0)
    touched, sizes = bytes_of(path)
    experts = sum(size for name, size in sizes.items() if "_exps" in name)
    assert experts > 0
    assert touched == sum(sizes.values()) - experts + experts // 4


def test_more_rows_hit_more_experts_and_never_more_than_there_are() -> None:
    experts = Matrix(nbytes=800, elements=800, unit="int8", n_expert=8, n_used=2)
    assert experts.touched(1) == 0.25
    assert experts.touched(2) == pytest.approx(0.25 + 0.75 * 0.25)
    assert experts.touched(1000) == pytest.approx(1)
    assert experts.operations(4) == 2 * 800 * 4 * 0.25


def test_the_operations_of_a_file(tmp_path: Path) -> None:
    path = tiny_gguf(
        "x", tmp_path / "a.gguf", n_layer=2, n_embd=64, n_head=6, n_kv=2, head_dim=32, n_ff=96, n_vocab=288, tied=True
    )
    with open_gguf(path) as file:
        cost = costs(file, kv_row=100)
    layer = 64 * (6 * 32) * 2 + 64 * (2 * 32) * 2 + 3 * 64 * 96
    step = cost.step([Span(past=10, rows=3, wanted=1)])
    pairs = 11 + 12 + 13
    assert step.operations == {
        "f32": 2 * (3 * 2 * layer + 288 * 64),
        "int14": 2 * (32 + 32) * 6 * 2 * pairs,
    }
    assert step.nbytes == cost.decode(0).nbytes + 10 * 100


def test_a_prompt_costs_the_same_operations_in_any_chunks_but_reads_the_weights_for_each() -> None:
    cost = Costs((Matrix(1000, 4000, "int8"), Matrix(50, 200, "int8", is_head=True)), 10, 2.0, 6, 8)
    whole, cut = cost.prefill(100, 100), cost.prefill(100, 32)
    assert len(whole) == 1
    assert [step.operations["int8"] for step in cut] == [2 * 4000 * 32] * 3 + [2 * 4000 * 4 + 2 * 200]
    for unit in ("int14", "int8"):
        assert sum(step.operations[unit] for step in cut) == whole[0].operations[unit]
    assert whole[0].operations["int14"] == 6 * 100 * 101 / 2
    assert whole[0].nbytes == 1000 + 50 + 10 + 100 * 2
    assert cut[0].nbytes == 1000 + 10 + 32 * 2
    assert cut[1].nbytes == 1000 + 10 + 32 * 2 + 32 * 8


def test_rows_of_a_batch_share_the_weights_and_read_their_own_caches() -> None:
    cost = Costs((Matrix(1000, 4000, "int8"),), 0, 0.0, 0, 8)
    assert cost.decode(5, rows=4).nbytes == 1000 + 4 * 5 * 8
    assert cost.decode(5, rows=4).operations["int8"] == 4 * 2 * 4000


def test_the_slower_of_memory_and_arithmetic_is_the_floor() -> None:
    machine = Machine(bandwidth=100.0, peaks={"f32": 10.0, "int8": 50.0})
    assert Work(200.0, {"int8": 50.0}).floor(machine) == (2.0, "memory")
    assert Work(200.0, {"int8": 100.0, "f32": 10.0}).floor(machine) == (3.0, "arithmetic")


def test_attention_runs_on_integers_where_three_products_of_them_beat_one_of_floats() -> None:
    assert Machine(1.0, {"f32": 10.0, "int8": 60.0}).peak("int14") == 20
    assert Machine(1.0, {"f32": 10.0, "int8": 15.0}).peak("int14") == 10


def test_a_unit_that_is_missing_is_replaced_by_float32() -> None:
    machine = Machine(bandwidth=100.0, peaks={"f32": 10.0})
    assert Work(0.0, {"int8": 20.0}).floor(machine) == (2.0, "arithmetic")


def test_bf16_weights_meet_activations_in_two_parts() -> None:
    assert Machine(1.0, {"f32": 10.0}).peak("bf16") == 5
    assert Machine(1.0, {"f32": 10.0, "bf16": 100.0}).peak("bf16") == 50
