"""The folder: permissions, links, the lock, what crashes leave behind."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lmhub.engine.disk.folder import Folder
from lmhub.errors import LmhubError

NAME = f"kv-{'a' * 12}-{'0' * 32}.lmkv"


@contextmanager
def opened(path: Path) -> Iterator[Folder]:
    folder = Folder(path)
    try:
        yield folder
    finally:
        folder.close()


def put(folder: Folder, name: str, data: bytes = b"text") -> None:
    with folder.create(name) as file:
        file.write(data)


def test_only_the_user_can_read_it(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        with opened(tmp_path / "deep" / "kv") as folder:
            assert folder.lock()
            put(folder, NAME)
            folder.write_index(b"{}")
    finally:
        os.umask(old)
    path = tmp_path / "deep" / "kv"
    assert path.stat().st_mode & 0o777 == 0o700
    assert {p.name: p.stat().st_mode & 0o777 for p in path.iterdir()} == {
        NAME: 0o600,
        ".lock": 0o600,
        "index.json": 0o600,
    }


def test_a_folder_that_exists_keeps_its_permissions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tmp_path.chmod(0o777)
    with opened(tmp_path):
        assert tmp_path.stat().st_mode & 0o777 == 0o777
    assert "chmod 700" in caplog.text


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:
        with pytest.raises(KeyError), folder.create(NAME) as file:
            file.write(b"half")
            assert not (tmp_path / NAME).exists()
            raise KeyError
        assert list(tmp_path.iterdir()) == []
        put(folder, NAME)
        assert [(one.name, one.nbytes, one.kind) for one in folder.files()] == [(NAME, 4, "a" * 12)]


def test_a_file_is_durable_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    fsync, rename = os.fsync, os.rename

    def syncing(fd: int) -> None:
        calls.append("sync folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "sync file")
        fsync(fd)

    def renaming(*args: Any, **named: Any) -> None:
        calls.append("rename")
        rename(*args, **named)

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(os, "rename", renaming)
    with opened(tmp_path) as folder:
        put(folder, NAME)
    assert calls == ["sync file", "rename", "sync folder"]


def test_links_and_others_files_are_not_opened(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    path = tmp_path / "kv"
    with opened(path) as folder:
        (path / NAME).symlink_to(secret)
        loose = NAME.replace("0" * 32, "1" * 32)
        (path / loose).write_bytes(b"anybody may write here")
        (path / loose).chmod(0o666)
        pipe = NAME.replace("0" * 32, "2" * 32)
        os.mkfifo(path / pipe, 0o600)
        (path / "kv-notours.lmkv").write_bytes(b"")
        assert folder.files() == []
        for name in (NAME, loose, pipe):
            with pytest.raises(OSError), folder.open(name):
                pass
        (path / "index.json").symlink_to(secret)
        assert folder.read_index() == b""
        folder.write_index(b"new")
        assert secret.read_bytes() == b"secret"
        assert folder.read_index() == b"new"
        folder.remove(NAME)
        assert secret.exists()


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    path.mkdir()
    (path / ".lock").symlink_to(tmp_path / "elsewhere")
    with opened(path) as folder:
        assert not folder.lock()
    assert not (tmp_path / "elsewhere").exists()


def test_one_writes_at_a_time(tmp_path: Path) -> None:
    with opened(tmp_path) as second:
        with opened(tmp_path) as first:
            assert first.lock() and first.lock() and first.writable
            assert not second.lock() and not second.writable
        assert second.lock()


def test_another_process_has_the_lock(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from lmhub.engine.disk.folder import Folder
folder = Folder(Path(sys.argv[1]))
print(folder.lock(), flush=True)
sys.stdin.read()
"""
    with opened(tmp_path) as folder:
        command = [sys.executable, "-c", code, str(tmp_path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "True\n"
            assert not folder.lock()
            other.kill()
            other.wait()
        assert folder.lock()


def test_what_dead_processes_left_is_swept(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        dead.wait()
    kept, swept = [f".tmp-{os.getppid()}-{'1' * 16}", ".tmp-notours", "mine.txt"], []
    swept = [f".tmp-{dead.pid}-{'2' * 16}", f".tmp-{os.getpid()}-{'3' * 16}", f".tmp-{os.getppid()}-{'4' * 16}"]
    for name in (*kept, *swept):
        (tmp_path / name).write_bytes(b"")
    os.utime(tmp_path / swept[2], (1, 1))
    with opened(tmp_path) as folder:
        folder.sweep()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


def test_a_folder_that_cannot_be_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file" / "kv"):
        with pytest.raises(LmhubError, match="name another folder") as caught:
            Folder(path)
        assert str(path) in str(caught.value)


def test_a_folder_that_cannot_be_written_to_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as folder:
        put(folder, NAME)
    real = os.open

    def read_only(path: Any, flags: int, *args: Any, **named: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, "Read-only file system")
        return real(path, flags, *args, **named)

    monkeypatch.setattr(os, "open", read_only)
    with opened(tmp_path) as folder:
        assert not folder.lock()
        with folder.open(NAME) as (file, size):
            assert file.readall() == b"text" and size == 4
        with pytest.raises(OSError):
            put(folder, NAME)
