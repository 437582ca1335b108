"""Runs a `CausalLM` by hand, without an engine: whole prompts, in cuts, greedily. Also opens a tiny or golden file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmhub.family import Borrow, Family, LoadOptions
from lmhub.gguf import GGUFFile, open_gguf
from lmhub.model import CausalLM, Chunk, State

F32 = NDArray[np.float32]


def family_of(plugin: str, arch: str) -> Family:
    """The record with which the plugin module claims that architecture."""
    families: Sequence[Family] = import_module(plugin).lmhub_families()
    return next(family for family in families if arch in family.archs)


def load(
    plugin: str,
    path: str | os.PathLike[str] | GGUFFile,
    n_ctx: int = 256,
    kv_dtype: str = "f32",
    borrow: Borrow = "none",
) -> Any:
    """The model in that file, loaded by that plugin module. float32 KV by default, for exact comparisons."""
    file = path if isinstance(path, GGUFFile) else open_gguf(path)
    module, _, name = family_of(plugin, file.architecture).load.partition(":")
    return getattr(import_module(module), name)(file, LoadOptions(n_ctx=n_ctx, kv_dtype=kv_dtype, borrow=borrow))


def logits_of(model: CausalLM, tokens: Sequence[int], cut: int | None = None, state: State | None = None) -> F32:
    """Logits `(n, n_vocab)` of every token, `cut` tokens to a step (None: all), appended to `state` or a new one."""
    state = state or model.new_state(max(len(tokens), 1))
    step = cut or len(tokens)
    rows = [model.forward([Chunk(state, tokens[i : i + step], "all")]).copy() for i in range(0, len(tokens), step)]
    return np.concatenate(rows)


def greedy(model: CausalLM, tokens: Sequence[int], n: int) -> list[int]:
    """The `n` likeliest next tokens, one after the other; ties go to the lowest id."""
    state = model.new_state(len(tokens) + n)
    out: list[int] = []
    step: Sequence[int] = tokens
    while len(out) < n:
        out.append(int(model.forward([Chunk(state, step, "last")])[0].argmax()))
        step = out[-1:]
    return out


def random_tokens(n: int, n_vocab: int, seed: int = 0) -> list[int]:
    """`n` ids, the lowest and the highest among them where there is room."""
    ids = np.random.default_rng(seed).integers(0, n_vocab, n)
    if n >= 2:
        ids[n // 2], ids[n // 2 - 1] = 0, n_vocab - 1
    return [int(one) for one in ids]
