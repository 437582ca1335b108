"""Which token each byte of the visible reply came from, so that log probabilities travel with the text they belong to.

A reply's bytes are held back twice after their token was chosen (by the parser and by the stop scanner), some are
never shown, and a character may need several tokens. The ledger follows the bytes through all of it. Knows nothing of
channels and characters; only replies that report log probabilities have one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from lmhub.types import TokenLogprob


class Ledger:
    """The bytes between the tokens and the reader, as (score, n) runs: `fed` -> `content` -> `shown` -> `take`."""

    def __init__(self) -> None:
        self._raw = bytearray()  # pieces that no item of the parser has accounted for yet
        self._newest: TokenLogprob | None = None
        self._runs: deque[tuple[TokenLogprob, int]] = deque()  # whose they are; the last is the newest token's
        self._content: deque[tuple[TokenLogprob, bytes]] = deque()  # content that the stop scanner holds
        self._shown: deque[tuple[int, TokenLogprob]] = deque()  # (number of shown bytes at its end, entry)
        self._open: tuple[TokenLogprob, bytearray] | None = None  # the token that the last shown byte came from
        self._n_shown = 0

    def fed(self, score: TokenLogprob) -> None:
        """A token was chosen; `score.piece` goes to the parser now."""
        self._newest = score
        self._raw += score.piece
        self._runs.append((score, len(score.piece)))

    def skip(self) -> None:
        """Nothing of what was fed so far will be content."""
        self._raw.clear()
        self._runs.clear()

    def content(self, data: bytes) -> None:
        """The parser gave `data` as content: the newest bytes that read like this, and all before them are settled.

        What a parser made up itself is put down to the newest token.
        """
        if not data:
            return
        start = self._raw.rfind(data)
        if start < 0:
            if self._newest is not None:
                self._content.append((self._newest, data))
            self.skip()
            return
        end = start + len(data)
        at = 0
        while self._runs and at < end:
            score, n = self._runs.popleft()
            piece = self._raw[max(at, start) : min(at + n, end)]
            if piece:
                self._content.append((score, bytes(piece)))
            if at + n > end:
                self._runs.appendleft((score, at + n - end))
            at += n
        del self._raw[:end]

    def shown(self, n: int) -> None:
        """`n` more bytes of content passed the stop scanner."""
        while n > 0 and self._content:
            score, data = self._content.popleft()
            if len(data) > n:
                self._content.appendleft((score, data[n:]))
                data = data[:n]
            n -= len(data)
            if self._open is None or self._open[0] is not score:
                self.close()
                self._open = (score, bytearray())
            self._open[1].extend(data)
            self._n_shown += len(data)
            if len(self._open[1]) == len(score.piece):
                self.close()

    def close(self) -> None:
        """Nothing more of the token that the last shown byte came from will be shown."""
        if self._open is not None:
            score, data = self._open
            self._shown.append((self._n_shown, replace(score, piece=bytes(data))))
            self._open = None

    def take(self, n_held: int = 0) -> tuple[TokenLogprob, ...]:
        """The entries of tokens whose last byte has reached the reader, while `n_held` shown bytes still have not."""
        out: list[TokenLogprob] = []
        while self._shown and self._shown[0][0] <= self._n_shown - n_held:
            out.append(self._shown.popleft()[1])
        return tuple(out)
