"""States that cannot rewind go back to checkpoints; a reply that began from one is that of a fresh run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmhub.engine import pool as pool_module
from lmhub.engine.disk import DiskTier
from lmhub.engine.thinning import CHECKPOINTS, thin
from lmhub.testing.fake import PATIENCE_S, FakeModel, FakeState
from lmhub.testing.recurrent import Recurrent, RecurrentModel
from lmhub.testing.turns import Done, Turns
from lmhub.types import GenerationRequest

MakeRequest = Callable[..., GenerationRequest]


@pytest.fixture
def alone(make_request: MakeRequest) -> Callable[..., Done]:
    return lambda prompt, n=8: Turns(RecurrentModel(), batch=1).run(make_request(prompt, n))


def places(turns: Turns) -> list[list[int]]:
    """Where the parked sequences can go back to."""
    return [[at for at, _ in parked.checkpoints] for parked in turns.pool._parked]


SYSTEM = "System: whatever all conversations begin with. "


def test_the_memory_matters(make_request: MakeRequest, alone: Callable[..., Done]) -> None:
    """A wrong memory changes the reply, or none of these tests could fail."""
    turns = Turns(model := RecurrentModel(), batch=1)
    generation = turns.submit(make_request("prompt", 8))
    turns.turn(2)
    state = model.states[0]
    assert isinstance(state, Recurrent)
    state.memory ^= 1
    assert turns.end(generation)[0].text != alone("prompt").text


def test_the_same_prompt_again_goes_back_to_before_its_last_token(
    make_request: MakeRequest, alone: Callable[..., Done]
) -> None:
    turns = Turns(model := RecurrentModel(), batch=1, kv_slots=1)
    prompt = SYSTEM + "a question"
    for cached in (0, len(prompt) - 1, len(prompt) - 1):
        done = turns.run(make_request(prompt, 8))
        assert (done.text, done.cached) == (alone(prompt).text, cached)
    assert len(model.states) == 1


def test_the_next_turn_goes_back_to_the_opener(make_request: MakeRequest, alone: Callable[..., Done]) -> None:
    turns = Turns(RecurrentModel(), batch=1, kv_slots=1)
    base, before = SYSTEM + "question|", 0
    for _ in range(5):
        done = turns.run(make_request(base + "A:##", 8, n_stable=len(base)))
        assert (done.cached, done.source) == (before, "slot" if before else "none")
        assert done.text == alone(base + "A:##").text
        before = len(base)
        base += f"A:{done.text}|next|"


def test_a_reply_that_is_repeated_goes_on_from_its_end(make_request: MakeRequest, alone: Callable[..., Done]) -> None:
    turns = Turns(model := RecurrentModel(), batch=1, kv_slots=1)
    first = turns.run(make_request(SYSTEM, 8))
    done = turns.run(make_request(SYSTEM + first.text + "!", 8))
    assert done.cached == len(SYSTEM) + 7
    assert done.text == alone(SYSTEM + first.text + "!").text
    assert isinstance(model.states[0], Recurrent) and model.states[0].n_restored == 0


def test_a_shared_beginning_is_remembered_once_it_has_been_seen_twice(
    make_request: MakeRequest, alone: Callable[..., Done]
) -> None:
    turns = Turns(RecurrentModel(), batch=1, kv_slots=3)
    cached = []
    for user in ("one asks", "another one asks", "somebody else asks"):
        done = turns.run(make_request(SYSTEM + user, 8))
        assert done.text == alone(SYSTEM + user).text
        cached.append((done.cached, done.source))
    assert cached == [(0, "none"), (0, "none"), (len(SYSTEM), "copy")]
    assert [len(SYSTEM) in at for at in places(turns)] == [False, True, True]


def test_long_prompts_are_remembered_at_intervals(
    make_request: MakeRequest, alone: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "CHECKPOINT_EVERY", 64)
    turns = Turns(RecurrentModel(), batch=1, kv_slots=1, prefill_chunk=100)
    prompt = SYSTEM * 6
    turns.run(make_request(prompt, 8))
    assert places(turns) == [[64, 128, 192, 256, len(prompt) - 1, len(prompt)]]
    edited = prompt[:200] + "edited" + prompt[206:]
    done = turns.run(make_request(edited, 8))
    assert (done.cached, done.text) == (192, alone(edited).text)


def test_another_prompt_begins_anew(make_request: MakeRequest, alone: Callable[..., Done]) -> None:
    turns = Turns(RecurrentModel(), batch=1, kv_slots=1)
    turns.run(make_request(SYSTEM + "question", 8))
    done = turns.run(make_request("Sys" + "nothing in common", 8))
    assert (done.cached, done.source, done.text) == (0, "none", alone("Sysnothing in common").text)


def test_a_running_one_is_copied_at_its_checkpoints(make_request: MakeRequest, alone: Callable[..., Done]) -> None:
    turns = Turns(RecurrentModel(), batch=2, kv_slots=2)
    first = turns.submit(make_request(SYSTEM + "question", 20, n_stable=len(SYSTEM)))
    turns.turn(4)
    second = turns.submit(make_request(SYSTEM + "what else", 8))
    one, two = turns.end(first, second)
    assert (two.cached, two.source) == (len(SYSTEM), "copy")
    assert (one.text, two.text) == (alone(SYSTEM + "question", 20).text, alone(SYSTEM + "what else").text)


def test_prompts_at_once_read_their_common_beginning_once(
    make_request: MakeRequest, alone: Callable[..., Done]
) -> None:
    """The one that reads it notes a checkpoint just where the others part from it."""
    turns = Turns(RecurrentModel(), batch=3, kv_slots=3, prefill_chunk=50)
    prompts = [SYSTEM * 4 + user for user in ("question", "what else", "who")]
    one, *others = turns.end(*[turns.submit(make_request(prompt, 8)) for prompt in prompts])
    assert (one.cached, one.text) == (0, alone(prompts[0]).text)
    for done, prompt in zip(others, prompts[1:], strict=True):
        assert (done.cached >= len(SYSTEM * 4), done.source, done.text) == (True, "copy", alone(prompt).text)


def test_a_copy_can_be_gone_back_in_as_well(make_request: MakeRequest, alone: Callable[..., Done]) -> None:
    """Also once what it was copied from is no more."""
    turns = Turns(RecurrentModel(), batch=1, kv_slots=2)
    turns.run(make_request(SYSTEM + "question", 8, n_stable=len(SYSTEM)))
    turns.run(make_request(SYSTEM + "what else", 8))
    for user in ("a third", "a fourth", "a fifth"):
        done = turns.run(make_request(SYSTEM + user, 8))
        assert (done.cached, done.text) == (len(SYSTEM), alone(SYSTEM + user).text)


def test_several_prompts_at_once_note_each_place_once(
    make_request: MakeRequest, alone: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt that stands at a checkpoint while others are read; `Turns.check` would see it noted twice."""
    monkeypatch.setattr(pool_module, "CHECKPOINT_EVERY", 64)
    turns = Turns(RecurrentModel(), batch=4, kv_slots=4, prefill_chunk=64)
    prompts = [f"{n}: {SYSTEM * 8}" for n in range(4)]
    done = turns.end(*[turns.submit(make_request(prompt, 8)) for prompt in prompts])
    assert [one.text for one in done] == [alone(prompt).text for prompt in prompts]


@given(st.lists(st.integers(1, 500), min_size=1, max_size=40))
def test_the_smallest_gap_is_given_up_but_not_the_newest_two(steps: list[int]) -> None:
    kept: list[tuple[int, bytes]] = []
    at = 0
    for step in steps:
        at += step
        before = [place for place, _ in kept] + [at]
        kept.append((at, b""))
        thin(kept)
        after = [place for place, _ in kept]
        assert len(after) == min(len(before), CHECKPOINTS)
        assert after[-2:] == before[-2:]
        if len(before) > CHECKPOINTS:
            [lost] = set(before) - set(after)
            ends = [0, *before]
            gaps = {here: ends[i + 2] - ends[i] for i, here in enumerate(before[:-2])}
            assert gaps[lost] == min(gaps.values())


def test_a_long_conversation_keeps_a_few_checkpoints_and_its_newest(
    make_request: MakeRequest, alone: Callable[..., Done]
) -> None:
    turns = Turns(RecurrentModel(), batch=1, kv_slots=1)
    prompt = SYSTEM
    for _ in range(12):
        done = turns.run(make_request(prompt, 4))
        assert done.text == alone(prompt, 4).text
        [at] = places(turns)
        assert len(at) <= CHECKPOINTS and at[-1] == len(prompt)
        prompt += "#and on"  # leaves the path behind the prompt, so that the reply is not repeated
    early = SYSTEM + "#and on" + "?"
    done = turns.run(make_request(early, 4))
    assert done.text == alone(early, 4).text
    assert 0 < done.cached <= len(SYSTEM + "#and on")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[DiskTier]:
    before = set(threading.enumerate())
    tier = DiskTier(tmp_path / "kv", "model", max_bytes=1 << 30, max_files=100)
    assert tier.scanned.wait(PATIENCE_S)
    yield tier
    tier.close(PATIENCE_S)
    assert set(threading.enumerate()) <= before


def test_checkpoints_go_to_disk_and_come_back(
    disk: DiskTier, make_request: MakeRequest, alone: Callable[..., Done]
) -> None:
    turns = Turns(RecurrentModel(), batch=1, kv_slots=1, disk=disk)
    base = SYSTEM * 6
    ask = [base + "question", base + "question", base + "what else"]
    cached = [0, len(base + "question") - 1, len(base)]
    for number, (prompt, n) in enumerate(zip(ask, cached, strict=True)):
        done = turns.run(make_request(prompt, 8, n_stable=len(base)))
        assert (done.text, done.cached, done.source) == (alone(prompt).text, n, "disk" if n else "none")
        turns.run(make_request(f"{number} something else", 8))
        turns.saved()
        turns.turn()


def test_random_conversations_are_those_of_fresh_runs(make_request: MakeRequest, alone: Callable[..., Done]) -> None:
    rng = np.random.default_rng(1)
    turns = Turns(model := RecurrentModel(), batch=2, kv_slots=3, kv_ram=1000, prefill_chunk=20)
    prompts = [SYSTEM]
    reused = 0
    for _ in range(60):
        pair = []
        for _ in range(2):
            base = prompts[rng.integers(len(prompts))]
            base = base[: rng.integers(len(base) // 2, len(base) + 1)]
            pair.append(base + "".join(rng.choice(list("xyz"), rng.integers(1, 20))))
        stable = [int(rng.integers(1, len(prompt) + 1)) for prompt in pair]
        both = turns.end(*[turns.submit(make_request(one, 5, n_stable=n)) for one, n in zip(pair, stable, strict=True)])
        for prompt, done in zip(pair, both, strict=True):
            assert done.text == alone(prompt, 5).text
            reused += done.cached > 0
            prompts.append(prompt + done.text)
    assert reused > 30
    assert sum(state.n_restored for state in model.states if isinstance(state, Recurrent)) > 10


def test_a_model_that_cannot_note_anything_begins_anew(make_request: MakeRequest, alone: Callable[..., Done]) -> None:
    class Blank(Recurrent):
        def checkpoint(self) -> Any:
            return None

    class BlankModel(RecurrentModel):
        def new_state(self, n_ctx: int) -> FakeState:
            self.states.append(Blank(n_ctx))
            return self.states[-1]

    turns = Turns(BlankModel(), batch=1, kv_slots=1)
    for _ in range(2):
        done = turns.run(make_request(SYSTEM, 8))
        assert (done.text, done.cached) == (alone(SYSTEM).text, 0)
    assert isinstance(turns.pool._parked[0].state, FakeState) and places(turns) == [[]]


def test_fake_models_that_can_rewind_note_nothing(make_request: MakeRequest) -> None:
    turns = Turns(FakeModel(b"abc"), batch=1)
    turns.run(make_request(SYSTEM, 8))
    assert places(turns) == [[]]
