"""In quiet moments the engine reads what the next request will begin with, and gives way to whoever comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from lmhub.engine import Engine
from lmhub.errors import KernelError
from lmhub.model import Chunk
from lmhub.testing.fake import N_VOCAB, FakeModel
from lmhub.testing.turns import Done, Letters, Turns
from lmhub.types import GenerationRequest

MakeRequest = Callable[..., GenerationRequest]
MakeEngine = Callable[..., Engine]

BASE = "system prompt|a question|"
ASKED = BASE + "A:##"


@pytest.fixture
def alone(make_request: MakeRequest) -> Callable[..., Done]:
    return lambda prompt: Turns(Letters(), batch=1).run(make_request(prompt, 8))


def answered(turns: Turns, make_request: MakeRequest) -> str:
    """A conversation, as it will be told from now on."""
    return BASE + "A:" + turns.run(make_request(ASKED, 8, n_stable=len(BASE))).text + "|"


def test_the_next_turn_finds_everything_but_its_own_message(
    make_request: MakeRequest, alone: Callable[..., Done]
) -> None:
    turns = Turns(model := Letters(), batch=1, kv_slots=1)
    told = answered(turns, make_request)
    n_before = model.n_forwarded
    turns.ahead(told.encode())
    turns.turn(quiet=True)
    assert not turns.pool.running and model.n_forwarded - n_before == len(told) - len(BASE + "A:")
    done = turns.run(make_request(told + "more|A:##", 8))
    assert (done.cached, done.source) == (len(told), "slot")
    assert done.text == alone(told + "more|A:##").text
    assert turns.pool.counts.hits == {"none": 1, "slot": 1}
    assert turns.worker.totals.finished == 2


def test_nothing_is_read_before_it_is_quiet(make_request: MakeRequest) -> None:
    turns = Turns(model := Letters(), batch=2, kv_slots=2)
    told = answered(turns, make_request)
    n_before = model.n_forwarded
    turns.ahead(told.encode())
    turns.turn()
    assert model.n_forwarded == n_before
    other = turns.submit(make_request("another request", 3))
    turns.turn(2, quiet=True)
    assert model.n_forwarded - n_before == len("another request") + 1
    turns.end(other)


def test_whoever_comes_is_served_at_once(make_request: MakeRequest, alone: Callable[..., Done]) -> None:
    """Also where there is room for one only; what has been read by then is not lost."""
    turns = Turns(model := Letters(), batch=1, kv_slots=2, prefill_chunk=16)
    told = "a long conversation " * 10
    turns.ahead(told.encode())
    turns.turn(3, quiet=True)
    assert turns.worker.slots == ()  # nobody's request
    [slot] = turns.pool.running
    assert slot.is_ahead and slot.n_past == 48
    other = turns.submit(make_request("another request", 8))
    turns.turn()
    assert [slot.generation for slot in turns.pool.running] == [other]
    assert turns.end(other)[0].text == alone("another request").text
    done = turns.run(make_request(told, 8))
    assert (done.cached, done.text) == (48, alone(told).text)
    assert len(model.states) == 2


def test_whoever_wants_what_is_being_read_goes_on_from_there(
    make_request: MakeRequest, alone: Callable[..., Done]
) -> None:
    turns = Turns(model := Letters(), batch=1, kv_slots=1, prefill_chunk=16)
    told = "a long conversation " * 10
    turns.ahead(told.encode())
    turns.turn(3, quiet=True)
    done = turns.run(make_request(told + "?", 8))
    assert (done.cached, done.text) == (48, alone(told + "?").text)
    assert model.n_forwarded == len(told) + 1 + 7


def test_one_who_came_in_between_is_not_slowed_down(make_request: MakeRequest, alone: Callable[..., Done]) -> None:
    """It was admitted in the turn in which the reading began, before that could be seen."""
    turns = Turns(Letters(), batch=2, kv_slots=2, prefill_chunk=16)
    turns.ahead(b"a long conversation " * 10)
    turns.worker._read_ahead(True)
    other = turns.submit(make_request("another request", 8))
    turns.worker._turn()
    turns.turn()
    assert [slot.generation for slot in turns.pool.running] == [other]
    assert turns.end(other)[0].text == alone("another request").text


def test_what_is_held_is_not_read_again(make_request: MakeRequest) -> None:
    turns = Turns(model := Letters(), batch=1, kv_slots=1)
    told = answered(turns, make_request)
    for _ in range(3):
        turns.ahead(told.encode())
        turns.turn(quiet=True)
    n_before = model.n_forwarded
    turns.ahead(told[:-5].encode())
    turns.turn(quiet=True)
    assert model.n_forwarded == n_before


def test_a_step_that_fails_is_nobodys_loss(make_request: MakeRequest, alone: Callable[..., Done]) -> None:
    def fail(chunks: Sequence[Chunk]) -> None:
        if chunks[0].state.n_tokens >= 32:
            raise KernelError("broken")

    turns = Turns(Letters(before_step=fail), batch=1, kv_slots=1, prefill_chunk=16)
    turns.ahead(b"a long conversation " * 10)
    turns.turn(4, quiet=True)
    assert not turns.pool.running and turns.held() == []
    assert turns.run(make_request("a request", 8)).text == alone("a request").text


def test_the_end_waits_for_nothing_that_nobody_asked_for(
    make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Turns(model := Letters(), batch=1, kv_slots=1, prefill_chunk=16)
    turns.ahead(b"a long conversation " * 10)
    patience: list[float | None] = []

    def wait(busy: bool, timeout_s: float | None = None) -> bool:
        patience.append(None if busy else timeout_s)
        if len(model.steps) == 2:
            turns.inbox.close()
        return not busy

    monkeypatch.setattr(turns.inbox, "wait", wait)
    turns.worker.run()
    assert patience == [0.05, None, None]
    assert len(model.steps) == 2
    assert not turns.pool.running and [len(tokens) for tokens in turns.held()] == [32]
    assert not turns.records


@pytest.mark.parametrize("prompt", [(), (5,), (5, -1), (5, N_VOCAB), (5,) * 64])
def test_what_makes_no_sense_is_left_alone(
    make_engine: MakeEngine, make_request: MakeRequest, prompt: tuple[int, ...]
) -> None:
    engine = make_engine(model := FakeModel(b"ok"), n_ctx=64)
    engine.read_ahead(prompt)
    list(engine.submit(make_request("hi")).events())
    assert {row.tokens[0] for step in model.steps for row in step} == {ord("h"), ord("o"), ord("k")}
    assert not engine._inbox.has_ahead
