"""Breaks text at blanks while it comes in pieces, so that no word is torn at the edge of the terminal."""

from __future__ import annotations

import re

_PIECES = re.compile(r"\n|[^\S\n]+|\S+")


class Wrap:
    """Lines of at most `width` columns. A word is held back until it ends; one longer than a line is not cut."""

    def __init__(self, width: int) -> None:
        self._width = max(width, 1)
        self._column = 0
        self._blanks = ""  # between the last word and the one that is held
        self._word = ""
        self._is_open = False  # the beginning of a word that fills a line has been shown

    def feed(self, text: str) -> str:
        """What can be shown now that `text` has come."""
        shown = []
        for piece in _PIECES.findall(text):
            if piece == "\n":
                shown += [self.finish(), piece]
                self._column, self._is_open = 0, False
            elif piece.isspace():
                shown.append(self._take())
                self._blanks += piece
                self._is_open = False
            else:
                self._word += piece
                if self._is_open or _columns(self._word) >= self._width:
                    shown.append(self._take())
                    self._is_open = True
        return "".join(shown)

    def finish(self) -> str:
        """What was held back."""
        return self._take() + self._drop_blanks()

    def _take(self) -> str:
        """The held word with what stands before it: a line end where it does not fit."""
        if not self._word:
            return ""
        word, self._word = self._word, ""
        blanks, width = self._drop_blanks(), _columns(word)
        if self._column and self._column + _columns(blanks) + width > self._width and not self._is_open:
            self._column = self._at(width)
            return "\n" + word
        self._column = self._at(self._column + _columns(blanks) + width)
        return blanks + word

    def _at(self, column: int) -> int:
        """Where the cursor is behind so many columns: the terminal breaks what is longer than a line."""
        return (column - 1) % self._width + 1

    def _drop_blanks(self) -> str:
        blanks, self._blanks = self._blanks, ""
        return blanks


def _columns(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text.expandtabs(8))
