"""What has been said, arranged so that what followed when it was said before can be looked up: drafts out of copies.

A `DraftIndex` belongs to a place where conversations run and lives on between them: after a rewind the new text goes
behind a sentinel, and the old text stays as material. A `Reference` is a text that never changes and that any number of
conversations follow with cursors. The work is done by `csrc/drafts.c`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmhub.errors import KernelError
from lmhub.native import ffi, lib

MAX_TOKENS = 65_536  # of an index; some 5 MB
OVERLAP = 32  # tokens before a rewind that are repeated behind it, so that matches reach back
MAX_DRAFT = 64


class _Automaton:
    """A stream of tokens and the native index over it."""

    def __init__(self, n_vocab: int, max_tokens: int, max_bytes: int):
        pointer = lib.lmk_drafts_new(n_vocab, max_tokens, max_bytes)
        if pointer == ffi.NULL:
            raise KernelError("there is no memory for an index of drafts; use fewer slots or turn speculation off.")
        self._c = ffi.gc(pointer, lib.lmk_drafts_free)
        self._out = ffi.new("int32_t[]", MAX_DRAFT)

    @property
    def n_tokens(self) -> int:
        """Tokens in the index, sentinels included."""
        return int(lib.lmk_drafts_tokens(self._c))

    @property
    def nbytes(self) -> int:
        """Memory that it holds."""
        return int(lib.lmk_drafts_bytes(self._c))


class DraftIndex(_Automaton):
    """The index of one place. `match` says how many of the last tokens have stood in it before, in a row.

    A full index goes on with its newer half. Once memory has run out it is degraded: it takes and drafts nothing.
    """

    def __init__(self, n_vocab: int, max_tokens: int = MAX_TOKENS, max_bytes: int = 0):
        """Ids from `n_vocab` on are sentinels. `max_bytes` 0: as many as it takes."""
        super().__init__(n_vocab, max_tokens, max_bytes)
        self.match = 0
        self.is_degraded = False
        self.n_live = 0  # tokens of the present conversation that it has been told of

    def feed(self, tokens: Sequence[int]) -> None:
        """`tokens` come next in the conversation."""
        self.n_live += len(tokens)
        self._took(lib.lmk_drafts_feed(self._c, ffi.new("int32_t[]", [*tokens]), len(tokens)))

    def cut(self) -> None:
        """What comes next does not follow from what came last: no match, and no draft, reaches across."""
        self._took(lib.lmk_drafts_cut(self._c))

    def resync(self, kept: Sequence[int], n_known: int | None = None) -> None:
        """The conversation is now `kept`, of which it has been fed the first `n_known` tokens before (None: all).

        Costs a few tokens where they are the end of a longer conversation, nothing where they are all of it.
        """
        known = len(kept) if n_known is None else n_known
        if known == len(kept) == self.n_live:
            return
        if self.n_tokens:
            self.cut()
        self.feed(kept[max(0, known - OVERLAP) :])
        self.n_live = len(kept)

    def draft(self, n: int) -> tuple[int, ...]:
        """At most `n` (<= MAX_DRAFT) tokens that followed the match when it occurred last."""
        return tuple(ffi.unpack(self._out, lib.lmk_drafts_draft(self._c, self._out, n)))

    def _took(self, match: int) -> None:
        self.is_degraded = match < 0
        self.match = max(match, 0)


class Reference(_Automaton):
    """A text whose continuations are worth guessing wherever a conversation repeats a part of it."""

    def __init__(self, n_vocab: int, tokens: Sequence[int]):
        super().__init__(n_vocab, max(2, len(tokens)), 0)
        lib.lmk_drafts_feed(self._c, ffi.new("int32_t[]", [*tokens]), len(tokens))

    def cursor(self) -> Cursor:
        """A new place in it, before its beginning."""
        return Cursor(self._c)


class Cursor:
    """Where a conversation is in a Reference. `match`: how many of its last tokens stand there in a row."""

    def __init__(self, automaton: Any):
        self._c = automaton  # keeps it alive
        self._at = ffi.new("lmk_draft_cursor *")
        self._out = ffi.new("int32_t[]", MAX_DRAFT)
        self.match = 0

    def follow(self, tokens: Sequence[int]) -> None:
        """`tokens` come next in the conversation."""
        match = lib.lmk_drafts_follow(self._c, self._at, ffi.new("int32_t[]", [*tokens]), len(tokens))
        self.match = max(match, 0)

    def draft(self, n: int) -> tuple[int, ...]:
        """At most `n` (<= MAX_DRAFT) tokens of the reference that follow the match."""
        return tuple(ffi.unpack(self._out, lib.lmk_drafts_draft_at(self._c, self._at, self._out, n)))
