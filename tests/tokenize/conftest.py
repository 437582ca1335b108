"""Three tiny vocabularies, one of each kind, as the metadata of a GGUF file would hold them."""

from __future__ import annotations

from typing import Any

import pytest

from lmhub.tokenize import Tokenizer, load_tokenizer
from lmhub.tokenize.pieces import byte_alphabet

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
BYTES = [f"<0x{value:02X}>" for value in range(256)]


def _metadata(model: str, groups: list[tuple[int, list[str]]], **more: Any) -> dict[str, Any]:
    tokens = [token for _, texts in groups for token in texts]
    types = [kind for kind, texts in groups for _ in texts]
    keys = {f"tokenizer.ggml.{key}": value for key, value in more.items()}
    return {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        **keys,
    }


def _byte_level() -> dict[str, Any]:
    alphabet = byte_alphabet()
    blank, newline, euro = alphabet[32], alphabet[10], [alphabet[b] for b in "€".encode()]
    merges = [
        f"{blank} {blank}", "h e", "l l", "he ll", "hell o", f"{blank} hello", f"{newline} {newline}", "i m", "1 2",
        "' s", f"{euro[0]} {euro[1]}", f"{euro[0]}{euro[1]} {euro[2]}", "e n", "en d", "im _",
    ]  # fmt: skip
    words = [merge.replace(" ", "") for merge in merges]
    groups = [
        (NORMAL, [alphabet[b] for b in range(256)] + words),
        (CONTROL, ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_end|>x"]),
        (USER_DEFINED, ["<think>", "</think>"]),
        (UNUSED, ["[PAD277]", "[PAD278]"]),
    ]
    return _metadata("gpt2", groups, pre="qwen2", merges=merges, bos_token_id=271, eos_token_id=273)


def _scored() -> dict[str, Any]:
    words = [
        *"▁helowrd", "▁h", "he", "ll", "ell", "hell", "hello", "▁hello", "▁▁", "▁w", "or", "▁wor", "ld", "▁world",
        *"<>s/\n", "\n\n",
    ]  # fmt: skip
    groups = [
        (UNKNOWN, ["<unk>"]),
        (CONTROL, ["<s>", "</s>"]),
        (BYTE, BYTES),
        (NORMAL, words),
        (USER_DEFINED, ["<tool>", "<code>", "     ", "▁▁▁▁▁▁▁"]),
    ]
    n = sum(len(texts) for _, texts in groups)
    scores = [0.0] * n
    for i in range(259, 259 + len(words)):
        scores[i] = float(-((i * 7) % 11))  # with ties
    return _metadata("llama", groups, scores=scores, bos_token_id=1, eos_token_id=2, unknown_token_id=0)


def _ranked() -> dict[str, Any]:
    merges = ["\n \n", "▁ ▁", "l l", "h e", "he ll", "▁ hell", "▁hell o", "\n\n \n", "hell o", "< |", "e l"]
    letters = list("helo▁\n<>|twurn s".replace(" ", ""))
    groups = [
        (CONTROL, ["<pad>", "<eos>", "<bos>", "<|turn>", "<turn|>"]),
        (USER_DEFINED, ["<|tool_call>", "<|tool_response>"]),
        (BYTE, BYTES),
        (NORMAL, letters + [merge.replace(" ", "") for merge in merges] + ["</s>"]),
    ]
    n = sum(len(texts) for _, texts in groups)
    return _metadata("gemma4", groups, merges=merges, scores=[-1000.0] * n, bos_token_id=2, eos_token_id=1)


@pytest.fixture
def byte_level_metadata() -> dict[str, Any]:
    return _byte_level()


@pytest.fixture
def scored_metadata() -> dict[str, Any]:
    return _scored()


@pytest.fixture
def ranked_metadata() -> dict[str, Any]:
    return _ranked()


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    return load_tokenizer(_byte_level())


@pytest.fixture(scope="session")
def scored() -> Tokenizer:
    return load_tokenizer(_scored())


@pytest.fixture(scope="session")
def ranked() -> Tokenizer:
    return load_tokenizer(_ranked())


@pytest.fixture(scope="session", params=[_byte_level, _scored, _ranked], ids=["byte_level", "scored", "ranked"])
def tiny(request: pytest.FixtureRequest) -> Tokenizer:
    return load_tokenizer(request.param())


@pytest.fixture(params=[_byte_level, _scored, _ranked], ids=["byte_level", "scored", "ranked"])
def metadata(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Fresh metadata of each kind in turn, free to be damaged."""
    value: dict[str, Any] = request.param()
    return value
