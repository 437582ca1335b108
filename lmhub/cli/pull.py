"""`lmhub pull ORG/REPO[:QUANT]`: a model from the Hugging Face hub into the cache that its tools share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmhub.errors import LmhubError, quoted

if TYPE_CHECKING:
    from lmhub.remote.pull import Progress


def pull(
    model: Annotated[
        str,
        typer.Argument(
            metavar="ORG/REPO[:QUANT]", help="A repository, and which of its models: bartowski/X-GGUF:Q4_K_M."
        ),
    ],
) -> None:
    """Download a model and print where it is. An interrupted download goes on where it ended."""
    from lmhub.remote.names import reference
    from lmhub.remote.pull import pull as download

    asked = reference(model)
    if asked is None:
        raise LmhubError(f"{quoted(model)} is no model in a repository; name it like ORG/REPO:QUANT")
    with _bar() as progress:
        path = download(asked, progress)
    typer.echo(path)


def located(models: Sequence[Path]) -> list[Path]:
    """The files of `models`; those named like repositories that the cache lacks are downloaded. Raises LmhubError."""
    from lmhub.remote.cache import find, folder
    from lmhub.remote.names import reference

    found = []
    for model in models:
        asked = None if model.exists() else reference(str(model))
        if asked is None:
            found.append(model)
        elif (cached := find(asked, folder())) is not None:
            found.append(cached)
        else:
            from lmhub.remote.pull import pull as download

            with _bar() as progress:
                found.append(download(asked, progress))
    return found


@contextmanager
def _bar() -> Iterator[Progress]:
    """The `progress` of downloads, as one bar a file on stderr; where that is no terminal, as one line a file."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from lmhub.cli.text import clean, console, size

    out = console(err=True)
    text = TextColumn("{task.description}", markup=False)
    columns = (text, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    tasks = {}
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:

        def progress(file: str, done: int, total: int) -> None:
            if file not in tasks:
                if not out.is_terminal:
                    out.print(f"Downloading {clean(file)}, {size(total)}")
                tasks[file] = bar.add_task(f"Downloading {clean(file, 60)}", total=total)
            bar.update(tasks[file], completed=done)

        yield progress
