"""Files are asked for before anything is imported that reads them; whatever is wrong with one is told of later."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from lmhub.cli import loading
from lmhub.gguf.reader import ASKED


def asked(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(start, length) of every request."""
    pieces: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, start, length, advice: pieces.append((start, length)))
    before = set(threading.enumerate())
    loading.ask_for(paths)
    for thread in set(threading.enumerate()) - before:
        thread.join()
    return pieces


def test_a_whole_file_in_small_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.gguf").write_bytes(bytes(1_000_000))
    pieces = asked([tmp_path / "missing.gguf", tmp_path, Path("a name\0"), tmp_path / "m.gguf"], monkeypatch)
    expected = [(start, ASKED) for start in range(0, 1_000_000, ASKED)]
    assert pieces[-len(expected) :] == expected
    assert ASKED <= 128 << 10


def test_not_what_memory_has_no_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.gguf").write_bytes(bytes(1_000_000))
    monkeypatch.setattr(loading, "READ_AHEAD_SHARE", 1 << 60)
    assert asked([tmp_path / "m.gguf"], monkeypatch) == []
