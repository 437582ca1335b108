"""A process that dies while it saves leaves the folder as it was, or with the whole new file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lmhub.engine.disk import DiskTier

CODE = """
import os, sys
from pathlib import Path
import numpy as np
from lmhub.engine.disk import DiskTier, lmkv
from lmhub.kv import KVState

at, n = sys.argv[2], int(sys.argv[3])
left = [n]

def dying(real):
    def call(*args, **named):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), 9)
        return real(*args, **named)
    return call

tokens = np.arange(600, dtype=np.int32)
state = KVState(1, 1, 8, 8, 600)
state.write_rows((np.arange(600 * state.row_nbytes) % 251).astype(np.uint8))
tier = DiskTier(Path(sys.argv[1]), "model", max_bytes=1 << 30, max_files=10)
assert tier.save(state, tokens[:300], 0).result(30)
if at == "write":
    lmkv._write_at = dying(lmkv._write_at)
else:
    setattr(os, at, dying(getattr(os, at)))
assert tier.save(state, tokens, 0).result(30)
os.kill(os.getpid(), 9)
"""

OpenTier = Callable[..., DiskTier]


@pytest.mark.parametrize(
    ("at", "n", "survives"),
    [
        ("write", 0, False),
        ("write", 2, False),
        ("fsync", 0, False),
        ("rename", 0, False),
        ("fsync", 1, True),
        ("unlink", 0, True),
        ("nothing", 0, True),
    ],
)
def test_killed_while_saving(open_tier: OpenTier, folder: Path, at: str, n: int, survives: bool) -> None:
    from lmhub.kv import KVState

    where = at if at != "nothing" else "getppid"
    command = [sys.executable, "-c", CODE, str(folder), where, str(n)]
    died = subprocess.run(command, capture_output=True, text=True, check=False)
    assert died.returncode == -9, died.stderr
    tier = open_tier()
    assert not list(folder.glob(".tmp-*"))
    tokens = np.arange(600, dtype=np.int32)
    found = tier.find(tokens)
    assert found is not None and found.n == (600 if survives else 300)
    state = KVState(1, 1, 8, 8, 600)
    assert tier.load(found, found.n, state).result(30) == found.n
    expected = (np.arange(600 * state.row_nbytes) % 251).astype(np.uint8)
    original = KVState(1, 1, 8, 8, 600)
    original.write_rows(expected)
    assert state.read_rows(0, found.n).tobytes() == original.read_rows(0, found.n).tobytes()
    assert tier.stats().failed == 0
