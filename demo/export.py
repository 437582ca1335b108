"""Writes a checkpoint as GGUF, matrices as Q8_0: python demo/export.py --out .cache/demo OUT.gguf

What a Qwen3 file carries, and nothing else: sizes, vocabulary, chat template, sampling defaults, weights.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent / "data"))

from lmhub.gguf import GGMLType, GGUFWriter
from vocabulary import CONTROL, SHOWN, SPECIALS, Vocabulary

CONTEXT = 32768  # positions: as far as training spread them
TEMPLATE = Path(__file__).with_name("template.jinja")
SAMPLING = {"temp": 0.1, "top_k": 20, "top_p": 0.9}  # it has few right answers to anything
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4


def add_metadata(out: GGUFWriter, shape: dict[str, Any], vocabulary: Vocabulary) -> None:
    """The keys of the family, of the tokenizer and of sampling."""
    out.add("general.name", "lmhub demo")
    out.add("general.description", "A very small chat model, trained from scratch to show what lmhub does")
    out.add("general.license", "apache-2.0")
    for key, value in SAMPLING.items():
        out.add(f"general.sampling.{key}", value)
    keys = {
        "block_count": shape["n_layer"],
        "context_length": CONTEXT,
        "embedding_length": shape["n_embd"],
        "feed_forward_length": shape["n_ff"],
        "attention.head_count": shape["n_head"],
        "attention.head_count_kv": shape["n_kv"],
        "attention.key_length": shape["head_dim"],
        "attention.value_length": shape["head_dim"],
        "attention.layer_norm_rms_epsilon": shape["rms_eps"],
        "rope.freq_base": shape["rope_base"],
    }
    for key, value in keys.items():
        out.add(f"qwen3.{key}", value)
    n_ordinary = len(vocabulary.tokens) - len(SPECIALS)
    out.add("tokenizer.ggml.model", "gpt2")
    out.add("tokenizer.ggml.pre", "qwen2")
    out.add("tokenizer.ggml.tokens", vocabulary.tokens)
    types = [_NORMAL] * n_ordinary + [_CONTROL] * len(CONTROL) + [_USER_DEFINED] * len(SHOWN)
    out.add("tokenizer.ggml.token_type", types, "int32")
    out.add("tokenizer.ggml.merges", vocabulary.merges)
    out.add("tokenizer.ggml.eos_token_id", vocabulary.ids["<|im_end|>"])
    out.add("tokenizer.ggml.padding_token_id", vocabulary.ids["<|endoftext|>"])
    out.add("tokenizer.ggml.add_bos_token", False)
    out.add("tokenizer.chat_template", TEMPLATE.read_text())


def add_weights(out: GGUFWriter, weights: dict[str, torch.Tensor], shape: dict[str, Any]) -> None:
    """The tensors under the family's names, joined projections cut apart."""
    q, kv = shape["n_head"] * shape["head_dim"], shape["n_kv"] * shape["head_dim"]

    def add(name: str, weight: torch.Tensor) -> None:
        out.add_tensor(f"{name}.weight", weight.float().numpy(), GGMLType.Q8_0 if weight.dim() == 2 else GGMLType.F32)

    add("token_embd", weights["embed"])
    add("output_norm", weights["norm"])
    for layer in range(shape["n_layer"]):
        ours, theirs = f"blocks.{layer}.", f"blk.{layer}."
        for stem in ("attn_norm", "ffn_norm"):
            add(f"{theirs}{stem}", weights[f"{ours}{stem}"])
        for stem in "qk":
            add(f"{theirs}attn_{stem}_norm", weights[f"{ours}{stem}_norm"])
        for stem, part in zip("qkv", weights[f"{ours}qkv"].split((q, kv, kv)), strict=True):
            add(f"{theirs}attn_{stem}", part)
        add(f"{theirs}attn_output", weights[f"{ours}out"])
        gate, up = weights[f"{ours}gate_up"].chunk(2)
        add(f"{theirs}ffn_gate", gate)
        add(f"{theirs}ffn_up", up)
        add(f"{theirs}ffn_down", weights[f"{ours}down"])


def main() -> None:
    """Parse the command line and write the file."""
    parser = argparse.ArgumentParser(description="Write the trained demo model as GGUF.")
    parser.add_argument("--out", type=Path, default=Path(".cache/demo"), help="where train.py left its files")
    parser.add_argument("gguf", type=Path, metavar="OUT.gguf")
    options = parser.parse_args()
    state = torch.load(options.out / "checkpoint.pt", weights_only=True)
    with GGUFWriter(options.gguf, "qwen3") as out:
        add_metadata(out, state["shape"], Vocabulary.load(options.out / "vocabulary.json"))
        add_weights(out, state["network"], state["shape"])
    print(f"{options.gguf}: {options.gguf.stat().st_size / 1e6:.2f} MB after {state['step']} steps")


if __name__ == "__main__":
    main()
