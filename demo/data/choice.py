"""Random choices that keep a part of everything for the evaluation, and the small grammar in which texts are written.

In a pattern `[a|b|]` stands for one of its alternatives and `{name}` for a value. The same seed gives the same text.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TypeVar

T = TypeVar("T")

_ALTERNATIVES = re.compile(r"\[([^\[\]]*)\]")
_HOLE = re.compile(r"(\{\w+\})")
_KEPT_BACK = 7  # one in so many entries of a list, and wordings of a question, is never trained on
_TYPO_SHARE = 0.12
_PLAINEST_SHARE = 0.12  # of the questions are the first pattern whatever the choice: what people ask first
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Chooser:
    """A random source that draws from the training part of lists, or from the part that is `held_out`."""

    def __init__(self, seed: int | str, *, held_out: bool = False):
        self.random = random.Random(seed)
        self.held_out = held_out

    def of(self, items: Sequence[T]) -> T:
        """One of this part of `items`. Short lists are not divided."""
        if len(items) < _KEPT_BACK:
            return self.random.choice(items)
        if self.held_out:
            return items[self.random.randrange(len(items) // _KEPT_BACK) * _KEPT_BACK + 3]
        while True:
            at = self.random.randrange(len(items))
            if at % _KEPT_BACK != 3 or at // _KEPT_BACK >= len(items) // _KEPT_BACK:
                return items[at]

    def any(self, items: Sequence[T]) -> T:
        """One of all `items`: for what is no matter of generalisation, as the model's own sentences."""
        return self.random.choice(items)

    def some(self, items: Sequence[T], least: int, most: int) -> list[T]:
        """Between `least` and `most` different items, in any order."""
        return self.random.sample(items, min(len(items), self.random.randint(least, most)))

    def chance(self, share: float) -> bool:
        """True in that share of the cases."""
        return self.random.random() < share

    def number(self, least: int, most: int) -> int:
        """A whole number, both ends included."""
        return self.random.randint(least, most)

    def expand(self, pattern: str, **values: object) -> str:
        """The pattern with an alternative for every bracket, the innermost first, and its holes filled."""
        text = self._worded(pattern)
        return text.format(**values) if values else text

    def asked(self, patterns: Sequence[str], lead: str = "", **values: object) -> str:
        """What a user types: `lead`, then a wording of one of the patterns, with small and large letters, marks and
        mistakes as people type them. Values stay as they are."""
        if self.held_out and (kept := kept_back(tuple(patterns))):
            pattern = self.random.choice(kept)
        else:
            chosen = patterns[0] if not self.held_out and self.chance(_PLAINEST_SHARE) else self.random.choice(patterns)
            while (pattern := self._worded(chosen)) and not self.held_out and plain(pattern) in _kept_of(chosen):
                pass
        lowered, bare = self.chance(0.35), self.chance(0.3)
        typo = self.chance(_TYPO_SHARE)
        parts = _HOLE.split(lead + pattern)
        fixed = [at for at, part in enumerate(parts) if not part.startswith("{")]
        if typo:
            at = max(fixed, key=lambda one: len(parts[one]))
            parts[at] = self._with_typo(parts[at])
        if lowered:
            for at in fixed:
                parts[at] = parts[at].lower()
        elif self.chance(0.7):  # a sentence begins with a capital
            parts[0] = parts[0][:1].upper() + parts[0][1:]
        if bare and parts[-1] and parts[-1][-1] in "?.!":
            parts[-1] = parts[-1][:-1]
        return "".join(part.format(**values) if part.startswith("{") else part for part in parts)

    def _worded(self, pattern: str) -> str:
        """The pattern with an alternative for every bracket, the innermost first."""
        while found := _ALTERNATIVES.search(pattern):
            pattern = pattern[: found.start()] + self.random.choice(found[1].split("|")) + pattern[found.end() :]
        return re.sub(r"  +", " ", pattern).strip()

    def _with_typo(self, text: str) -> str:
        words = list(re.finditer(r"[A-Za-z]{5,}", text))
        if not words:
            return text
        word = self.random.choice(words)
        at = self.random.randrange(word.start() + 1, word.end() - 1)
        kind = self.random.randrange(4)
        if kind == 0:
            return text[:at] + text[at + 1 :]
        if kind == 1:
            return text[:at] + text[at + 1] + text[at] + text[at + 2 :]
        if kind == 2:
            return text[:at] + text[at] + text[at:]
        return text[:at] + self.random.choice(_LETTERS) + text[at + 1 :]


def plain(wording: str) -> str:
    """What two spellings of one wording have in common."""
    return wording.lower().rstrip(" ?.!")


def wordings(pattern: str) -> Iterator[str]:
    """Everything that a pattern stands for, with its holes."""
    found = _ALTERNATIVES.search(pattern)
    if found is None:
        yield re.sub(r"  +", " ", pattern).strip()
        return
    for one in found[1].split("|"):
        yield from wordings(pattern[: found.start()] + one + pattern[found.end() :])


@cache
def _kept_of(pattern: str) -> frozenset[str]:
    """The plain wordings of a pattern that are not trained: about one in seven, and never all of them."""
    every = {plain(one) for one in wordings(pattern)}
    kept = {one for one in every if zlib.crc32(one.encode()) % _KEPT_BACK == 3}
    return frozenset(kept if kept != every else ())


@cache
def kept_back(patterns: tuple[str, ...]) -> list[str]:
    """Every wording of these patterns that is not trained, no pattern more often than another."""
    kept = []
    for pattern in patterns:
        if untrained := sorted(_kept_of(pattern)):
            ways = {plain(one): one for one in wordings(pattern)}
            kept.append([ways[one] for one in untrained])
    most = max(map(len, kept), default=0)
    return [found[at % len(found)] for found in kept for at in range(most)]
