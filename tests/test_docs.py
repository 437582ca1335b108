"""What the documentation shows is what happens: its code runs, its commands exist, its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "plugins").glob("*/README.md")])
BY_THEMSELVES = [page for page in PAGES if page.name != "tutorial.md"]  # its blocks build on each other: test_tutorial


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """(line, code) of every fenced block of a language."""
    text = page.read_text()
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)
    return [(text.count("\n", 0, match.start()) + 2, match[1]) for match in found]


PYTHON = [(page, line, code) for page in BY_THEMSELVES for line, code in blocks(page, "python")]
NEEDS_SERVER = "localhost:8080"


@pytest.mark.parametrize(("page", "line", "code"), PYTHON, ids=[f"{p.relative_to(ROOT)}:{n}" for p, n, _ in PYTHON])
def test_python_blocks_run(
    page: Path, line: int, code: str, model_dir: Path, monkeypatch: pytest.MonkeyPatch, request: Any
) -> None:
    if NEEDS_SERVER in code:
        code = code.replace(NEEDS_SERVER, request.getfixturevalue("live_server"))
    monkeypatch.chdir(model_dir)
    exec(compile("\n" * (line - 1) + code, str(page), "exec"), {"__name__": "__main__"})


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.M))
    used = {word for page in PAGES for word in re.findall(r"(?:^|`)make ([a-z0-9-]+)", page.read_text(), re.M)}
    assert {"serve", "test"} <= used <= targets


def test_shown_commands_run(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from lmhub.cli import app

    monkeypatch.chdir(model_dir)
    shown = [line for page in BY_THEMSELVES for _, code in blocks(page, "bash") for line in code.splitlines()]
    commands = [line.split("#")[0].split() for line in shown if line.startswith("lmhub ")]
    assert commands
    for words in commands:
        arguments = [word.strip("'\"") for word in words[1:]]
        if arguments[0] == "serve":
            arguments = ["serve", "--help"]  # the server itself is what `live_server` starts
        if any(word.startswith("ORG/REPO") for word in arguments):
            arguments = [arguments[0], "--help"]  # no test has a network; tests/remote has a hub of its own
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, f"{words}: {result.output}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_the_command_line_page_names_every_option_and_no_other() -> None:
    import typer.main

    from lmhub.cli import create_cli
    from lmhub.plugins import Plugins

    page = (ROOT / "docs" / "cli.md").read_text()
    group = typer.main.get_command(create_cli(Plugins()))
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        section = page.partition(f"## `lmhub {name}`")[2].partition("\n## ")[0]
        known = {one for option in command.params for one in (*option.opts, *option.secondary_opts) if one[:2] == "--"}
        shown = set(re.findall(r"--[a-z][a-z-]+", section)) - {"--help"}
        assert shown == known, f"`make docs` has not been run since `lmhub {name}` changed"
