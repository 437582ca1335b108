"""Sequences that leave memory for the disk, and come back: after a while, after a restart, in part, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lmhub.engine import Engine
from lmhub.engine.disk import DiskTier
from lmhub.settings import EngineSettings
from lmhub.testing.fake import PATIENCE_S, FakeState, FakeTokenizer
from lmhub.testing.turns import Done, Letters, Turns
from lmhub.types import Event, Finish, GenerationRequest, TextDelta

MakeRequest = Callable[..., GenerationRequest]

LONG = "A prompt that is long enough for a file: " * 10
PROMPTS = {letter: f"{letter}: {LONG}" for letter in "ABCDE"}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[], DiskTier]]:
    """Opens the folder of the test; what it opened before is closed."""
    before = set(threading.enumerate())
    tiers: list[DiskTier] = []

    def open_tier() -> DiskTier:
        for tier in tiers:
            tier.close(PATIENCE_S)
        tiers.append(DiskTier(tmp_path / "kv", "model", max_bytes=1 << 30, max_files=100))
        assert tiers[-1].scanned.wait(PATIENCE_S)
        return tiers[-1]

    yield open_tier
    for tier in tiers:
        tier.close(PATIENCE_S)
    assert set(threading.enumerate()) <= before


@pytest.fixture
def alone(make_request: MakeRequest) -> Callable[[str], str]:
    return lambda prompt: Turns(Letters(), batch=1).run(make_request(prompt, 8)).text


def ask(turns: Turns, make_request: MakeRequest, prompt: str) -> Done:
    """One request; what has left memory for it is on disk behind it."""
    done = turns.run(make_request(prompt, 8))
    turns.saved()
    turns.turn()
    return done


def test_what_leaves_memory_comes_back_from_disk(
    disk: Callable[[], DiskTier], make_request: MakeRequest, alone: Callable[[str], str]
) -> None:
    turns = Turns(model := Letters(), batch=1, kv_slots=1, disk=(tier := disk()))
    replies = {letter: ask(turns, make_request, prompt).text for letter, prompt in PROMPTS.items()}
    assert tier.stats().saved == len(PROMPTS) - 1
    n_before = model.n_forwarded
    for letter, prompt in PROMPTS.items():
        again = ask(turns, make_request, prompt)
        assert (again.text, again.cached) == (replies[letter], len(prompt) - 1)
        assert again.source == "disk"
    assert model.n_forwarded - n_before == len(PROMPTS) * 8
    assert all(replies[letter] == alone(prompt) for letter, prompt in PROMPTS.items())


def test_a_conversation_goes_on_from_disk(
    disk: Callable[[], DiskTier], make_request: MakeRequest, alone: Callable[[str], str]
) -> None:
    turns = Turns(Letters(), batch=1, kv_slots=1, disk=disk())
    prompt = PROMPTS["A"]
    for _ in range(4):
        done = ask(turns, make_request, prompt)
        ask(turns, make_request, PROMPTS["B"])
        n_held = len(prompt) + len(done.text) - 1
        prompt += done.text + " and then?"
        again = ask(turns, make_request, prompt)
        assert (again.cached, again.source) == (n_held, "disk")
        assert again.text == alone(prompt)


def test_what_is_still_in_memory_is_not_read_from_disk(disk: Callable[[], DiskTier], make_request: MakeRequest) -> None:
    turns = Turns(Letters(), batch=1, kv_slots=2, disk=(tier := disk()))
    for letter in "ABC":
        ask(turns, make_request, PROMPTS[letter])
    assert tier.stats().entries == 1
    assert [ask(turns, make_request, PROMPTS[letter]).source for letter in "CB"] == ["slot", "slot"]
    assert tier.stats().loaded == 0


def test_short_sequences_are_not_worth_a_file(disk: Callable[[], DiskTier], make_request: MakeRequest) -> None:
    turns = Turns(Letters(), batch=1, kv_slots=1, disk=(tier := disk()))
    for letter in "ABC":
        ask(turns, make_request, letter * 40)
    assert tier.stats().entries == 0


def test_a_disk_that_takes_longer_than_reading_is_left_alone(
    disk: Callable[[], DiskTier], make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Turns(Letters(), batch=1, kv_slots=1, disk=(tier := disk()))
    first = ask(turns, make_request, PROMPTS["A"])
    ask(turns, make_request, PROMPTS["B"])
    find = tier.find
    monkeypatch.setattr(tier, "find", lambda prompt: (found := find(prompt)) and replace(found, seconds=1e6))
    slow = ask(turns, make_request, PROMPTS["A"])
    assert (slow.text, slow.source) == (first.text, "none")
    assert tier.stats().loaded == 0


class Slow(Letters):
    """Rows can be written into its states once `go` is set; `begun` tells that somebody is about to."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go = threading.Event(), threading.Event()

    def new_state(self, n_ctx: int) -> FakeState:
        self.states.append(SlowState(n_ctx, self))
        return self.states[-1]


class SlowState(FakeState):
    def __init__(self, n_ctx: int, model: Slow):
        super().__init__(n_ctx)
        self._model = model

    def write_rows(self, rows: NDArray[np.uint8]) -> None:
        self._model.begun.set()
        assert self._model.go.wait(PATIENCE_S)
        super().write_rows(rows)


def test_one_that_is_being_restored_is_cancelled(
    disk: Callable[[], DiskTier], make_request: MakeRequest, alone: Callable[[str], str]
) -> None:
    turns = Turns(model := Slow(), batch=2, kv_slots=2, disk=disk())
    first = ask(turns, make_request, PROMPTS["A"])
    for letter in "BC":
        ask(turns, make_request, PROMPTS[letter])
    generation = turns.submit(make_request(PROMPTS["A"], 8))
    turns.turn()
    assert model.begun.wait(PATIENCE_S)
    loading = turns.slot(generation).restoring
    assert loading is not None
    assert not turns.worker.is_busy  # the disk wakes it
    other = turns.run(make_request("somebody else", 8))  # nobody waits for the disk but the one that wants it
    generation.cancel()
    [done] = turns.end(generation)
    assert (done.reason, done.events[:-1]) == ("cancelled", ())
    assert other.reason == "length"
    pair = [turns.submit(make_request(f"{letter * 60} comes next", 8)) for letter in "XY"]
    turns.turn(2)
    model.go.set()
    assert loading.result(PATIENCE_S)  # into a state that nobody else has got
    assert [one.text for one in turns.end(*pair)] == [alone(f"{letter * 60} comes next") for letter in "XY"]
    again = ask(turns, make_request, PROMPTS["A"])
    assert (again.text, again.source) == (first.text, "disk")


def damage(folder: Path, share: float) -> None:
    """Change a byte of every file, so far into it."""
    files = list(folder.glob("*.lmkv"))
    assert files
    for file in files:
        data = bytearray(file.read_bytes())
        data[int(share * len(data))] ^= 0xFF
        file.write_bytes(bytes(data))


@pytest.mark.parametrize(("share", "sound"), [(0.85, 0), (0.95, 256)])
def test_of_a_damaged_file_what_stands_before_the_damage_is_used(
    disk: Callable[[], DiskTier], make_request: MakeRequest, tmp_path: Path, share: float, sound: int
) -> None:
    turns = Turns(Letters(), batch=1, kv_slots=1, disk=(tier := disk()))
    first = ask(turns, make_request, PROMPTS["A"])
    ask(turns, make_request, PROMPTS["B"])
    damage(tmp_path / "kv", share)
    again = ask(turns, make_request, PROMPTS["A"])
    assert (again.text, again.cached, again.source) == (first.text, sound, "disk" if sound else "none")
    assert tier.stats().failed == 1


def test_a_file_that_has_gone_is_not_missed(
    disk: Callable[[], DiskTier], make_request: MakeRequest, tmp_path: Path
) -> None:
    turns = Turns(Letters(), batch=1, kv_slots=1, disk=disk())
    first = ask(turns, make_request, PROMPTS["A"])
    ask(turns, make_request, PROMPTS["B"])
    for file in (tmp_path / "kv").glob("*.lmkv"):
        file.unlink()
    again = ask(turns, make_request, PROMPTS["A"])
    assert (again.text, again.cached, again.source) == (first.text, 0, "none")
    assert not turns.pool.running


def whole(engine: Engine, request: GenerationRequest) -> tuple[list[Event], Finish]:
    events = list(engine.submit(request).events())
    assert isinstance(events[-1], Finish)
    return events[:-1], events[-1]


def test_a_restart_forwards_the_last_token_only(disk: Callable[[], DiskTier], make_request: MakeRequest) -> None:
    """And the reply is the same, to the last bit of its log probabilities."""
    sources: list[str] = []

    def life(*requests: GenerationRequest) -> tuple[list[tuple[list[Event], Finish]], int]:
        model = Letters()
        engine = Engine(
            model,
            tokenizer=FakeTokenizer(),
            n_ctx=4096,
            settings=EngineSettings(batch=2, spec=False),
            disk=disk(),
            on_finished=lambda record: sources.append(record.source),
        )
        try:
            return [whole(engine, request) for request in requests], model.n_forwarded
        finally:
            engine.stop(grace_s=PATIENCE_S)

    wanted: dict[str, Any] = {"logprobs": 5, "return_token_ids": True, "temperature": 1.0, "seed": 3}
    [(first, _)], _ = life(make_request(LONG, 12, **wanted))
    [(again, finish)], n_forwarded = life(make_request(LONG, 12, **wanted))
    assert again == first
    assert finish.usage.cached_tokens == len(LONG) - 1
    assert n_forwarded == 12
    text = "".join(event.text for event in first if isinstance(event, TextDelta))
    follow_up = LONG + text + "?"
    [(_, finish)], n_forwarded = life(make_request(follow_up, 12, **wanted))
    assert finish.usage.cached_tokens == len(LONG) + 11  # all but the last token of the reply, which was not forwarded
    assert n_forwarded == 2 + 11
    assert sources == ["none", "disk", "disk"]


def test_at_the_end_only_what_is_long_enough_is_written(
    disk: Callable[[], DiskTier], make_request: MakeRequest
) -> None:
    tier = disk()
    turns = Turns(Letters(), batch=1, kv_slots=3, disk=tier)
    for prompt in (PROMPTS["A"], "B" * 200, PROMPTS["C"]):
        turns.run(make_request(prompt, 8))
    turns.close()
    tier.close(PATIENCE_S)
    assert tier.stats().saved == 2


def test_what_could_not_be_loaded_is_not_tried_again(
    disk: Callable[[], DiskTier], make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Turns(Letters(), batch=1, kv_slots=1, disk=(tier := disk()))
    first = ask(turns, make_request, PROMPTS["A"])
    ask(turns, make_request, PROMPTS["B"])
    asked: list[int] = []

    def load(found: object, n: int, state: FakeState) -> Future[int]:
        asked.append(n)
        future: Future[int] = Future()
        future.set_result(0)
        return future

    monkeypatch.setattr(tier, "load", load)
    again = ask(turns, make_request, PROMPTS["A"])
    assert (again.text, again.cached, again.source) == (first.text, 0, "none")
    assert asked == [len(PROMPTS["A"]) - 1]


def test_a_restored_state_that_fails_to_be_placed_ends_its_request_only(
    disk: Callable[[], DiskTier],
    make_request: MakeRequest,
    alone: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = Turns(Letters(), batch=2, kv_slots=2, disk=(tier := disk()))
    for letter in "ABC":
        ask(turns, make_request, PROMPTS[letter])
    future: Future[int] = Future()
    monkeypatch.setattr(tier, "load", lambda *_: future)
    other = turns.submit(make_request("other", 8))
    broken = turns.submit(make_request(PROMPTS["A"], 8))
    turns.turn(2)
    future.set_exception(OSError("gone"))
    one, two = turns.end(other, broken)
    assert (one.text, two.reason) == (alone("other"), "GenerationError")
    assert not turns.pool.running
