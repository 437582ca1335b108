"""Writes full-size Qwen3 files with random weights, to measure speed and memory without a download.

    python benchmarks/models.py --geometry qwen3-0.6b --type q8_0 OUT.gguf

The sizes and the size of the vocabulary are those of the public models; the weights are noise, scaled so that
activations stay of order one, and so is the text that comes out. One tensor is in memory at a time. Knows no kernel.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmhub.gguf import GGMLType, GGUFWriter

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes of a dense Qwen3 with tied embeddings. `n_ff` is the width of the feed-forward part."""

    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_kv: int
    head_dim: int
    n_vocab: int
    n_ctx: int = 40960


GEOMETRIES = {
    "qwen3-0.6b": Geometry(28, 1024, 3072, 16, 8, 128, 151936),
    "qwen3-1.7b": Geometry(28, 2048, 6144, 16, 8, 128, 151936),
    "small": Geometry(6, 384, 1024, 6, 2, 64, 8192),
}
TYPES = {kind.name.lower(): kind for kind in (GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0)}

# The control tokens of the public files, in their order; True marks those that a reply may show (user-defined).
SPECIALS = [
    ("<|endoftext|>", False), ("<|im_start|>", False), ("<|im_end|>", False), ("<|object_ref_start|>", False),
    ("<|object_ref_end|>", False), ("<|box_start|>", False), ("<|box_end|>", False), ("<|quad_start|>", False),
    ("<|quad_end|>", False), ("<|vision_start|>", False), ("<|vision_end|>", False), ("<|vision_pad|>", False),
    ("<|image_pad|>", False), ("<|video_pad|>", False), ("<tool_call>", True), ("</tool_call>", True),
    ("<|fim_prefix|>", False), ("<|fim_middle|>", False), ("<|fim_suffix|>", False), ("<|fim_pad|>", False),
    ("<|repo_name|>", False), ("<|file_sep|>", False), ("<tool_response>", True), ("</tool_response>", True),
    ("<think>", True), ("</think>", True),
]  # fmt: skip
N_FILLERS = 267  # rows of the public vocabulary that no token uses

TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""


# --- vocabulary ------------------------------------------------------------------------------------------------------


def byte_alphabet() -> list[str]:
    """The 256 printable stand-ins of byte-level BPE, by byte: printable Latin-1 for itself, the rest from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(0x100 + hidden.index(byte)) for byte in range(256)]


def merges_of_words(count: int) -> list[tuple[str, str]]:
    """`count` BPE merges that build pronounceable syllables, words of them, and the same behind a space."""
    syllables = [onset + vowel for onset, vowel in product("tnsrhldcmfpgwybvk", "eaoiu")]
    merges = [(text[0], text[1]) for text in syllables]
    merges += [("\u0120", text) for text in syllables]
    merges += list(product(syllables, syllables))
    merges += [("\u0120" + first, second) for first, second in product(syllables, syllables)]
    pairs = [first + second for first, second in product(syllables, syllables)]
    for pair, syllable in product(pairs, syllables):
        if len(merges) >= count:
            break
        merges.append((pair, syllable))
    if len(merges) < count:
        raise ValueError(f"only {len(merges)} merges can be made, {count} are needed")
    return merges[:count]


def add_vocabulary(out: GGUFWriter, n_vocab: int) -> None:
    """Metadata of a byte-level BPE vocabulary of `n_vocab` tokens with ChatML specials and a chat template."""
    # Half of the rest for small vocabularies: there must be room for ordinary tokens.
    n_fillers = min(N_FILLERS, n_vocab // 16)
    merges = merges_of_words(n_vocab - 256 - len(SPECIALS) - n_fillers)
    tokens = byte_alphabet() + [left + right for left, right in merges]
    first = len(tokens)
    tokens += [text for text, _ in SPECIALS]
    fillers = range(len(tokens), n_vocab)
    tokens += [f"[PAD{token}]" for token in fillers]
    types = [1] * first + [4 if shown else 3 for _, shown in SPECIALS] + [5] * len(fillers)
    out.add("tokenizer.ggml.model", "gpt2")
    out.add("tokenizer.ggml.pre", "qwen2")
    out.add("tokenizer.ggml.tokens", tokens)
    out.add("tokenizer.ggml.token_type", types, "int32")
    out.add("tokenizer.ggml.merges", [f"{left} {right}" for left, right in merges])
    out.add("tokenizer.ggml.bos_token_id", first)
    out.add("tokenizer.ggml.padding_token_id", first)
    out.add("tokenizer.ggml.eos_token_id", first + 2)
    out.add("tokenizer.ggml.add_bos_token", False)
    out.add("tokenizer.chat_template", TEMPLATE)


# --- weights ---------------------------------------------------------------------------------------------------------


def noise(rng: np.random.Generator, kind: GGMLType, shape: tuple[int, int], std: float) -> Bytes:
    """The bytes of a random matrix of `shape` (rows, cols) with standard deviation `std`, stored as `kind`."""
    n_blocks = math.prod(shape) // kind.block_elements
    if kind is GGMLType.Q8_0:
        blocks = rng.integers(0, 256, (n_blocks, kind.block_bytes), np.uint8)
        quants = blocks[:, 2:].view(np.int8)
        np.maximum(quants, -127, out=quants)  # what quantisers write: -127..127, uniform here, so std = 127 / sqrt(3)
        blocks[:, :2] = np.frombuffer(np.float16(std * math.sqrt(3) / 127).tobytes(), np.uint8)
        return blocks.reshape(-1)
    # Drawing from a table of normal numbers is ten times faster than drawing the numbers.
    table = (rng.standard_normal(1 << 16) * std).astype(np.float32)
    stored: NDArray[np.generic] = table
    if kind is GGMLType.F16:
        stored = table.astype(np.float16)
    elif kind is GGMLType.BF16:
        stored = (table.view(np.uint32) >> 16).astype(np.uint16)
    return stored[rng.integers(0, 1 << 16, n_blocks, np.uint16)].view(np.uint8)


def matrices(geometry: Geometry) -> Iterator[tuple[str, tuple[int, int], float]]:
    """(name, (rows, cols), std) of every matrix. 1 / sqrt(cols) keeps the variance; writes to the residual get half."""
    g = geometry
    # Tied to the output: rows of norm 3 give logits with a standard deviation of 3, as trained models have.
    yield "token_embd.weight", (g.n_vocab, g.n_embd), 3 / math.sqrt(g.n_embd)
    for layer in range(g.n_layer):
        for stem, rows, cols, gain in [
            ("attn_q", g.n_head * g.head_dim, g.n_embd, 1.0),
            ("attn_k", g.n_kv * g.head_dim, g.n_embd, 1.0),
            ("attn_v", g.n_kv * g.head_dim, g.n_embd, 1.0),
            ("attn_output", g.n_embd, g.n_head * g.head_dim, 0.5),
            ("ffn_gate", g.n_ff, g.n_embd, 1.0),
            ("ffn_up", g.n_ff, g.n_embd, 1.0),
            ("ffn_down", g.n_embd, g.n_ff, 0.5),
        ]:
            yield f"blk.{layer}.{stem}.weight", (rows, cols), gain / math.sqrt(cols)


def vectors(geometry: Geometry) -> Iterator[tuple[str, int]]:
    """(name, size) of every norm."""
    yield "output_norm.weight", geometry.n_embd
    for layer in range(geometry.n_layer):
        yield f"blk.{layer}.attn_norm.weight", geometry.n_embd
        yield f"blk.{layer}.ffn_norm.weight", geometry.n_embd
        yield f"blk.{layer}.attn_q_norm.weight", geometry.head_dim
        yield f"blk.{layer}.attn_k_norm.weight", geometry.head_dim


def write_model(
    path: Path, geometry: Geometry, kind: GGMLType, *, seed: int = 0, progress: Callable[[int, int], None] | None = None
) -> None:
    """Write a random model of `geometry` with matrices of type `kind`. `progress(done_bytes, total_bytes)`."""
    rng = np.random.default_rng(seed)
    total = sum(kind.row_bytes(math.prod(shape)) for _, shape, _ in matrices(geometry))
    done = 0

    def source(shape: tuple[int, int], std: float) -> Callable[[], Bytes]:
        def make() -> Bytes:
            nonlocal done
            made = noise(rng, kind, shape, std)
            done += made.nbytes
            if progress is not None:
                progress(done, total)
            return made

        return make

    with GGUFWriter(path, "qwen3") as out:
        add_hyperparameters(out, geometry, path.stem)
        add_vocabulary(out, geometry.n_vocab)
        for name, size in vectors(geometry):
            out.add_tensor(name, np.ones(size, np.float32))
        for name, shape, std in matrices(geometry):
            out.add_tensor(name, source(shape, std), kind, shape)


def add_hyperparameters(out: GGUFWriter, geometry: Geometry, name: str) -> None:
    """The `qwen3.*` keys that the public files carry."""
    out.add("general.name", f"random {name}")
    out.add("qwen3.block_count", geometry.n_layer)
    out.add("qwen3.context_length", geometry.n_ctx)
    out.add("qwen3.embedding_length", geometry.n_embd)
    out.add("qwen3.feed_forward_length", geometry.n_ff)
    out.add("qwen3.attention.head_count", geometry.n_head)
    out.add("qwen3.attention.head_count_kv", geometry.n_kv)
    out.add("qwen3.attention.key_length", geometry.head_dim)
    out.add("qwen3.attention.value_length", geometry.head_dim)
    out.add("qwen3.attention.layer_norm_rms_epsilon", 1e-6)
    out.add("qwen3.rope.freq_base", 1e6)


def main() -> None:
    """Parse the command line and write one file, with a progress bar."""
    parser = argparse.ArgumentParser(description="Write a full-size Qwen3 GGUF file with random weights.")
    parser.add_argument("out", type=Path, metavar="OUT.gguf")
    parser.add_argument("--geometry", choices=GEOMETRIES, default="qwen3-0.6b")
    parser.add_argument("--type", choices=TYPES, default="q8_0", dest="kind")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    try:
        with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
            task = bar.add_task(options.out.name, total=None)
            write_model(
                options.out,
                GEOMETRIES[options.geometry],
                TYPES[options.kind],
                seed=options.seed,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
    except OSError as error:
        parser.exit(2, f"{options.out} cannot be written: {(error.strerror or str(error)).lower()}\n")
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
