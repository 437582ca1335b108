"""Where a guess comes from: a copy of the conversation, a copy of a reference, or a chain of recycled successors.

The longest match wins, the conversation on a tie; a source that has been wrong most of the time is muted for a while,
inside and outside of the reasoning separately. A guess is pending until it is known what was really said.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lmhub.engine.drafts.index import DraftIndex, Reference
from lmhub.engine.drafts.odds import RECYCLED, kind_of
from lmhub.engine.drafts.recycling import Recycling

MIN_MATCH = 2
STRETCH = 2  # a match of m tokens is good for a draft of STRETCH * (1 + m)
CHAIN = 8
RING = 64  # guessed tokens over which a source is judged
MUTE_BELOW = 0.20  # share of them that was right
MUTE_FOR = 128  # committed tokens

CONVERSATION, RECYCLING, FIRST_REFERENCE = 0, 1, 2  # sources


@dataclass(frozen=True, slots=True)
class Guess:
    """Tokens from a source; `kind` is what their odds go by."""

    tokens: tuple[int, ...]
    source: int
    kind: int


class _Record:
    """How the guesses of one source have done of late."""

    def __init__(self) -> None:
        self._ring: deque[bool] = deque()
        self.muted = 0  # tokens left

    def add(self, n_right: int, n_wrong: int) -> None:
        self._ring.extend([True] * n_right + [False] * n_wrong)
        while len(self._ring) > RING:
            self._ring.popleft()
        if len(self._ring) == RING and sum(self._ring) < MUTE_BELOW * RING:
            self._ring.clear()
            self.muted = MUTE_FOR


class Cascade:
    """The sources of one stream. `last` is the token that guesses go on from, None before there is one."""

    def __init__(self, index: DraftIndex, recycling: Recycling, references: Sequence[Reference] = ()):
        self._index, self._recycling = index, recycling
        self._cursors = [reference.cursor() for reference in references]
        n_sources = FIRST_REFERENCE + len(references)
        self._records = tuple([_Record() for _ in range(n_sources)] for _ in range(2))  # outside, inside of reasoning
        self._pending: Guess | None = None
        self._inside = False
        self.last: int | None = None

    @property
    def match(self) -> int:
        """How much of the conversation's end it can copy from, in tokens."""
        return max([self._index.match, *(cursor.match for cursor in self._cursors)])

    def is_muted(self, source: int) -> bool:
        """Whether that source proposes nothing at present, in the region of the last guess."""
        return self._records[self._inside][source].muted > 0

    def suggest(self, n: int, inside: bool = False) -> Guess | None:
        """A guess of at most `n` tokens, pending from now on; an earlier one is forgotten. `inside`: of reasoning."""
        self._pending, self._inside = None, inside
        if n < 1:
            return None
        self._pending = self._copy(n) or self._chain(n)
        return self._pending

    def _copy(self, n: int) -> Guess | None:
        match, source = 0, CONVERSATION
        if not self.is_muted(CONVERSATION) and self._index.match >= MIN_MATCH:
            match = self._index.match
        for place, cursor in enumerate(self._cursors, FIRST_REFERENCE):
            if cursor.match > max(match, MIN_MATCH - 1) and not self.is_muted(place):
                match, source = cursor.match, place
        if not match:
            return None
        copied = self._index if source == CONVERSATION else self._cursors[source - FIRST_REFERENCE]
        tokens = copied.draft(min(n, STRETCH * (1 + match)))
        return Guess(tokens, source, kind_of(match)) if tokens else None

    def _chain(self, n: int) -> Guess | None:
        if self.last is None or self.is_muted(RECYCLING):
            return None
        tokens = self._recycling.chain(self.last, min(n, CHAIN))
        return Guess(tokens, RECYCLING, RECYCLED) if tokens else None

    def truncate_pending(self, n: int) -> Guess | None:
        """Only the first `n` tokens of the guess are used; what is left of it, None for nothing."""
        if self._pending is not None and n < len(self._pending.tokens):
            self._pending = replace(self._pending, tokens=self._pending.tokens[:n]) if n > 0 else None
        return self._pending

    def prompted(self, tokens: Sequence[int]) -> None:
        """`tokens` of the prompt come next. They say nothing about guesses, and nothing about what models say."""
        self._follow(tokens)

    def observe(self, tokens: Sequence[int]) -> tuple[Guess, int] | None:
        """`tokens` were committed. What had been guessed, and how many of it were right; None if nothing pended."""
        pending, self._pending = self._pending, None
        settled = None
        if pending is not None:
            accepted = common(pending.tokens, tokens)
            self._records[self._inside][pending.source].add(accepted, len(pending.tokens) - accepted)
            settled = pending, accepted
        for record in self._records[self._inside]:
            record.muted = max(0, record.muted - len(tokens))
        self._recycling.promote((*tokens,) if self.last is None else (self.last, *tokens))
        self._follow(tokens)
        return settled

    def _follow(self, tokens: Sequence[int]) -> None:
        if not tokens:
            return
        self._index.feed(tokens)
        for cursor in self._cursors:
            cursor.follow(tokens)
        self.last = tokens[-1]


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading tokens are equal."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))
