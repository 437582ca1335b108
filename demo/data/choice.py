"""Random choices that keep a part of every list for the evaluation, and the small grammar in which texts are written.

In a pattern `[a|b|]` stands for one of its alternatives and `{name}` for a value. The same seed gives the same text.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

_ALTERNATIVES = re.compile(r"\[([^\[\]]*)\]")
_HOLE = re.compile(r"(\{\w+\})")
_KEPT_BACK = 7  # every seventh entry of a list that has so many is never trained on
_TYPO_SHARE = 0.12
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
        while found := _ALTERNATIVES.search(pattern):
            pattern = pattern[: found.start()] + self.random.choice(found[1].split("|")) + pattern[found.end() :]
        return re.sub(r"  +", " ", pattern).strip(" ").format(**values) if values else re.sub(r"  +", " ", pattern)

    def asked(self, patterns: Sequence[str], **values: object) -> str:
        """What a user types: one of the patterns, as carelessly as people type. Values stay as they are."""
        pattern = self.of(patterns)
        while found := _ALTERNATIVES.search(pattern):
            pattern = pattern[: found.start()] + self.random.choice(found[1].split("|")) + pattern[found.end() :]
        pattern = re.sub(r"  +", " ", pattern).strip()
        lowered, bare = self.chance(0.35), self.chance(0.3)
        typo = self.chance(_TYPO_SHARE)
        parts = _HOLE.split(pattern)
        plain = [at for at, part in enumerate(parts) if not part.startswith("{")]
        if typo:
            at = max(plain, key=lambda one: len(parts[one]))
            parts[at] = self._with_typo(parts[at])
        if lowered:
            for at in plain:
                parts[at] = parts[at].lower()
        if bare and parts[-1] and parts[-1][-1] in "?.!":
            parts[-1] = parts[-1][:-1]
        return "".join(part.format(**values) if part.startswith("{") else part for part in parts)

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
