"""What the documentation says, as records: commands, options, plugins, hooks, code blocks. Nothing is typed in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
_ENTRY = re.compile(r"^  (-[^ ].*?)(?:  +|\n {10,})(.*(?:\n {10,}.*)*)", re.M)
_NOTE = re.compile(r"\s*\[([^\[\]]*)\]\s*$")


@dataclass(frozen=True, slots=True)
class Option:
    """A flag of a command: `--port`, its help, default and environment variable ("" where there is none).

    `off` is the flag that takes it back: `--no-ui`.
    """

    command: str
    flag: str
    help: str
    default: str
    variable: str
    off: str = ""


@cache
def page(name: str) -> str:
    """The text of a page, by its path in the repository."""
    return (ROOT / name).read_text()


@cache
def commands() -> dict[str, str]:
    """Command -> what it does, from docs/cli.md."""
    return {
        found[1]: " ".join(found[2].split())
        for found in re.finditer(r"## `lmhub ([\w-]+)`\n\n```text\nUsage: .*\n\n  (.+(?:\n  .+)*)", page("docs/cli.md"))
    }


@cache
def options() -> tuple[Option, ...]:
    """Every option of `lmhub serve`, and those of the other commands that serve does not have."""
    found: dict[str, Option] = {}
    for command in commands():
        section = page("docs/cli.md").partition(f"## `lmhub {command}`\n")[2].partition("\n## ")[0]
        for entry in _ENTRY.finditer(section):
            flags = re.findall(r"--[a-z][a-z-]+", entry[1])
            text = " ".join(entry[2].split())
            note = _NOTE.search(text)
            facts = note[1] if note else ""
            default = re.search(r"default: ([^;]+)", facts)
            variable = re.search(r"env var: +(\w+)", facts)
            if flags and flags[0] not in found and flags[0] != "--help":
                off = flags[1] if flags[1:] and flags[1].startswith("--no-") else ""
                found[flags[0]] = Option(
                    command, flags[0], _NOTE.sub("", text), *(one[1] if one else "" for one in (default, variable)), off
                )
    return tuple(found.values())


@cache
def plugins() -> dict[str, tuple[tuple[str, ...], str]]:
    """Plugin -> (the architectures that it serves, what these are), from the README's table."""
    rows = re.findall(r"^\| \[(lmhub-[\w-]+)\]\([^)]*\) \| (.+?) \| (.+?) \|$", page("README.md"), re.M)
    return {name: (tuple(re.findall(r"`([\w-]+)`", archs)), about) for name, archs, about in rows}


@cache
def hooks() -> dict[str, tuple[str, str, str]]:
    """Hook -> (its arguments, the kind and when it is called, what it is for), from docs/hooks.md."""
    text = page("docs/hooks.md")
    when = {
        name: f"a {kind} hook, called {call}"
        for name, kind, call in re.findall(r"\| `(\w+)` \| ([\w ]+) \| (.+) \|", text)
    }
    about = re.findall(r"## `(lmhub_\w+)\(([^)]*)\)`\n\n(.+(?:\n.+)*)", text)
    return {
        name: (arguments, when[name], re.split(r"(?<=\.) ", " ".join(first.split()).replace("`", ""))[0])
        for name, arguments, first in about
    }


@cache
def block(name: str, heading: str) -> str:
    """The first code block under a heading of a page."""
    section = page(name).partition(f"## {heading}\n")[2]
    found = re.search(r"```\w*\n(.*?)```", section, re.S)
    assert found, f"{name} has no code under {heading}"
    return found[1].strip()


def prose() -> list[str]:
    """Paragraphs of the repository's pages: unrelated text for long system prompts."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    pieces = [piece for one in pages for piece in one.read_text().split("\n\n")]
    pieces += (ROOT / "benchmarks" / "text" / "alice.txt").read_text()[:60_000].split("\n\n")
    return [piece.strip() for piece in pieces if 40 < len(piece) < 700]
