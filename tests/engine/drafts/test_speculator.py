"""Speculation as the stepper sees it: what is planned, what is counted, and that it pays or costs nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from lmhub.engine.drafts import Drafting, Seat, Speculator
from lmhub.engine.drafts.cascade import common
from lmhub.engine.drafts.speculator import MAX_FORCED

V = 1000
EOG = frozenset((V - 1,))


def started(speculator: Speculator, said: Sequence[int]) -> Drafting:
    """A stream whose prompt is all but the last of `said`."""
    drafting = speculator.open(speculator.new_index())
    drafting.prompted(said[:-1])
    drafting.committed(said[-1:], 0)
    return drafting


COPYING = [*range(200), *range(40)]  # the next tokens are likely 40, 41, ...


class Wall:
    """A constraint that forces some tokens, and allows none of `banned`."""

    def __init__(self, forced: Sequence[int] = (), banned: Sequence[int] = ()):
        self._forced, self._banned = forced, banned

    def mask(self) -> None:
        return None

    def commit(self, token: int) -> None:
        pass

    def forced(self) -> Sequence[int]:
        return self._forced

    def accepts(self, tokens: Sequence[int]) -> int:
        return next((n for n, token in enumerate(tokens) if token in self._banned), len(tokens))


# --- planning --------------------------------------------------------------------------------------------------------


def test_a_copy_is_planned_and_counted() -> None:
    speculator = Speculator(V)
    drafting = started(speculator, COPYING)
    [draft] = speculator.plan([Seat(drafting, 100)])
    assert len(draft) >= 4
    assert draft == tuple(range(40, 40 + len(draft)))
    drafting.committed([*draft[:3], 900], len(draft))
    assert (drafting.n_drafted, drafting.n_accepted) == (len(draft), 3)
    assert speculator.plan([Seat(drafting, 100)]) == [()]


def test_room_and_rows_bound_a_draft() -> None:
    speculator = Speculator(V)
    drafting = started(speculator, COPYING)
    for room in (0, 1, 2):
        [draft] = speculator.plan([Seat(drafting, room)])
        assert len(draft) == room
    assert speculator.plan([Seat(drafting, -1)]) == [()]
    assert len(speculator.plan([Seat(drafting, 100)], n_other_rows=50, row_limit=54)[0]) <= 3
    assert speculator.plan([Seat(drafting, 100)], n_other_rows=50, row_limit=51) == [()]
    assert speculator.plan([Seat(drafting, 100)], n_other_rows=50, row_limit=5) == [()]


def test_a_draft_stops_before_an_end() -> None:
    speculator = Speculator(V)
    said = [1, 2, 3, 4, 5, V - 1, 6, 7, 8, 1, 2, 3, 4]
    drafting = started(speculator, said)
    assert speculator.plan([Seat(drafting, 100, eog=EOG)]) == [(5,)]
    drafting.committed([5], 1)
    assert speculator.plan([Seat(drafting, 100, eog=EOG)]) == [()]
    assert (drafting.n_drafted, drafting.n_accepted) == (1, 1)


def test_a_seat_without_drafting_gets_none() -> None:
    speculator = Speculator(V)
    drafting = started(speculator, COPYING)
    plain, copied = speculator.plan([Seat(None, 100), Seat(drafting, 100)])
    assert not plain
    assert copied


def test_forced_tokens_are_taken_in_any_case_and_not_counted() -> None:
    speculator = Speculator(V)
    drafting = started(speculator, COPYING)
    forced = tuple(range(500, 500 + MAX_FORCED))
    assert speculator.plan([Seat(drafting, 100, constraint=Wall(forced))]) == [forced]
    drafting.committed([*forced, 7], len(forced))
    assert (drafting.n_drafted, drafting.n_accepted) == (0, 0)
    assert speculator.plan([Seat(drafting, 100, constraint=Wall([*forced, 8, 9]))]) == [forced]
    assert speculator.plan([Seat(drafting, 3, constraint=Wall(forced))]) == [forced[:3]]
    assert speculator.plan([Seat(drafting, 100, constraint=Wall(forced))], row_limit=6) == [forced[:5]]
    assert speculator.plan([Seat(drafting, 100, constraint=Wall((500, V - 1, 3)), eog=EOG)]) == [(500,)]


def test_forced_tokens_do_not_depend_on_the_gate() -> None:
    speculator = Speculator(V)
    drafting = started(speculator, COPYING)
    turn_off(speculator, drafting)
    assert speculator.plan([Seat(drafting, 100, constraint=Wall((5, 6)))]) == [(5, 6)]


def test_a_constraint_cuts_a_draft() -> None:
    speculator = Speculator(V)
    drafting = started(speculator, COPYING)
    assert speculator.plan([Seat(drafting, 100, constraint=Wall(banned=(42,)))]) == [(40, 41)]
    drafting.committed([40, 41, 7], 2)
    assert (drafting.n_drafted, drafting.n_accepted) == (2, 2)
    drafting = started(speculator, COPYING)
    assert speculator.plan([Seat(drafting, 100, constraint=Wall(banned=(40,)))]) == [()]
    drafting.committed([41], 0)
    assert drafting.n_drafted == 0


def test_a_plan_that_came_to_nothing_is_forgotten() -> None:
    speculator = Speculator(V)
    drafting = started(speculator, COPYING)
    [draft] = speculator.plan([Seat(drafting, 100)])
    assert speculator.plan([Seat(drafting, 100)]) == [draft]  # the step failed and is planned again
    drafting.committed([40], 0)  # and then made without drafts
    assert (drafting.n_drafted, drafting.n_accepted) == (0, 0)
    assert speculator.plan([Seat(drafting, 100)])[0][0] == 41


# --- after the step --------------------------------------------------------------------------------------------------


def test_reasoning_has_a_gate_of_its_own() -> None:
    speculator = Speculator(V)
    drafting = started(speculator, COPYING)
    turn_off(speculator, drafting)
    assert speculator.plan([Seat(drafting, 100, in_reasoning=False)]) == [()]
    drafting.prompted(COPYING[200:220])
    assert speculator.plan([Seat(drafting, 100, in_reasoning=True)]) != [()]


def turn_off(speculator: Speculator, drafting: Drafting) -> None:
    """Guess wrongly, on what looked like short copies, until there are no more guesses."""
    draw = random.Random(1)
    for _ in range(60):
        drafting.prompted([10, 11, 12])
        [draft] = speculator.plan([Seat(drafting, 100)])
        drafting.committed([draw.randrange(300, V - 1)], len(draft))
    drafting.prompted([10, 11, 12])
    assert speculator.plan([Seat(drafting, 100)]) == [()]


def test_a_long_copy_is_tried_even_then() -> None:
    speculator = Speculator(V)
    drafting = started(speculator, COPYING)
    turn_off(speculator, drafting)
    drafting.prompted(range(60, 110))
    [draft] = speculator.plan([Seat(drafting, 100)])
    assert draft[:2] == (110, 111)


def test_indexes_outlive_their_streams() -> None:
    speculator = Speculator(V)
    index = speculator.new_index()
    first = speculator.open(index)
    first.prompted(range(100))
    first.committed([100], 0)
    second = speculator.open(index, list(range(90)))
    second.prompted([500, *range(20, 40)])
    second.committed([40], 0)
    [draft] = speculator.plan([Seat(second, 100)])
    assert draft[:3] == (41, 42, 43)
    assert index.n_tokens == 101 + 1 + 32 + 22
    assert speculator.nbytes == V * 4


# --- whether it pays: streams of known predictability, steps of known cost -------------------------------------------

MEASURED_MS = {1: 26, 2: 29, 3: 34, 4: 36, 5: 38.5, 6: 41, 8: 46, 12: 56, 16: 62, 64: 168, 256: 590}
Truth = Callable[[int | None, int], int]  # (guess or None, index) -> token


def milliseconds(n_rows: int) -> float:
    return float(np.interp(n_rows, list(MEASURED_MS), list(MEASURED_MS.values())))


def speedup(prompts: Sequence[Sequence[int]], truths: Sequence[Truth], n_tokens: int, seed: int = 0) -> float:
    """Time of plain decoding over time with speculation, for `n_tokens` of every stream; step times are noisy."""
    draw = random.Random(seed)
    speculator = Speculator(V)
    streams = [started(speculator, prompt) for prompt in prompts]
    done, spent = [0] * len(streams), 0.0
    while live := [place for place, n in enumerate(done) if n < n_tokens]:
        drafts = speculator.plan([Seat(streams[place], n_tokens - done[place] - 1) for place in live])
        n_rows = len(live) + sum(map(len, drafts))
        spent += milliseconds(n_rows)
        speculator.stepped(n_rows, 1e-3 * milliseconds(n_rows) * draw.lognormvariate(0.0, 0.1))
        for place, draft in zip(live, drafts, strict=True):
            tokens: list[int] = []
            for guess in (*draft, None):
                tokens.append(truths[place](guess, done[place] + len(tokens)))
                if tokens[-1] != guess:
                    break
            assert len(tokens) == common(draft, tokens) + 1
            streams[place].committed(tokens, len(draft))
            done[place] += len(tokens)
    return n_tokens * milliseconds(len(streams)) / spent


def bernoulli(p: float, seed: int) -> Truth:
    """Every guess is right with probability p."""
    draw = random.Random(seed)
    return lambda guess, _: guess if guess is not None and draw.random() < p else draw.randrange(V)


@pytest.mark.parametrize("n_streams", [1, 4, 8])
@pytest.mark.parametrize("p", [0.0, 0.05, 0.1, 0.2, 0.3, 0.5])
def test_it_never_costs_much(n_streams: int, p: float) -> None:
    for n_tokens in (60, 500):
        prompts = [list(range(20))] * n_streams
        truths = [bernoulli(p, seed) for seed in range(n_streams)]
        assert speedup(prompts, truths, n_tokens) >= 0.97


def test_good_guesses_pay() -> None:
    for p, least in ((0.7, 1.15), (0.9, 1.5)):
        assert speedup([list(range(20))], [bernoulli(p, 1)], 2000) >= least


@pytest.mark.parametrize(("n_streams", "least"), [(1, 4.0), (4, 2.0), (8, 1.5)])
def test_copies_pay(n_streams: int, least: float) -> None:
    draw = random.Random(0)
    texts = [[draw.randrange(V) for _ in range(600)] for _ in range(n_streams)]
    truths = [lambda _, index, text=text: text[index] for text in texts]
    assert speedup([[*text, V - 2] for text in texts], truths, 400) >= least


def test_edits_of_a_text_pay() -> None:
    draw = random.Random(0)
    text = [draw.randrange(V) for _ in range(600)]
    edited = [token if draw.random() > 0.05 else draw.randrange(V) for token in text]
    assert speedup([[*text, V - 2]], [lambda _, index: edited[index]], 500) >= 1.8


def test_free_text_is_left_alone() -> None:
    """Tokens that nothing predicts, with the chance matches of a skewed distribution."""
    for n_streams in (1, 4):
        draw = random.Random(n_streams)
        texts = [[min(int(draw.paretovariate(0.6)), V) - 1 for _ in range(2600)] for _ in range(n_streams)]
        truths = [lambda _, index, text=text: text[2000 + index] for text in texts]
        assert speedup([text[:2000] for text in texts], truths, 600) >= 0.97


def test_copies_pay_again_after_free_text() -> None:
    draw = random.Random(4)
    text = [draw.randrange(V) for _ in range(600)]
    reply = [*(min(int(draw.paretovariate(0.6)), V) - 1 for _ in range(600)), *text]
    assert speedup([[*text, V - 2]], [lambda _, index: reply[index]], 1200) >= 1.5
