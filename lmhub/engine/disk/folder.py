"""The folder in which sequences are kept: who may write to it, and how a file appears in it whole or not at all.

One process at a time writes; others may read. Everything is reached through one descriptor of the folder, never by
following a link, and only what this user owns and nobody else may write to is opened. Knows no format.
"""

from __future__ import annotations

import fcntl
import io
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lmhub.errors import LmhubError

log = logging.getLogger("lmhub")

_NAME = re.compile(r"kv-([0-9a-f]{12})-[0-9a-f]{32}\.lmkv")
_TEMPORARY = re.compile(r"\.tmp-(\d{1,9})-[0-9a-f]{16}")
_STALE_S = 3600.0  # a temporary file that is as old belongs to nobody, whatever process has its number
_INDEX = "index.json"
_INDEX_MAX = 16 << 20  # bytes


@dataclass(frozen=True, slots=True)
class Listed:
    """A file of the folder. `kind` is what `new_name` was given, `modified_s` in Unix seconds."""

    name: str
    kind: str
    nbytes: int
    modified_s: float


class Folder:
    """An open folder. `writable` once this process has the lock."""

    def __init__(self, path: Path):
        """Make it if need be. Raises LmhubError where it cannot be used at all, one sentence."""
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                path.mkdir(0o700)
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            reason = (error.strerror or "unknown error").lower()
            raise LmhubError(f"{path}: sequences cannot be saved there ({reason}); name another folder.") from None
        info = os.fstat(self._fd)
        if info.st_uid not in (os.geteuid(), 0):
            os.close(self._fd)
            raise LmhubError(f"{path}: this folder for saved sequences belongs to another user; name one of your own.")
        if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            log.warning("%s: other users may write to this folder of saved sequences; chmod 700 keeps them out", path)
        self._lock: int | None = None

    @property
    def writable(self) -> bool:
        """Whether this process may write, evict and remove."""
        return self._lock is not None

    def lock(self) -> bool:
        """Become the one who writes, if nobody else is and the folder can be written to. Does not wait."""
        if self._lock is not None:
            return True
        try:
            fd = os.open(".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=self._fd)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return False
        self._lock = fd
        return True

    def files(self) -> list[Listed]:
        """All files whose names are ours, the one that was modified last first. Links and others' files are not."""
        found = []
        with os.scandir(self._fd) as entries:
            for entry in entries:
                match = _NAME.fullmatch(entry.name)
                if match is None:
                    continue
                with suppress(OSError):
                    info = entry.stat(follow_symlinks=False)
                    if _is_ours(info):
                        found.append(Listed(entry.name, match[1], info.st_size, info.st_mtime))
        return sorted(found, key=lambda one: one.modified_s, reverse=True)

    def sweep(self) -> None:
        """Remove the temporary files that dead processes have left. Only for the one who writes."""
        with os.scandir(self._fd) as entries:
            names = [entry.name for entry in entries if _TEMPORARY.fullmatch(entry.name)]
        for name in names:
            with suppress(OSError):
                age_s = time.time() - os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_mtime
                if age_s > _STALE_S or not _is_alive(int(name.split("-")[1])):
                    os.unlink(name, dir_fd=self._fd)

    @staticmethod
    def new_name(kind: str) -> str:
        """A name that no file has. `kind` is 12 hex digits."""
        return f"kv-{kind}-{secrets.token_hex(16)}.lmkv"

    @contextmanager
    def open(self, name: str) -> Iterator[tuple[io.FileIO, int]]:
        """A file to read, and its size. Raises OSError."""
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._fd)
        with io.FileIO(fd, "rb") as file:
            info = os.fstat(fd)
            if not _is_ours(info):
                raise PermissionError(f"{name} is not a file that only this user may write to")
            yield file, info.st_size

    @contextmanager
    def create(self, name: str, sync: bool = True) -> Iterator[io.FileIO]:
        """A new file that appears under `name`, whole and durable, when the block ends; never if it raises.

        `sync=False` leaves out what makes it durable, for files that may be lost. Raises OSError.
        """
        temporary = f".tmp-{os.getpid()}-{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        try:
            with io.FileIO(os.open(temporary, flags, 0o600, dir_fd=self._fd), "wb") as file:
                yield file
                if sync:
                    os.fsync(file.fileno())
            os.rename(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=self._fd)
            raise
        if sync:
            os.fsync(self._fd)

    def remove(self, name: str) -> None:
        """Raises OSError, but not where the file is gone already."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)

    def read_index(self) -> bytes:
        """What `write_index` wrote last, or nothing: its loss does no harm."""
        with suppress(OSError), self.open(_INDEX) as (file, size):
            if size <= _INDEX_MAX:
                return file.readall()
        return b""

    def write_index(self, data: bytes) -> None:
        """Replace the index as a whole. Raises OSError."""
        with self.create(_INDEX, sync=False) as file:
            file.write(data)

    def close(self) -> None:
        """Let others write. The folder cannot be used any more."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        os.close(self._fd)


def _is_ours(info: os.stat_result) -> bool:
    others = stat.S_IWGRP | stat.S_IWOTH
    return stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid() and not info.st_mode & others


def _is_alive(pid: int) -> bool:
    """Whether another process has this number. This one's files of the past are those of a dead one."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return pid > 0
