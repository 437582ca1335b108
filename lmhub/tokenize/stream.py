"""Bytes of a reply to text, piece by piece: a character is released when all of its bytes are there."""

from __future__ import annotations

import codecs


class Utf8Stream:
    """Incremental UTF-8 decoder. Joined output equals decoding the joined bytes with replacement, however they are cut.

    An incomplete character at the end is held back, at most three bytes; what can never become one is U+FFFD at once.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> str:
        """The text that `data` completes; may be empty."""
        return self._decoder.decode(data)

    def finish(self) -> str:
        """End of the reply: U+FFFD if a character was left incomplete, else nothing. The stream can be used anew."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest

    @property
    def n_held(self) -> int:
        """How many bytes of an incomplete character are held back."""
        return len(self._decoder.getstate()[0])

    @property
    def is_clean(self) -> bool:
        """Whether no incomplete character is held back."""
        return self.n_held == 0
