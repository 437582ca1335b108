"""A reply whose reader is far behind rests: at nobody's cost, and it goes on as if nothing had been."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from lmhub.engine import Generation
from lmhub.model import Chunk
from lmhub.testing.fake import FakeModel, FakeTokenizer
from lmhub.testing.turns import Done, Letters, Turns
from lmhub.types import Event, Failure, Finish, GenerationRequest, TextDelta

MakeRequest = Callable[..., GenerationRequest]

LETTER = 65  # bytes that an event with one letter counts for
PIPE = {"pipe_max": 10 * LETTER}  # goes on with two letters left


class Reader:
    """Reads as many events as it is told to, of which the last one is still in its hands."""

    def __init__(self, generation: Generation):
        self._events = generation.events()
        self.got: list[Event] = []

    def read(self, n: int = 1) -> None:
        """The next `n`, which must be there."""
        self.got += [next(self._events) for _ in range(n)]

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.got if isinstance(event, TextDelta))


@pytest.fixture
def alone(make_request: MakeRequest) -> Callable[..., Done]:
    return lambda *request, **options: Turns(Letters(), batch=1).run(make_request(*request, **options))


def paused(turns: Turns, request: GenerationRequest) -> tuple[Generation, Reader]:
    """A reply that rests after ten letters that nobody has read."""
    generation = turns.submit(request)
    turns.turn(11)
    assert turns.slot(generation).paused_s is not None
    assert turns.slot(generation).n_completion == 10
    return generation, Reader(generation)


def ends(turns: Turns, generation: Generation, reader: Reader) -> str:
    """Read letter by letter to the end, and be sure that the worker is never left asleep."""
    while generation.request.id not in turns.records:
        if turns.worker.is_busy or turns.inbox._woken:
            turns.inbox._woken = False
            turns.turn()
        else:
            reader.read()
    while not isinstance(reader.got[-1], Finish | Failure):
        reader.read()
    last = reader.got[-1]
    assert isinstance(last, Finish), last
    return reader.text


def test_a_reply_rests_until_three_quarters_have_been_read(
    make_request: MakeRequest, alone: Callable[..., Done]
) -> None:
    turns = Turns(model := Letters(), **PIPE)
    generation, reader = paused(turns, make_request("prompt", 40))
    n_steps = len(model.steps)
    reader.read(8)
    turns.turn(5)
    assert len(model.steps) == n_steps and not turns.worker.is_busy
    turns.inbox._woken = False
    reader.read()
    assert turns.inbox._woken
    turns.turn()
    assert len(model.steps) == n_steps + 1
    assert ends(turns, generation, reader) == alone("prompt", 40).text
    assert turns.slot is not None and not turns.pool.running


def test_a_reply_never_has_more_unread_than_it_may(make_request: MakeRequest) -> None:
    turns = Turns(Letters(), **PIPE)
    generation, reader = paused(turns, make_request("prompt", 100))
    while generation.request.id not in turns.records:
        turns.turn(3)
        assert generation.backlog <= 10 * LETTER
        reader.read()


def test_those_beside_it_go_on(make_request: MakeRequest, alone: Callable[..., Done]) -> None:
    turns = Turns(Letters(), batch=2, kv_slots=2, **PIPE)
    slow, reader = paused(turns, make_request("slow", 40))
    for number in range(3):
        other = turns.submit(make_request(f"other {number}", 8))
        assert turns.end(other)[0].text == alone(f"other {number}", 8).text
    assert turns.slot(slow).n_completion == 10
    assert ends(turns, slow, reader) == alone("slow", 40).text


def test_it_does_not_count_among_those_that_run(make_request: MakeRequest, alone: Callable[..., Done]) -> None:
    turns = Turns(model := Letters(), batch=1, kv_slots=1, **PIPE)
    slow, reader = paused(turns, make_request("slow", 40, temperature=1.0, seed=5))
    other = turns.run(make_request("other", 9))
    assert other.text == alone("other", 9).text
    assert turns.slot(slow).state is None  # its memory went to the other one
    assert ends(turns, slow, reader) == alone("slow", 40, temperature=1.0, seed=5).text
    assert len(model.states) == 1
    record = turns.records[slow.request.id]
    assert (record.usage.prompt_tokens, record.usage.completion_tokens, record.usage.cached_tokens) == (4, 40, 0)


def test_memory_that_nobody_else_needed_is_still_there(make_request: MakeRequest, alone: Callable[..., Done]) -> None:
    turns = Turns(model := Letters(), batch=1, kv_slots=2, **PIPE)
    slow, reader = paused(turns, make_request("slow", 12))
    turns.run(make_request("other", 9))
    assert turns.slot(slow).n_past == 4 + 9
    n_before = model.n_forwarded
    assert ends(turns, slow, reader) == alone("slow", 12).text
    assert model.n_forwarded - n_before == 2


def test_memory_that_was_given_up_is_copied_from_by_others(
    make_request: MakeRequest, alone: Callable[..., Done]
) -> None:
    prompt = "a prompt that several requests begin with "
    turns = Turns(Letters(), batch=1, kv_slots=2, **PIPE)
    slow, reader = paused(turns, make_request(prompt + "slow", 40))
    texts = [turns.run(make_request(prompt + name, 8)) for name in ("one", "two", "three")]
    assert [done.text for done in texts] == [alone(prompt + name, 8).text for name in ("one", "two", "three")]
    assert all(done.cached >= len(prompt) for done in texts)
    assert ends(turns, slow, reader) == alone(prompt + "slow", 40).text


def test_several_rest_and_all_go_on_exactly(make_request: MakeRequest, alone: Callable[..., Done]) -> None:
    turns = Turns(model := Letters(), batch=1, kv_slots=2, **PIPE)
    slow = [paused(turns, make_request(f"slow {number}", 30)) for number in range(4)]
    assert len(model.states) == 2
    texts = [ends(turns, generation, reader) for generation, reader in reversed(slow)]
    assert texts == [alone(f"slow {number}", 30).text for number in (3, 2, 1, 0)]
    assert len(model.states) == 2


def test_it_waits_for_room_to_go_on(make_request: MakeRequest, alone: Callable[..., Done]) -> None:
    """No more run than a batch, however many readers catch up; and whoever waits for room is not given up."""
    turns = Turns(Letters(), batch=1, kv_slots=1, **PIPE)
    slow, reader = paused(turns, make_request("slow", 14))
    other = turns.submit(make_request("other", 9))
    turns.turn(2)
    reader.read(10)
    for _ in range(5):
        turns.now_s += 100.0
        turns.turn()
        assert turns.slot(slow).paused_s is not None
    later = turns.submit(make_request("later", 5))
    done = turns.end(other, slow, later)
    assert [one.reason for one in done] == ["length"] * 3
    assert list(turns.records) == [other.request.id, slow.request.id, later.request.id]
    assert reader.text + done[1].text[-4:] == alone("slow", 14).text


def test_it_goes_on_as_soon_as_there_is_room(make_request: MakeRequest, alone: Callable[..., Done]) -> None:
    """`Turns.end` sees that the worker does not sleep although it could."""
    turns = Turns(Letters(), batch=1, kv_slots=1, **PIPE)
    slow, reader = paused(turns, make_request("slow", 14))
    other = turns.submit(make_request("other", 9))
    turns.turn(2)
    reader.read(10)
    turns.turn()
    other_done, slow_done = turns.end(other, slow)
    assert other_done.text == alone("other", 9).text
    assert reader.text + slow_done.text[-4:] == alone("slow", 14).text


def test_a_reader_who_does_not_move_is_given_up(make_request: MakeRequest) -> None:
    turns = Turns(Letters(), batch=2, kv_slots=2, stall_timeout_s=120.0, **PIPE)
    slow, reader = paused(turns, make_request("slow", 40))
    turns.now_s += 119.0
    turns.turn()
    reader.read(2)
    turns.turn()  # it moves, slowly
    turns.now_s += 119.0
    turns.turn()
    assert slow.request.id not in turns.records
    turns.now_s += 1.0
    turns.turn()
    assert turns.records[slow.request.id].finish == "failed"
    reader.read(9)
    assert isinstance(reader.got[-1], Failure)
    assert "nobody has read this reply for 120 s" in str(reader.got[-1].error)
    assert len(reader.text) == 10
    assert not turns.pool.running and len(turns.held()) == 1


def test_one_that_rests_can_be_cancelled(make_request: MakeRequest) -> None:
    turns = Turns(Letters(), batch=1, kv_slots=1, **PIPE)
    slow, _ = paused(turns, make_request("slow", 40))
    without, _ = paused(turns, make_request("without a state", 40))
    slow.cancel()
    without.cancel()
    turns.turn()
    assert [turns.records[one.request.id].finish for one in (slow, without)] == ["cancelled"] * 2
    assert not turns.pool.running


@pytest.mark.parametrize("n", [1, 3])
def test_what_is_read_at_the_end_only_is_complete(
    make_request: MakeRequest, alone: Callable[..., Done], n: int
) -> None:
    turns = Turns(Letters(), batch=n)
    generations = [turns.submit(make_request(f"prompt {number}", 512)) for number in range(n)]
    done = turns.end(*generations)
    assert [one.text for one in done] == [alone(f"prompt {number}", 512).text for number in range(n)]
    assert all(len(one.events) == 513 for one in done)


def test_nothing_is_busy_while_everything_rests(make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's own loop: it sleeps as soon as nothing can go on, for as long as nobody has to be given up."""
    turns = Turns(Letters(), batch=2, kv_slots=2, stall_timeout_s=77.0, **PIPE)
    for number in range(2):
        turns.submit(make_request(f"slow {number}", 40))
    waits: list[tuple[bool, float | None]] = []

    def wait(busy: bool, timeout_s: float | None = None) -> bool:
        waits.append((busy, timeout_s))
        if len(waits) > 1 and not busy:
            turns.inbox.close(cut=True)
        return False

    monkeypatch.setattr(turns.inbox, "wait", wait)
    turns.worker.run()
    assert [busy for busy, _ in waits] == [False] + [True] * 10 + [False]
    assert waits[-1] == (False, 77.0)
    assert [record.finish for record in turns.records.values()] == ["failed"] * 2


# --- requests that take too long -------------------------------------------------------------------------------------


def timed(model: FakeModel, **settings: Any) -> Turns:
    return Turns(model, batch=1, request_timeout_s=10.0, **settings)


def test_a_reply_that_takes_too_long_is_cut_off(make_request: MakeRequest, alone: Callable[..., Done]) -> None:
    turns = timed(Letters())
    generation = turns.submit(make_request("prompt", 40))
    turns.turn(5)
    turns.now_s += 9.9
    turns.turn()
    turns.now_s += 0.1
    [done] = turns.end(generation)
    assert (done.reason, done.text) == ("length", alone("prompt", 6).text)
    assert done.record.usage.completion_tokens == 6


def test_what_was_held_back_of_a_reply_that_is_cut_off_is_part_of_it(make_request: MakeRequest) -> None:
    turns = timed(FakeModel(b"ab<st" + "é".encode() + b"cd"))
    generation = turns.submit(make_request("prompt", 40, stop=("<stop>",)))
    turns.turn(5)
    turns.now_s += 10.0
    [done] = turns.end(generation)
    assert (done.reason, done.text) == ("length", "ab<st")


def test_a_prompt_that_takes_too_long_is_an_error(make_request: MakeRequest) -> None:
    turns = timed(Letters(), prefill_chunk=16)
    generation = turns.submit(make_request("prompt " * 30, 40))
    turns.turn(3)
    turns.now_s += 10.0
    [done] = turns.end(generation)
    assert (done.reason, done.events[:-1]) == ("RequestTimedOut", ())
    assert isinstance(done.events[-1], Failure)
    assert "10 s" in str(done.events[-1].error)


def test_time_in_the_queue_does_not_count(make_request: MakeRequest) -> None:
    turns = timed(Letters())
    first = turns.submit(make_request("first", 40))
    second = turns.submit(make_request("second", 4))
    turns.turn(2)
    turns.now_s += 10.0
    assert [done.reason for done in turns.end(first, second)] == ["length", "length"]
    assert turns.records[second.request.id].usage.completion_tokens == 4


def test_one_that_rests_runs_out_of_time_as_well(make_request: MakeRequest, alone: Callable[..., Done]) -> None:
    turns = timed(Letters(), **PIPE)
    generation, reader = paused(turns, make_request("prompt", 40))
    turns.now_s += 10.0
    turns.turn()
    reader.read(11)
    assert isinstance(reader.got[-1], Finish) and reader.got[-1].reason == "length"
    assert reader.text == alone("prompt", 10).text
    assert generation.request.id in turns.records


def test_multibyte_characters_that_are_cut_off_are_shown_as_such(make_request: MakeRequest) -> None:
    turns = timed(FakeModel(FakeTokenizer().encode("aé")))
    generation = turns.submit(make_request("prompt", 40))
    turns.turn(2)
    turns.now_s += 10.0
    [done] = turns.end(generation)
    assert (done.reason, done.text) == ("length", "a\ufffd")


def test_the_model_sees_nothing_of_a_pause(make_request: MakeRequest) -> None:
    """Every token is forwarded once, in order, whoever rests meanwhile."""
    seen: dict[int, list[int]] = {}

    def watch(chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            known = seen.setdefault(id(chunk.state), [])
            assert chunk.state.n_tokens == len(known)
            known.extend(chunk.tokens)

    turns = Turns(Letters(before_step=watch), batch=2, kv_slots=2, **PIPE)
    pair = [turns.submit(make_request(f"slow {number}", 30)) for number in range(2)]
    readers = [Reader(generation) for generation in pair]
    turns.turn(11)
    texts = [ends(turns, *one) for one in zip(pair, readers, strict=True)]
    assert [bytes(tokens)[6:] for tokens in seen.values()] == [text[:-1].encode() for text in texts]
