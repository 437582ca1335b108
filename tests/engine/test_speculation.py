"""Guessing ahead changes nothing but the number of steps: not a token, not a log probability, not a row that stays."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lmhub.chat.reply import ChannelParser
from lmhub.engine.drafts import Speculator
from lmhub.family import ThinkMarkers
from lmhub.grammar import GrammarEngine
from lmhub.testing.fake import IM_END, N_VOCAB, FakeTokenizer, Tokens
from lmhub.testing.timetable import Outcome, outcome_of
from lmhub.testing.turns import Done, Letters, Turns
from lmhub.types import GenerationRequest, GrammarSpec, SamplingParams

MakeRequest = Callable[..., GenerationRequest]
Make = Callable[[], GenerationRequest]

PROMPT = "abcabcabdabcabc"
K = 5  # tokens that the doubles guess


class Loops(Letters):
    """Says what it said before in the same place, mostly; ends now and then. So guesses are often right."""

    def row(self, tokens: Tokens, n_prompt: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Noise that depends on two tokens, and a little on all; for few letters and the end."""
        row = np.full(self.n_vocab, -1e9, np.float32)
        chosen = [*b"abcdef", IM_END]
        row[chosen] = 3.0 * noise(tokens[-2:], len(chosen)) + 0.3 * noise(tokens, len(chosen))
        row[IM_END] -= 2.0
        return row


def noise(tokens: Sequence[int], n: int) -> NDArray[np.float32]:
    seed = zlib.crc32(np.asarray(tokens, np.int32).tobytes())
    return np.random.default_rng(seed).standard_normal(n, np.float32)


# --- who guesses -----------------------------------------------------------------------------------------------------


class Notes:
    """What a double remembers of a stream, in the place of a Drafting."""

    def __init__(self) -> None:
        self.said: list[int] = []
        self.steps: list[tuple[int, int]] = []  # tokens offered and committed
        self.n_drafted = self.n_accepted = 0

    def prompted(self, tokens: Sequence[int]) -> None:
        pass

    def committed(self, tokens: Sequence[int], n_offered: int) -> None:
        assert 1 <= len(tokens) <= 1 + n_offered + len(CLOSE)
        self.said += tokens
        self.steps.append((n_offered, len(tokens)))
        self.n_drafted += n_offered
        self.n_accepted += min(len(tokens) - 1, n_offered)


class Double:
    """In the place of a Speculator, for one stream whose reply is known beforehand."""

    def __init__(self, script: Tokens):
        self.script = script
        self.notes: list[Notes] = []

    def new_index(self) -> Any:
        return object()

    def open(self, index: Any, kept: Sequence[int] = (), n_known: int | None = None) -> Any:
        self.notes.append(Notes())
        return self.notes[-1]

    def plan(self, seats: Sequence[Any], **limits: Any) -> list[tuple[int, ...]]:
        return [self.draft(seat) for seat in seats]

    def draft(self, seat: Any) -> tuple[int, ...]:
        """Within the room, before an end, for streams that take guesses."""
        if seat.drafting is None:
            return ()
        tokens = self.guess(len(seat.drafting.said))[: max(0, seat.room)]
        return tokens[: next((at for at, token in enumerate(tokens) if token in seat.eog), len(tokens))]

    def guess(self, at: int) -> tuple[int, ...]:
        return self.script[at : at + K]

    def stepped(self, n_rows: int, seconds: float) -> None:
        pass


class Perfect(Double):
    pass


class Garbage(Double):
    def guess(self, at: int) -> tuple[int, ...]:
        return tuple(np.random.default_rng(at).integers(0, 256, K).tolist())


class Alternating(Double):
    """The first tokens are right, as many as the place says."""

    def guess(self, at: int) -> tuple[int, ...]:
        right = self.script[at : at + K]
        return (*right[: at % K], *b"zz")


class Lying(Double):
    """Longer than there is room, beyond the end of the reply, and for streams that take no guesses."""

    def draft(self, seat: Any) -> tuple[int, ...]:
        at = 0 if seat.drafting is None else len(seat.drafting.said)
        return (self.script + (IM_END,) * 40)[at : at + 40]


class Single(Double):
    def guess(self, at: int) -> tuple[int, ...]:
        return self.script[at : at + 1]


class Real(Speculator):
    """The engine's own, on a model where a row more costs nothing."""

    def __init__(self, script: Tokens):
        super().__init__(N_VOCAB)


SOURCES = (Perfect, Garbage, Alternating, Lying, Single, Real)


# --- what is asked ---------------------------------------------------------------------------------------------------

CLOSE = tuple(FakeTokenizer().encode("</think>", special=True)) + tuple(b"so:")
TOKENIZER = FakeTokenizer()
GRAMMARS = GrammarEngine(TOKENIZER, N_VOCAB, frozenset(TOKENIZER.eog))


def edit(logits: NDArray[np.float32], history: Sequence[int]) -> None:
    """A processor that looks at the whole history."""
    logits[history[-1]] -= 0.7
    logits[ord("a") + sum(history) % 6] += 1.0


def thinking() -> dict[str, Any]:
    parser = ChannelParser(TOKENIZER.token_id, think=ThinkMarkers(), opens_reasoning=True)
    return {"parser": parser, "close_reasoning": CLOSE}


def bound() -> dict[str, Any]:
    grammar = GrammarSpec("regex", "(ab|cd){2,6} (yes|no), (the cat|the dog) [a-d]{3}", "regex")
    return {"constraint": GRAMMARS.constraint(grammar)}


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "greedy": dict,
    "sampled": lambda: {"sampling": SamplingParams(0.8, top_k=20, seed=4)},
    "penalties": lambda: {
        "sampling": SamplingParams(repeat_penalty=1.3, frequency_penalty=0.2, presence_penalty=0.3, repeat_last_n=16)
    },
    "sampled with penalties": lambda: {
        "sampling": SamplingParams(1.0, frequency_penalty=0.5, repeat_last_n=-1, seed=7)
    },
    "bias": lambda: {"logit_bias": {ord("a"): 1.5}, "suppressed": frozenset(b"b")},
    "processor": lambda: {"processors": (edit,)},
    "grammar": bound,
    "grammar, sampled": lambda: {**bound(), "sampling": SamplingParams(1.2, seed=3)},
    "reasoning": lambda: {**thinking(), "reasoning_budget": 7},
    "reasoning at once": lambda: {**thinking(), "reasoning_budget": 0},
    "reasoning and a short budget": lambda: {**thinking(), "reasoning_budget": 7, "max_tokens": 9},
    "scored prompt": lambda: {"score_prompt": True},
    "budget 1": lambda: {"max_tokens": 1},
    "budget 2": lambda: {"max_tokens": 2},
    "budget 3": lambda: {"max_tokens": 3},
    "no budget, scored": lambda: {"max_tokens": 0, "score_prompt": True},
}


@pytest.fixture
def make(make_request: MakeRequest) -> Callable[..., Make]:
    """Requests with everything reported, made anew for every run: constraints and parsers serve once."""

    def of(options: Callable[[], dict[str, Any]], prompt: str = PROMPT) -> Make:
        return lambda: make_request(prompt, **{"max_tokens": 60, "logprobs": 4, "return_token_ids": True, **options()})

    return of


def plain(make: Make, **engine: Any) -> Done:
    """Without any guesses."""
    return Turns(Loops(), batch=1, **engine).run(make())


def exact(done: Done) -> Outcome:
    return outcome_of(done.events)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("source", SOURCES)
def test_replies_are_the_same_whoever_guesses(make: Callable[..., Make], source: type[Any], case: str) -> None:
    request = make(CASES[case])
    expected = plain(request)
    turns = Turns(model := Loops(), batch=1, speculator=(guesser := source(expected.tokens)))
    generation = turns.submit(request())
    while generation.request.id not in turns.records:
        turns.turn()
        for slot in turns.pool.running:
            assert slot.n_pending == 1 or "reasoning" in case
    [done] = turns.end(generation)
    assert exact(done) == exact(expected)
    prompt = generation.request.prompt
    [held] = turns.held()
    assert held == (prompt + expected.tokens)[: len(held)]  # nothing of a wrong guess, and nothing behind the end
    assert len(held) == len(prompt) + max(0, len(expected.tokens) - 1) or "reasoning" in case
    if source is Perfect and case in ("greedy", "sampled", "penalties", "processor"):
        assert len(model.steps) <= 2 + len(expected.tokens) / (K + 1)
        assert done.record.n_accepted == done.record.n_drafted > 0
    if source is Garbage and "reasoning" not in case:
        assert done.record.n_accepted <= 2
    if isinstance(guesser, Double):
        assert tuple(guesser.notes[0].said) == expected.tokens
        assert done.record.n_drafted == guesser.notes[0].n_drafted == turns.stepper.counts.drafted


@pytest.mark.parametrize("source", SOURCES)
def test_the_end_of_the_reply_comes_as_a_correction_or_behind_all_guesses(
    make: Callable[..., Make], source: type[Any]
) -> None:
    n_ended = 0
    for seed in range(12):
        request = make(lambda seed=seed: {"sampling": SamplingParams(1.5, seed=seed), "max_tokens": 200})
        expected = plain(request)
        n_ended += expected.reason == "stop"
        turns = Turns(Loops(), batch=1, speculator=source(expected.tokens))
        done = turns.run(request())
        assert exact(done) == exact(expected)
        [held] = turns.held()
        assert held == (tuple(PROMPT.encode()) + expected.tokens)[: len(held)]
        assert IM_END not in held
    assert n_ended >= 6


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("n", range(1, 9))
def test_a_stop_string_that_is_completed_by_a_guess_ends_the_reply_there(
    make: Callable[..., Make], source: type[Any], n: int
) -> None:
    """Wherever it lies in the guess; the next turn goes on from exactly the reply."""
    text = plain(make(dict)).text
    stop = text[n : n + 3]
    request = make(lambda: {"stop": (stop,)})
    expected = plain(request)
    assert (expected.reason, expected.text) == ("stop_sequence", text[: text.index(stop)])
    turns = Turns(Loops(), batch=1, kv_slots=1, speculator=source(tuple(text.encode())))
    done = turns.run(request())
    assert exact(done) == exact(expected)
    said = PROMPT.encode() + bytes(expected.tokens)
    assert turns.held() == [tuple(said[:-1])]
    follow_up = make(dict, said.decode() + "!")
    again = turns.run(follow_up())
    assert again.cached == len(said) - 1
    assert exact(again) == exact(plain(follow_up))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("room", [1, 2, 3, K, K + 1, K + 2])
def test_at_the_end_of_the_context(make: Callable[..., Make], source: type[Any], room: int) -> None:
    """The model itself refuses what does not fit."""
    request = make(lambda: {"sampling": SamplingParams(seed=1), "logit_bias": {IM_END: -100.0}})
    n_ctx = len(PROMPT) + room
    expected = plain(request, n_ctx=n_ctx)
    assert (expected.reason, len(expected.tokens)) == ("length", room)
    done = Turns(Loops(), batch=1, n_ctx=n_ctx, speculator=source(expected.tokens)).run(request())
    assert exact(done) == exact(expected)


def test_penalties_see_what_was_accepted_before_in_the_same_step(make: Callable[..., Make]) -> None:
    """The negative control: with the counts as they were when the step began, the reply would be another one."""
    request = make(CASES["penalties"])
    expected = plain(request)
    turns = Turns(Loops(), batch=1, speculator=Perfect(expected.tokens))  # type: ignore[arg-type]
    sample, stale = turns.stepper._sample, []

    def late(row: Any, params: Any, index: int, ids: Any, counts: Any, *rest: Any) -> int:
        if not (index - 1) % (K + 1) or not stale:
            stale[:] = [ids.copy(), counts.copy()]
        return sample(row, params, index, stale[0], stale[1], *rest)

    turns.stepper._sample = late
    assert turns.run(request()).tokens != expected.tokens


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_streams_with_and_without_guesses_share_a_batch(make: Callable[..., Make], temperature: float) -> None:
    sampling = {"sampling": SamplingParams(temperature, seed=2)}
    wanted = [
        make(lambda options=options: {**sampling, **options()}, f"{PROMPT}{number}")
        for number, options in enumerate((dict, CASES["processor"], bound, thinking, dict, dict))
    ]
    turns = Turns(Loops(), batch=4, kv_slots=4, speculator=Real(()))
    done = turns.end(*[turns.submit(request()) for request in wanted])
    assert [exact(one) for one in done] == [exact(plain(request)) for request in wanted]
    counts = turns.stepper.counts
    assert counts.drafted == sum(one.record.n_drafted for one in done) > counts.accepted > 0
    assert counts.accepted == sum(one.record.n_accepted for one in done)


def test_the_index_follows_a_long_conversation(make: Callable[..., Make]) -> None:
    turns = Turns(Loops(), batch=1, kv_slots=1, n_ctx=4096, speculator=Real(()))
    prompt = PROMPT
    for turn in range(6):
        request = make(lambda turn=turn: {"max_tokens": 400, "logit_bias": {IM_END: -100.0}, "logprobs": None}, prompt)
        generation = turns.submit(request())
        while generation.request.id not in turns.records:
            turns.turn()
            for slot in turns.pool.running:
                assert slot.index is not None and slot.index.n_live == len(slot.tokens)
        [done] = turns.end(generation)
        prompt = prompt[: len(prompt) - turn] + done.text + "#?"
    assert done.record.n_accepted > 100
    assert exact(done) == exact(plain(request))


# --- guessing that breaks --------------------------------------------------------------------------------------------


class Broken(Speculator):
    """Fails in the operation that `where` names, each time it is asked but for the first."""

    def __init__(self, where: str):
        super().__init__(N_VOCAB)
        self._where = where
        self.n_hit = 0

    def hit(self, where: str) -> None:
        if where == self._where:
            self.n_hit += 1
            if self.n_hit > 1:
                raise ValueError("a defect of guessing")

    def new_index(self) -> Any:
        self.hit("new_index")
        return super().new_index()

    def open(self, *args: Any, **options: Any) -> Any:
        self.hit("open")
        drafting = super().open(*args, **options)
        for name in ("prompted", "committed"):
            self.break_at(drafting, name)
        return drafting

    def break_at(self, drafting: Any, name: str) -> None:
        whole = getattr(drafting, name)

        def call(*args: Any, **options: Any) -> None:
            self.hit(name)
            whole(*args, **options)

        setattr(drafting, name, call)

    def plan(self, *args: Any, **options: Any) -> Any:
        self.hit("plan")
        return super().plan(*args, **options)


@pytest.mark.parametrize("where", ["new_index", "open", "prompted", "plan", "committed"])
def test_guessing_that_breaks_hurts_nobody(
    make: Callable[..., Make], where: str, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = [make(dict, f"{PROMPT}{number}") for number in range(3)]
    turns = Turns(Loops(), batch=2, kv_slots=2, speculator=(broken := Broken(where)))
    done = turns.end(*[turns.submit(request()) for request in wanted])
    assert [exact(one) for one in done] == [exact(plain(request)) for request in wanted]
    assert broken.n_hit > 1
    assert "a defect of guessing" in caplog.text
