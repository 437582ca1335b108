"""Seconds of a diffusion model's passes, beside what the machine allows at least.

    python benchmarks/denoising.py MODEL.gguf [--prompt 256] [--canvases 1,2] [--passes 3]

A pass over a canvas is many rows at once, as a prompt is: its floor is the larger of two times, that of its operations
at the measured peak of the arithmetic unit and that of reading every weight once from memory. Tokens per second follow
from the number of passes that a block takes, which random weights cannot tell: the table has both ends, and 16.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from lmhub import native
from lmhub.family import LoadOptions
from lmhub.gguf import GGUFFile, open_gguf
from lmhub.hub import Hub
from lmhub.model import BlockLM, Chunk


def operations(file: GGUFFile, rows: int) -> float:
    """Multiplications and additions of all matrices that a pass over `rows` rows goes through."""
    arch = file.architecture
    of, used = (int(file.metadata.get(f"{arch}.{key}", 0)) for key in ("expert_count", "expert_used_count"))
    share = {name: used / of if "_exps." in name and of else 1.0 for name in file.tensors}
    return sum(2.0 * math.prod(t.shape) * rows * share[name] for name, t in file.tensors.items() if len(t.shape) > 1)


def measured(model: BlockLM, n_prompt: int, n_canvas: int, n_passes: int) -> tuple[float, float]:
    """Seconds of a causal pass over a block, and of a pass over so many canvases behind the prompt; the best of all."""
    rng = np.random.default_rng(0)
    n_ctx = n_prompt + 2 * model.block_size
    states = [model.new_state(n_ctx) for _ in range(n_canvas)]
    for state in states:
        model.encode([Chunk(state, rng.integers(0, model.n_vocab, n_prompt).tolist())])
    block = rng.integers(0, model.n_vocab, model.block_size).tolist()
    encoding, denoising = [], []
    wish = replace(model.denoising, steps=n_passes + 1)
    canvases = [model.canvas(replace(wish, seed=at), 0, {}) for at in range(n_canvas)]
    for _ in range(n_passes):
        begun = time.perf_counter()
        model.denoise(list(zip(states, canvases, strict=True)))
        denoising.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        model.encode([Chunk(states[0], block)])
        encoding.append(time.perf_counter() - begun)
        states[0].truncate(n_prompt)
    return min(encoding), min(denoising)


def main() -> None:
    """Load, measure, print."""
    parser = argparse.ArgumentParser(description="Measure the passes of a diffusion model.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--canvases", default="1")
    parser.add_argument("--passes", type=int, default=3)
    options = parser.parse_args()
    file = open_gguf(options.model)
    model: Any = _loaded(file, options.prompt)
    threads = native.threads()
    peaks = native.peaks(threads)
    unit = peaks.get("int8") or peaks["f32"]
    nbytes = sum(tensor.nbytes for tensor in file.tensors.values())
    read_s = nbytes / (native.memory_bandwidth(threads) * 1e9)
    table = Table(title=f"{options.model.name}, {threads} threads, a prompt of {options.prompt}")
    for head in (
        "canvases",
        "pass, s",
        "floor, s",
        "reached",
        "causal, s",
        "t/s at 48",
        "t/s at 16",
        "t/s at 2 passes",
    ):
        table.add_column(head, justify="right")
    for n in map(int, options.canvases.split(",")):
        causal_s, pass_s = measured(model, options.prompt, n, options.passes)
        floor_s = max(operations(file, n * model.block_size) / (unit.rate * 1e9), read_s)
        rates = (n * model.block_size / (steps * pass_s + n * causal_s) for steps in (48, 16, 2))
        cells = (f"{n}", f"{pass_s:.2f}", f"{floor_s:.2f}", f"{100 * floor_s / pass_s:.0f} %", f"{causal_s:.2f}")
        table.add_row(*cells, *(f"{rate:.2f}" for rate in rates))
    Console().print(table)


def _loaded(file: GGUFFile, n_prompt: int) -> BlockLM:
    from importlib import import_module

    module, _, name = Hub().claim_for(file).family.load.partition(":")
    model: BlockLM = getattr(import_module(module), name)(file, LoadOptions(n_ctx=n_prompt + 1024))
    return model


if __name__ == "__main__":
    main()
