"""The bytes that each token of a vocabulary adds to a reply, for both ways of spelling a vocabulary.

A vocabulary has 152,000 tokens and more, and a server starts with it: what is alike for all of them is done for all at
once. Knows nothing of how text becomes tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np

from lmhub.tokenize.vocabulary import TokenType, Vocabulary

BLANK = "\u2581"
_CODES = 0x144  # what the byte alphabet spells bytes with lies below


class Pieces:
    """Many short texts, as one: 152,000 objects would take five times the memory. `others` replaces some of them."""

    def __init__(self, text: bytes, ends: array[int], others: Mapping[int, bytes]) -> None:
        self._text, self._ends, self._others = text, ends, others

    @classmethod
    def of(cls, pieces: Sequence[bytes]) -> Pieces:
        """These, one behind the other."""
        return cls(b"".join(pieces), array("q", accumulate(map(len, pieces), initial=0)), {})

    def __getitem__(self, index: int) -> bytes:
        """One piece. IndexError beyond the last and below the first."""
        if index < 0:
            raise IndexError(index)
        found = self._text[self._ends[index] : self._ends[index + 1]]
        return found or self._others.get(index, b"")


def byte_alphabet() -> dict[int, str]:
    """Byte to printable character, as byte-level vocabularies spell it (the rule is GPT-2's).

    Printable Latin-1 stands for itself; the other 68 bytes, in order, are U+0100 onwards.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + i) for i, byte in enumerate(others)}


def byte_level_pieces(vocabulary: Vocabulary) -> Pieces:
    """Those of a vocabulary that spells bytes by the byte alphabet: a character of a text is a byte of its piece."""
    latin = {ord(char): byte for byte, char in byte_alphabet().items()}
    byte_of = np.full(_CODES + 1, -1, np.int16)  # the last stands for every character that spells no byte
    byte_of[list(latin)] = list(latin.values())
    codes = np.frombuffer("".join(vocabulary.tokens).encode("utf-32-le"), np.uint32)
    values = byte_of[np.minimum(codes, _CODES)]
    lengths = np.fromiter(map(len, vocabulary.tokens), np.int64, vocabulary.n_vocab)
    owner = np.repeat(np.arange(vocabulary.n_vocab, dtype=np.int32), lengths)  # the token of each character
    is_spelt = np.frombuffer(vocabulary.types, np.uint8) == TokenType.NORMAL
    is_spelt[owner[values < 0]] = False
    others = {i: _other_piece(vocabulary, i, latin) for i in np.flatnonzero(~is_spelt).tolist()}
    ends = np.zeros(vocabulary.n_vocab + 1, np.int64)
    np.cumsum(np.where(is_spelt, lengths, 0), out=ends[1:])
    text = values[is_spelt[owner]].astype(np.uint8).tobytes()
    return Pieces(text, array("q", ends.tobytes()), {i: piece for i, piece in others.items() if piece})


def _other_piece(vocabulary: Vocabulary, token: int, latin: Mapping[int, int]) -> bytes:
    """That of a token which is no spelling of bytes, or not all of it: then each character stands for what it can."""
    text, kind = vocabulary.tokens[token], vocabulary.types[token]
    if kind == TokenType.NORMAL:
        return b"".join(bytes((latin[ord(c)],)) if ord(c) in latin else c.encode() for c in text)
    return text.encode() if kind in (TokenType.USER_DEFINED, TokenType.BYTE) else b""


def blank_pieces(vocabulary: Vocabulary) -> Pieces:
    """Those of a vocabulary that spells blanks as U+2581, and bytes as tokens of their own."""
    shown = frozenset((int(TokenType.NORMAL), int(TokenType.USER_DEFINED)))
    pieces = [
        text.replace(BLANK, " ").encode() if kind in shown else b""
        for text, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
    ]
    for value, token in vocabulary.byte_values().items():
        pieces[token] = bytes((value,))
    return Pieces.of(pieces)
