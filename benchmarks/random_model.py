"""Writes a model file with random weights out of tables of its tensors, and is the command line around that.

The vocabulary is a made-up one of the wanted size; the weights are noise, scaled so that activations stay of order
one, and so is the text that comes out. One tensor is in memory at a time. Knows no architecture.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from noise import BLOCKS, FLOATS, Bytes, noise
from numpy.typing import NDArray

from lmhub.gguf import GGMLType, GGUFWriter

Matrix = tuple[str, tuple[int, ...], float, GGMLType]
"""Name, shape, standard deviation and type."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Which type a matrix gets: `kind`, or `more` for the output and for half of the layers' most delicate matrices."""

    kind: GGMLType
    more: GGMLType | None = None

    def type_of(self, name: str, shape: tuple[int, ...], n_layer: int, head: str) -> GGMLType:
        """As the usual converter mixes them; `head` is the output. Q8_0 where rows are no whole blocks of the type."""
        layer, eighth = int(name.split(".")[1]) if name.startswith("blk.") else -1, n_layer // 8
        favoured = layer >= 0 and (layer < eighth or layer >= 7 * n_layer // 8 or (layer - eighth) % 3 == 2)
        better = name == head or (favoured and ("attn_v" in name or "ffn_down" in name))
        kind = self.more if self.more is not None and better else self.kind
        return GGMLType.Q8_0 if shape[-1] % kind.block_elements else kind


TYPES = {kind.name.lower(): Recipe(kind) for kind in (*FLOATS, *BLOCKS, GGMLType.MXFP4)}
TYPES |= {
    "q4_k_m": Recipe(GGMLType.Q4_K, GGMLType.Q6_K),
    "q5_k_m": Recipe(GGMLType.Q5_K, GGMLType.Q6_K),
}

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


def add_vocabulary(out: GGUFWriter, n_vocab: int, pre: str) -> None:
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
    out.add("tokenizer.ggml.pre", pre)
    out.add("tokenizer.ggml.tokens", tokens)
    out.add("tokenizer.ggml.token_type", types, "int32")
    out.add("tokenizer.ggml.merges", [f"{left} {right}" for left, right in merges])
    out.add("tokenizer.ggml.bos_token_id", first)
    out.add("tokenizer.ggml.padding_token_id", first)
    out.add("tokenizer.ggml.eos_token_id", first + 2)
    out.add("tokenizer.ggml.add_bos_token", False)
    out.add("tokenizer.chat_template", TEMPLATE)


# --- the file --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RandomModel:
    """What a file holds: keys of the architecture and others, norms and the like as they are, random matrices."""

    arch: str
    keys: Mapping[str, Any]
    n_vocab: int
    vectors: Iterable[tuple[str, NDArray[np.float32]]]
    matrices: Iterable[Matrix]
    pre: str = "qwen2"
    others: Mapping[str, Any] = field(default_factory=dict)

    def write(self, path: Path, *, seed: int = 0, progress: Callable[[int, int], None] | None = None) -> None:
        """Write it; `progress(done_bytes, total_bytes)`."""
        rng, matrices, done = np.random.default_rng(seed), list(self.matrices), 0
        total = sum(kind.row_bytes(math.prod(shape)) for _, shape, _, kind in matrices)

        def source(shape: tuple[int, ...], std: float, kind: GGMLType) -> Callable[[], Bytes]:
            def make() -> Bytes:
                nonlocal done
                made = noise(rng, kind, shape, std)
                done += made.nbytes
                if progress is not None:
                    progress(done, total)
                return made

            return make

        with GGUFWriter(path, self.arch) as out:
            out.add("general.name", f"random {path.stem}")
            for key, value in self.keys.items():
                out.add(f"{self.arch}.{key}", value)
            for key, value in self.others.items():
                out.add(key, value)
            add_vocabulary(out, self.n_vocab, self.pre)
            for name, values in self.vectors:
                out.add_tensor(name, values)
            for name, shape, std, kind in matrices:
                out.add_tensor(name, source(shape, std, kind), kind, shape)


def command(
    doc: str,
    geometries: Mapping[str, Any],
    types: Mapping[str, Any],
    usual: str,
    cut: Callable[[Any, int], Any],
    model: Callable[[Any, Any], RandomModel],
) -> None:
    """Parse the command line and write one file, with a progress bar.

    The first geometry is the default, and the `usual` type. `cut(geometry, n_layer)` has fewer layers; what it raises
    as ValueError is told.
    """
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("out", type=Path, metavar="OUT.gguf")
    parser.add_argument("--geometry", choices=geometries, default=next(iter(geometries)))
    parser.add_argument("--type", choices=types, default=usual, dest="kind")
    parser.add_argument("--layers", type=int, default=0, help="fewer of them, to fit into memory (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    geometry = geometries[options.geometry]
    try:
        geometry = cut(geometry, options.layers) if options.layers else geometry
    except ValueError as error:
        parser.error(f"{options.geometry} {error}")

    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    try:
        with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
            task = bar.add_task(options.out.name, total=None)
            model(geometry, types[options.kind]).write(
                options.out,
                seed=options.seed,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
    except OSError as error:
        parser.exit(2, f"{options.out} cannot be written: {(error.strerror or str(error)).lower()}\n")
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.0f} MB")
