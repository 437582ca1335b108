"""Loads models for a command, with a progress bar where there is a terminal."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

READ_AHEAD_SHARE = 4  # files of up to this part of what is available are asked for as a whole

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from lmhub.gguf import GGUFFile
    from lmhub.hub import Hub, Served
    from lmhub.settings import EngineSettings


def ask_for(paths: Sequence[Path]) -> None:
    """Ask the system for whole files, on a thread, while everything is imported that reads them. Fails silently.

    The request itself waits for a busy disk, and lets other threads run meanwhile. What is in the page cache already is
    left as it is, and so are files that might not find room beside what they will become.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    from lmhub.gguf.reader import ASKED
    from lmhub.machine import memory

    room = memory().available // READ_AHEAD_SHARE

    def ask() -> None:
        for path in paths:
            with suppress(OSError, ValueError):
                fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                try:
                    nbytes = os.fstat(fd).st_size
                    for start in range(0, nbytes if nbytes <= room else 0, ASKED):
                        os.posix_fadvise(fd, start, ASKED, os.POSIX_FADV_WILLNEED)
                finally:
                    os.close(fd)

    Thread(target=ask, name="lmhub-read-ahead", daemon=True).start()


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
