"""Weights to go on from: those of a model file that this training once made, brought into a new vocabulary.

When the documentation or the training text has changed, a part of the steps is enough. An entry that the old vocabulary
had keeps its embedding; a new one begins with the mean of its pieces there.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import decoders
from torch import Tensor

from lmhub.gguf import GGUFFile, open_gguf
from lmhub.gguf.quant import dequantize
from lmhub.tokenize import load_tokenizer
from network import Shape
from vocabulary import SPECIALS, Vocabulary


def carried(path: Path, shape: Shape, vocabulary: Vocabulary) -> dict[str, Tensor]:
    """The network's state out of a GGUF file that `export.py` wrote, for the entries of `vocabulary`."""
    with open_gguf(path) as file:

        def of(*names: str) -> Tensor:
            return torch.from_numpy(np.concatenate([dequantize(file.tensor(f"{name}.weight")) for name in names]))

        state = {"embed": torch.from_numpy(_embeddings(file, of("token_embd").numpy(), vocabulary))}
        state["norm"] = of("output_norm")
        for layer in range(shape.n_layer):
            ours, theirs = f"blocks.{layer}.", f"blk.{layer}."
            for stem in ("attn_norm", "ffn_norm"):
                state[f"{ours}{stem}"] = of(f"{theirs}{stem}")
            for stem in "qk":
                state[f"{ours}{stem}_norm"] = of(f"{theirs}attn_{stem}_norm")
            state[f"{ours}qkv"] = of(*(f"{theirs}attn_{stem}" for stem in "qkv"))
            state[f"{ours}out"] = of(f"{theirs}attn_output")
            state[f"{ours}gate_up"] = of(f"{theirs}ffn_gate", f"{theirs}ffn_up")
            state[f"{ours}down"] = of(f"{theirs}ffn_down")
        return state


def _embeddings(file: GGUFFile, old: NDArray[np.float32], vocabulary: Vocabulary) -> NDArray[np.float32]:
    tokenizer, known = load_tokenizer(file.metadata), file.metadata["tokenizer.ggml.tokens"]
    at = {text: row for row, text in enumerate(known)}
    size = float(np.median(np.linalg.norm(old, axis=1)))
    bytes_of = decoders.ByteLevel()
    rows = []
    for token in vocabulary.tokens:
        if token in at:
            rows.append(old[at[token]])
            continue
        assert token not in SPECIALS
        mean = old[list(tokenizer.encode(bytes_of.decode([token])))].mean(0)
        rows.append(mean * size / float(np.linalg.norm(mean)))  # a mean of vectors is shorter than they are
    return np.stack(rows).astype(np.float32)
