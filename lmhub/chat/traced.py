"""Text in which every character knows who wrote it: the chat template, or somebody else.

A chat template mixes its own markup with what clients wrote. Here a string literal of the template is a `Traced` whose
characters are all marked; everything that comes from outside is a plain `str`, so that an operation which this file
does not know, and which therefore returns a plain `str`, loses marks and never invents any. Text that lost its marks is
ordinary text for the tokenizer, which can cost a special token but cannot forge one.

A third kind of character is `hidden`: templates carry it around and compare it, and no prompt has it.

Knows nothing of jinja, tokens or messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import SupportsIndex

_RUN = re.compile(b"\0+|\1+")
_HIDDEN = 2
_SEEN = re.compile(b"[^\2]+")


class Traced(str):
    """A string with one mark per character: `marks[i]` is 1 where the template wrote character i, 2 if it is hidden.

    It compares, hashes and behaves as the string. Operations that rearrange characters keep the marks; the constructor
    without `marks` marks nothing.
    """

    __slots__ = ("marks",)
    marks: bytes

    def __new__(cls, text: str = "", marks: bytes | None = None) -> Traced:
        self = super().__new__(cls, text)
        self.marks = bytes(len(self)) if marks is None else marks
        return self

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> str:
        return joined((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> str:
        return joined((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, count: SupportsIndex) -> str:
        return Traced(super().__mul__(count), self.marks * count.__index__())

    __rmul__ = __mul__

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        if isinstance(key, slice):
            return Traced(super().__getitem__(key), self.marks[key])
        return Traced(super().__getitem__(key), bytes((self.marks[key],)))

    def __iter__(self) -> Iterator[str]:
        return (self[index] for index in range(len(self)))

    def strip(self, chars: str | None = None, /) -> str:
        return self.rstrip(chars).lstrip(chars)

    def lstrip(self, chars: str | None = None, /) -> str:
        return self[len(self) - len(super().lstrip(chars)) :]

    def rstrip(self, chars: str | None = None, /) -> str:
        return self[: len(super().rstrip(chars))]

    def removeprefix(self, prefix: str, /) -> str:
        return self[len(prefix) :] if self.startswith(prefix) else self

    def removesuffix(self, suffix: str, /) -> str:
        return self[: len(self) - len(suffix)] if self.endswith(suffix) else self

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._located(super().split(sep, maxsplit), len(sep) if sep else None)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._located(super().rsplit(sep, maxsplit), len(sep) if sep else None)

    def splitlines(self, keepends: bool = False) -> list[str]:
        lines, start = [], 0
        for whole, line in zip(super().splitlines(True), super().splitlines(keepends), strict=True):
            lines.append(self[start : start + len(line)])
            start += len(whole)
        return lines

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        return self._halves(super().partition(sep))

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        return self._halves(super().rpartition(sep))

    def join(self, parts: Iterable[str], /) -> str:
        return joined(parts, self)

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        if not old:
            return super().replace(old, new, count)
        return Traced(new, _marks(new)).join(self.split(old, count))

    def upper(self) -> str:
        return self._respelt(super().upper())

    def lower(self) -> str:
        return self._respelt(super().lower())

    def title(self) -> str:
        return self._respelt(super().title())

    def capitalize(self) -> str:
        return self._respelt(super().capitalize())

    def _respelt(self, text: str) -> str:
        """`text` is this string letter by letter in another case, unless a letter became several."""
        return Traced(text, self.marks) if len(text) == len(self) else text

    def _located(self, pieces: Iterable[str], gap: int | None) -> list[str]:
        """`pieces` of this string, in order, with their marks: `gap` characters apart, or where they are found."""
        located, at = [], 0
        for piece in pieces:
            if gap is None:
                at = self.index(piece, at)
            located.append(self[at : at + len(piece)])
            at += len(piece) + (gap or 0)
        return located

    def _halves(self, parts: tuple[str, str, str]) -> tuple[str, str, str]:
        first, second = len(parts[0]), len(parts[0]) + len(parts[1])
        return self[:first], self[first:second], self[second:]


def written(text: str) -> Traced:
    """`text` as the template's own writing: all of it is markup."""
    return Traced(text, b"\1" * len(text))


def hidden(text: str) -> Traced:
    """`text` as characters that `shown` takes out again."""
    return Traced(text, bytes((_HIDDEN,)) * len(text))


def shown(text: str) -> str:
    """`text` without what is hidden in it."""
    if not isinstance(text, Traced) or _HIDDEN not in text.marks:
        return text
    return joined(text[run.start() : run.end()] for run in _SEEN.finditer(text.marks))


def find_hidden(text: str, mark: str) -> int:
    """Where the hidden text `mark` first stands in `text`; -1 where it does not."""
    at, marks = text.find(mark), _marks(text)
    while at >= 0 and marks[at] != _HIDDEN:
        at = text.find(mark, at + 1)
    return at


def joined(parts: Iterable[str], sep: str = "") -> str:
    """`sep.join(parts)` that keeps the marks."""
    parts = [piece for part in parts for piece in (sep, part)][1:] if sep else list(parts)
    text = "".join(parts)
    if any(isinstance(part, Traced) for part in parts):
        return Traced(text, b"".join(map(_marks, parts)))
    return text


def segments(text: str) -> tuple[tuple[str, bool], ...]:
    """`text` cut into maximal `(text, is_markup)` runs, as the tokenizer's `encode_segments` takes them."""
    return tuple((str.__getitem__(text, slice(*run.span())), run[0][0] == 1) for run in _RUN.finditer(_marks(text)))


def _marks(text: str) -> bytes:
    return text.marks if isinstance(text, Traced) else bytes(len(text))
