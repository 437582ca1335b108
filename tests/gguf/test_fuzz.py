"""Mutated model files: each opens or ends in one `ModelFileError` sentence, within memory in proportion to the file.

The mutants run in a child process whose address space is limited. `LMHUB_FUZZ=600 pytest tests/gguf/test_fuzz.py` goes
on for that many seconds from a random seed; a failure prints the seed and leaves the mutant where the message says.
Run as a script, this file is the child: `python test_fuzz.py SCRATCH SEED N_MUTANTS SECONDS FILE...`.
"""

from __future__ import annotations

import os
import random
import resource
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from lmhub.errors import ModelFileError
from lmhub.gguf import GGMLType, GGUFWriter, open_gguf

N_MUTANTS = 400
LARGEST = 600_000
"""Golden files above this size only make the mutants slow: what is mutated is the header."""
EXTREMES = (0, 1, 2, 7, 8, 9, 31, 32, 255, 0xFFFF, 1 << 20, 1 << 24, 0x7FFFFFFF, 1 << 31, 0xFFFFFFFF)
WIDE_EXTREMES = (*EXTREMES, 1 << 32, 1 << 40, (1 << 61) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 32, (1 << 64) - 1)


def write_sample(path: Path) -> None:
    """A small file with every kind of metadata, and tensors of several types."""
    with GGUFWriter(path, "toy") as out:
        for kind in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64"):
            out.add("toy." + kind, 1, kind)
            out.add("toy.many." + kind, [1, 2, 3], kind)
        out.add("toy.flags", [True, False])
        out.add("toy.text", "grüße")
        out.add("toy.nested", [[["a"], ["b", "c"]], [["d"]]])
        out.add("tokenizer.ggml.tokens", [f"<{index}>" for index in range(200)])
        for index in range(12):
            out.add_tensor(f"blk.{index}.w", np.ones((4, 32), np.float32), list(GGMLType)[index % 2])
        out.add_tensor("q", np.ones((2, 64), np.float32), GGMLType.Q8_0)


def mutate(data: bytearray, header: int, rng: random.Random) -> None:
    """Change one to four things in place, mostly within the first `header` bytes."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        size = len(data)
        at = rng.randrange(min(header, size) if rng.random() < 0.95 else size)
        length = rng.choice((1, 4, 8, rng.randrange(1, 300)))
        match rng.randrange(8):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at] = rng.randrange(256)
            case 2 | 3:
                data[at : at + 8] = struct.pack("<Q", rng.choice((*WIDE_EXTREMES, size, size - at, size + 1)))
            case 4:
                data[at : at + 4] = struct.pack("<I", rng.choice((*EXTREMES, rng.randrange(48))))
            case 5:
                del data[at : at + length]
            case 6:
                data[at:at] = data[at : at + length] or b"\0"
            case _:
                del data[rng.choice((at, rng.randrange(size))) :]
        if not data:
            return


def check(path: Path) -> bool:
    """Open a mutant and touch all that it offers. True if it opened; only a sound `ModelFileError` is caught."""
    try:
        with open_gguf(path) as file:
            file.facts()
            for tensor in file.tensors.values():
                assert tensor.data.nbytes == tensor.nbytes
                assert tensor.data[0] + tensor.data[-1] >= 0
            _ = file.architecture
        return True
    except ModelFileError as error:
        message = str(error)
        assert message.isprintable(), message
        assert path.name in message, message
        assert len(message) < 600, message
        return False


def address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def child(scratch: str, seed: str, n_mutants: str, seconds: str, *names: str) -> None:
    sources = []
    for name in names:
        with open_gguf(name) as file:
            first = min((tensor._info.offset for tensor in file.tensors.values()), default=file.nbytes)
        sources.append((Path(name).read_bytes(), first))
    path = Path(scratch)
    n_opened = n_done = 0
    deadline = time.monotonic() + float(seconds)
    # The interpreter's own needs, the mapping, and what a list of small objects costs beside the bytes it came from.
    limit = address_space() + (32 << 20) + 40 * LARGEST
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    while n_done < int(n_mutants) or time.monotonic() < deadline:
        rng = random.Random(f"{seed}/{n_done}")
        source, header = sources[n_done % len(sources)]
        data = bytearray(source)
        mutate(data, header, rng)
        path.write_bytes(data)
        try:
            n_opened += check(path)
        except BaseException:
            print(f"seed {seed}, mutant {n_done} of {names[n_done % len(names)]}, kept in {scratch}", file=sys.stderr)
            raise
        n_done += 1
    print(n_done, n_opened)


def run_child(scratch: Path, sources: list[Path]) -> None:
    seconds = os.environ.get("LMHUB_FUZZ", "0")
    seed = str(random.SystemRandom().randrange(1 << 30)) if float(seconds) else "1"
    command = [sys.executable, __file__, str(scratch), seed, str(N_MUTANTS), seconds, *map(str, sources)]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(root)}
    )
    assert done.returncode == 0, done.stderr[-4000:]
    n_done, n_opened = map(int, done.stdout.split())
    print(f"{n_done} mutants, {n_opened} of them opened")
    # A fuzzer whose mutants all open, or all fail at the first byte, tests nothing.
    assert n_done >= N_MUTANTS
    assert 0 < n_opened < n_done


pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits the address space through /proc")


def test_mutants_of_a_small_file(tmp_path: Path) -> None:
    write_sample(tmp_path / "sample.gguf")
    run_child(tmp_path / "mutant.gguf", [tmp_path / "sample.gguf"])


def test_mutants_of_golden_files(shared: Path, tmp_path: Path) -> None:
    paths = [path for path in sorted(shared.glob("zoo/*/*.gguf")) if path.stat().st_size < LARGEST]
    assert paths
    run_child(tmp_path / "mutant.gguf", paths)


if __name__ == "__main__":
    child(*sys.argv[1:])
