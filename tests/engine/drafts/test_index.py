"""The index of drafts: matches and copies against brute force, sentinels, rewinds, its cap and its memory."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmhub.engine.drafts import DraftIndex, Reference
from lmhub.engine.drafts.index import OVERLAP
from lmhub.native import ffi, lib

CUT = None
Stream = list[int | None]


def brute_match(stream: Sequence[int], text: Sequence[int]) -> int:
    """The longest suffix of `stream` that stands somewhere in `text`."""
    n = 0
    while n < len(stream) and any(list(text[at : at + n + 1]) == list(stream[-n - 1 :]) for at in range(len(text) - n)):
        n += 1
    return n


class Oracle:
    """Suffix automaton with a dictionary per state and a cursor of its own, as the specification writes it down."""

    def __init__(self) -> None:
        self.link, self.len, self.sample = [-1], [0], [0]
        self.next: list[dict[int, int]] = [{}]
        self.last = self.at = self.match = 0
        self.tokens: list[int] = []

    def _new(self, length: int, sample: int, link: int, edges: dict[int, int]) -> int:
        self.len.append(length)
        self.sample.append(sample)
        self.link.append(link)
        self.next.append(dict(edges))
        return len(self.len) - 1

    def append(self, token: int) -> None:
        i = len(self.tokens)
        if i and self.match:
            self.sample[self.at] = i - 1
        while token not in self.next[self.at] and self.at:
            self.at = self.link[self.at]
            self.match = self.len[self.at]
        if token in self.next[self.at]:
            self.at, self.match = self.next[self.at][token], self.match + 1
        whole, p = self._new(self.len[self.last] + 1, i, 0, {}), self.last
        while p >= 0 and token not in self.next[p]:
            self.next[p][token] = whole
            if p:
                self.sample[p] = i - 1
            p = self.link[p]
        if p >= 0:
            self.link[whole] = self._target(p, token, i)
        self.last = whole
        self.tokens.append(token)

    def _target(self, p: int, token: int, i: int) -> int:
        q = self.next[p][token]
        if self.len[p] + 1 == self.len[q]:
            return q
        part = self._new(self.len[p] + 1, self.sample[q], self.link[q], self.next[q])
        while p >= 0 and self.next[p].get(token) == q:
            self.next[p][token] = part
            if p:
                self.sample[p] = i - 1
            p = self.link[p]
        self.link[q] = part
        if self.at == q and self.match <= self.len[part]:
            self.at = part
        return part

    def draft(self, n: int, n_vocab: int) -> tuple[int, ...]:
        first = self.sample[self.at] + 1
        found = self.tokens[first : first + n] if self.match else []
        return tuple(found[: next((at for at, token in enumerate(found) if token >= n_vocab), len(found))])


def streams(alphabet: int) -> st.SearchStrategy[Stream]:
    token = st.integers(0, alphabet - 1)
    return st.lists(st.one_of(token, token, token, token, token, token, token, st.none()), max_size=80)


@pytest.mark.parametrize("alphabet", [2, 5, 31])
def test_matches_and_drafts_are_those_of_brute_force(alphabet: int) -> None:
    @settings(max_examples=60, deadline=None)
    @given(streams(alphabet))
    def check(stream: Stream) -> None:
        index, text = DraftIndex(alphabet), list[int]()
        for place, token in enumerate(stream):
            if token is CUT:
                index.cut()
                text.append(alphabet + place)
            else:
                index.feed([token])
                text.append(token)
            assert index.match == brute_match(text, text[:-1])
            draft = index.draft(6)
            assert all(token < alphabet for token in draft)
            if draft:  # it follows an earlier place where the match stands
                found = [*text[len(text) - index.match :], *draft]
                assert any(text[at : at + len(found)] == found for at in range(len(text) - index.match))
        assert index.n_tokens == len(text)

    check()


@pytest.mark.parametrize("alphabet", [2, 5, 31])
def test_it_is_the_algorithm_of_the_specification(alphabet: int) -> None:
    draw = random.Random(alphabet)
    for length in (10, 100, 1500):
        index, oracle = DraftIndex(alphabet), Oracle()
        sentinel = alphabet
        for _ in range(length):
            if draw.random() < 0.02:
                index.cut()
                oracle.append(sentinel)
                sentinel += 1
            else:
                token = draw.randrange(alphabet)
                index.feed([token])
                oracle.append(token)
            assert index.match == oracle.match
            assert index.draft(16) == oracle.draft(16, alphabet)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([2, 5, 31]), st.data())
def test_cursors_find_the_longest_part_of_a_reference(alphabet: int, data: st.DataObject) -> None:
    tokens = st.lists(st.integers(0, alphabet - 1), max_size=60)
    text, stream = data.draw(tokens), data.draw(tokens)
    reference = Reference(alphabet, text)
    one, other = reference.cursor(), reference.cursor()
    for place, token in enumerate(stream, 1):
        one.follow([token])
        assert one.match == brute_match(stream[:place], text)
        draft = one.draft(5)
        found = [*stream[place - one.match : place], *draft]
        assert not draft or any(text[at : at + len(found)] == found for at in range(len(text)))
    other.follow(stream)
    assert (other.match, other.draft(9)) == (one.match, one.draft(9))


def test_feeding_in_pieces_is_feeding_at_once() -> None:
    draw = random.Random(3)
    tokens = [draw.randrange(7) for _ in range(3000)]
    whole, pieces = DraftIndex(7), DraftIndex(7)
    whole.feed(tokens)
    at = 0
    while at < len(tokens):
        n = draw.randrange(1, 300)
        pieces.feed(tokens[at : at + n])
        at += n
    assert (whole.match, whole.draft(64)) == (pieces.match, pieces.draft(64))


def test_the_most_recent_occurrence_is_copied() -> None:
    index = DraftIndex(100)
    index.feed([1, 2, 3, 50, 1, 2, 4, 51, 1, 2])
    assert index.match == 2
    assert index.draft(2) == (4, 51)


def test_a_draft_never_copies_itself() -> None:
    index = DraftIndex(100)
    index.feed([7] * 10)
    assert index.match == 9
    assert index.draft(64) == (7,)


def test_nothing_reaches_across_a_cut() -> None:
    index = DraftIndex(100)
    index.feed([1, 2, 3, 4])
    index.cut()
    assert (index.match, index.draft(9)) == (0, ())
    index.feed([2, 3])
    assert index.match == 2  # not 3: what stood before 2 is behind the cut
    assert index.draft(9) == (4,)
    index.cut()
    index.cut()
    index.feed([4])
    assert index.draft(9) == ()


# --- conversations that go on from a part of what was said -----------------------------------------------------------


def test_a_conversation_that_goes_on_costs_nothing() -> None:
    index = DraftIndex(100)
    index.feed([1, 2, 3, 1, 2])
    index.resync([1, 2, 3, 1, 2])
    assert (index.n_tokens, index.match) == (5, 2)


def test_a_rewind_repeats_a_little_behind_a_cut() -> None:
    index = DraftIndex(1000)
    said = list(range(200))
    index.feed(said)
    index.resync(said[:150])
    assert index.n_tokens == 200 + 1 + OVERLAP
    assert index.match == OVERLAP
    assert index.draft(3) == (150, 151, 152)  # what was said before the rewind is still known
    index.feed([900])
    assert index.match == 0
    index.resync([*said[:150], 900])
    assert index.n_tokens == 200 + 1 + OVERLAP + 1


def test_what_the_index_has_not_seen_is_fed() -> None:
    index = DraftIndex(1000)
    index.resync(list(range(100)), n_known=0)
    assert index.n_tokens == 100
    index.resync(list(range(500, 600)), n_known=0)
    assert index.n_tokens == 201
    index.resync([*range(500, 580), *range(700, 720)], n_known=80)
    assert index.n_tokens == 201 + 1 + OVERLAP + 20
    assert index.n_live == 100


# --- limits ----------------------------------------------------------------------------------------------------------


def test_a_full_index_goes_on_with_its_newer_half() -> None:
    draw = random.Random(5)
    text = [draw.randrange(3) for _ in range(1000)]
    index, rest = DraftIndex(3, max_tokens=400), DraftIndex(3)
    index.feed(text[:400])
    assert index.n_tokens == 400
    index.feed(text[400:401])
    assert index.n_tokens == 201
    rest.feed(text[200:401])
    assert (index.match, index.draft(20)) == (rest.match, rest.draft(20))
    index.feed(text[401:])
    assert 200 < index.n_tokens <= 400
    assert index.match == brute_match(text, text[-index.n_tokens : -1])


def test_cuts_survive_halving() -> None:
    index = DraftIndex(10, max_tokens=8)
    for _ in range(20):
        index.feed([1, 2, 3])
        index.cut()
        assert index.draft(9) == ()
        index.feed([1])
        assert index.draft(9) in ((2, 3), ())
    assert index.n_tokens <= 8


@pytest.mark.parametrize("alphabet", [2, 5, 31, 5000])
def test_memory_stays_small(alphabet: int) -> None:
    draw = random.Random(alphabet)
    tokens = [min(int(draw.paretovariate(0.7)), alphabet) - 1 for _ in range(60_000)]
    index = DraftIndex(alphabet)
    index.feed(tokens)
    assert index.nbytes < 110 * len(tokens)


def test_an_index_without_memory_drafts_nothing() -> None:
    for limit in (8_000, 12_000, 50_000):
        index = DraftIndex(7, max_bytes=limit)
        draw = random.Random(limit)
        while not index.is_degraded:
            assert index.nbytes <= limit
            index.feed([draw.randrange(7)])
        before = index.n_tokens
        index.feed([1, 2, 1, 2])
        index.cut()
        assert (index.match, index.draft(9), index.n_tokens) == (0, (), before)
        assert index.is_degraded


def test_ids_outside_of_the_vocabulary_are_never_drafted() -> None:
    index = DraftIndex(10)
    index.feed([1, 2, -5, 1, 2])
    assert (index.match, index.draft(9)) == (2, ())
    cursor = Reference(10, []).cursor()
    cursor.follow([1, -1, 1 << 30])
    assert (cursor.match, cursor.draft(3)) == (0, ())


def test_freeing_nothing_is_allowed() -> None:
    lib.lmk_drafts_free(ffi.NULL)
