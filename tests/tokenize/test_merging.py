"""Both ways of merging code points, against quadratic programs that do what the definition says."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmhub.tokenize import Tokenizer, load_tokenizer
from lmhub.tokenize.bpe import _windows

TEXT = st.text("helo wrd\n<>s/é😊", max_size=40)


def by_score(metadata: dict[str, Any], text: str) -> list[str]:
    """Merge the adjacent pair of the best score, leftmost first, until none is a token; bytes for what is left."""
    rows = zip(*(metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type", "scores")), strict=True)
    scores = {token: score for token, kind, score in rows if kind == 1}
    symbols = list(text.replace(" ", "▁"))
    while True:
        pairs = [left + right for left, right in itertools.pairwise(symbols)]
        found = [(-scores[pair], i) for i, pair in enumerate(pairs) if pair in scores]
        if not found:
            break
        _, i = min(found)
        symbols[i : i + 2] = [pairs[i]]
    return spelled(symbols, scores)


def by_rank(metadata: dict[str, Any], text: str) -> list[str]:
    """Merge the adjacent pair of the lowest rank, leftmost first, until none has one; bytes for what is left."""
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(metadata["tokenizer.ggml.merges"])}
    symbols = list(text.replace(" ", "▁"))
    while True:
        found = [(ranks[pair], i) for i, pair in enumerate(itertools.pairwise(symbols)) if pair in ranks]
        if not found:
            break
        _, i = min(found)
        symbols[i : i + 2] = ["".join(symbols[i : i + 2])]
    return spelled(symbols, metadata["tokenizer.ggml.tokens"])


def spelled(symbols: list[str], known: Any) -> list[str]:
    return [part for s in symbols for part in ([s] if s in known else [f"<0x{b:02X}>" for b in s.encode()])]


def texts(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token_text(i) for i in tokenizer.encode(text)]


@pytest.fixture(scope="module")
def plain_scored() -> tuple[dict[str, Any], Tokenizer]:
    tokens = [
        "<unk>", *"▁helowrd", "▁h", "he", "ll", "ell", "hell", "hello", "lo", "▁▁", "▁w", "or", "▁wor", "ld", "wo",
        "rl", *"<>s/\n", "\n\n",
    ]  # fmt: skip
    tokens += [f"<0x{value:02X}>" for value in range(256)]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2] + [1] * (len(tokens) - 257) + [6] * 256,
        "tokenizer.ggml.scores": [float(-((i * 7) % 5)) for i in range(len(tokens))],
        "tokenizer.ggml.add_space_prefix": False,
    }
    return metadata, load_tokenizer(metadata)


@given(TEXT)
def test_scored_merging(plain_scored: tuple[dict[str, Any], Tokenizer], text: str) -> None:
    metadata, tokenizer = plain_scored
    assert texts(tokenizer, text) == by_score(metadata, text)


@given(TEXT)
def test_scored_merging_across_blanks(text: str) -> None:
    tokens = ["h", "e", "l", "o", "▁", "l▁", "l▁h", "o▁", "▁▁", "he", "▁h"] + [f"<0x{v:02X}>" for v in range(256)]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 11 + [6] * 256,
        "tokenizer.ggml.scores": [float((i * 5) % 7) for i in range(len(tokens))],
        "tokenizer.ggml.add_space_prefix": False,
    }
    assert texts(load_tokenizer(metadata), text) == by_score(metadata, text)


def test_equal_scores_merge_from_the_left(plain_scored: tuple[dict[str, Any], Tokenizer]) -> None:
    metadata = plain_scored[0] | {"tokenizer.ggml.scores": [-1000.0] * len(plain_scored[0]["tokenizer.ggml.tokens"])}
    tokenizer = load_tokenizer(metadata)
    assert texts(tokenizer, "lll") == ["ll", "l"]
    assert texts(tokenizer, "hello") == by_score(metadata, "hello")


def test_words_longer_than_the_cache_takes(plain_scored: tuple[dict[str, Any], Tokenizer]) -> None:
    metadata, tokenizer = plain_scored
    text = "hello" * 40 + " " + "world" * 40
    assert texts(tokenizer, text) == by_score(metadata, text)


@pytest.fixture(scope="module")
def plain_ranked() -> tuple[dict[str, Any], Tokenizer]:
    merges = ["l l", "h e", "\n \n", "▁ h", "he ll", "o ▁", "hell o", "▁ w", "\n\n \n\n", "▁w o", "r l", "▁ ▁", "rl d"]
    tokens = [*"helo▁wrd\n", *(merge.replace(" ", "") for merge in merges)] + [f"<0x{v:02X}>" for v in range(256)]
    metadata = {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 22 + [6] * 256,
        "tokenizer.ggml.merges": merges,
    }
    return metadata, load_tokenizer(metadata)


@given(TEXT)
def test_ranked_merging(plain_ranked: tuple[dict[str, Any], Tokenizer], text: str) -> None:
    metadata, tokenizer = plain_ranked
    assert texts(tokenizer, text) == by_rank(metadata, text)


def test_the_first_of_two_equal_merges_counts(plain_ranked: tuple[dict[str, Any], Tokenizer]) -> None:
    metadata, _ = plain_ranked
    again = metadata | {"tokenizer.ggml.merges": [*metadata["tokenizer.ggml.merges"], "l l"]}
    assert texts(load_tokenizer(again), "hello") == ["hello"]


def test_windows_lose_nothing_and_end_behind_words() -> None:
    text = "word and_ word\n" * 150_000
    windows = list(_windows(text))
    assert len(windows) == 3
    assert "".join(windows) == text
    assert all(window[-1].isalnum() and following[0].isspace() for window, following in itertools.pairwise(windows))


def test_windows_of_text_without_words() -> None:
    windows = list(_windows(" " * 2_500_000))
    assert [len(window) for window in windows] == [1_000_000, 1_000_000, 500_000]


def test_a_very_long_run_of_blanks_does_not_stop_the_regular_expressions(byte_level: Tokenizer) -> None:
    ids = byte_level.encode(" " * 11_000_000)
    assert sum(len(byte_level.piece(i)) for i in ids) == 11_000_000
