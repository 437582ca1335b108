"""From `lmhub serve` to ready, against reading the file once: with an empty page cache and with a full one.

    python benchmarks/loading.py MODEL.gguf [MODEL.gguf ...] [--rounds 3] [--flags "--threads 2"] [--json]

Cold means that the system was asked to drop the file's pages (`posix_fadvise`; it does not drop what another process
has mapped), before the file is read and again before the server starts. Ready is when /health says so, the import of
everything and the tokenizer included. What was put off until somebody asks would show in the first reply, of one token,
against the second. Memory is the largest resident set until then: the process with its packed
weights, and whatever of the mapped file was in memory at the same time. Linux only.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from clients import LMHUB, free_port
from rich.console import Console
from rich.table import Table

PIECE = 8 << 20
POLL_S = 0.025  # each question costs the server about a millisecond
LIMIT_S = 1800.0


def parts(model: Path) -> list[Path]:
    """The files of a model."""
    from lmhub.gguf import open_gguf

    with open_gguf(model) as file:
        return list(file.paths)


def drop(files: list[Path]) -> None:
    """Ask the system to forget the pages of these files."""
    for path in files:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(files: list[Path]) -> float:
    """Seconds for reading all bytes once, from the first to the last."""
    buffer = bytearray(PIECE)
    begun = time.perf_counter()
    for path in files:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - begun


def serve(model: Path, flags: list[str]) -> dict[str, float]:
    """`ready_s` until a server of that model is ready; CPU seconds and the largest resident set (bytes) until then.

    `first_s` and `second_s` are what two replies of one token took after that.
    """
    port = free_port()
    words = [*LMHUB, "serve", str(model), "--port", str(port), *flags]
    begun = time.perf_counter()
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        while not is_ready(port):
            if process.poll() is not None or time.perf_counter() - begun > LIMIT_S:
                sys.exit(f"the server of {model.name} is not ready; status {process.poll()}")
            time.sleep(POLL_S)
        seconds = time.perf_counter() - begun
        status = Path(f"/proc/{process.pid}/status").read_text()
        [peak] = [int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM")]
        times = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]  # user, system
        cpu_s = sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
        replies = {name: ask(port) for name in ("first_s", "second_s")}
        return {"ready_s": seconds, "cpu_s": cpu_s, "peak": peak, **replies}
    finally:
        process.terminate()
        process.wait()


def is_ready(port: int) -> bool:
    """Whether /health says so."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def ask(port: int) -> float:
    """Seconds until a chat has its reply of one token."""
    chat = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    begun = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(chat), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            sys.exit(f"the server answers {reply.status}: {reply.read(1000).decode(errors='replace')}")
        reply.read()
    finally:
        connection.close()
    return time.perf_counter() - begun


def measure(model: Path, rounds: int, flags: list[str]) -> dict[str, Any]:
    """The medians of some rounds; what each round gave is in `rounds`."""
    files = parts(model)
    size = sum(path.stat().st_size for path in files)
    found: dict[str, Any] = {"model": model.name, "bytes": size}
    for cache in ("cold", "warm"):
        taken = []
        for _ in range(rounds):
            drop(files) if cache == "cold" else read(files)
            read_s = read(files)
            if cache == "cold":
                drop(files)
            ready = serve(model, flags)
            taken.append({"read_s": read_s, "ratio": ready["ready_s"] / read_s, **ready})
        found[cache] = {name: statistics.median(one[name] for one in taken) for name in taken[0]} | {"rounds": taken}
    return found


def show(console: Console, found: dict[str, Any]) -> None:
    """A table for one file."""
    console.print(f"{found['model']}, {found['bytes'] / 1e6:.0f} MB", highlight=False)
    table = Table(box=None, pad_edge=False)
    for title in (
        "",
        "read s",
        "ready s",
        "ready / read",
        "CPU s",
        "peak MB",
        "peak / file",
        "first reply s",
        "second s",
    ):
        table.add_column(title, justify="right" if title else "left")
    for cache in ("cold", "warm"):
        one = found[cache]
        times = (f"{one[name]:.2f}" for name in ("read_s", "ready_s", "ratio", "cpu_s"))
        replies = (f"{one[name]:.3f}" for name in ("first_s", "second_s"))
        table.add_row(cache, *times, f"{one['peak'] / 1e6:.0f}", f"{one['peak'] / found['bytes']:.2f}", *replies)
    console.print(table)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL.gguf")
    parser.add_argument("--rounds", type=int, default=3, help="medians count (default: %(default)s)")
    parser.add_argument("--flags", default="", help="more flags for `lmhub serve`, in one word")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    console = Console(stderr=options.json, width=None if sys.stdout.isatty() else 120)
    found = []
    for model in options.models:
        found.append(measure(model, options.rounds, options.flags.split()))
        show(console, found[-1])
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
