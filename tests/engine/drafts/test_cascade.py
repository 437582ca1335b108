"""Which source guesses, what is kept account of, and who is muted."""

from __future__ import annotations

import random
from collections.abc import Sequence

from lmhub.engine.drafts import DraftIndex, Reference
from lmhub.engine.drafts.cascade import (
    CHAIN,
    CONVERSATION,
    FIRST_REFERENCE,
    MUTE_FOR,
    RECYCLING,
    Cascade,
    Guess,
)
from lmhub.engine.drafts.odds import RECYCLED
from lmhub.engine.drafts.recycling import Recycling

V = 1000


def cascade(*references: Sequence[int], said: Sequence[int] = ()) -> Cascade:
    made = Cascade(DraftIndex(V), Recycling(V), [Reference(V, text) for text in references])
    made.prompted(said)
    return made


def test_the_conversation_is_copied_for_twice_the_match() -> None:
    one = cascade(said=[*range(100), 10, 11, 12])
    guess = one.suggest(16)
    assert guess == Guess(tuple(range(13, 21)), CONVERSATION, 0)
    assert one.match == 3
    assert one.suggest(3) == Guess((13, 14, 15), CONVERSATION, 0)
    assert one.suggest(0) is None


def test_a_reference_wins_with_a_longer_match_only() -> None:
    text = [50, 51, 10, 11, 77, 78]
    tie = cascade(text, said=[10, 11, 12, 10, 11])
    guess = tie.suggest(4)
    assert guess is not None
    assert (guess.source, guess.tokens[0]) == (CONVERSATION, 12)
    longer = cascade(text, [51, 10, 11, 88], text, said=[10, 11, 12, 50, 51, 10, 11])
    guess = longer.suggest(4)
    assert guess is not None
    assert (guess.source, guess.tokens) == (FIRST_REFERENCE, (77, 78))  # the first of two equal ones


def test_successors_come_last() -> None:
    one = cascade(said=[1])
    assert one.suggest(16) is None
    one.observe([2, 3, 2])
    assert one.suggest(16) == Guess((3, 2) * (CHAIN // 2), RECYCLING, RECYCLED)
    one.observe([3, 2])
    guess = one.suggest(16)
    assert guess is not None
    assert guess.source == CONVERSATION


def test_one_matching_token_is_no_match() -> None:
    one = cascade([5, 9], said=[5, 6, 7, 5])
    assert one.match == 1
    assert one.suggest(16) is None


def test_settling_counts_what_was_right() -> None:
    one = cascade(said=[*range(100), 10, 11])
    guess = one.suggest(4)
    assert guess is not None
    assert one.observe([12, 13, 99]) == (guess, 2)
    assert one.observe([1]) is None  # settled once
    one.suggest(4)
    one.suggest(0)  # forgets it
    assert one.observe([2]) is None


def test_a_shortened_guess_is_accounted_as_what_it_became() -> None:
    one = cascade(said=[*range(100), 10, 11])
    one.suggest(4)
    assert one.truncate_pending(9) == Guess((12, 13, 14, 15), CONVERSATION, 0)
    cut = one.truncate_pending(2)
    assert cut == Guess((12, 13), CONVERSATION, 0)
    assert one.observe([12, 13, 14]) == (cut, 2)
    one.suggest(4)
    assert one.truncate_pending(0) is None
    assert one.observe([7]) is None


def wrong(one: Cascade, n: int, inside: bool = False) -> int:
    """Have it guess until it is muted, always wrongly; how many tokens it guessed."""
    drafted, fresh = 0, iter(range(500, V))
    while True:
        one.prompted([10, 11])
        guess = one.suggest(n, inside)
        if guess is None or guess.source != CONVERSATION:
            return drafted
        drafted += len(guess.tokens)
        one.observe([next(fresh)])


def test_a_source_that_is_wrong_is_muted_for_a_while() -> None:
    one = cascade(said=[10, 11, 12, 13, 14, 15, 16])
    assert 64 <= wrong(one, 4) < 68
    assert one.is_muted(CONVERSATION)
    assert not one.is_muted(RECYCLING)
    one.observe([20] * (MUTE_FOR - 2))  # the token that settled the last guess counts as well
    assert one.is_muted(CONVERSATION)
    one.observe([20])
    assert not one.is_muted(CONVERSATION)
    one.prompted([10, 11])  # the index has gone on learning
    guess = one.suggest(4)
    assert guess is not None
    assert guess.source == CONVERSATION


def test_a_source_that_is_right_one_time_in_four_is_not_muted() -> None:
    one = cascade(said=list(range(100)))
    for n in range(100):
        one.prompted([10, 11])
        guess = one.suggest(4)
        assert guess is not None, n
        one.observe([guess.tokens[0], 500 + n])
        assert not one.is_muted(CONVERSATION)


def test_regions_are_muted_apart() -> None:
    one = cascade(said=[10, 11, 12, 13, 14, 15, 16])
    wrong(one, 4, inside=True)
    assert one.is_muted(CONVERSATION)
    one.prompted([10, 11])
    assert one.suggest(4, inside=False) is not None
    assert not one.is_muted(CONVERSATION)
    one.observe([1] * 500)  # outside: does not shorten the time inside
    one.prompted([10, 11])
    one.suggest(4, inside=True)
    assert one.is_muted(CONVERSATION)


def test_muted_references_leave_the_floor_to_others() -> None:
    one = cascade(list(range(400)), said=[500, 501, 502, 503])
    for n in range(16):
        one.prompted([10 * n, 10 * n + 1, 10 * n + 2])
        assert not one.is_muted(FIRST_REFERENCE)
        guess = one.suggest(4)
        assert guess is not None
        assert (guess.source, guess.tokens[0]) == (FIRST_REFERENCE, 10 * n + 3)
        one.observe([600 + n])
    assert one.is_muted(FIRST_REFERENCE)
    one.prompted([300, 301, 302, 500, 501])
    guess = one.suggest(4)
    assert guess is not None
    assert guess.source == CONVERSATION


def test_a_degraded_index_leaves_successors() -> None:
    index = DraftIndex(V, max_bytes=6_000)
    one = Cascade(index, Recycling(V))
    draw = random.Random(0)
    while not index.is_degraded:
        one.observe([draw.randrange(20)])
    one.observe([1, 2, 1])
    guess = one.suggest(4)
    assert guess is not None
    assert guess.source == RECYCLING
