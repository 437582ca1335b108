"""Cancelling and finishing in every order: each request ends once, and nothing of it is left behind."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lmhub.engine import Engine
from lmhub.testing.fake import PATIENCE_S, FakeModel, Gate, NoiseModel
from lmhub.testing.timetable import Asked, Hooked, play
from lmhub.types import Failure, Finish, GenerationRecord, GenerationRequest

MakeEngine = Callable[..., Engine]
MakeRequest = Callable[..., GenerationRequest]
N_CASES = 1000


class Ends:
    """Counts how often each request was reported to have ended, and how."""

    def __init__(self) -> None:
        self.by_id: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()

    def __call__(self, record: GenerationRecord) -> None:
        self.by_id[record.id] += 1
        self.reasons[record.finish] += 1


class Halt:
    """Holds a model in the step of that number until `over` is set."""

    def __init__(self, step: int) -> None:
        self.reached, self.over = threading.Event(), threading.Event()
        self._left = step

    def __call__(self) -> None:
        self._left -= 1
        if not self._left:
            self.reached.set()
            self.over.wait(PATIENCE_S)


@pytest.mark.parametrize("spec", [False, True])
def test_a_thousand_tables_of_cancelled_and_finished_requests(
    make_engine: MakeEngine, make_request: MakeRequest, spec: bool
) -> None:
    """Which step a request is called off before is drawn; what it has said by then is the beginning of its reply."""
    rng = np.random.default_rng(11)
    ends, noise = Ends(), NoiseModel()
    model = Hooked(noise)
    engine: Any = make_engine(
        model, batch=3, kv_slots=4, queue=100, prefill_chunk=8, spec=spec, pipe_max=300, on_finished=ends
    )
    whole: dict[tuple[str, int], Any] = {}
    n_asked = n_early = 0
    for _ in range(N_CASES // 8):
        table, wanted = [], []
        for _ in range(8):
            prompt, seed = "abcdefghijklmnopqrstuvwxyz"[: int(rng.integers(1, 26))], int(rng.integers(3))
            made = lambda prompt=prompt, seed=seed: make_request(  # noqa: E731
                prompt, max_tokens=6, temperature=1.0, seed=seed, return_token_ids=True, logprobs=0
            )
            if (prompt, seed) not in whole:
                [whole[prompt, seed]] = play(engine, model, [Asked(made)])
                n_asked += 1
            cancel = None if rng.random() < 0.3 else int(rng.integers(0, 9))
            leave = int(rng.integers(0, 5)) if rng.random() < 0.2 else None
            table.append(Asked(made, int(rng.integers(0, 4)), cancel, leave))
            wanted.append(whole[prompt, seed])
        outcomes = play(engine, model, table)
        assert all(got.begins(expected) for got, expected in zip(outcomes, wanted, strict=True))
        n_asked += len(table)
        n_early += sum(got.was_cancelled for got in outcomes)
        stats = engine.stats()
        assert stats.running == stats.queued == stats.paused == 0
    assert len(ends.by_id) == n_asked and set(ends.by_id.values()) == {1}
    assert N_CASES // 5 < n_early < N_CASES and ends.reasons["length"] and ends.reasons["cancelled"]
    assert stats.finished == n_asked and stats.parked <= stats.kv_slots == 4
    assert len(noise.states) <= 4


def test_whoever_comes_first_a_request_ends_once(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    """Cancelled from another thread while its last step runs: it is finished or cancelled, and that is told once."""
    ends, gate = Ends(), Gate()
    engine = make_engine(FakeModel(b"x", gate=gate), batch=1, on_finished=ends)
    finishes: Counter[str] = Counter()
    for _ in range(300):
        generation = engine.submit(make_request(max_tokens=1))
        gate.arrive()
        go = threading.Barrier(2)

        def call_off(go: threading.Barrier = go, generation: Any = generation) -> None:
            go.wait()
            generation.cancel()

        canceller = threading.Thread(target=call_off)
        canceller.start()
        go.wait()
        gate.let()
        last = list(generation.events())[-1]
        canceller.join()
        assert isinstance(last, Finish)
        finishes[last.reason] += 1
    assert set(finishes) <= {"length", "cancelled"} and sum(finishes.values()) == 300
    assert len(ends.by_id) == 300 and set(ends.by_id.values()) == {1} and ends.reasons == finishes
    assert engine.stats().running == engine.stats().queued == 0


def test_stopping_among_cancels_ends_everybody_once(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    """Engines that are stopped in the middle of it: a last event for every request that was taken."""
    rng = np.random.default_rng(12)
    for _ in range(40):
        ends, model = Ends(), Hooked(NoiseModel())
        engine: Any = make_engine(model, batch=2, queue=100, on_finished=ends)
        halt = Halt(int(rng.integers(1, 6)))
        model.before_step = halt
        generations = [engine.submit(make_request(max_tokens=20, temperature=1.0)) for _ in range(5)]
        for generation in generations[1:]:
            if rng.random() < 0.3:
                generation.cancel()
        assert halt.reached.wait(PATIENCE_S)
        stopper = threading.Thread(target=engine.stop)
        stopper.start()
        while not engine.stats().stopping:
            pass
        halt.over.set()
        stopper.join()
        for generation in generations:
            events = list(generation.events())
            assert isinstance(events[-1], Finish | Failure)
            assert not any(isinstance(event, Finish | Failure) for event in events[:-1])
        assert set(ends.by_id.values()) == {1} and len(ends.by_id) == 5
        assert engine.stats().running == engine.stats().queued == 0
