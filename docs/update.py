"""Writes docs/cli.md from the commands' own --help, and the tables of docs/dialects.md from the parsers' own.

`make docs` runs it; tests fail while the pages differ.
"""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from lmhub.cli import create_cli
from lmhub.plugins import Plugins
from lmhub.server.builtin import Builtin
from lmhub.server.fields import markdown
from lmhub.settings import ServerSettings

PAGE = Path(__file__).parent / "cli.md"
DIALECTS = Path(__file__).parent / "dialects.md"
COMMANDS = ("serve", "plan", "run", "pull", "show", "plugins", "doctor", "bench", "new-family")
HEAD = """\
# Command line

Written by `make docs` from the commands themselves. A mistake ends with one sentence on stderr and exit status 2. Every
option of `lmhub serve` can also be set through an environment variable, as its help says; flags win.
"""
NOTES = {
    "run": """\
With a prompt, or with something piped into it, it prints the answer and nothing else. Without, it is a chat. Enter
sends; Alt+Enter or Ctrl-J begins a new line, and pasted text keeps its lines; up and down go through what was said
before, also in earlier sessions (`run-history` in `$XDG_CACHE_HOME/lmhub`, else `~/.cache/lmhub`). Ctrl-C stops an
answer and keeps what came of it; twice at the empty prompt, or Ctrl-D, leaves. Reasoning is dimmed. Behind every answer
stand its tokens, its speed, and what of its prompt was cached.

| command | does |
|---|---|
| `/help` | lists the commands |
| `/clear` | forgets the conversation |
| `/system TEXT` | sets the system message; without a text there is none |
| `/think on`, `/think off` | whether the model reasons before it answers |
| `/set NAME VALUE` | temperature, top_p, seed, max_tokens and more; `default` resets one; alone shows all |
| `/retry` | answers the last message again |
| `/save FILE` | writes the conversation, as Markdown or (`.json`) as messages |
| `/exit` | leaves |
""",
}


def page() -> str:
    """The text of docs/cli.md."""
    cli, runner = create_cli(Plugins()), CliRunner(env={"COLUMNS": "110", "TERMINAL_WIDTH": "110", "NO_COLOR": "1"})
    parts = [HEAD]
    for command in COMMANDS:
        text = runner.invoke(cli, [command, "--help"], prog_name="lmhub", terminal_width=110).output
        lines = "\n".join(line.rstrip() for line in text.strip().splitlines())
        parts.append(f"## `lmhub {command}`\n\n```text\n{lines}\n```\n")
        parts += [NOTES[command]] if command in NOTES else []
    return "\n".join(parts)


def dialects_page() -> str:
    """The text of docs/dialects.md with the tables of every dialect as they should be."""
    text = DIALECTS.read_text()
    for dialect in Builtin(ServerSettings()).lmhub_dialects():
        marks = f"<!-- fields of {dialect.name} -->\n", f"<!-- end of {dialect.name} -->"
        head, found, rest = text.partition(marks[0])
        assert found and marks[1] in rest, f"docs/dialects.md has no table for {dialect.name}"
        text = head + marks[0] + markdown(dialect.fields) + marks[1] + rest.partition(marks[1])[2]
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
    DIALECTS.write_text(dialects_page())
