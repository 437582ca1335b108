"""What holds for every command: help, versions, exit statuses, and one sentence for each mistake."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lmhub import __version__, hookimpl
from lmhub.cli import create_cli
from lmhub.errors import PluginError
from lmhub.plugins import Plugins
from lmhub.testing.tiny import tiny_gguf

COMMANDS = ("serve", "run", "show", "plugins", "doctor", "bench")


def test_version(lmhub: Callable[..., Any]) -> None:
    done = lmhub("--version")
    assert (done.returncode, done.stdout) == (0, f"lmhub {__version__}\n")


def test_help_names_every_command(invoke: Callable[..., Any]) -> None:
    said = invoke("--help")
    assert said.exit_code == 0
    for command in COMMANDS:
        assert f"  {command} " in said.output
        assert invoke(command, "--help").exit_code == 0


def test_no_defaults_are_shown_as_objects(invoke: Callable[..., Any]) -> None:
    for command in COMMANDS:
        assert " object" not in invoke(command, "--help").output
        assert "member" not in invoke(command, "--help").output


@pytest.mark.parametrize("command", ["show", "run", "serve", "bench"])
def test_a_missing_file_is_one_sentence(command: str, invoke: Callable[..., Any]) -> None:
    said = invoke(command, "nowhere.gguf", input="hello")
    assert said.exit_code == 2
    assert said.stderr == (
        "lmhub: nowhere.gguf: it cannot be opened (no such file or directory); check the path and its permissions.\n"
    )
    assert said.stdout == ""


@pytest.mark.parametrize("command", ["show", "run", "serve", "bench"])
def test_a_damaged_file_is_one_sentence(command: str, tiny: Path, tmp_path: Path, invoke: Callable[..., Any]) -> None:
    damaged = tmp_path / "cut.gguf"
    damaged.write_bytes(tiny.read_bytes()[:5000])
    said = invoke(command, damaged, input="hello")
    assert said.exit_code == 2
    assert said.stderr.startswith(f"lmhub: {damaged}: ")
    assert said.stderr.count("\n") == 1
    assert said.stdout == ""


@pytest.mark.parametrize("command", ["run", "serve", "bench"])
def test_an_unknown_architecture_says_what_to_install(command: str, tmp_path: Path, invoke: Callable[..., Any]) -> None:
    said = invoke(command, tiny_gguf("martian", tmp_path / "m.gguf"), input="hello")
    assert said.exit_code == 2
    assert "m.gguf holds the architecture 'martian', which no installed plugin serves (served: " in said.stderr
    assert "lmhub-martian" in said.stderr
    assert said.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [["frob"], ["show"], ["show", "--frob", "x"], ["serve", "x", "--port", "70000"], ["show", "x", "--ctx", "0"]],
)
def test_wrong_usage_is_status_2(arguments: list[str], lmhub: Callable[..., Any]) -> None:
    done = lmhub(*arguments)
    assert done.returncode == 2
    assert "Error: " in done.stderr
    assert "Traceback" not in done.stderr


def test_options_come_from_the_environment(tiny: Path, invoke: Callable[..., Any]) -> None:
    env = {"LMHUB_CTX": "77"}
    assert "of 77 positions" in invoke("show", tiny, env=env).stdout
    assert "of 66 positions" in invoke("show", tiny, "--ctx", 66, env=env).stdout


def test_output_into_a_closed_pipe_is_quiet(tiny: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-m", "lmhub", "show", "--metadata", str(tiny)]
    done = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_an_interruption_while_modules_are_imported_is_quiet() -> None:
    code = """
import runpy, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "lmhub.cli.serve":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
runpy.run_module("lmhub", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


# --- plugins ---------------------------------------------------------------------------------------------------------


def test_a_broken_plugin_is_named_and_the_rest_works(
    tiny: Path, install: Callable[[str, str], Path], lmhub: Callable[..., Any]
) -> None:
    site = install("broken", "raise RuntimeError('half installed')")
    done = lmhub("run", tiny, "Hi", "--max-tokens", 4, extra_path=site)
    assert done.returncode == 0
    assert done.stdout
    assert done.stderr == (
        "lmhub: plugin broken (lmhub-broken 1.2) is broken and was skipped: RuntimeError: half installed\n"
    )


def test_strict_plugins_stops_at_the_broken_one(
    tiny: Path, install: Callable[[str, str], Path], lmhub: Callable[..., Any]
) -> None:
    site = install("broken", "raise RuntimeError('half installed')")
    done = lmhub("--strict-plugins", "show", tiny, extra_path=site)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "plugin broken (lmhub-broken 1.2) is broken" in done.stderr


def test_a_blocked_plugin_is_not_imported(install: Callable[[str, str], Path], lmhub: Callable[..., Any]) -> None:
    site = install("broken", "raise RuntimeError('half installed')")
    done = lmhub("--block=other", "--block", "broken", "plugins", extra_path=site)
    assert done.returncode == 0
    assert "half installed" not in done.stdout + done.stderr
    assert "blocked" in done.stdout


def test_without_its_plugin_a_file_is_refused_by_name(tiny: Path, lmhub: Callable[..., Any]) -> None:
    done = lmhub("--block", "qwen3", "run", tiny, "Hi")
    assert done.returncode == 2
    assert "tiny.gguf holds the architecture 'qwen3', which no installed plugin serves" in done.stderr
    assert "lmhub-qwen3" in done.stderr


def test_two_plugins_for_one_architecture_are_both_named(
    tiny: Path, install: Callable[[str, str], Path], lmhub: Callable[..., Any]
) -> None:
    source = "import lmhub\n@lmhub.hookimpl\ndef lmhub_families():\n    return [lmhub.Family('q', ('qwen3',), 'x:y')]\n"
    site = install("rival", source)
    done = lmhub("show", tiny, "--json", extra_path=site)
    assert "lmhub-qwen3 and lmhub-rival both serve the architecture qwen3" in done.stdout
    doctor = lmhub("doctor", extra_path=site)
    assert doctor.returncode == 1
    assert "lmhub-qwen3 and lmhub-rival both serve" in doctor.stdout


def test_plugins_add_commands(install: Callable[[str, str], Path], lmhub: Callable[..., Any]) -> None:
    source = (
        "import lmhub\n@lmhub.hookimpl\ndef lmhub_commands(cli):\n"
        "    @cli.command()\n    def greet(name: str):\n        print('hello', name)\n"
    )
    done = lmhub("greet", "you", extra_path=install("greeter", source))
    assert (done.returncode, done.stdout) == (0, "hello you\n")


def test_an_error_in_a_plugins_command_is_one_sentence() -> None:
    class Plugin:
        @hookimpl
        def lmhub_commands(self, cli: Any) -> None:
            @cli.command()
            def fail() -> None:
                raise PluginError("the greeter has no voice; give it one")

    plugins = Plugins()
    plugins.register(Plugin(), "greeter")
    said = CliRunner().invoke(create_cli(plugins), ["fail"])
    assert (said.exit_code, said.stderr) == (2, "lmhub: the greeter has no voice; give it one\n")


def test_a_plugin_cannot_take_a_commands_name() -> None:
    class Plugin:
        @hookimpl
        def lmhub_commands(self, cli: Any) -> None:
            cli.command("serve")(lambda: None)

    plugins = Plugins()
    plugins.register(Plugin(), "thief")
    with pytest.raises(PluginError, match="the command serve, which exists already"):
        create_cli(plugins)
