"""`lmhub plan` and `lmhub serve --plan`: what they print, as JSON too, and with what status they end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmhub.gguf import GGMLType, open_gguf
from lmhub.machine import Memory
from lmhub.testing.tiny import tiny_gguf

Invoke = Callable[..., Any]

SCHEMA: dict[str, Any] = {
    "model": str, "ctx": int, "batch": int, "kv_dtype": str, "per_slot": int, "wanted": int, "slots": int,
    "verdict": str, "fits": bool, "available": int, "machine": int, "warnings": [str],
    "items": [{"name": str, "nbytes": int, "kind": str, "detail": str}],
    "fixes": [{"flags": str, "total": int, "fits": bool}],
    "totals": {"committed": int, "typical": int, "worst": int, "mapped": int, "lazy": int},
}  # fmt: skip


def check(value: Any, schema: Any) -> None:
    """Whether `value` has exactly that form."""
    if isinstance(schema, dict):
        assert value.keys() == schema.keys()
        for name, inner in schema.items():
            check(value[name], inner)
    elif isinstance(schema, list):
        for one in value:
            check(one, schema[0])
    else:
        assert type(value) is schema


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 90 MB left, of which 3 or 4 remain once a tiny model is loaded."""
    monkeypatch.setattr("lmhub.hub.memory", lambda: Memory(100_000_000, 90_000_000))


def test_a_plan_that_fits(tiny: Path, invoke: Invoke) -> None:
    said = invoke("plan", tiny, "--batch", 3)
    assert said.exit_code == 0
    assert "tiny.gguf: 256 positions of f16 cache, 3 sequences at once, 6 kept" in said.output
    assert "KV cache" in said.output and "█" in said.output
    assert "verdict     fits" in said.output
    assert "What would help" not in said.output


def test_the_json_of_a_plan(tiny: Path, invoke: Invoke) -> None:
    said = json.loads(invoke("plan", tiny, "--json", "--kv-slots", 5, "--kv-ram", 2).stdout)
    assert said.keys() == {"fits", "plans"} and said["fits"] is True
    [one] = said["plans"]
    check(one, SCHEMA)
    items = {item["name"]: item["nbytes"] for item in one["items"]}
    assert items["KV cache"] == 5 * one["per_slot"] and items["KV beyond the slots"] == 2 << 20


def packed(said: Any) -> int:
    [one] = json.loads(said.stdout)["plans"]
    return sum(item["nbytes"] for item in one["items"] if item["name"] == "weights, packed")


def test_weights_that_stay_in_the_file(tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a mixture, experts alone or everything; and what a plan says where that is what would help."""
    kind, more = GGMLType.Q8_0, {"n_expert": 64, "n_expert_used": 2, "n_ff": 256}
    moe = tiny_gguf("qwen3moe", tmp_path / "moe.gguf", kind=kind, qk_norm=True, **more)
    whole, without, nothing = (
        packed(invoke("plan", moe, "--json", *flags)) for flags in ([], ["--experts", "borrow"], ["--no-repack"])
    )
    with open_gguf(moe) as file:
        experts = sum(tensor.nbytes for tensor in file.tensors.values() if len(tensor.shape) > 2)
    assert (whole - without, nothing) == (experts, 0)
    assert packed(invoke("plan", moe, "--json", env={"LMHUB_EXPERTS": "borrow"})) == without
    assert packed(invoke("plan", moe, "--json", env={"LMHUB_REPACK": "0"})) == 0
    free = json.loads(invoke("plan", moe, "--json", "--experts", "borrow").stdout)["plans"][0]["totals"]["worst"]
    monkeypatch.setattr("lmhub.hub.memory", lambda: Memory(free, free))
    assert "--experts borrow" in invoke("plan", moe).output.partition("What would help:")[2]
    [streamed] = json.loads(invoke("plan", moe, "--json", "--experts", "stream", "--expert-cache", 3).stdout)["plans"]
    assert {item["name"]: item["nbytes"] for item in streamed["items"]}["experts"] == 3 << 20
    assert sum(item["nbytes"] for item in streamed["items"] if item["name"] == "weights, packed") == without
    assert invoke("plan", moe, "--experts", "borrow").exit_code == 0


@pytest.mark.usefixtures("short")
def test_a_plan_that_does_not_fit(tiny: Path, invoke: Invoke) -> None:
    said = invoke("plan", tiny, "--kv-slots", 500)
    assert said.exit_code == 2
    assert "verdict     does not fit; a server would keep" in said.output
    helps = said.output.partition("What would help:\n")[2].splitlines()
    assert [line.split()[0] for line in helps] == ["--kv-slots", "--kv-dtype"]  # the context is too short to cut
    assert "not enough" in helps[1]
    about = json.loads(invoke("plan", tiny, "--kv-slots", 500, "--json").stdout)
    check(about["plans"][0], SCHEMA)
    fewer = about["plans"][0]["fixes"][0]["flags"].split()
    assert about["fits"] is False
    assert about["plans"][0]["totals"]["worst"] > about["plans"][0]["available"]
    assert invoke("plan", tiny, "--kv-slots", fewer[1], "--kv-slots-force").exit_code == 0


@pytest.mark.usefixtures("short")
def test_a_second_model_gets_what_the_first_leaves(tiny: Path, tmp_path: Path, invoke: Invoke) -> None:
    other = tiny_gguf("llama", tmp_path / "other.gguf")
    assert invoke("plan", other).exit_code == 0
    said = json.loads(invoke("plan", tiny, other, "--json").stdout)
    first, second = said["plans"]
    assert (first["fits"], second["fits"]) == (True, False)
    assert second["available"] == first["available"] - first["totals"]["worst"]


@pytest.mark.parametrize("words", [("plan",), ("serve", "--plan"), ("serve", "--plan-json")])
def test_an_error_is_no_verdict(tmp_path: Path, invoke: Invoke, words: tuple[str, ...]) -> None:
    said = invoke(words[0], tiny_gguf("martian", tmp_path / "m.gguf"), *words[1:])
    assert said.exit_code == 1
    assert "martian" in said.stderr and said.stderr.count("\n") == 1


def test_serve_prints_the_same_plan_and_serves_nothing(tiny: Path, invoke: Invoke) -> None:
    options = ("--ctx", 64, "--kv-dtype", "f32", "--no-spec")
    planned = json.loads(invoke("plan", tiny, *options, "--json").stdout)["plans"][0]
    said = invoke("serve", tiny, *options, "--plan-json")
    served = json.loads(said.stdout)["plans"][0]
    assert said.exit_code == 0
    moving = ("available", "machine")
    assert {**served, **dict.fromkeys(moving)} == {**planned, **dict.fromkeys(moving)}
    assert "verdict     fits" in invoke("serve", tiny, "--plan").output


@pytest.mark.usefixtures("short")
def test_serve_ends_with_the_same_status(tiny: Path, invoke: Invoke) -> None:
    assert invoke("serve", tiny, "--kv-slots", 500, "--plan").exit_code == 2
