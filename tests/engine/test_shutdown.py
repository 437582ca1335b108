"""Stopping an engine that is idle, busy, or has a queue."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from lmhub.engine import Engine, Generation
from lmhub.errors import ShuttingDown
from lmhub.testing.fake import FakeModel, Gate
from lmhub.types import Event, Failure, Finish, GenerationRequest

MakeEngine = Callable[..., Engine]
MakeRequest = Callable[..., GenerationRequest]


def last(generation: Generation) -> Event:
    return list(generation.events())[-1]


def is_shut_down(event: Event) -> bool:
    return isinstance(event, Failure) and isinstance(event.error, ShuttingDown)


def test_an_idle_engine_stops_and_refuses(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    engine = make_engine(FakeModel(b"a"), model_id="idle")
    engine.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "lmhub-engine idle"]
    with pytest.raises(ShuttingDown) as refusal:
        engine.submit(make_request())
    assert refusal.value.status == 503
    with pytest.raises(ShuttingDown):
        engine.call(lambda: None)
    engine.stop()  # once more is harmless


def test_within_the_grace_running_ones_finish_and_waiting_ones_fail(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    gate = Gate()
    engine = make_engine(FakeModel(b"abc", gate=gate), batch=1)
    running, waiting = engine.submit(make_request()), engine.submit(make_request())
    gate.arrive()
    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(engine.stop, 60.0)
        while not engine.stats().stopping:
            pass
        gate.step()
        assert is_shut_down(last(waiting))  # told while the other one is still running
        gate.open()
        finish = last(running)
        assert isinstance(finish, Finish)
        assert finish.usage.completion_tokens == 3
        stopped.result(60)


def test_without_grace_a_running_step_is_aborted(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    gate = Gate()  # never opened: only the abort ends the step
    engine = make_engine(FakeModel(b"abc", gate=gate), batch=2)
    running = [engine.submit(make_request()) for _ in range(2)]
    waiting = engine.submit(make_request())
    gate.arrive()
    engine.stop()
    assert all(is_shut_down(last(generation)) for generation in (*running, waiting))
    assert engine.stats().running == engine.stats().queued == 0


def test_a_second_stop_cuts_the_grace_short(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    gate = Gate()
    engine = make_engine(FakeModel(b"abc", gate=gate))
    running = engine.submit(make_request())
    gate.arrive()
    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(engine.stop, 1e6)
        engine.stop()
        stopped.result(60)
    assert is_shut_down(last(running))


def test_tasks_that_were_accepted_are_run(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    gate = Gate()
    engine = make_engine(FakeModel(b"abc", gate=gate))
    engine.submit(make_request())
    gate.arrive()
    future = engine.call(lambda: "done")
    engine.stop()
    assert future.result(0) == "done"
