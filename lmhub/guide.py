"""Where in a reply a grammar holds: from its start, behind the reasoning, or in tool calls once one is opened.

                    ,------------- open ------------.
    think --close--> head ----any other token----> body (the grammar, or anything)
                      `--opener--> call --its end--> tail, or body again where there is no grammar

One `Guide` serves one reply and is the engine's `Constraint`. Knows no grammar engine: a `Matcher` is what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint32]
GAP = 2  # line breaks behind the reasoning or a call, which are no part of what follows

_Phase = Literal["think", "head", "body", "call", "tail"]


class Matcher(Protocol):
    """Follows one text through one grammar."""

    def mask(self) -> Bits:
        """The ids that may come next; valid until `commit`. Raises GenerationError."""
        ...

    def commit(self, token: int) -> None:
        """`token` comes next. Raises GenerationError if it cannot."""
        ...

    def forced(self) -> Sequence[int]:
        """Ids that come next because no others may, as far as that is known. Nothing is committed."""
        ...

    def accepts(self, tokens: Sequence[int]) -> int:
        """How many of `tokens`, in this order, may come next; rather too few than too many. Nothing is committed."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether the text is complete and nothing can be added to it."""
        ...


@dataclass(frozen=True, slots=True)
class Thinking:
    """The tokens that delimit reasoning. `is_open`: the prompt has opened it already."""

    open: int | None
    close: int
    is_open: bool


class Alphabet:
    """Sets of token ids of one vocabulary as bits: uint32 (ceil(n_vocab / 32),)."""

    def __init__(self, pieces: Sequence[bytes], eog: frozenset[int]):
        self._n_vocab = len(pieces)
        self.eog = eog
        self.breaks = {
            id: n for id, piece in enumerate(pieces) if 0 < (n := len(piece)) <= GAP and not piece.strip(b"\n")
        }
        self.break_bits = [self.bits(id for id, n in self.breaks.items() if n <= left) for left in range(GAP + 1)]
        self.eog_bits = self.bits(eog)
        self.all_but_eog = ~self.eog_bits

    def bits(self, ids: Iterable[int]) -> Bits:
        """The set of `ids`."""
        flags = np.zeros(-(-self._n_vocab // 32) * 32, np.bool_)
        flags[list(ids)] = True
        return np.packbits(flags, bitorder="little").view(np.uint32)


class Guide:
    """The Constraint of one reply."""

    def __init__(
        self,
        alphabet: Alphabet,
        base: Matcher | None = None,
        *,
        calls: Callable[[], Matcher] | None = None,
        openers: frozenset[int] = frozenset(),
        thinking: Thinking | None = None,
    ):
        """`base` is for the reply as a whole. A token out of `openers` begins a call, held to a new one of `calls`.

        `thinking` lets reasoning come before `base`; a reply is not over while it is open.
        """
        self._alphabet, self._base, self._calls = alphabet, base, calls
        self._openers = openers if calls is not None else frozenset()
        self._thinking = thinking if base is not None else None
        self._call: Matcher | None = None
        self._gap_left = 0  # there is none at the start of the reply
        self._may_think = False
        self._phase: _Phase = "body"
        if self._thinking is not None:
            self._phase = "think" if self._thinking.is_open else "head"
            self._may_think = not self._thinking.is_open
        elif base is not None and self._openers:
            self._phase = "head"

    def mask(self) -> Bits | None:
        """See Constraint."""
        match self._phase:
            case "think":
                return self._alphabet.all_but_eog
            case "call":
                assert self._call is not None
                return self._call.mask()
            case "body":
                return None if self._base is None else self._base.mask()
            case "head":
                assert self._base is not None
                return self._base.mask() | self._gap()
            case "tail":
                return self._alphabet.eog_bits | self._gap()

    def _gap(self) -> Bits:
        """What may come between two parts of the reply, beside their beginnings."""
        gap = self._alphabet.bits(self._openers) | self._alphabet.break_bits[self._gap_left]
        if self._may_think and self._thinking is not None and self._thinking.open is not None:
            gap = gap | self._alphabet.bits((self._thinking.open,))
        return gap

    def commit(self, token: int) -> None:
        """See Constraint."""
        if self._phase == "call":
            self._commit_to_call(token)
        elif token in self._openers and (self._phase != "body" or self._base is None):
            assert self._calls is not None
            self._call, self._phase = self._calls(), "call"
        elif self._phase == "think":
            if self._thinking is not None and token == self._thinking.close:
                self._phase, self._gap_left = "head", GAP
        elif self._phase == "head" and self._may_think and self._thinking and token == self._thinking.open:
            self._phase, self._may_think = "think", False
        elif self._phase in ("head", "tail") and 0 < self._alphabet.breaks.get(token, 0) <= self._gap_left:
            self._gap_left -= self._alphabet.breaks[token]
        elif self._phase != "tail" and self._base is not None:
            self._phase = "body"
            self._base.commit(token)

    def _commit_to_call(self, token: int) -> None:
        assert self._call is not None
        self._call.commit(token)
        if self._call.is_complete:
            self._call, self._gap_left = None, GAP
            self._phase = "body" if self._base is None else "tail"

    def forced(self) -> Sequence[int]:
        """See Constraint. Known inside of a grammar only."""
        if self._phase == "call":
            assert self._call is not None
            return self._call.forced()
        return self._base.forced() if self._phase == "body" and self._base is not None else ()

    def accepts(self, tokens: Sequence[int]) -> int:
        """See Constraint. Counts no further than the token that ends a part of the reply."""
        match self._phase:
            case "call":
                assert self._call is not None
                return self._call.accepts(tokens)
            case "body":
                if self._base is not None:
                    return self._base.accepts(tokens)
                return _up_to(tokens, last=self._openers)
            case "think":
                assert self._thinking is not None
                return _up_to(tokens, last=self._openers | {self._thinking.close}, before=self._alphabet.eog)
            case "head" | "tail":
                return self._accepts_in_gap(tokens)

    def _accepts_in_gap(self, tokens: Sequence[int]) -> int:
        gap_left = self._gap_left
        for place, token in enumerate(tokens):
            n_breaks = self._alphabet.breaks.get(token, 0)
            if token in self._openers:
                return place + 1
            if self._may_think and self._thinking is not None and token == self._thinking.open:
                return place + 1
            if not 0 < n_breaks <= gap_left:
                if self._phase == "tail":
                    return place + (token in self._alphabet.eog)
                assert self._base is not None
                return place + self._base.accepts(tokens[place:])
            gap_left -= n_breaks
        return len(tokens)


def _up_to(tokens: Sequence[int], last: Set[int], before: Set[int] = frozenset()) -> int:
    """How many tokens there are up to the first one of `last`, that one included, or of `before`, without it."""
    for place, token in enumerate(tokens):
        if token in before:
            return place
        if token in last:
            return place + 1
    return len(tokens)
