"""Loads models for a command, with a progress bar where there is a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from lmhub.gguf import GGUFFile
    from lmhub.hub import Hub, Served
    from lmhub.settings import EngineSettings


def load(hub: Hub, models: Sequence[Path | GGUFFile], settings: EngineSettings) -> list[Served]:
    """Load every model in turn, from its path or an open file. The bar counts bytes and goes to stderr.

    Raises LmhubError, with nothing left loaded.
    """
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from lmhub.cli.text import clean, console

    out = console(err=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    served = []
    try:
        with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:
            for model in models:
                path = model if isinstance(model, Path) else model.path
                task = bar.add_task(f"Loading {clean(path.name, 60)}", total=None)
                served.append(hub.load(model, settings, _Counter(bar, task)))
                bar.remove_task(task)
    except BaseException:
        hub.close()
        raise
    return served


@dataclass(frozen=True, slots=True)
class _Counter:
    """The `progress` of one file's load, shown as one task of a bar."""

    bar: Progress
    task: TaskID

    def __call__(self, done: int, total: int) -> None:
        self.bar.update(self.task, completed=done, total=total)
