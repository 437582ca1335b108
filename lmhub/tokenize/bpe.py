"""Byte-pair encoding by merge rank, built from a file's vocabulary and merges on the `tokenizers` package.

Two kinds: `ByteLevel` (model `gpt2`: pieces by regular expression, text as bytes in a printable alphabet) and `Ranked`
(model `gemma4`: no pieces, text as code points, what is not in the vocabulary as byte tokens). Neither knows special
tokens: their texts are ordinary text here.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from lmhub.errors import ModelFileError, quoted
from lmhub.tokenize.pretokenize import PreTokenizer
from lmhub.tokenize.vocabulary import TokenType, Vocabulary

# The package would start a thread pool of its own, which could only compete with the one that computes.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Oniguruma gives up on one match after ten million steps, and a run of blanks takes about one step each.
_MAX_WINDOW = 1_000_000
_WORD_END = re.compile(r"[^\W_](?=\s)")


class ByteLevel:
    """Encodes ordinary text with a byte-level vocabulary."""

    def __init__(self, vocabulary: Vocabulary, merges: Sequence[str], pre: PreTokenizer):
        model = _build(vocabulary, vocabulary.of_type(TokenType.NORMAL), merges, ignore_merges=pre.whole_words)
        splits: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.expressions]
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        model.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
        self._model = model
        self._nfc = pre.nfc

    def encode(self, text: str) -> list[int]:
        if self._nfc and not text.isascii():
            text = unicodedata.normalize("NFC", text)
        return _run(self._model, text)

    def token_id(self, text: str) -> int | None:
        return _id_of(self._model, text)


class Ranked:
    """Encodes ordinary text with a vocabulary of code points, blanks written as U+2581."""

    def __init__(self, vocabulary: Vocabulary, merges: Sequence[str]):
        if len(vocabulary.byte_values()) < 256:
            raise ModelFileError("tokenizer.ggml.tokens lacks some of the byte tokens <0x00> to <0xFF>; convert again.")
        known = vocabulary.of_type(TokenType.NORMAL, TokenType.BYTE)
        model = _build(vocabulary, known, merges, byte_fallback=True)
        # No token mixes line ends with anything else, so this changes no id and keeps the merge queues short.
        model.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+"), "isolated")
        self._model = model

    def encode(self, text: str) -> list[int]:
        return _run(self._model, text.replace(" ", "\u2581"))

    def token_id(self, text: str) -> int | None:
        return _id_of(self._model, text)


def _run(model: Tokenizer, text: str) -> list[int]:
    ids: list[int] = []
    for window in _windows(text):
        # The batch call is the one that lets go of the interpreter lock while it works.
        ids += model.encode_batch_fast([window], add_special_tokens=False)[0].ids
    return ids


def _id_of(model: Tokenizer, text: str) -> int | None:
    token: int | None = model.token_to_id(text)
    return token


def _windows(text: str) -> Iterator[str]:
    """Bounded stretches of text, cut where a word ends before white space: no rule joins across such a place.

    Only text without one such place in a million characters is cut elsewhere, which may change its ids.
    """
    start = 0
    while len(text) - start > _MAX_WINDOW:
        end = start + _MAX_WINDOW
        for match in _WORD_END.finditer(text, end - 10_000, end):
            end = match.end()
        yield text[start:end]
        start = end
    yield text[start:]


def _build(vocabulary: Vocabulary, known: dict[str, int], merges: Sequence[str], **options: bool) -> Tokenizer:
    """A tokenizer without special tokens. Raises ModelFileError for a merge of texts that are not in the vocabulary."""
    unique = dict.fromkeys(merges)  # the first occurrence has the rank
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in unique)]
    if _longest(unique) <= _longest(known) + 1:  # the package panics at a longer one
        with suppress(Exception):
            return Tokenizer(models.BPE(known, pairs, **options))
    # Few files come here: look for the culprit, or leave out merges that would make special tokens.
    checked = [_usable_pair(vocabulary, known, merge, i) for i, merge in enumerate(unique)]
    return Tokenizer(models.BPE(known, [pair for pair in checked if pair], **options))


def _longest(texts: Iterable[str]) -> int:
    """Bytes of the longest of these."""
    return max(map(len, map(str.encode, texts)), default=0)


def _usable_pair(vocabulary: Vocabulary, known: Mapping[str, int], merge: str, index: int) -> tuple[str, str] | None:
    left, _, right = merge[1:].partition(" ")  # the left side may begin with a blank
    left = merge[:1] + left
    for text in (left, right, left + right):
        if text not in vocabulary.ids:
            what = f"tokenizer.ggml.merges[{index}] is {quoted(merge)}"
            raise ModelFileError(f"{what}, but {quoted(text)} is no token; the file is damaged.")
    return (left, right) if {left, right, left + right} <= known.keys() else None
