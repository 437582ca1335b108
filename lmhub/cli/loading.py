"""Loads models for a command, with a progress bar where there is a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

READ_AHEAD_SHARE = 4  # files of up to this part of what is available are asked for as a whole

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from lmhub.gguf import GGUFFile
    from lmhub.hub import Hub, Served
    from lmhub.settings import EngineSettings

T = TypeVar("T")


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


def begun(call: Callable[[], T]) -> Callable[[], T]:
    """Let `call` run on a thread from now on; the answer waits for its end, and returns or raises what it did.

    The thread holds up nobody's exit, so that a server which cannot start ends at once.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # raised by whoever asks for the result
            future.set_exception(error)

    Thread(target=run, name="lmhub-loader", daemon=True).start()
    return future.result


def load(hub: Hub, models: Sequence[Path | GGUFFile], settings: EngineSettings) -> list[Served]:
    """Load every model in turn, from its path or an open file. On a terminal a bar counts bytes, on stderr.

    Raises LmhubError, with nothing left loaded.
    """
    served = []
    try:
        with _bar() if sys.stderr.isatty() else nullcontext() as bar:
            for model in models:
                served.append(hub.load(model, settings, None if bar is None else _Counter.of(bar, model)))
    except BaseException:
        hub.close()
        raise
    return served


def _bar() -> Progress:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from lmhub.cli.text import console

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, console=console(err=True), transient=True)


@dataclass(frozen=True, slots=True)
class _Counter:
    """The `progress` of one file's load, shown as one task of a bar, which goes when the file is loaded."""

    bar: Progress
    task: TaskID

    @classmethod
    def of(cls, bar: Progress, model: Path | GGUFFile) -> _Counter:
        from lmhub.cli.text import clean

        path = model if isinstance(model, Path) else model.path
        return cls(bar, bar.add_task(f"Loading {clean(path.name, 60)}", total=None))

    def __call__(self, done: int, total: int) -> None:
        self.bar.update(self.task, completed=done, total=total, visible=done < total)
