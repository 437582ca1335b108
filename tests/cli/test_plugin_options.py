"""Flags that plugins add to commands: where they appear, what they say, and how they fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lmhub import hookimpl
from lmhub.cli import create_cli
from lmhub.family import PluginOption
from lmhub.plugins import Plugins
from lmhub.testing.tiny import tiny_gguf


class Parrot:
    """A plugin with a flag of each kind that opens nothing itself."""

    seen: dict[str, Any]

    @hookimpl
    def lmhub_options(self) -> list[PluginOption]:
        return [
            PluginOption("parrot", "A parrot.", "model"),
            PluginOption("parrot-loud", "In capitals."),
            PluginOption("parrot-size", "How large.", "whole"),
            PluginOption("parrot-name", "What it is called.", "text"),
        ]

    @hookimpl
    def lmhub_open(self, path: Path, options: dict[str, Any]) -> None:
        self.seen = {name: value for name, value in options.items() if name.startswith("parrot")}


@pytest.fixture
def parrot() -> Parrot:
    return Parrot()


def run(parrot: Parrot, *words: object, **env: str) -> Any:
    plugins = Plugins()
    plugins.load_entry_points()
    plugins.register(parrot, "parrot")
    return CliRunner(env=env).invoke(create_cli(plugins), [str(word) for word in words])


def test_flags_are_in_the_help_of_commands_that_serve(parrot: Parrot) -> None:
    assert "--parrot PATH" in run(parrot, "serve", "--help").output
    helped = run(parrot, "run", "--help").output
    assert "--parrot-loud" in helped and "--parrot " not in helped
    assert "--parrot-loud" not in run(parrot, "show", "--help").output


def test_values_reach_the_hooks(parrot: Parrot, tmp_path: Path) -> None:
    path = tiny_gguf("llama", tmp_path / "tiny.gguf")
    done = run(parrot, "serve", "--parrot", path, "--parrot-loud", "--parrot-size", 3, "--plan-json")
    assert done.exit_code == 0 and '"tiny.gguf"' in done.stdout
    assert parrot.seen == {"parrot": None, "parrot-loud": True, "parrot-size": 3, "parrot-name": None}
    run(parrot, "serve", path, "--plan-json", LMHUB_PARROT_NAME="Polly")
    assert parrot.seen == {"parrot": None, "parrot-loud": False, "parrot-size": None, "parrot-name": "Polly"}
    run(parrot, "show", path, LMHUB_PARROT_LOUD="1")
    assert parrot.seen["parrot-loud"] is True  # a command without the flag reads the variable


def test_no_model_at_all_is_one_sentence(parrot: Parrot) -> None:
    done = run(parrot, "serve")
    assert done.exit_code == 2 and "no model is named" in done.stderr and "--parrot" in done.stderr


def test_a_value_of_another_kind_is_refused(parrot: Parrot, tmp_path: Path) -> None:
    done = run(parrot, "serve", tmp_path / "x.gguf", "--parrot-size", "large")
    assert done.exit_code == 2 and "--parrot-size" in done.stderr
