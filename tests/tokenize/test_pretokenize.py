"""How text is cut before merging, seen through vocabularies in which whole pieces are tokens."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from lmhub.tokenize import load_tokenizer
from lmhub.tokenize.bpe import ByteLevel
from lmhub.tokenize.pieces import byte_alphabet
from lmhub.tokenize.pretokenize import DEFAULT, pre_tokenizer
from lmhub.tokenize.vocabulary import Vocabulary


def pieces(name: str, text: str) -> list[str]:
    """The cut of `text` by the rule of this name, read from the tokenizer that is built with it."""
    alphabet = byte_alphabet()
    metadata = {"tokenizer.ggml.tokens": [alphabet[b] for b in range(256)]}
    encoder = ByteLevel(Vocabulary.from_metadata(metadata, "gpt2"), [], pre_tokenizer(name))
    cut = encoder._model.pre_tokenizer.pre_tokenize_str(text)
    return [text[start:end] for _, (start, end) in cut]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("qwen2", "Hello world 123 don't DON'T", ["Hello", " world", " ", "1", "2", "3", " don", "'t", " DON", "'T"]),
        ("qwen2", "  a\n\n\nb  \n c", [" ", " a", "\n\n\n", "b", "  \n", " c"]),
        ("qwen2", "x(a)...\n\ny\tz", ["x", "(a", ")...\n\n", "y", "\tz"]),
        ("qwen2", "สวัสดี", ["สว", "ัสด", "ี"]),
        ("qwen35", "สวัสดี", ["สวัสดี"]),
        ("llama-bpe", "1234567 x", ["123", "456", "7", " x"]),
        ("gpt-2", "it's 1234 'S\n\n x", ["it", "'s", " 1234", " '", "S", "\n\n", " x"]),
        ("smollm", "ab 12", ["ab", " ", "1", "2"]),
        ("default", "a.b 1234", ["a", ".", "b", " ", "123", "4"]),
        ("gpt-4o", "HTMLParser's ÑA 1234", ["HTMLParser's", " ÑA", " ", "123", "4"]),
        ("tekken", "HelloWorld 12", ["Hello", "World", " ", "1", "2"]),
        ("kimi-k2", "日本語abc漢字です", ["日本語", "abc", "漢字", "です"]),
    ],
)
def test_cut(name: str, text: str, expected: list[str]) -> None:
    assert pieces(name, text) == expected


def test_an_unknown_rule_is_a_warning_that_names_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert pre_tokenizer("brand-new") is DEFAULT
    assert "'brand-new'" in caplog.text
    assert "qwen35" in caplog.text


def test_an_absent_rule_is_a_warning(caplog: pytest.LogCaptureFixture, byte_level_metadata: dict[str, Any]) -> None:
    del byte_level_metadata["tokenizer.ggml.pre"]
    load_tokenizer(byte_level_metadata)
    assert "absent" in caplog.text


def test_whole_pieces_skip_merging_only_where_the_rule_says_so(byte_level_metadata: dict[str, Any]) -> None:
    byte_level_metadata["tokenizer.ggml.merges"].remove("hell o")  # now no merge leads to the token "hello"
    byte_level_metadata["tokenizer.ggml.merges"].remove("Ġ hello")
    found = {}
    for pre in ("qwen2", "llama-bpe"):
        byte_level_metadata["tokenizer.ggml.pre"] = pre
        tokenizer = load_tokenizer(byte_level_metadata)
        found[pre] = [tokenizer.token_text(i) for i in tokenizer.encode("hello")]
    assert found == {"qwen2": ["hell", "o"], "llama-bpe": ["hello"]}


def test_byte_alphabet_is_a_bijection_onto_printable_characters() -> None:
    alphabet = byte_alphabet()
    assert len(set(alphabet.values())) == 256
    assert all(char.isprintable() and not char.isspace() for char in alphabet.values())
    assert (alphabet[32], alphabet[10], alphabet[0], alphabet[65]) == ("Ġ", "Ċ", "Ā", "A")
