"""The tool that a model runs by itself: when its answer is forced, what a draft may hold, and what is left out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lmhub.chat.inner import MAX_CALL, Inner
from lmhub.engine.reply import PlainText
from lmhub.errors import GenerationError
from lmhub.types import Content

OPEN, CLOSE, ANSWER, END = 40, 41, 42, 43
N_VOCAB = 44


def inner(is_shown: bool = False) -> Inner:
    """Answers a call of one token or more with twice its first, but 7 with nothing."""

    def answer(call: Sequence[int]) -> Sequence[int]:
        return (ANSWER, call[0], call[0], END) if call and call[0] != 7 else ()

    return Inner(OPEN, CLOSE, ANSWER, END, N_VOCAB, is_shown, answer)


def run(*tokens: int) -> list[int | None]:
    """What is forced before each token and behind the last; None: nothing."""
    constraint = inner().constraint()
    out: list[int | None] = []
    for token in (*tokens, None):
        mask = constraint.mask()
        allowed = None if mask is None else [i for i in range(N_VOCAB) if mask[i // 32] >> (i % 32) & 1]
        assert allowed is None or len(allowed) == 1
        assert list(constraint.forced()[:1]) == (allowed or [])
        out.append(allowed[0] if allowed else None)
        if token is not None:
            constraint.commit(token)
    return out


def test_an_answer_follows_a_closed_call_and_nothing_else() -> None:
    assert run(1, OPEN, 5, 6, CLOSE, ANSWER, 5, 5, END, 9) == [None] * 5 + [ANSWER, 5, 5, END, None, None]


@pytest.mark.parametrize(
    "tokens",
    [
        (1, CLOSE, 2),  # none was open
        (OPEN, CLOSE, 2),  # an empty one
        (OPEN, 7, CLOSE, 2),  # one without an answer
        (OPEN, 5),  # one that is not closed
        (OPEN, 5, CLOSE, ANSWER, 5, 5, END, CLOSE, 3),  # closed twice
    ],
)
def test_calls_without_an_answer(tokens: tuple[int, ...]) -> None:
    assert run(*tokens)[-1] is None


def test_a_call_that_is_opened_again_begins_anew() -> None:
    assert run(OPEN, 7, OPEN, 5, CLOSE)[-1] == ANSWER


def test_another_token_than_the_forced_one_is_an_error() -> None:
    constraint = inner().constraint()
    for token in (OPEN, 5, CLOSE):
        constraint.commit(token)
    with pytest.raises(GenerationError):
        constraint.commit(5)


def test_drafts_end_where_an_answer_may_begin() -> None:
    constraint = inner().constraint()
    assert constraint.accepts((1, OPEN, 5, CLOSE, ANSWER, 5)) == 4
    for token in (OPEN, 5, CLOSE):
        constraint.commit(token)
    assert constraint.accepts((ANSWER, 5, 5, END, 8, 9)) == 6
    assert constraint.accepts((ANSWER, 5, 6)) == 2
    assert constraint.accepts((5,)) == 0


def test_an_endless_call_has_no_answer() -> None:
    calls: list[int] = []
    found = Inner(OPEN, CLOSE, ANSWER, END, N_VOCAB, False, lambda call: calls.append(len(call)) or ())
    constraint = found.constraint()
    for token in (OPEN, *[5] * 10 * MAX_CALL, CLOSE):
        constraint.commit(token)
    assert calls == [MAX_CALL + 1]  # which `Inner.of` takes for too long
    assert constraint.mask() is None


@pytest.mark.parametrize(("is_shown", "text"), [(False, b"ab"), (True, b"a`..` = `..` b")])
def test_what_the_client_sees(is_shown: bool, text: bytes) -> None:
    parser = inner(is_shown).parser(PlainText())
    seen = b""
    for token in (1, OPEN, 5, 5, CLOSE, ANSWER, 5, 5, END, 2):
        piece = {1: b"a", 2: b"b", 5: b"."}.get(token, b"")
        seen += b"".join(item.data for item in parser.feed(token, piece) if isinstance(item, Content))
    assert seen == text
    assert parser.n_calls == parser.reasoning_tokens == 0 and not parser.in_reasoning


def test_a_call_cut_off_is_dropped() -> None:
    parser = inner().parser(PlainText())
    assert [item for token in (OPEN, 5, 5) for item in parser.feed(token, b".")] == []
    assert list(parser.finish(cut=True)) == []
