"""How numbers, names and tables look in the terminal. Knows nothing of models."""

from __future__ import annotations

import re
import sys
from typing import IO, TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table


def size(nbytes: float) -> str:
    """Bytes in decimal units with two or three digits: "1.2 GB", "870 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 999.5:
            return f"{nbytes:.0f} {unit}" if unit == "B" or nbytes >= 9.95 else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"


def count(number: float) -> str:
    """A number of things with three digits: "596 M", "8.19 B", "512"."""
    if number < 1000:
        return f"{number:.0f}"
    for unit in ("k", "M", "B"):
        number /= 1000
        if number < 999.5 or unit == "B":
            break
    return f"{number:.0f} {unit}" if number >= 99.95 else f"{number:.3g} {unit}"


def clean(text: Any, limit: int = 200) -> str:
    """Untrusted text, cut to `limit` characters and without anything that a terminal would obey."""
    text = str(text)
    text = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def console(*, err: bool = False) -> Console:
    """A rich console that takes text as it is: no markup, no guessing at numbers and paths."""
    from rich.console import Console

    stream = sys.stderr if err else sys.stdout
    plain: dict[str, Any] = {"markup": False, "highlight": False, "emoji": False, "soft_wrap": True}
    if stream.isatty():
        return Console(file=stream, **plain)
    # Nobody can widen a file: tables are as wide as they need to be, and no line is padded to the width of the widest.
    return Console(file=cast(IO[str], _Trimmed(stream)), width=1000, **plain)


class _Trimmed:
    """A text stream that drops blanks before line ends."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(re.sub(" +\n", "\n", text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> Table:
    """Columns under titles; those named in `right` are flush right."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in titles:
        made.add_column(title, justify="right" if title in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def facts(rows: Sequence[tuple[str, str]]) -> Table:
    """Names and what is to be said about each, in two columns."""
    from rich.table import Table

    made = Table.grid(padding=(0, 3, 0, 0))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, value)
    return made
