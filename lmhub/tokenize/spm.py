"""SentencePiece-style encoding by score (model `llama`): merge the adjacent pair whose concatenation scores best.

Among equal scores the leftmost pair goes first, and whole vocabularies of equal scores exist, which is why this is not
expressed as merge ranks. What no token covers becomes byte tokens. Knows no special tokens: their texts are ordinary
text here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from heapq import heappop, heappush

from lmhub.errors import ModelFileError
from lmhub.tokenize.vocabulary import TokenType, Vocabulary

_BLANK = "\u2581"
_CACHED_WORDS = 32_768
_CACHED_LENGTH = 48  # characters; longer words are rare, and would let one client fill the memory


class Scored:
    """Encodes ordinary text with a vocabulary of scored code-point strings, blanks written as U+2581."""

    def __init__(self, vocabulary: Vocabulary, scores: Sequence[float]):
        self._ids = vocabulary.of_type(TokenType.NORMAL)
        self._priority = {text: -scores[i] for text, i in self._ids.items()}
        self._bytes = vocabulary.byte_values()
        self._unknown = vocabulary.unknown_id
        if len(self._bytes) < 256 and self._unknown is None:
            raise ModelFileError("tokenizer.ggml.tokens has neither all 256 byte tokens nor an unknown token.")
        # Where no token holds a blank behind something else, no merge crosses the place before a word, and text can be
        # cut there: short words, which repeat.
        joined = any(re.search(rf"[^{_BLANK}]{_BLANK}", text) for text in self._ids)
        self._words = re.compile(".+" if joined else rf"{_BLANK}+[^{_BLANK}]*|[^{_BLANK}]+", re.DOTALL)
        self._cached = lru_cache(_CACHED_WORDS)(self._encode_word)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for word in self._words.findall(text.replace(" ", _BLANK)):
            ids += self._cached(word) if len(word) <= _CACHED_LENGTH else self._encode_word(word)
        return ids

    def token_id(self, text: str) -> int | None:
        return self._ids.get(text)

    def _encode_word(self, word: str) -> tuple[int, ...]:
        ids: list[int] = []
        for symbol in self._merge(word):
            token = self._ids.get(symbol)
            if token is not None:
                ids.append(token)
            else:
                ids += self._spell(symbol)
        return tuple(ids)

    def _merge(self, word: str) -> list[str]:
        """The symbols that are left when no adjacent pair is a token. O(n log n): a queue with stale entries."""
        symbols: list[str] = list(word)
        n = len(symbols)
        after = list(range(1, n + 1))  # index of the next living symbol; n: none
        before = list(range(-1, n - 1))
        queue: list[tuple[float, int, int, str]] = []  # (priority, left, right, concatenation)
        priority = self._priority

        def offer(left: int, right: int) -> None:
            text = symbols[left] + symbols[right]
            if text in priority:
                heappush(queue, (priority[text], left, right, text))

        for left in range(n - 1):
            offer(left, left + 1)
        while queue:
            _, left, right, text = heappop(queue)
            if after[left] != right or symbols[left] + symbols[right] != text:
                continue  # one of the two was merged in the meantime
            symbols[left], symbols[right] = text, ""
            following = after[left] = after[right]
            after[right] = -1
            if following < n:
                before[following] = left
                offer(left, following)
            if before[left] >= 0:
                offer(before[left], left)
        return [symbol for symbol in symbols if symbol]

    def _spell(self, symbol: str) -> list[int]:
        """One code point that is no token: its UTF-8 bytes, or the unknown token where bytes are not all there."""
        spelled = [self._bytes.get(byte, self._unknown) for byte in symbol.encode()]
        if len(self._bytes) < 256 and self._unknown is not None and any(i == self._unknown for i in spelled):
            return [self._unknown]
        return [i for i in spelled if i is not None]
