"""A mixture that is larger than memory: tokens/s with its experts left to the system, and held to a budget.

    python benchmarks/streaming.py MODEL.gguf --memory 600 --cache 200

Each run is a process of its own in a control group with `--memory` MiB (needs Linux and the right to make one), and
begins with an empty page cache. The floor of decoding is what the disk gives when the file is read from end to end:
over the bytes of the experts that a token goes to, and over the bytes that were read while it decoded.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from lmhub.gguf import open_gguf

MIB = 1 << 20
V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


class Group:
    """A control group with so much memory; it is removed at the end."""

    def __init__(self, mib: int):
        parent, limit = (V1, "memory.limit_in_bytes") if V1.is_dir() else (V2, "memory.max")
        self.path = parent / f"lmhub-{os.getpid()}"
        try:
            self.path.mkdir()
            (self.path / limit).write_text(str(mib * MIB))
        except OSError as error:
            sys.exit(f"a control group with a memory limit cannot be made here ({error.strerror}); run it as root")

    def enter(self) -> None:
        """Put the calling process in."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def peak(self) -> int:
        """The most bytes that it has held, page cache included."""
        names = ("memory.max_usage_in_bytes", "memory.peak")
        return next(int(at.read_text()) for name in names if (at := self.path / name).exists())

    def close(self) -> None:
        self.path.rmdir()


def forget(path: Path) -> None:
    """Drop the file from the page cache."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def disk_rate(path: Path) -> float:
    """Bytes per second of reading up to 1 GiB of the file."""
    forget(path)
    since, n = time.perf_counter(), 0
    with path.open("rb", buffering=0) as file:
        while n < 1 << 30 and (piece := file.read(8 * MIB)):
            n += len(piece)
    return n / (time.perf_counter() - since)


def token_bytes(path: Path) -> int:
    """Bytes of the routed experts that one token goes to."""
    with open_gguf(path) as file:
        banks = [tensor for name, tensor in file.tensors.items() if "_exps." in name]
        n_used = file.metadata[f"{file.architecture}.expert_used_count"]
        assert isinstance(n_used, int)
        return sum(tensor.nbytes // tensor.shape[0] * n_used for tensor in banks)


def disk_bytes() -> int:
    """What this process has had read from disks so far."""
    io = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(io["read_bytes"])


def work(model: Path, cache: int, prompt: int, decode: int) -> dict[str, float]:
    """Load, read a prompt, decode: what that took, in this process."""
    from lmhub.hub import Hub
    from lmhub.model import Chunk
    from lmhub.settings import EngineSettings

    hub = Hub()
    since = time.perf_counter()
    settings = EngineSettings(ctx=prompt + decode + 1, batch=1, kv_slots=1, kv_slots_force=True, spec=False,
                              borrow="experts", expert_cache=cache)  # fmt: skip
    served = hub.load(model, settings)
    loaded = time.perf_counter()

    def steps() -> tuple[float, float, int]:
        state, n_vocab = served.model.model.new_state(settings.ctx), served.model.model.n_vocab
        tokens = [(7919 * i + 13) % n_vocab for i in range(prompt + decode)]
        served.model.model.forward([Chunk(state, tokens[:prompt])])
        read, n_before = time.perf_counter(), disk_bytes()
        for token in tokens[prompt:]:
            served.model.model.forward([Chunk(state, [token])])
        return read, time.perf_counter(), disk_bytes() - n_before

    read, done, decode_bytes = served.engine.call(steps).result()
    shelf = served.model.shelf
    numbers = None if shelf is None else shelf.numbers()
    hub.close()
    return {
        "load_s": loaded - since,
        "prefill": prompt / (read - loaded),
        "decode": decode / (done - read),
        "read": disk_bytes(),
        "decode_read": decode_bytes,
        "hits": numbers.hits / max(numbers.used, 1) if numbers else float("nan"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--memory", type=int, default=600, help="MiB of each run")
    parser.add_argument("--cache", type=int, default=200, help="MiB of --expert-cache")
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--decode", type=int, default=32)
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        print(json.dumps(work(options.model, options.work, options.prompt, options.decode)))
        return
    size = options.model.stat().st_size
    print(f"{options.model.name}: {size / MIB:.0f} MiB, {size / MIB / options.memory:.1f} times the limit")
    rate, nbytes = disk_rate(options.model), token_bytes(options.model)
    print(f"the disk gives {rate / 1e6:.0f} MB/s, and the experts of a token are {nbytes / 1e6:.0f} MB of it: ", end="")
    print(f"{rate / nbytes:.2f} tokens/s if none is in memory")
    print("             load s   prefill/s   decode/s   its floor   GB read   in memory   peak MiB")
    for name, cache in (("borrow", 0), ("stream", options.cache * MIB)):
        group = Group(options.memory)
        try:
            forget(options.model)
            words = [sys.executable, __file__, str(options.model), "--work", str(cache)]
            words += ["--prompt", str(options.prompt), "--decode", str(options.decode)]
            done = subprocess.run(words, preexec_fn=group.enter, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"{name:10} ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
                continue
            row = json.loads(done.stdout.splitlines()[-1])
            floor = rate * options.decode / max(row["decode_read"], 1)
            rates = f"{row['load_s']:8.1f} {row['prefill']:11.1f} {row['decode']:10.2f} {floor:11.2f}"
            print(f"{name:10} {rates} {row['read'] / 1e9:9.1f} {row['hits']:11.0%} {group.peak() / MIB:10.0f}")
        finally:
            group.close()


if __name__ == "__main__":
    main()
