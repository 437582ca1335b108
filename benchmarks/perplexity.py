"""Perplexity of a model on a fixed public-domain text, by lmhub and, where it is installed, by llama.cpp.

Usage: python benchmarks/perplexity.py MODEL.gguf [--window 1024] [--kv-dtype f16] [--json]

The text is cut into windows of token ids; each window is read from an empty context, and every token but the first is
scored. Both engines get the same ids. llama.cpp is used when `llama_cpp` (the package llama-cpp-python) can be
imported.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.progress import track

import lmhub

TEXT = Path(__file__).parent / "text" / "alice.txt"


def negative_log_likelihood(logits: np.ndarray, ids: list[int]) -> float:
    """Sum over i >= 1 of -log p(ids[i] | ids[:i]); logits is float32 (len(ids), n_vocab)."""
    rows = logits[:-1].astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    picked = rows[np.arange(len(ids) - 1), ids[1:]]
    return float((np.log(np.exp(rows).sum(axis=1)) - picked).sum())


def by_lmhub(model: lmhub.Model, windows: list[list[int]]) -> Iterator[float]:
    """One figure per window."""
    for ids in windows:
        yield negative_log_likelihood(model.logits(ids), ids)


def by_llama_cpp(path: str, windows: list[list[int]]) -> Iterator[float]:
    """The same figures by the peer, with its defaults (f16 cache)."""
    import llama_cpp

    size = max(map(len, windows))
    peer = llama_cpp.Llama(path, n_ctx=size, n_batch=size, logits_all=True, verbose=False)
    for ids in windows:
        peer.reset()
        peer.eval(ids)
        yield negative_log_likelihood(np.asarray(peer.scores[: len(ids)]), ids)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--kv-dtype", default="f16")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    with lmhub.open(options.model, ctx=options.window, kv_dtype=options.kv_dtype) as model:
        ids = model.tokenize(TEXT.read_text())
        windows = [ids[i : i + options.window] for i in range(0, len(ids) - 1, options.window)]
        scored = len(ids) - len(windows)
        sums = {"lmhub": sum(track(by_lmhub(model, windows), "lmhub", len(windows), disable=options.json))}
    if importlib.util.find_spec("llama_cpp"):
        peer = track(by_llama_cpp(options.model, windows), "llama.cpp", len(windows), disable=options.json)
        sums["llama.cpp"] = sum(peer)

    result = {name: float(np.exp(total / scored)) for name, total in sums.items()}
    if options.json:
        print(json.dumps({"tokens": scored, "perplexity": result}))
        return
    for name, value in result.items():
        print(f"{name:10} perplexity {value:.4f} over {scored} tokens of {TEXT.name}")
    if len(result) == 2:
        print(f"lmhub / llama.cpp = {result['lmhub'] / result['llama.cpp']:.5f}")


if __name__ == "__main__":
    main()
