"""`lmhub plugins` and `lmhub doctor`: every plugin with its state, and an exit status that a script can use."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from lmhub import Family, hookimpl, native
from lmhub.cli.health import examine
from lmhub.hub import Hub

Invoke = Callable[..., Any]
BROKEN = "raise RuntimeError('half installed')"


def test_plugins_table(invoke: Invoke) -> None:
    said = invoke("plugins")
    assert said.exit_code == 0
    [row] = [line.split() for line in said.output.splitlines() if line.startswith("qwen3 ")]
    assert row[1] == "lmhub-qwen3"
    assert row[-1] == "ok"
    assert "qwen3moe" in row


def test_plugins_json(invoke: Invoke) -> None:
    found = {one["plugin"]: one for one in json.loads(invoke("plugins", "--json").stdout)}
    assert found["qwen3"]["architectures"] == ["qwen3", "qwen3moe"]
    assert found["qwen3"]["kernel_api"] == f"{native.ABI[0]}.{native.ABI[1]}"
    assert found["llama"]["state"] == "ok"
    assert "core" not in found


def test_a_broken_plugin_is_listed_once(install: Callable[[str, str], Path], lmhub: Invoke) -> None:
    done = lmhub("plugins", extra_path=install("broken", BROKEN))
    assert done.returncode == 0
    assert (done.stdout + done.stderr).count("half installed") == 1
    assert "broken: RuntimeError: half installed" in done.stdout


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("LMK_ABI_MAJOR, LMK_ABI_MINOR = 1, 9\ndef lmk_bind(table): return -2", "was built for kernel API 1.9"),
        ("LMK_ABI_MAJOR, LMK_ABI_MINOR = 9, 0\ndef lmk_bind(table): return -1", "was built for kernel API 9.0"),
        ("raise ImportError('undefined symbol: lmk')", "cannot be loaded (ImportError: undefined symbol: lmk)"),
    ],
)
def test_kernels_that_do_not_fit(source: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"kernels_{abs(hash(source))}"
    (tmp_path / f"{name}.py").write_text("import sys\nlib = sys.modules[__name__]\n" + source)
    monkeypatch.syspath_prepend(tmp_path)

    class Plugin:
        @hookimpl
        def lmhub_families(self) -> list[Family]:
            return [Family("old", ("old",), "x:y", kernels=name)]

    hub = Hub(entry_points=False)
    hub.plugins.register(Plugin(), "old")
    [health] = examine(hub)
    assert health.state == "broken"
    assert problem in health.problem
    assert "einstall" in health.problem


def test_a_family_without_kernels_is_fine() -> None:
    class Plugin:
        @hookimpl
        def lmhub_families(self) -> list[Family]:
            return [Family("pure", ("pure",), "x:y")]

    hub = Hub(entry_points=False)
    hub.plugins.register(Plugin(), "pure")
    [health] = examine(hub)
    assert (health.state, health.kernel_api) == ("ok", "none")


def test_doctor_on_a_sound_installation(lmhub: Invoke) -> None:
    done = lmhub("doctor", "--json", "--threads", 2)
    report = json.loads(done.stdout)
    assert (done.returncode, report["problems"]) == (0, [])
    assert report["instruction_set"] in ("ref", "avx2", "avx512", "amx", "neon")
    assert report["instruction_set_reason"]
    assert [one["threads"] for one in report["bandwidth"]] == [1, 2]
    assert all(one["bytes_per_s"] > 1e8 for one in report["bandwidth"])
    assert report["memory"]["available"] <= report["memory"]["total"]


def test_doctor_for_people(lmhub: Invoke) -> None:
    done = lmhub("doctor", LMK_ISA="ref")
    assert done.returncode == 0
    assert "instruction set   ref: " in done.stdout
    assert "GB/s" in done.stdout
    assert "Everything is in order." in done.stdout


def test_doctor_finds_a_broken_plugin(install: Callable[[str, str], Path], lmhub: Invoke) -> None:
    done = lmhub("doctor", extra_path=install("broken", BROKEN))
    assert done.returncode == 1
    assert "Problem: broken: RuntimeError: half installed" in done.stdout


def test_doctor_misses_families(lmhub: Invoke) -> None:
    blocked = [word for one in entry_points(group="lmhub") for word in ("--block", one.name)]
    done = lmhub(*blocked, "doctor", "--json")
    assert done.returncode == 1
    assert "no plugin serves a model family" in json.loads(done.stdout)["problems"][0]


def test_doctor_reports_a_level_that_is_not_there(lmhub: Invoke) -> None:
    done = lmhub("doctor", LMK_ISA="sse9")
    assert done.returncode == 1
    assert "sse9" in done.stdout
    assert "Traceback" not in done.stderr
