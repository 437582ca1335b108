"""Generations that are read by coroutines: delivery, wake-ups, disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest

from lmhub.engine import Engine
from lmhub.errors import QueueFull
from lmhub.testing.fake import FakeModel, Gate
from lmhub.types import Event, Finish, GenerationRecord, GenerationRequest, TextDelta

MakeEngine = Callable[..., Engine]
MakeRequest = Callable[..., GenerationRequest]


async def read(engine: Engine, request: GenerationRequest) -> list[Event]:
    return [event async for event in engine.generate(request)]


async def in_thread(function: Callable[..., Any], *args: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, function, *args)


def text_of(events: list[Event]) -> str:
    assert isinstance(events[-1], Finish)
    return "".join(event.text for event in events if isinstance(event, TextDelta))


class Ended:
    """An `on_finished` that a coroutine can wait for."""

    def __init__(self) -> None:
        self.records: list[GenerationRecord] = []
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def __call__(self, record: GenerationRecord) -> None:
        self.records.append(record)
        self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> None:
        await asyncio.wait_for(self._event.wait(), 30)
        self._event.clear()


def test_many_readers_on_one_loop(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    engine = make_engine(FakeModel(bytes), batch=3)

    async def main() -> list[list[Event]]:
        return await asyncio.gather(*(read(engine, make_request(f"number {i}")) for i in range(12)))

    assert [text_of(events) for events in asyncio.run(main())] == [f"number {i}" for i in range(12)]


def test_a_step_wakes_the_loop_once(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    gate = Gate()
    model = FakeModel(b"abcd", gate=gate)
    engine = make_engine(model, batch=3)

    async def main() -> int:
        loop = asyncio.get_running_loop()
        wake_ups = 0
        wake = loop.call_soon_threadsafe

        def counted(callback: Callable[..., Any], *args: Any, **options: Any) -> Any:
            nonlocal wake_ups
            wake_ups += getattr(callback, "__module__", "").startswith("lmhub")
            return wake(callback, *args, **options)

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign]
        readers = [asyncio.ensure_future(read(engine, make_request())) for _ in range(3)]
        while engine.stats().running + engine.stats().queued < 3:
            await asyncio.sleep(0)
        gate.open()
        assert [text_of(events) for events in await asyncio.gather(*readers)] == ["abcd"] * 3
        return wake_ups

    wake_ups = asyncio.run(main())
    assert wake_ups == len(model.steps)


def test_a_full_queue_is_known_before_the_first_event(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    gate = Gate()
    engine = make_engine(FakeModel(b"a", gate=gate), batch=1, queue=0)

    async def main() -> None:
        first = asyncio.ensure_future(read(engine, make_request()))
        await in_thread(gate.arrive)
        with pytest.raises(QueueFull):
            await anext(engine.generate(make_request()))
        gate.open()
        assert text_of(await first) == "a"

    asyncio.run(main())


def test_an_iterator_that_was_never_started_asks_for_nothing(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    engine = make_engine(FakeModel(b"a"))

    async def main() -> None:
        await engine.generate(make_request()).aclose()  # type: ignore[attr-defined]

    asyncio.run(main())
    assert engine.stats().running == engine.stats().queued == engine.stats().finished == 0


@pytest.mark.parametrize("how", ["close", "cancel"])
@pytest.mark.parametrize("state", ["queued", "prefilling", "decoding"])
def test_a_reader_that_leaves_cancels(make_engine: MakeEngine, make_request: MakeRequest, how: str, state: str) -> None:
    gate = Gate()
    model = FakeModel(b"x" * 300, gate=gate)

    async def main() -> list[str]:
        ended = Ended()
        engine = make_engine(model, batch=1, prefill_chunk=8, on_finished=ended)
        blocker = asyncio.ensure_future(read(engine, make_request(max_tokens=1))) if state == "queued" else None
        if blocker:
            await in_thread(gate.arrive)
        events = engine.generate(make_request("p" * 80 if state == "prefilling" else "p", max_tokens=300))
        reader = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        if state != "queued":
            await in_thread(gate.arrive)
        if state == "decoding":
            gate.let()
            assert await reader == TextDelta("x")
            await in_thread(gate.arrive)
            reader = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0)
        if how == "cancel" or not reader.done():
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
        await events.aclose()  # type: ignore[attr-defined]
        gate.open()
        await ended.wait()
        while len(ended.records) < (2 if blocker else 1):
            await ended.wait()
        if blocker:
            assert text_of(await blocker) == "x"
        assert engine.stats().running == engine.stats().queued == 0
        return [record.finish for record in ended.records]

    reasons = asyncio.run(main())
    assert sorted(reasons) == (["cancelled", "length"] if state == "queued" else ["cancelled"])
    assert len(model.steps) <= 2 + (state == "decoding")


def test_leaving_after_an_event_cancels_within_one_step(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    gate = Gate()
    model = FakeModel(b"x" * 300, gate=gate)

    async def main() -> str:
        ended = Ended()
        engine = make_engine(model, on_finished=ended)
        async with aclosing(engine.generate(make_request(max_tokens=300))) as events:  # type: ignore[type-var]
            gate.let()
            async for event in events:
                assert event == TextDelta("x")
                break
        gate.open()
        await ended.wait()
        return ended.records[0].finish

    assert asyncio.run(main()) == "cancelled"
    assert len(model.steps) <= 2


def test_a_reader_that_sleeps_loses_nothing(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    async def main() -> str:
        ended = Ended()
        engine = make_engine(FakeModel(b"y" * 300), on_finished=ended)
        events = engine.generate(make_request(max_tokens=400))
        first = await anext(events)
        await ended.wait()  # everything was produced before the second event is read
        return text_of([first, *[event async for event in events]])

    assert asyncio.run(main()) == "y" * 300


def test_a_loop_that_is_gone_cancels_its_generations(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    gate = Gate()
    model = FakeModel(b"x" * 300, gate=gate)
    engine = make_engine(model)
    loop = asyncio.new_event_loop()
    engine.submit(make_request(max_tokens=300), loop=loop)
    gate.arrive()
    loop.close()
    gate.open()
    last = list(engine.submit(make_request(max_tokens=2)).events())[-1]
    assert isinstance(last, Finish)
    assert last.reason == "length"
    assert engine.stats().running == 0
    assert max(row.n_before for step in model.steps for row in step) < 300
