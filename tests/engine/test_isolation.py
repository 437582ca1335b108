"""A step that fails is taken apart until the guilty one is found; what a request brings along hurts nobody else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmhub.engine.disk import DiskTier
from lmhub.engine.drafts import Speculator
from lmhub.errors import GenerationError, KernelError
from lmhub.model import Chunk
from lmhub.testing.fake import N_VOCAB, PATIENCE_S, FakeModel, FakeState
from lmhub.testing.turns import Done, Letters, Turns
from lmhub.types import Content, Failure, GenerationRequest, ReplyItem

MakeRequest = Callable[..., GenerationRequest]


@pytest.fixture
def alone(make_request: MakeRequest) -> Callable[..., str]:
    return lambda prompt, n=8: Turns(Letters(), batch=1).run(make_request(prompt, n)).text


class Poison:
    """A `before_step` that fails where one of the sequences begins with "bad"; counts how often it was called."""

    def __init__(self) -> None:
        self.n_calls = 0
        self.is_active = True

    def __call__(self, chunks: Sequence[Chunk]) -> None:
        self.n_calls += 1
        if self.is_active and any(begins(chunk, b"bad") for chunk in chunks):
            raise KernelError("no such expert")


def begins(chunk: Chunk, prompt: bytes) -> bool:
    assert isinstance(chunk.state, FakeState)
    return bytes([*chunk.state.tokens, *chunk.tokens]).startswith(prompt)


# --- steps that fail -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 3, 7])
def test_one_of_eight_is_found_in_few_steps(make_request: MakeRequest, alone: Callable[..., str], place: int) -> None:
    turns = Turns(model := Letters(before_step=(poison := Poison())), batch=8)
    prompts = [f"good {number}" for number in range(8)]
    prompts[place] = "bad"
    generations = [turns.submit(make_request(prompt, 8)) for prompt in prompts]
    turns.turn()
    assert poison.n_calls == 1 + 2 * 3
    assert len(model.steps) == 3  # the other half, the other quarter, the neighbour
    done = turns.end(*generations)
    assert [one.reason for one in done] == ["length"] * place + ["KernelError"] + ["length"] * (7 - place)
    for prompt, one in zip(prompts, done, strict=True):
        assert one.text == ("" if prompt == "bad" else alone(prompt))
    assert turns.worker.is_healthy


def test_one_that_fails_in_the_middle_of_its_reply_leaves_the_others_alone(
    make_request: MakeRequest, alone: Callable[..., str]
) -> None:
    poison = Poison()
    poison.is_active = False
    turns = Turns(Letters(before_step=poison), batch=4)
    generations = [turns.submit(make_request(prompt, 12)) for prompt in ("one", "bad", "two", "three")]
    turns.turn(5)
    poison.is_active = True
    done = turns.end(*generations)
    assert [one.reason for one in done] == ["length", "KernelError", "length", "length"]
    assert [one.text for one in done] == [alone("one", 12), alone("bad", 5), alone("two", 12), alone("three", 12)]
    assert "bad" not in {bytes(tokens[:3]) for tokens in turns.held()}  # its state is not to be trusted


def test_two_that_fail_together_only_both_live(make_request: MakeRequest, alone: Callable[..., str]) -> None:
    def refuse(chunks: Sequence[Chunk]) -> None:
        if sum(begins(chunk, b"odd") for chunk in chunks) > 1:
            raise KernelError("too many of a kind")

    turns = Turns(Letters(before_step=refuse), batch=5)
    prompts = ["odd one", "even one", "odd two", "even two", "even three"]
    done = turns.end(*[turns.submit(make_request(prompt, 8)) for prompt in prompts])
    assert [one.text for one in done] == [alone(prompt) for prompt in prompts]
    assert turns.worker.is_healthy


def test_several_that_fail_in_one_step_are_one_failure(make_request: MakeRequest, alone: Callable[..., str]) -> None:
    turns = Turns(Letters(before_step=Poison()), batch=8)
    prompts = [f"bad {n}" for n in range(5)] + ["good", "fine"]
    done = turns.end(*[turns.submit(make_request(prompt, 8)) for prompt in prompts])
    assert [one.reason for one in done] == ["KernelError"] * 5 + ["length"] * 2
    assert [one.text for one in done[5:]] == [alone("good"), alone("fine")]
    assert turns.worker.is_healthy


def test_a_model_that_fails_in_step_after_step_is_unhealthy_until_a_step_succeeds(make_request: MakeRequest) -> None:
    turns = Turns(Letters(before_step=Poison()), batch=2)
    good = turns.submit(make_request("good", 100))
    for number in range(3):
        assert turns.worker.is_healthy and good.request.id not in turns.records
        turns.submit(make_request(f"bad {number}", 8))
        turns.turn()
    assert not turns.worker.is_healthy
    [ended] = turns.end(good)
    assert isinstance(ended.events[-1], Failure)
    assert "3 steps in a row" in str(ended.events[-1].error)
    assert turns.run(make_request("bad again", 8)).reason == "KernelError"
    assert not turns.worker.is_healthy
    assert turns.run(make_request("good again", 8)).reason == "length"
    assert turns.worker.is_healthy


def test_failures_with_good_steps_between_them_are_no_disease(
    make_request: MakeRequest, alone: Callable[..., str]
) -> None:
    turns = Turns(Letters(before_step=Poison()), batch=2)
    good = turns.submit(make_request("good", 20))
    for number in range(6):
        turns.submit(make_request(f"bad {number}", 8))
        turns.turn(2)
    assert turns.worker.is_healthy
    assert turns.end(good)[0].text == alone("good", 20)


def test_what_a_step_left_half_done_is_not_used_again(make_request: MakeRequest, alone: Callable[..., str]) -> None:
    def half(chunks: Sequence[Chunk]) -> None:
        if any(begins(chunk, b"bad") for chunk in chunks):
            assert isinstance(chunks[0].state, FakeState)
            chunks[0].state.tokens.append(0)
            raise KernelError("halfway")

    turns = Turns(Letters(before_step=half), batch=2)
    good = turns.submit(make_request("good", 20))
    turns.turn(3)
    bad = turns.submit(make_request("bad", 20))
    assert [one.reason for one in turns.end(good, bad)] == ["KernelError"] * 2
    assert turns.held() == []
    assert turns.run(make_request("good", 8)).text == alone("good")


# --- what requests bring along ---------------------------------------------------------------------------------------


class Constraint:
    """Wants "(one two three)", said ahead as far as it goes; `where` names what breaks after `n` tokens."""

    script = b"(one two three)" * 3

    def __init__(self, where: str, n: int):
        self._where, self._n, self._at = where, n, 0

    def _hit(self, where: str) -> None:
        if where == self._where and self._at >= self._n:
            raise ValueError("a defect of the grammar")

    def mask(self) -> np.ndarray:
        self._hit("mask")
        bits = np.zeros((N_VOCAB + 31) // 32, np.uint32)
        bits[self.script[self._at] // 32] = 1 << self.script[self._at] % 32
        return bits

    def commit(self, token: int) -> None:
        self._hit("commit")
        assert token == self.script[self._at]
        self._at += 1

    def forced(self) -> Sequence[int]:
        self._hit("forced")
        return self.script[self._at : self._at + 5] if self._where != "accepts" else b""

    def accepts(self, tokens: Sequence[int]) -> int:
        self._hit("accepts")
        return len(tokens) if bytes(tokens) == self.script[self._at :][: len(tokens)] else 0


class Parser:
    """Breaks at its n-th token."""

    reasoning_tokens = 0
    in_reasoning = False
    n_calls = 0

    def __init__(self, n: int):
        self._left = n

    def feed(self, token: int, piece: bytes) -> Sequence[ReplyItem]:
        self._left -= 1
        if self._left <= 0:
            raise ValueError("a defect of the parser")
        return (Content(piece),)

    def finish(self, cut: bool = False) -> Sequence[ReplyItem]:
        return ()


class Processor:
    """Breaks at its n-th row."""

    def __init__(self, n: int):
        self._left = n

    def __call__(self, logits: np.ndarray, history: Sequence[int]) -> None:
        self._left -= 1
        if self._left <= 0:
            raise ValueError("a defect of the processor")


class Guessing(Speculator):
    """Guesses what scripted replies are, always and without asking what it costs."""

    def __init__(self) -> None:
        super().__init__(N_VOCAB)

    def plan(self, seats: Any, *args: Any, **options: Any) -> list[tuple[int, ...]]:
        plain = super().plan(seats, *args, **options)
        return [draft or self._guess(seat) for draft, seat in zip(plain, seats, strict=True)]

    def _guess(self, seat: Any) -> tuple[int, ...]:
        if seat.drafting is None or seat.room < 3:
            return ()
        if seat.constraint is not None:
            return (*b"xyz",)[: seat.constraint.accepts(b"xyz")]
        last = seat.drafting._cascade.last
        return tuple((REPEATED * 2)[REPEATED.index(last) + 1 :][:3]) if last in REPEATED else ()


REPEATED = b"abcdefgh"
GOOD = REPEATED * 5


@pytest.mark.parametrize("spec", [True, False])
@pytest.mark.parametrize("n", [0, 1, 4, 7])
@pytest.mark.parametrize("what", ["mask", "commit", "forced", "accepts", "parser", "processor"])
def test_what_breaks_ends_one_reply_at_most(
    make_request: MakeRequest, what: str, n: int, spec: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Between two replies that go on as ever; `Turns.check` sees that no state is left with rows of guesses."""
    turns = Turns(FakeModel(GOOD), batch=3, kv_slots=3, speculator=Guessing() if spec else None)
    bad: dict[str, Any] = {
        "parser": {"parser": Parser(n + 1)},
        "processor": {"processors": (Processor(n + 1),)},
    }.get(what, {"constraint": Constraint(what, n)})
    first = turns.submit(make_request("first", 40))
    turns.turn(2)
    guilty = turns.submit(make_request("bad", 40, **bad))
    last = turns.submit(make_request("last", 40))
    one, two, three = turns.end(first, guilty, last)
    assert one.text == three.text == GOOD.decode()
    if what in ("forced", "accepts"):  # only guessing needs them, and that is nobody's right
        assert (two.reason, two.text) == ("length", Constraint.script[:40].decode())
    else:
        expected = GOOD if what in ("parser", "processor") else Constraint.script
        assert two.reason == "GenerationError"
        assert "a defect" not in str(two.events[-1])
        assert expected.startswith(two.text.encode()) and len(two.text) <= n
    assert spec == (turns.stepper.counts.accepted > 0) or what in ("forced", "accepts")
    assert turns.run(make_request("later", 8)).text == GOOD[:8].decode()


# --- the end ---------------------------------------------------------------------------------------------------------


def test_an_aborted_step_leaves_states_that_are_worth_keeping(make_request: MakeRequest, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    disk = DiskTier(tmp_path / "kv", "model", max_bytes=1 << 30, max_files=10)
    assert disk.scanned.wait(PATIENCE_S)
    cut = False

    def abort(chunks: Sequence[Chunk]) -> None:
        if cut:
            turns.inbox.close(cut=True)
            raise GenerationError("the step was aborted")

    turns = Turns(Letters(before_step=abort), batch=3, kv_slots=3, disk=disk, prefill_chunk=300)
    prompts = [f"{number}: " + "a prompt that is worth a file " * 10 for number in range(2)]
    generations = [turns.submit(make_request(prompt, 40)) for prompt in prompts]
    turns.turn(4)
    generations.append(turns.submit(make_request("one that is still being read " * 20, 40)))
    turns.turn()
    cut = True
    done: list[Done] = turns.end(*generations)
    assert [one.reason for one in done] == ["ShuttingDown"] * 3
    assert [len(tokens) >= 256 for tokens in turns.held()] == [True] * 3
    turns.close()
    disk.close(PATIENCE_S)
    assert disk.stats().saved == 3
    assert set(threading.enumerate()) <= before
    assert turns.worker.is_healthy
