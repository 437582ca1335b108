"""Writes full-size Qwen3 and Qwen3.5 files with random weights, to measure speed and memory without a download.

    python benchmarks/models.py --geometry qwen3-0.6b --type q8_0 OUT.gguf
    python benchmarks/models.py --geometry qwen35-35b-a3b --layers 8 --type q4_k_m OUT.gguf

The sizes and the size of the vocabulary are those of the public models; the weights are noise, scaled so that
activations stay of order one, and so is the text that comes out. One tensor is in memory at a time.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
from noise import BLOCKS, FLOATS, Bytes, noise
from numpy.typing import NDArray

from lmhub.gguf import GGMLType, GGUFWriter


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """What a Qwen3.5 has beside: delta nets in three of four layers, heads of `dim`, an expert for every row."""

    n_k: int
    n_v: int
    n_ff_shared: int = 0
    dim: int = 128
    taps: int = 4


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes of a model. `n_ff` is the width of the feed-forward part, or of each of `n_expert` experts."""

    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_kv: int
    head_dim: int
    n_vocab: int
    n_ctx: int = 40960
    n_expert: int = 0
    n_expert_used: int = 0
    tied: bool = True
    delta: DeltaNet | None = None

    @property
    def arch(self) -> str:
        """The architecture of its files."""
        return ("qwen35" if self.delta else "qwen3") + ("moe" if self.n_expert else "")

    def delta_of(self, layer: int) -> DeltaNet | None:
        """The sizes of a layer that is a delta net; None where it is attention."""
        return None if layer % 4 == 3 else self.delta


GEOMETRIES = {
    "qwen3-0.6b": Geometry(28, 1024, 3072, 16, 8, 128, 151936),
    "qwen3-1.7b": Geometry(28, 2048, 6144, 16, 8, 128, 151936),
    "qwen3-30b-a3b": Geometry(48, 2048, 768, 32, 4, 128, 151936, n_expert=128, n_expert_used=8, tied=False),
    "qwen35-0.8b": Geometry(24, 1024, 3584, 8, 2, 256, 248320, 262144, delta=DeltaNet(16, 16)),
    "qwen35-35b-a3b": Geometry(
        40,
        2048,
        512,
        16,
        2,
        256,
        248320,
        262144,
        n_expert=256,
        n_expert_used=8,
        tied=False,
        delta=DeltaNet(16, 32, 512),
    ),
    "small": Geometry(6, 384, 1024, 6, 2, 64, 8192),
    "small-moe": Geometry(4, 512, 256, 8, 2, 64, 8192, n_expert=16, n_expert_used=4, tied=False),
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """Which type a matrix gets: `kind`, or `more` for the output and for half of the layers' most delicate matrices."""

    kind: GGMLType
    more: GGMLType | None = None

    def type_of(self, name: str, layer: int, geometry: Geometry) -> GGMLType:
        """As the usual converter mixes them. Routers and convolutions stay in F32."""
        if "ffn_gate_inp" in name or "conv1d" in name:
            return GGMLType.F32
        if self.more is None:
            return self.kind
        if layer < 0:
            is_output = name == ("token_embd.weight" if geometry.tied else "output.weight")
            return self.more if is_output else self.kind
        n, eighth = geometry.n_layer, geometry.n_layer // 8
        favoured = layer < eighth or layer >= 7 * n // 8 or (layer - eighth) % 3 == 2
        return self.more if favoured and ("attn_v" in name or "ffn_down" in name) else self.kind


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


# --- weights ---------------------------------------------------------------------------------------------------------


def matrices(geometry: Geometry) -> Iterator[tuple[str, tuple[int, ...], float]]:
    """(name, shape, std) of every weight. 1 / sqrt(cols) keeps the variance; writes to the residual get half."""
    g = geometry
    # Rows of norm 3 give logits with a standard deviation of 3, as trained models have.
    yield "token_embd.weight", (g.n_vocab, g.n_embd), 3 / math.sqrt(g.n_embd)
    if not g.tied:
        yield "output.weight", (g.n_vocab, g.n_embd), 3 / math.sqrt(g.n_embd)
    for layer in range(g.n_layer):
        for stem, shape, gain in [*mixer(g, layer), *feed_forward(g)]:
            yield f"blk.{layer}.{stem}.weight", shape, gain / math.sqrt(shape[-1])


Shapes = list[tuple[str, tuple[int, ...], float]]


def mixer(g: Geometry, layer: int) -> Shapes:
    """(stem, shape, gain) of a layer's attention or delta net."""
    delta, n_q, n_kv = g.delta_of(layer), g.n_head * g.head_dim, g.n_kv * g.head_dim
    if delta is None:
        return [
            ("attn_q", ((2 if g.delta else 1) * n_q, g.n_embd), 1.0),  # with gates in a Qwen3.5
            ("attn_k", (n_kv, g.n_embd), 1.0),
            ("attn_v", (n_kv, g.n_embd), 1.0),
            ("attn_output", (g.n_embd, n_q), 0.5),
        ]
    n_value = delta.n_v * delta.dim
    n_conv = n_value + 2 * delta.n_k * delta.dim
    return [
        ("attn_qkv", (n_conv, g.n_embd), 1.0),
        ("attn_gate", (n_value, g.n_embd), 1.0),
        ("ssm_alpha", (delta.n_v, g.n_embd), 1.0),
        ("ssm_beta", (delta.n_v, g.n_embd), 1.0),
        ("ssm_conv1d", (n_conv, delta.taps), 1.0),
        ("ssm_out", (g.n_embd, n_value), 0.5),
    ]


def feed_forward(g: Geometry) -> Shapes:
    """(stem, shape, gain) of a layer's feed-forward part."""

    def gated(suffix: str, n_ff: int, *experts: int) -> Shapes:
        wide, back = (*experts, n_ff, g.n_embd), (*experts, g.n_embd, n_ff)
        return [(f"ffn_gate{suffix}", wide, 1.0), (f"ffn_up{suffix}", wide, 1.0), (f"ffn_down{suffix}", back, 0.5)]

    if not g.n_expert:
        return gated("", g.n_ff)
    routed = [("ffn_gate_inp", (g.n_expert, g.n_embd), 1.0), *gated("_exps", g.n_ff, g.n_expert)]
    if g.delta is None:
        return routed
    return [*routed, ("ffn_gate_inp_shexp", (1, g.n_embd), 1.0), *gated("_shexp", g.delta.n_ff_shared)]


def vectors(g: Geometry) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """(name, values) of every norm, and of the gates of delta nets: heads that forget within 3 rows up to 300."""
    yield "output_norm.weight", np.ones(g.n_embd, np.float32)
    for layer in range(g.n_layer):
        delta, norms = g.delta_of(layer), {"attn_norm": g.n_embd}
        norms["post_attention_norm" if g.delta else "ffn_norm"] = g.n_embd
        norms |= {"ssm_norm": delta.dim} if delta else {"attn_q_norm": g.head_dim, "attn_k_norm": g.head_dim}
        for norm, size in norms.items():
            yield f"blk.{layer}.{norm}.weight", np.ones(size, np.float32)
        if delta:
            yield f"blk.{layer}.ssm_dt.bias", np.zeros(delta.n_v, np.float32)
            yield f"blk.{layer}.ssm_a", -np.geomspace(0.005, 0.5, delta.n_v, dtype=np.float32)


def typed(geometry: Geometry, recipe: Recipe) -> Iterator[tuple[str, tuple[int, ...], float, GGMLType]]:
    """(name, shape, std, type) of every weight; Q8_0 where a row is not a whole number of blocks of the wanted type."""
    for name, shape, std in matrices(geometry):
        layer = int(name.split(".")[1]) if name.startswith("blk.") else -1
        kind = recipe.type_of(name, layer, geometry)
        yield name, shape, std, GGMLType.Q8_0 if shape[-1] % kind.block_elements else kind


def write_model(
    path: Path, geometry: Geometry, recipe: Recipe, *, seed: int = 0, progress: Callable[[int, int], None] | None = None
) -> None:
    """Write a random model of `geometry` with matrices as `recipe` says. `progress(done_bytes, total_bytes)`."""
    rng = np.random.default_rng(seed)
    total = sum(kind.row_bytes(math.prod(shape)) for _, shape, _, kind in typed(geometry, recipe))
    done = 0

    def source(kind: GGMLType, shape: tuple[int, ...], std: float) -> Callable[[], Bytes]:
        def make() -> Bytes:
            nonlocal done
            made = noise(rng, kind, shape, std)
            done += made.nbytes
            if progress is not None:
                progress(done, total)
            return made

        return make

    with GGUFWriter(path, geometry.arch) as out:
        add_hyperparameters(out, geometry, path.stem)
        add_vocabulary(out, geometry.n_vocab, "qwen35" if geometry.delta else "qwen2")
        for name, values in vectors(geometry):
            out.add_tensor(name, values)
        for name, shape, std, kind in typed(geometry, recipe):
            out.add_tensor(name, source(kind, shape, std), kind, shape)


def add_hyperparameters(out: GGUFWriter, geometry: Geometry, name: str) -> None:
    """The keys of the architecture that the public files carry."""
    keys: dict[str, int | float | list[int]] = {
        "block_count": geometry.n_layer,
        "context_length": geometry.n_ctx,
        "embedding_length": geometry.n_embd,
        "feed_forward_length": geometry.n_ff,
        "attention.head_count": geometry.n_head,
        "attention.head_count_kv": geometry.n_kv,
        "attention.key_length": geometry.head_dim,
        "attention.value_length": geometry.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e7 if geometry.delta else 1e6,
    }
    if geometry.n_expert:
        keys |= {
            "expert_count": geometry.n_expert,
            "expert_used_count": geometry.n_expert_used,
            "expert_feed_forward_length": geometry.n_ff,
        }
    if delta := geometry.delta:
        keys |= {
            "expert_shared_feed_forward_length": delta.n_ff_shared,
            "full_attention_interval": 4,
            "rope.dimension_count": 64,
            "rope.dimension_sections": [11, 11, 10, 0],
            "ssm.conv_kernel": delta.taps,
            "ssm.state_size": delta.dim,
            "ssm.group_count": delta.n_k,
            "ssm.time_step_rank": delta.n_v,
            "ssm.inner_size": delta.n_v * delta.dim,
        }
    out.add("general.name", f"random {name}")
    for key, value in keys.items():
        out.add(f"{geometry.arch}.{key}", value)


def main() -> None:
    """Parse the command line and write one file, with a progress bar."""
    parser = argparse.ArgumentParser(description="Write a full-size Qwen3 or Qwen3.5 GGUF file with random weights.")
    parser.add_argument("out", type=Path, metavar="OUT.gguf")
    parser.add_argument("--geometry", choices=GEOMETRIES, default="qwen3-0.6b")
    parser.add_argument("--type", choices=TYPES, default="q8_0", dest="kind")
    parser.add_argument("--layers", type=int, default=0, help="fewer of them, to fit into memory (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    geometry = GEOMETRIES[options.geometry]
    if not 0 <= options.layers <= geometry.n_layer:
        parser.error(f"{options.geometry} has {geometry.n_layer} layers; --layers takes 1 to {geometry.n_layer}")

    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    try:
        with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
            task = bar.add_task(options.out.name, total=None)
            write_model(
                options.out,
                replace(geometry, n_layer=options.layers or geometry.n_layer),
                TYPES[options.kind],
                seed=options.seed,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
    except OSError as error:
        parser.exit(2, f"{options.out} cannot be written: {(error.strerror or str(error)).lower()}\n")
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
