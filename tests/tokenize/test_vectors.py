"""Real vocabularies and the golden models: ids exactly as llama.cpp and the models' own tokenizers give them."""

from __future__ import annotations

import json
import unicodedata
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmhub.gguf import open_gguf
from lmhub.tokenize import Tokenizer, Utf8Stream, load_tokenizer

VOCABULARIES = ["gemma-4", "gpt-2", "llama-bpe", "llama-spm", "qwen2", "qwen35"]
# tokens file, and the file with the vocabulary it was made with
GOLDENS = {
    "qwen3/tokens.json": "zoo/qwen3/model-f32.gguf",
    "llama/tokens.json": "zoo/llama/model-f32.gguf",
    "llama-spm/tokens.json": "zoo/llama-spm/model-f32.gguf",
    "gemma3/tokens.json": "zoo/gemma3/model-f32.gguf",
    "gemma4-e2b/tokens.json": "zoo/gemma4-e2b/model-f32.gguf",
    "gemma4-31b/tokens-realvocab.json": "vocab/ggml-vocab-gemma-4.gguf",
    "qwen35/tokens.json": "zoo/qwen35/model-f32.gguf",
    "qwen3-realvocab/tokens.json": "zoo/qwen3-realvocab/model-q8_0.gguf",
    "qwen3-realvocab/tokens-qwen35-pre.json": "vocab/ggml-vocab-qwen35.gguf",
    "inkling/tokens.json": "zoo/inkling/model-f32.gguf",
    "kimi-k3/tokens.json": "zoo/kimi-k3/model-f32.gguf",
    "kimi-linear/tokens.json": "zoo/kimi-linear/model-f32.gguf",
}
HOSTILE = [
    "<|im_end|>",
    "<|im_start|>system\n",
    "<|endoftext|>",
    "<|eot_id|>",
    "</s>",
    "<turn|>",
    "<|turn>user",
    "<bos>",
]


@lru_cache
def tokenizer_of(path: Path) -> Tokenizer:
    return load_tokenizer(open_gguf(path).metadata)


@lru_cache
def without_normal_form(path: Path) -> Tokenizer:
    return load_tokenizer(open_gguf(path).metadata, normalize=False)


def vocabulary(shared: Path, name: str) -> Tokenizer:
    return tokenizer_of(shared / "vocab" / f"ggml-vocab-{name}.gguf")


@pytest.mark.parametrize("name", VOCABULARIES)
def test_llama_cpp_vectors(shared: Path, name: str) -> None:
    # llama.cpp leaves out the normal form that Qwen's own tokenizer applies; the golden models below have it.
    path = shared / "vocab" / f"ggml-vocab-{name}.gguf"
    tokenizer = without_normal_form(path) if name == "qwen35" else tokenizer_of(path)
    texts = Path(f"{path}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    expected = [[int(token) for token in line.split()] for line in Path(f"{path}.out").read_text().splitlines()]
    assert len(expected) > 40
    if len(texts) == len(expected) + 1:  # in most of the files a separator is the last line
        assert not texts.pop()
    for text, ids in zip(texts, expected, strict=True):
        assert tokenizer.encode(text) == ids, text


def rows_of(shared: Path, golden: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((shared / "zoo" / golden).read_text())["rows"]
    assert len(rows) > 40
    return rows


@pytest.mark.parametrize("golden", GOLDENS)
def test_golden_models_with_specials(shared: Path, golden: str) -> None:
    tokenizer = tokenizer_of(shared / GOLDENS[golden])
    for row in rows_of(shared, golden):
        assert tokenizer.encode(row["text"], special=True) == row["ids_special"], row["text"]


@pytest.mark.parametrize("golden", GOLDENS)
def test_golden_models_with_bos(shared: Path, golden: str) -> None:
    tokenizer = tokenizer_of(shared / GOLDENS[golden])
    for row in rows_of(shared, golden):
        ids = row.get("llama_special")
        if ids is not None and ids[:1] != [tokenizer.bos_id]:  # llama.cpp would write it twice
            assert tokenizer.with_bos(ids) == row["llama_special_add_bos"]


@pytest.mark.parametrize("golden", GOLDENS)
def test_golden_models_plain(shared: Path, golden: str) -> None:
    """Ids of ordinary text. One difference is meant: Qwen's own tokenizer reads `<think>` in any text."""
    tokenizer = tokenizer_of(shared / GOLDENS[golden])
    special = {tokenizer.token_id(text) for text in tokenizer.specials}
    n_equal = 0
    for row in rows_of(shared, golden):
        ids = tokenizer.encode(row["text"])
        if special & set(row["ids_plain"]):
            assert not special & set(ids)
            assert tokenizer.decode(ids) == row["text"]
        else:
            assert ids == row["ids_plain"], row["text"]
            n_equal += 1
    assert n_equal >= len(rows_of(shared, golden)) - 2


@pytest.mark.parametrize("golden", GOLDENS)
def test_golden_models_decode(shared: Path, golden: str) -> None:
    tokenizer = tokenizer_of(shared / GOLDENS[golden])
    for row in rows_of(shared, golden):
        if "▁" not in row["text"]:  # a blank to SentencePiece
            expected = unicodedata.normalize("NFC", row["text"]) if "qwen" in golden else row["text"]
            assert tokenizer.decode(row["ids_special"], special=True) == expected


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"), max_size=80) | st.lists(
    st.sampled_from(
        [*HOSTILE, "def f(x):\n", "    ", "\r\n\r\n", " don't", "１２3", "日本", "👩‍👧", "é", "\t\t", "...\n", "  x "]
    ),
    max_size=12,
).map("".join)


@pytest.mark.parametrize("name", VOCABULARIES)
def test_real_vocabularies_round_trip_and_refuse_specials(shared: Path, name: str) -> None:
    tokenizer = vocabulary(shared, name)
    form = (lambda text: unicodedata.normalize("NFC", text)) if "qwen" in name else str
    special = {tokenizer.token_id(text) for text in tokenizer.specials} | tokenizer.suppressed

    @settings(max_examples=60, deadline=None)
    @given(TEXT, st.integers(0, 80), st.booleans())
    def check(text: str, cut: int, flag: bool) -> None:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == form(text)
        assert not special & set(ids)
        assert tokenizer.encode_segments([(text[:cut], False), ("", flag), (text[cut:], False)]) == ids
        stream = Utf8Stream()
        replayed = "".join(stream.feed(tokenizer.piece(i)) for i in ids)
        assert replayed.removeprefix(" " if name == "llama-spm" and text else "") == form(text)
        assert stream.finish() == ""

    check()


@pytest.mark.parametrize("name", VOCABULARIES)
def test_hostile_content_opens_no_turn(shared: Path, name: str) -> None:
    tokenizer = vocabulary(shared, name)
    opening, closing = tokenizer.specials[0], tokenizer.specials[-1]
    special = {tokenizer.token_id(text) for text in tokenizer.specials}
    content = "".join([*HOSTILE, *tokenizer.specials[:50]])
    ids = tokenizer.encode_segments([(opening, True), (content, False), (closing, True)])
    assert [i for i in ids if i in special] == [tokenizer.token_id(opening), tokenizer.token_id(closing)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("gemma-4", {1, 50, 106}), ("llama-bpe", {128001, 128009}), ("llama-spm", {2}), ("qwen2", {151643, 151645})],
)
def test_end_of_generation_of_real_vocabularies(shared: Path, name: str, expected: set[int]) -> None:
    assert vocabulary(shared, name).eog == expected


def test_gemma4_prompt(shared: Path) -> None:
    prompt = "<bos><|turn>user\nHi<turn|>\n<|turn>model\n<|channel>thought\n<channel|>"
    ids = vocabulary(shared, "gemma-4").encode(prompt, special=True)
    assert ids == [2, 105, 2364, 107, 10979, 106, 107, 105, 4368, 107, 100, 45518, 107, 101]
