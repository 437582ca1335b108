"""The same file through llama.cpp and through this project, in alternation, and the ratios of their speeds.

    python benchmarks/peer.py --peer PYTHON MODEL.gguf [MODEL.gguf ...] [--prefill 512,4096] [--depth 0,1024] [--json]

PYTHON is an interpreter that has llama-cpp-python. Each engine is a process of its own (`peer_worker.py`) that keeps
its model, with the same number of threads; while one works, the other waits for its next line and takes no CPU. Every
round measures both, one right after the other and in turns first, so that a ratio compares the same moment of the
machine; the median of the rounds counts, and its spread is shown. Above 1, lmhub is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

WORKER = Path(__file__).parent / "peer_worker.py"
SPARE = 8  # positions that a worker's warm-up takes


class Engine:
    """A worker process."""

    def __init__(self, python: str, name: str, model: Path, flags: Sequence[str], **env: str) -> None:
        words = [python, str(WORKER), name, str(model), *flags]
        self.name = name
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **env}
        )
        self.facts = self._answer()

    def seconds(self, task: str) -> float:
        """Do a task."""
        assert self.process.stdin is not None
        self.process.stdin.write(task + "\n")
        self.process.stdin.flush()
        return float(self._answer()["seconds"])

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} ended with status {self.process.wait()}; its message is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self) -> None:
        """End it: it works until its stdin ends."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compare(model: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All figures of one file."""
    prefill, depths = numbers(options.prefill), numbers(options.depth)
    ctx = max([*prefill, *(depth + options.decode for depth in depths), 64]) + SPARE
    flags = ["--threads", str(options.threads), "--ctx", str(ctx)]
    ours_env = {"LMK_ISA": options.isa} if options.isa else {}
    engines = [Engine(sys.executable, "lmhub", model, flags, **ours_env)]
    try:
        engines.append(Engine(options.peer, "llama.cpp", model, flags + ["--plain"] * options.plain))
        tasks = {f"prefill {n}": (f"prefill {n}", n) for n in prefill}
        tasks |= {f"decode at {n}": (f"decode {n} {options.decode}", options.decode) for n in depths}
        figures = {name: figure(name, engines, task, tokens, options.rounds) for name, (task, tokens) in tasks.items()}
        return {"model": model.name, "engines": {one.name: one.facts for one in engines}, "figures": figures}
    finally:
        for engine in engines:
            engine.stop()


def figure(name: str, engines: Sequence[Engine], task: str, tokens: int, rounds: int) -> dict[str, Any]:
    """Tokens per second of both in every round, and the ratios."""
    seconds: dict[str, list[float]] = {engine.name: [] for engine in engines}
    for number in range(rounds):
        for engine in engines if number % 2 == 0 else engines[::-1]:
            seconds[engine.name].append(engine.seconds(task))
    rates = {name: [tokens / one for one in taken] for name, taken in seconds.items()}
    ours, theirs = rates.values()
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    print(f"{name}: " + ", ".join(f"{ratio:.2f}" for ratio in ratios), file=sys.stderr, flush=True)
    return {"tokens_per_s": rates, "ratios": ratios, "ratio": statistics.median(ratios)}


def numbers(text: str) -> list[int]:
    """The numbers in a list with commas."""
    return [int(word) for word in text.split(",") if word]


def show(console: Console, found: dict[str, Any]) -> None:
    """A table for one file."""
    console.print(found["model"], style="bold")
    for engine in found["engines"].values():
        console.print(engine["about"], highlight=False)
    table = Table(box=None, pad_edge=False)
    for title in ("", *(f"{name} tokens/s" for name in found["engines"]), "ratio", "spread"):
        table.add_column(title, justify="right" if title else "left")
    for name, one in found["figures"].items():
        rates = (f"{statistics.median(rates):.1f}" for rates in one["tokens_per_s"].values())
        spread = f"{min(one['ratios']):.2f} to {max(one['ratios']):.2f}"
        table.add_row(name, *rates, f"{one['ratio']:.2f}", spread)
    console.print(table)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL.gguf")
    parser.add_argument("--peer", required=True, metavar="PYTHON", help="an interpreter that has llama-cpp-python")
    parser.add_argument("--prefill", default="512,4096", help="tokens of prompts (default: %(default)s)")
    parser.add_argument("--depth", default="0,1024", help="positions before decoded tokens (default: %(default)s)")
    parser.add_argument("--decode", type=int, default=32, help="tokens decoded in a round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--isa", default="", help="the instruction-set level of lmhub: LMK_ISA")
    parser.add_argument("--plain", action="store_true", help="llama.cpp without AMX and repacked weights")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    console = Console(stderr=options.json, width=None if sys.stdout.isatty() else 160)
    found = []
    for model in options.models:
        found.append(compare(model, options))
        show(console, found[-1])
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
