"""Where the beginning of a prompt is taken from, what is kept for later, and what has to go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from lmhub.engine.rates import StepTimes
from lmhub.errors import KernelError
from lmhub.model import Chunk, State
from lmhub.testing.fake import FakeModel, FakeState
from lmhub.testing.turns import Done, Letters, Turns
from lmhub.types import GenerationRequest

MakeRequest = Callable[..., GenerationRequest]

LONG = "The system prompt, which is long enough to be worth a copy of its rows. "


@pytest.fixture
def alone(make_request: MakeRequest) -> Callable[..., Done]:
    """The same request on a fresh engine."""

    def run(*request: Any, **options: Any) -> Done:
        done = Turns(Letters(), batch=1).run(make_request(*request, **options))
        assert done.cached == 0 and done.source == "none"
        return done

    return run


def rows_of(model: FakeModel) -> list[int]:
    """Tokens in each chunk that was forwarded so far."""
    return [len(row.tokens) for step in model.steps for row in step]


# --- one after the other ---------------------------------------------------------------------------------------------


def test_the_same_prompt_again_forwards_its_last_token_only(make_request: MakeRequest) -> None:
    turns = Turns(model := Letters(), batch=1, kv_slots=1)
    first = turns.run(make_request(LONG, 9))
    n_before = len(rows_of(model))
    again = turns.run(make_request(LONG, 9))
    assert (again.text, again.cached, again.source) == (first.text, len(LONG) - 1, "slot")
    assert rows_of(model)[n_before:] == [1] * 9


class Conversation:
    """Turns as a template without reasoning renders them: the opener of a reply is not repeated in the history."""

    def __init__(self, name: str):
        self._base = f"system|{name}: question|"
        self.repeated = 0  # tokens of the next prompt that the last one and its reply begin with

    def ask(self, make_request: MakeRequest) -> GenerationRequest:
        return make_request(self._base + "A:##", 12, n_stable=len(self._base))

    def answered(self, text: str) -> None:
        self.repeated = len(self._base + "A:")
        self._base += f"A:{text}|and then?|"


@pytest.mark.parametrize(
    ("n", "settings", "source"),
    [
        (1, {"kv_slots": 1}, "slot"),
        (2, {"kv_slots": 2}, "slot"),
        (2, {"kv_slots": 4}, "slot"),
        (2, {"kv_slots": 1, "kv_ram": 1 << 20}, "ram"),
    ],
)
def test_conversations_stay_warm_side_by_side(
    make_request: MakeRequest, alone: Callable[..., Done], n: int, settings: dict[str, int], source: str
) -> None:
    """The prompt of the next turn leaves what is held inside the opener, and goes on in place all the same."""
    turns = Turns(Letters(), batch=1, **settings)
    talks = [Conversation(f"talk {number}") for number in range(n)]
    for turn in range(6):
        for talk in talks:
            request = talk.ask(make_request)
            done = turns.run(request)
            if turn:
                assert (done.cached, done.source) == (talk.repeated, source)
            assert done.text == alone(bytes(request.prompt).decode(), 12).text
            talk.answered(done.text)


def test_conversations_that_run_at_once_stay_warm(make_request: MakeRequest) -> None:
    turns = Turns(Letters(), batch=2, kv_slots=2)
    talks = [Conversation(f"talk {number}") for number in range(2)]
    for turn in range(6):
        both = turns.end(*[turns.submit(talk.ask(make_request)) for talk in talks])
        for talk, done in zip(talks, both, strict=True):
            assert (done.cached, done.source) == ((talk.repeated, "slot") if turn else (0, "none"))
            talk.answered(done.text)


def test_a_shared_beginning_is_copied_and_its_owner_stays_warm(
    make_request: MakeRequest, alone: Callable[..., Done]
) -> None:
    turns = Turns(Letters(), batch=1, kv_slots=2)
    first = turns.run(make_request(LONG + "user one", 9))
    second = turns.run(make_request(LONG + "somebody else", 9))
    assert (second.cached, second.source) == (len(LONG), "copy")
    assert second.text == alone(LONG + "somebody else", 9).text
    follow_up = LONG + "user one" + first.text + " and more"
    third = turns.run(make_request(follow_up, 9))
    assert (third.cached, third.source) == (len(LONG + "user one") + 8, "slot")
    assert third.text == alone(follow_up, 9).text


def test_a_message_that_was_edited_keeps_what_stands_before_it(
    make_request: MakeRequest, alone: Callable[..., Done]
) -> None:
    turns = Turns(Letters(), batch=1, kv_slots=2)
    turns.run(make_request(LONG + "first version. And then the rest.", 9))
    done = turns.run(make_request(LONG + "second version. And then the rest.", 9))
    assert (done.cached, done.source) == (len(LONG), "copy")
    assert done.text == alone(LONG + "second version. And then the rest.", 9).text


@pytest.mark.parametrize(("kv_slots", "source"), [(1, "slot"), (2, "copy")])
@pytest.mark.parametrize("cut", [30, len(LONG) - 1, len(LONG), len(LONG) + 4])
def test_a_prompt_that_begins_what_is_held(
    make_request: MakeRequest, alone: Callable[..., Done], kv_slots: int, source: str, cut: int
) -> None:
    """Shorter than the prompt, as long, or ending within the reply: its last token is forwarded once more."""
    turns = Turns(model := Letters(), batch=1, kv_slots=kv_slots)
    first = turns.run(make_request(LONG, 9))
    prompt = (LONG + first.text)[:cut]
    is_continued = cut >= len(LONG)  # nothing that will be needed again is lost: in place, however many slots there are
    done = turns.run(make_request(prompt, 9))
    assert (done.cached, done.source) == (cut - 1, "slot" if is_continued else source)
    assert done.text == alone(prompt, 9).text
    assert len(model.states) <= kv_slots


def test_a_prompt_of_one_token_takes_nothing_over(make_request: MakeRequest) -> None:
    turns = Turns(Letters(), batch=1)
    first = turns.run(make_request("x", 5))
    again = turns.run(make_request("x", 5))
    assert (again.text, again.cached, again.source) == (first.text, 0, "none")


def test_what_was_used_last_stays(make_request: MakeRequest) -> None:
    turns = Turns(Letters(), batch=1, kv_slots=3)
    prompts = [f"{letter}: a prompt of its own" for letter in "ABC"]
    for prompt in (*prompts, prompts[0]):
        turns.run(make_request(prompt, 2))
    assert [bytes(tokens[:1]) for tokens in turns.held()] == [b"B", b"C", b"A"]
    turns.run(make_request("D: somebody new", 2))
    assert [bytes(tokens[:1]) for tokens in turns.held()] == [b"C", b"A", b"D"]
    assert turns.pool.counts.evicted == 1


def test_what_is_overwritten_keeps_what_it_shares(make_request: MakeRequest, alone: Callable[..., Done]) -> None:
    """Too short to be worth a copy, but it is there."""
    turns = Turns(model := Letters(), batch=1, kv_slots=1)
    turns.run(make_request("Shared: first question", 4))
    done = turns.run(make_request("Shared: next question", 4))
    assert (done.cached, done.source) == (len("Shared: "), "slot")
    assert done.text == alone("Shared: next question", 4).text
    assert len(model.states) == 1


@pytest.mark.parametrize("n_turns", range(9))
def test_one_that_was_cancelled_leaves_what_it_has_read(
    make_request: MakeRequest, alone: Callable[..., Done], n_turns: int
) -> None:
    """Before it began, while its prompt was read, and in its reply."""
    turns = Turns(Letters(), batch=1, kv_slots=1, prefill_chunk=16)
    generation = turns.submit(make_request(LONG, 9))
    turns.turn(n_turns)
    generation.cancel()
    assert turns.end(generation)[0].reason == "cancelled"
    again = turns.run(make_request(LONG, 9))
    assert (again.text, again.cached) == (alone(LONG, 9).text, min(16 * n_turns, len(LONG) - 1))


# --- from what runs --------------------------------------------------------------------------------------------------


def test_a_running_reply_is_copied_from(make_request: MakeRequest, alone: Callable[..., Done]) -> None:
    turns = Turns(Letters(), batch=2, kv_slots=2)
    first = turns.submit(make_request(LONG + "one", 20))
    turns.turn(3)
    second = turns.submit(make_request(LONG + "two", 9))
    one, two = turns.end(first, second)
    assert (two.cached, two.source) == (len(LONG), "copy")
    assert (one.text, two.text) == (alone(LONG + "one", 20).text, alone(LONG + "two", 9).text)


COMMON = LONG * 4
CHUNK = {"prefill_chunk": 64}


def waiting(turns: Turns, make_request: MakeRequest, n: int = 2, **options: Any) -> list[Any]:
    """The first one has read a part of what the others, which wait for it, begin with as well."""
    generations = [turns.submit(make_request(f"{COMMON} number {number}", 5, **options)) for number in range(n)]
    turns.turn()
    donor, *others = map(turns.slot, generations)
    assert 0 < donor.n_past < len(COMMON)
    assert all(slot.waits_for is not None and slot.waits_for[0] is donor for slot in others)
    return generations


def test_what_another_one_is_reading_is_waited_for(make_request: MakeRequest, alone: Callable[..., Done]) -> None:
    turns = Turns(model := Letters(), batch=2, kv_slots=2, **CHUNK)
    first, second = turns.end(*waiting(turns, make_request))
    assert (second.cached, second.source) == (len(COMMON) + len(" number "), "copy")
    assert [first.text, second.text] == [alone(f"{COMMON} number {n}", 5).text for n in (0, 1)]
    assert model.n_forwarded == len(COMMON) + len(" number 0") + 1 + 4 + 4


def test_eight_at_once_read_their_common_beginning_once(make_request: MakeRequest) -> None:
    turns = Turns(model := Letters(), batch=8, kv_slots=8, prefill_chunk=512)
    common = (LONG * 40)[:2000]
    done = turns.end(*[turns.submit(make_request(common + f"{n} " * 10, 2)) for n in range(8)])
    assert [one.source for one in done] == ["none"] + ["copy"] * 7
    assert model.n_forwarded - 8 * (20 + 1) <= 1.1 * 2000


def test_all_choices_of_a_request_read_its_prompt_once(make_request: MakeRequest) -> None:
    turns = Turns(model := Letters(), batch=4, kv_slots=4, **CHUNK)
    done = turns.end(
        *[turns.submit(make_request(COMMON, 5, seed=seed, temperature=1.0, choice=seed)) for seed in range(4)]
    )
    assert [one.cached for one in done] == [0] + [len(COMMON) - 1] * 3
    assert model.n_forwarded == len(COMMON) + 3 + 4 * 4
    assert len({one.text for one in done}) > 1


def test_the_one_that_is_waited_for_ends_as_soon_as_it_has_read(
    make_request: MakeRequest, alone: Callable[..., Done]
) -> None:
    turns = Turns(Letters(), batch=2, kv_slots=2, **CHUNK)
    first = turns.submit(make_request(COMMON, 1))
    second = turns.submit(make_request(COMMON + "!", 5))
    one, two = turns.end(first, second)
    assert (one.reason, len(one.text)) == ("length", 1)
    assert (two.text, two.cached) == (alone(COMMON + "!", 5).text, len(COMMON))


def test_the_one_that_is_waited_for_is_cancelled(make_request: MakeRequest, alone: Callable[..., Done]) -> None:
    turns = Turns(Letters(), batch=3, kv_slots=3, **CHUNK)
    first, second, third = waiting(turns, make_request, 3)
    n_read = turns.slot(first).n_past
    first.cancel()
    one, two, three = turns.end(first, second, third)
    assert one.reason == "cancelled"
    assert two.cached == n_read  # as much as had been read is not lost
    assert (two.text, three.text) == (alone(f"{COMMON} number 1", 5).text, alone(f"{COMMON} number 2", 5).text)
    assert three.cached == len(COMMON) + len(" number ")  # waited for the second one instead


def test_the_one_that_is_waited_for_fails(make_request: MakeRequest, alone: Callable[..., Done]) -> None:
    def fail(chunks: Sequence[Chunk]) -> None:
        if any(chunk.state.n_tokens >= 128 and chunk.state is model.states[0] for chunk in chunks):
            raise KernelError("broken")

    turns = Turns(model := Letters(before_step=fail), batch=3, kv_slots=3, **CHUNK)
    generations = waiting(turns, make_request, 3)
    one, two, three = turns.end(*generations)
    assert one.reason == "KernelError"
    assert (two.cached, two.source) == (0, "none")  # what the failed step left behind is not to be trusted
    assert (two.text, three.text) == (alone(f"{COMMON} number 1", 5).text, alone(f"{COMMON} number 2", 5).text)


def test_the_one_that_is_waited_for_is_paused(make_request: MakeRequest, alone: Callable[..., Done]) -> None:
    turns = Turns(Letters(), batch=2, kv_slots=2, **CHUNK)
    first, second = waiting(turns, make_request)
    turns.slot(first).paused_s = turns.now_s
    first.sent(["anything"] * 20_000)  # type: ignore[list-item]
    [two] = turns.end(second)
    assert two.text == alone(f"{COMMON} number 1", 5).text


def test_one_that_waits_is_cancelled(make_request: MakeRequest, alone: Callable[..., Done]) -> None:
    turns = Turns(Letters(), batch=2, kv_slots=2, **CHUNK)
    first, second = waiting(turns, make_request)
    second.cancel()
    one, two = turns.end(first, second)
    assert (one.text, two.reason, two.events[:-1]) == (alone(f"{COMMON} number 0", 5).text, "cancelled", ())
    assert len(turns.held()) == 1


# --- spare memory ----------------------------------------------------------------------------------------------------


def spares(turns: Turns) -> list[bytes]:
    """The first letters of what is kept beyond the slots."""
    return [bytes(parked.tokens[:1].tolist()) for parked in turns.pool._parked if parked.is_spare]


def test_spare_memory_keeps_what_leaves_the_slots(make_request: MakeRequest, alone: Callable[..., Done]) -> None:
    turns = Turns(Letters(), batch=1, kv_slots=1, kv_ram=1 << 20)
    one = turns.run(make_request("A: " + LONG, 5))
    turns.run(make_request("B: " + LONG, 5))
    assert spares(turns) == [b"A"]
    again = turns.run(make_request("A: " + LONG, 5))
    assert (again.text, again.cached, again.source) == (one.text, len(LONG) + 2, "ram")
    assert spares(turns) == [b"B"]
    copied = turns.run(make_request("B: " + LONG[:40] + "?", 5))
    assert (copied.cached, copied.source) == (43, "ram")
    assert copied.text == alone("B: " + LONG[:40] + "?", 5).text
    assert sorted(spares(turns)) == [b"A", b"B"]


def test_spare_memory_is_bounded_in_bytes(make_request: MakeRequest) -> None:
    length = len("A: " + LONG) + 1
    turns = Turns(Letters(), batch=1, kv_slots=1, kv_ram=2 * 4 * length + 3)
    for letter in "ABCD":
        turns.run(make_request(f"{letter}: " + LONG, 2))
    assert spares(turns) == [b"B", b"C"]
    turns.run(make_request("E" + LONG * 4, 2))
    turns.run(make_request("F", 2))
    assert b"E" not in spares(turns)  # alone too large: away with it, and nothing else


def test_there_are_never_more_states_than_slots(make_request: MakeRequest) -> None:
    turns = Turns(model := Letters(), batch=2, kv_slots=3)
    for number in range(8):
        turns.end(*[turns.submit(make_request(f"{number} {place} {LONG}", 3)) for place in range(3)])
    assert len(model.states) == 3


# --- accidents -------------------------------------------------------------------------------------------------------


class Accident(Letters):
    """`armed` names the operation of it or its states that fails next."""

    armed = ""

    def new_state(self, n_ctx: int) -> FakeState:
        self.hit("new_state")
        self.states.append(Fragile(n_ctx, self))
        return self.states[-1]

    def hit(self, name: str) -> None:
        if self.armed == name:
            self.armed = ""
            raise MemoryError(name)


class Fragile(FakeState):
    def __init__(self, n_ctx: int, model: Accident):
        super().__init__(n_ctx)
        self._model = model

    def copy_prefix(self, other: State, n_tokens: int) -> bool:
        self._model.hit("copy_prefix")
        return super().copy_prefix(other, n_tokens)

    def truncate(self, n_tokens: int) -> bool:
        self._model.hit("truncate")
        return super().truncate(n_tokens)


@pytest.mark.parametrize(
    ("name", "kv_slots"),
    [
        (name, n)
        for name in ("new_state", "copy_prefix", "truncate")
        for n in (2, 3, 4)
        if (name, n) != ("copy_prefix", 2)
    ],
)
def test_an_accident_at_admission_ends_one_request(
    make_request: MakeRequest, alone: Callable[..., Done], name: str, kv_slots: int
) -> None:
    turns = Turns(model := Accident(), batch=2, kv_slots=kv_slots)
    prompts = ["A: " + LONG, "B: " + LONG, "A: " + LONG[:30] + "?", "A: " + LONG[:-3], "C: " + LONG, "B: " + LONG]
    expected = [alone(prompt, 6).text for prompt in prompts]
    running = turns.submit(make_request("running", 200))
    turns.turn()
    n_failed = 0
    for _ in range(2):
        for prompt, text in zip(prompts, expected, strict=True):
            model.armed = name
            done = turns.run(make_request(prompt, 6))
            n_failed += done.reason == "GenerationError"
            model.armed = ""
            assert done.reason == "GenerationError" or done.text == text
            assert turns.run(make_request(prompt, 6)).text == text
    assert n_failed
    assert turns.end(running)[0].text == alone("running", 200).text


def test_an_accident_while_something_else_runs_ends_one_request(
    make_request: MakeRequest, alone: Callable[..., Done]
) -> None:
    """The one that waited gets no memory when its turn has come."""
    turns = Turns(model := Accident(), batch=3, kv_slots=3, **CHUNK)
    other = turns.submit(make_request("other", 60))
    first, second = waiting_for_the_next(turns, make_request)
    model.armed = "new_state"
    done = turns.end(first, second, other)
    assert [one.reason for one in done] == ["length", "GenerationError", "length"]
    assert done[2].text == alone("other", 60).text


def waiting_for_the_next(turns: Turns, make_request: MakeRequest) -> list[Any]:
    generations = [turns.submit(make_request(f"{COMMON} number {number}", 5)) for number in range(2)]
    turns.turn()
    assert turns.slot(generations[1]).waits_for is not None
    return generations


# --- what is soonest -------------------------------------------------------------------------------------------------


def test_a_copy_that_takes_longer_than_reading_is_not_made(make_request: MakeRequest) -> None:
    for speed, source in ((100.0, "copy"), (1e12, "none")):
        turns = Turns(Letters(), batch=1, kv_slots=2, times=StepTimes(speed))
        turns.run(make_request(LONG + "one", 2))
        assert turns.run(make_request(LONG + "two", 2)).source == source
