"""`lmhub bench`: what it measures and what it prints. How fast anything is, is not asserted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmhub.gguf import GGMLType
from lmhub.testing.tiny import tiny_gguf

Invoke = Callable[..., Any]


def test_a_report(tiny: Path, invoke: Invoke) -> None:
    sizes = ("--prefill", "5,20", "--depth", "0,100", "--rows", "2", "--decode", 3, "--runs", 2)
    said = invoke("bench", tiny, *sizes, "--ops", "--json")
    assert said.exit_code == 0, said.output
    report = json.loads(said.stdout)
    assert [one["tokens"] for one in report["prefill"]] == [5, 20]
    assert [one["depth"] for one in report["decode"]] == [0, 100]
    assert [one["rows"] for one in report["batch"]] == [2]
    for one in (*report["prefill"], *report["decode"], *report["batch"]):
        assert 1 <= len(one["seconds"]) <= 2
        assert one["tokens_per_s"] >= one["median_tokens_per_s"] > 0
        assert one["percent"] == pytest.approx(100 * one["tokens_per_s"] / one["floor_tokens_per_s"])
        assert one["bound"] in ("memory", "arithmetic")
    machine = report["machine"]
    assert machine["bandwidth_bytes_per_s"][str(machine["threads"])] > 1e8
    assert all(rate > 1e6 for unit in machine["units"].values() for rate in unit["operations_per_s"].values())
    assert {"f32", "int8"} <= machine["units"].keys()


def test_the_ops_of_a_report_add_up(tiny: Path, invoke: Invoke) -> None:
    said = invoke("bench", tiny, "--prefill", 20, "--depth", 0, "--rows", "", "--decode", 3, "--ops", "--json")
    report = json.loads(said.stdout)
    assert report["batch"] == []
    for one in (*report["prefill"], *report["decode"]):
        assert sum(op["share_percent"] for op in one["ops"]) == pytest.approx(100)
        assert one["ops"][-1]["op"] == "rest"
        assert {"linear", "attend", "rms_norm"} <= {op["op"] for op in one["ops"]}
    products = [op for op in report["decode"][0]["ops"] if op["op"].startswith("linear")]
    assert {"ffn_gate, ffn_up F32", "attn_q F32", "token_embd F32"} <= {op["of"] for op in products}
    assert all(op["percent"] > 0 for op in products)


def test_a_mixture_that_stays_in_its_file(tmp_path: Path, invoke: Invoke) -> None:
    more = {"n_expert": 8, "n_expert_used": 2}
    moe = tiny_gguf("qwen3moe", tmp_path / "moe.gguf", kind=GGMLType.Q8_0, qk_norm=True, **more)
    sizes = ("--prefill", "4", "--depth", "", "--rows", "2", "--decode", 2, "--runs", 1)
    report = json.loads(invoke("bench", moe, *sizes, "--no-repack", "--ops", "--json").stdout)
    assert report["weights"]["experts"]["count"] == 8 and report["weights"]["experts"]["used"] == 2
    shares = report["weights"]["experts"]["expected_share"]
    assert list(shares) == ["1", "2", "4"]
    assert list(shares.values()) == pytest.approx([0.25, 0.4375, 1 - 0.75**4])
    of = {op["of"] for op in report["prefill"][0]["ops"] if op["op"].startswith("linear_experts")}
    assert of == {"ffn_gate_exps, ffn_up_exps Q8_0", "ffn_down_exps Q8_0"}
    said = invoke("bench", moe, *sizes, "--experts", "borrow").stdout
    assert "2 of 8 for each row; share expected in a step: 25 % for 1, 44 % for 2, 68 % for 4 rows" in said


def test_a_report_for_people(tiny: Path, invoke: Invoke) -> None:
    said = invoke("bench", tiny, "--prefill", "8", "--depth", "0", "--rows", "2", "--decode", 2, "--runs", 1, "--ops")
    assert said.exit_code == 0, said.output
    starts = [line.split("  ")[0].strip() for line in said.stdout.splitlines()]
    assert starts[:5] == ["model", "machine", "memory", "f32", "int8"]
    assert {"each token", "prefill: prompt", "decode: behind", "batch: at once", "rest"} <= set(starts)
    assert "prefill, tokens 8: where the time goes" in said.stdout


def test_a_quick_report_measures_two_figures(tiny: Path, invoke: Invoke) -> None:
    said = invoke("bench", tiny, "--quick", "--decode", 2, "--runs", 1, "--json")
    report = json.loads(said.stdout)
    assert [one["tokens"] for one in report["prefill"]] == [256]  # all that its context holds
    assert [one["depth"] for one in report["decode"]] == [0]
    assert report["batch"] == []


def test_what_the_context_has_no_room_for_is_left_out(tiny: Path, invoke: Invoke) -> None:
    said = invoke("bench", tiny, "--rows", "", "--decode", 2, "--runs", 1, "--json")
    report = json.loads(said.stdout)
    assert [one["tokens"] for one in report["prefill"]] == [1, 8, 32, 128, 256]
    assert [one["depth"] for one in report["decode"]] == [0]


@pytest.mark.parametrize("flag", ["--prefill", "--depth"])
def test_more_than_the_context_holds(flag: str, tiny: Path, invoke: Invoke) -> None:
    said = invoke("bench", tiny, flag, "300", "--decode", 2)
    asked = 300 if flag == "--prefill" else 310
    assert said.exit_code == 2
    assert said.stderr == (
        f"lmhub: tiny.gguf has a context of 256, {asked} positions are asked for; "
        f"lower --prefill, --depth or --decode\n"
    )


@pytest.mark.parametrize(("flag", "text", "least"), [("--prefill", "0", 1), ("--depth", "1k", 0), ("--rows", "-1", 1)])
def test_what_is_no_list_of_numbers(flag: str, text: str, least: int, tiny: Path, invoke: Invoke) -> None:
    said = invoke("bench", tiny, f"{flag}={text}")
    assert said.exit_code == 2
    assert said.stderr == f"lmhub: {flag} takes whole numbers from {least} on, with commas between them\n"
