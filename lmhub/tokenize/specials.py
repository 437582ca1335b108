"""Finding the texts of special tokens in text that is trusted to contain them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping


class Splitter:
    """Cuts text at every occurrence of some texts: leftmost first, and at one position the longest.

    Costs one regular-expression scan for first characters, and at each hit one table look-up per distinct length that
    begins with that character; the number of texts does not matter.
    """

    def __init__(self, ids: Mapping[str, int]):
        self._ids = {text: token for text, token in ids.items() if text}
        lengths: dict[str, set[int]] = {}
        for text in self._ids:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        self._first = re.compile("[" + "".join(map(re.escape, self._lengths)) + "]") if lengths else None

    def split(self, text: str) -> Iterator[str | int]:
        """Yield what lies between occurrences as `str` (never empty), and each occurrence as its token id."""
        done = at = 0
        while self._first is not None and (match := self._first.search(text, at)):
            at = match.start()
            for length in self._lengths[match[0]]:
                token = self._ids.get(text[at : at + length])
                if token is not None:
                    if done < at:
                        yield text[done:at]
                    yield token
                    done = at = at + length
                    break
            else:
                at += 1
        if done < len(text):
            yield text[done:]
