"""Writes docs/cli.md from the commands' own --help. `make docs` runs it; a test fails while the page differs."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from lmhub.cli import create_cli
from lmhub.plugins import Plugins

PAGE = Path(__file__).parent / "cli.md"
COMMANDS = ("serve", "run", "show", "plugins", "doctor", "bench")
HEAD = """\
# Command line

Written by `make docs` from the commands themselves. A mistake ends with one sentence on stderr and exit status 2. Every
option of `lmhub serve` can also be set through an environment variable, as its help says; flags win.
"""


def page() -> str:
    """The text of docs/cli.md."""
    cli, runner = create_cli(Plugins()), CliRunner(env={"COLUMNS": "110", "TERMINAL_WIDTH": "110", "NO_COLOR": "1"})
    parts = [HEAD]
    for command in COMMANDS:
        text = runner.invoke(cli, [command, "--help"], prog_name="lmhub", terminal_width=110).output
        lines = "\n".join(line.rstrip() for line in text.strip().splitlines())
        parts.append(f"## `lmhub {command}`\n\n```text\n{lines}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
