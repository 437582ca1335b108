"""What bounds the choice of tokens: masks, biases, forced tokens; and what is reported about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from lmhub.chat.reply import ChannelParser
from lmhub.engine import Engine
from lmhub.errors import GenerationError, RequestError
from lmhub.family import ThinkMarkers
from lmhub.testing.fake import END_THINK, IM_END, N_VOCAB, THINK, FakeModel, FakeTokenizer, NoiseModel
from lmhub.types import (
    Event,
    Failure,
    Finish,
    GenerationRequest,
    PromptScored,
    ReasoningDelta,
    TextDelta,
    TokenIds,
)

MakeEngine = Callable[..., Engine]
MakeRequest = Callable[..., GenerationRequest]


class Spell:
    """Allows exactly these tokens, one after the other, then the end."""

    def __init__(self, tokens: Sequence[int], sleep: int = 0) -> None:
        self._tokens = [*tokens, IM_END]
        self._sleep = sleep  # tokens that are anybody's choice
        self.committed: list[int] = []

    def mask(self) -> np.ndarray | None:
        at = len(self.committed) - self._sleep
        if at < 0:
            return None
        bits = np.zeros((N_VOCAB + 31) // 32, np.uint32)
        token = self._tokens[at]
        bits[token // 32] = 1 << token % 32
        return bits

    def commit(self, token: int) -> None:
        self.committed.append(token)

    def forced(self) -> Sequence[int]:
        at = len(self.committed) - self._sleep
        return self._tokens[at:-1] if at >= 0 else ()

    def accepts(self, tokens: Sequence[int]) -> int:
        at = len(self.committed) - self._sleep
        fits = (at + n < 0 or self._tokens[at + n : at + n + 1] == [token] for n, token in enumerate(tokens))
        return next((n for n, fit in enumerate(fits) if not fit), len(tokens))


def collect(engine: Engine, request: GenerationRequest) -> list[Event]:
    return list(engine.submit(request).events())


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def test_a_mask_decides(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    spell = Spell(b"yes")
    events = collect(make_engine(NoiseModel()), make_request(constraint=spell, temperature=1.5, seed=4))
    assert text_of(events) == "yes"
    assert isinstance(events[-1], Finish)
    assert events[-1].reason == "stop"
    assert spell.committed == [*b"yes", IM_END]


def test_a_sleeping_constraint_lets_everything_through(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    events = collect(make_engine(FakeModel(b"free, ")), make_request(constraint=Spell(b"bound", sleep=6)))
    assert text_of(events) == "free, bound"


def test_the_mask_wins_over_a_bias(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    events = collect(make_engine(FakeModel(b"x")), make_request(constraint=Spell(b"y"), logit_bias={ord("x"): 100.0}))
    assert text_of(events) == "y"


def test_constrained_and_free_replies_share_steps(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    engine = make_engine(NoiseModel(), batch=4)
    requests = [make_request(f"p{n}", max_tokens=6, temperature=1.0, seed=n) for n in range(3)]
    alone = [text_of(collect(engine, request)) for request in requests]
    bound = engine.submit(make_request("b", constraint=Spell(b"spelled out")))
    together = [engine.submit(request) for request in requests]
    assert text_of(list(bound.events())) == "spelled out"
    assert [text_of(list(one.events())) for one in together] == alone


class Broken:
    def __init__(self, where: str) -> None:
        self._where = where

    def mask(self) -> None:
        if self._where == "mask":
            raise GenerationError("the grammar failed")

    def commit(self, token: int) -> None:
        if self._where == "commit":
            raise GenerationError("the grammar failed")

    def forced(self) -> Sequence[int]:
        return ()

    def accepts(self, tokens: Sequence[int]) -> int:
        return len(tokens)


@pytest.mark.parametrize("where", ["mask", "commit"])
def test_a_constraint_that_fails_ends_its_reply_only(
    make_engine: MakeEngine, make_request: MakeRequest, where: str
) -> None:
    engine = make_engine(FakeModel(b"hello"), batch=2)
    broken, sound = engine.submit(make_request(constraint=Broken(where))), engine.submit(make_request())
    [failure] = list(broken.events())
    assert isinstance(failure, Failure)
    assert str(failure.error) == "the grammar failed"
    assert text_of(list(sound.events())) == "hello"


def test_a_constraint_is_told_of_a_failing_step(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    """Each slot alone after a common failure: the mask is asked for again, the reply is the same."""
    failures = iter([True])

    def fail(chunks: Any) -> None:
        if len(chunks) > 1 and next(failures, False):
            raise ValueError("no room")

    engine = make_engine(FakeModel(b"free", before_step=fail), batch=2)
    one, two = engine.submit(make_request(constraint=Spell(b"bound"))), engine.submit(make_request())
    assert (text_of(list(one.events())), text_of(list(two.events()))) == ("bound", "free")


# --- biases ----------------------------------------------------------------------------------------------------------


class Even(FakeModel):
    """`a` is likeliest, then `b`, `c`."""

    def row(self, tokens: Any, n_prompt: int) -> Any:
        row = np.full(self.n_vocab, -50.0, np.float32)
        row[ord("a") : ord("d")] = 3.0, 2.0, 1.0
        return row


@pytest.mark.parametrize(
    ("bias", "expected"),
    [({}, "aa"), ({ord("a"): -1.5}, "bb"), ({ord("a"): -100.0, ord("b"): -100.0}, "cc"), ({ord("z"): 100.0}, "zz")],
)
def test_logit_bias(make_engine: MakeEngine, make_request: MakeRequest, bias: dict[int, float], expected: str) -> None:
    assert text_of(collect(make_engine(Even()), make_request(max_tokens=2, logit_bias=bias))) == expected


def test_a_suppressed_id_stays_suppressed(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    request = make_request(max_tokens=1, logit_bias={ord("a"): 100.0}, suppressed=frozenset((ord("a"),)))
    assert text_of(collect(make_engine(Even()), request)) == "b"


# --- log probabilities -----------------------------------------------------------------------------------------------


def test_log_probabilities_are_the_models_own(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    """Before bias, mask, processors, penalties and temperature."""

    def forbid_a(row: Any, history: Any) -> None:
        row[ord("a")] = -np.inf

    total = np.log(np.exp([3.0, 2.0, 1.0]).sum() + (N_VOCAB - 3) * np.exp(-50.0))
    for options in (
        {"logit_bias": {ord("a"): -100.0}},
        {"constraint": Spell(b"b")},
        {"processors": (forbid_a,)},
        {"suppressed": frozenset((ord("a"),))},
    ):
        events = collect(make_engine(Even()), make_request(max_tokens=1, logprobs=2, temperature=0.01, **options))
        [entry] = [entry for event in events if isinstance(event, TextDelta) for entry in event.logprobs]
        assert (entry.token, entry.piece) == (ord("b"), b"b")
        assert entry.logprob == pytest.approx(2.0 - total, abs=1e-5)
        assert [(token, piece) for token, piece, _ in entry.top] == [(ord("a"), b"a"), (ord("b"), b"b")]
        assert [value for _, _, value in entry.top] == pytest.approx([3.0 - total, 2.0 - total], abs=1e-5)


def test_without_the_wish_there_are_none(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    events = collect(make_engine(Even()), make_request(max_tokens=2))
    assert all(event.logprobs == () for event in events if isinstance(event, TextDelta))
    events = collect(make_engine(Even()), make_request(max_tokens=1, logprobs=0))
    assert [entry.top for event in events if isinstance(event, TextDelta) for entry in event.logprobs] == [()]


@pytest.mark.parametrize("chunk", [2, 4, 256])
def test_a_scored_prompt_comes_first(make_engine: MakeEngine, make_request: MakeRequest, chunk: int) -> None:
    model = NoiseModel()
    request = make_request("prompt", max_tokens=2, score_prompt=True, logprobs=1)
    events = collect(make_engine(model, prefill_chunk=chunk, batch=1), request)
    scored = events[0]
    assert isinstance(scored, PromptScored)
    assert [entry.token for entry in scored.logprobs] == list(b"prompt")
    assert scored.logprobs[0].logprob is None
    for place, entry in enumerate(scored.logprobs[1:], 1):
        row = model.row(tuple(b"prompt"[:place]), 0).astype(np.float64)
        assert entry.logprob == pytest.approx(row[entry.token] - np.log(np.exp(row).sum()), abs=1e-5)
        assert entry.top[0][0] == row.argmax()
    plain = collect(make_engine(NoiseModel()), make_request("prompt", max_tokens=2, logprobs=1))
    assert events[1:-1] == plain[:-1]


def test_a_prompt_is_scored_without_a_reply(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    engine = make_engine(NoiseModel(), n_ctx=6)
    events = collect(engine, make_request("prompt", max_tokens=0, score_prompt=True))
    assert [type(event) for event in events] == [PromptScored, Finish]
    assert isinstance(events[-1], Finish)
    assert (events[-1].reason, events[-1].usage.completion_tokens) == ("length", 0)
    with pytest.raises(RequestError, match="at least 1"):
        engine.submit(make_request("x", max_tokens=0))


# --- reasoning -------------------------------------------------------------------------------------------------------


def channels(tokenizer: FakeTokenizer) -> ChannelParser:
    return ChannelParser(tokenizer.token_id, think=ThinkMarkers())


def test_reasoning_is_closed_when_its_budget_is_used_up(
    make_engine: MakeEngine, make_request: MakeRequest, tokenizer: FakeTokenizer
) -> None:
    class Endless(FakeModel):
        """Reasons until somebody closes the reasoning."""

        def row(self, tokens: Any, n_prompt: int) -> Any:
            row = np.zeros(self.n_vocab, np.float32)
            said = tokens[n_prompt:]
            row[
                THINK
                if not said
                else ord("x")
                if END_THINK not in said
                else b"yes\0"[said[::-1].index(END_THINK)] or IM_END
            ] = 9
            return row

    request = make_request(
        parser=channels(tokenizer), reasoning_budget=5, close_reasoning=(*b".", END_THINK), return_token_ids=True
    )
    events = collect(make_engine(Endless()), request)
    assert "".join(event.text for event in events if isinstance(event, ReasoningDelta)) == "xxxx."
    assert text_of(events) == "yes"
    ids = [token for event in events if isinstance(event, TokenIds) for token in event.tokens]
    assert ids == [THINK, *b"xxxx.", END_THINK, *b"yes", IM_END]
    assert isinstance(events[-1], Finish)
    assert (events[-1].reason, events[-1].usage.completion_tokens) == ("stop", len(ids) - 1)
    assert events[-1].usage.reasoning_tokens == 7


def test_forced_tokens_respect_the_budget_of_the_reply(
    make_engine: MakeEngine, make_request: MakeRequest, tokenizer: FakeTokenizer
) -> None:
    request = make_request(
        max_tokens=5, parser=channels(tokenizer), reasoning_budget=3, close_reasoning=(*b"......", END_THINK)
    )
    events = collect(make_engine(FakeModel([THINK, *b"xxxxxxxx"])), request)
    assert isinstance(events[-1], Finish)
    assert (events[-1].reason, events[-1].usage.completion_tokens) == ("length", 5)


def test_a_constraint_hears_of_forced_tokens(
    make_engine: MakeEngine, make_request: MakeRequest, tokenizer: FakeTokenizer
) -> None:
    spell = Spell(b"ok", sleep=4)
    request = make_request(
        parser=channels(tokenizer), reasoning_budget=3, close_reasoning=(END_THINK,), constraint=spell
    )
    events = collect(make_engine(FakeModel([THINK, *b"xxxxxx"])), request)
    assert text_of(events) == "ok"
    assert spell.committed == [THINK, *b"xx", END_THINK, *b"ok", IM_END]
