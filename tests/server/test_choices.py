"""Several choices of one request in one stream: order, room, failures, an end when the server stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from lmhub.errors import GenerationError, QueueFull
from lmhub.server.choices import merged, total
from lmhub.types import (
    ChatRequest,
    CompletionRequest,
    Event,
    Failure,
    Finish,
    GenerationRequest,
    SamplingParams,
    TextDelta,
    Usage,
)

DONE = Finish("stop", Usage(3, 2, 1))


def generations(*prompts: tuple[int, ...]) -> list[GenerationRequest]:
    """One for each prompt."""
    return [
        GenerationRequest(f"g{number}", prompt, SamplingParams(), 9, frozenset(), choice=number)
        for number, prompt in enumerate(prompts)
    ]


class Engine:
    """Plays a script for each choice: events, errors to raise, and asyncio events to wait for."""

    def __init__(self, *scripts: Sequence[Any]):
        self._scripts = scripts
        self.running: list[int] = []
        self.started: list[int] = []
        self.closed: list[int] = []

    async def start(self, request: GenerationRequest) -> AsyncIterator[Event]:
        """The events of one choice."""
        self.started.append(request.choice)
        self.running.append(request.choice)
        try:
            for step in self._scripts[request.choice]:
                if isinstance(step, asyncio.Event):
                    await step.wait()
                elif isinstance(step, Exception):
                    raise step
                elif callable(step):
                    step()
                else:
                    yield step
        finally:
            self.running.remove(request.choice)
            self.closed.append(request.choice)


async def seen(
    engine: Engine, requests: list[GenerationRequest], ping_s: float = 0, cut: asyncio.Event | None = None
) -> list[Any]:
    """Everything that comes out."""
    return [item async for item in merged(requests, engine.start, ping_s, cut or asyncio.Event())]


def run(make: Callable[[], Any]) -> Any:
    """The result of a coroutine."""
    return asyncio.run(make())


def test_a_later_choice_waits_until_the_earlier_ones_have_been_seen() -> None:
    async def main() -> list[Any]:
        late = asyncio.Event()
        first = (late, TextDelta("a"), DONE)
        second = (TextDelta("b"), late.set, DONE)
        return await seen(Engine(first, second), generations((1,), (2,)))

    out = run(main)
    assert [choice for _, choice in out].index(1) > [choice for _, choice in out].index(0)
    assert [event for event, choice in out if choice == 1] == [TextDelta("b"), DONE]
    assert [event for event, choice in out if choice == 0] == [TextDelta("a"), DONE]


def test_all_choices_are_submitted_at_once_and_first_seen_in_order() -> None:
    async def main() -> tuple[list[Any], Engine]:
        together = asyncio.Event()

        def last() -> None:
            if len(engine.started) == 5:
                together.set()

        engine = Engine(*[(last, together, TextDelta("x"), DONE)] * 5)
        return await seen(engine, generations(*[(1,)] * 4, (2,))), engine

    out, engine = run(main)
    assert engine.started == [0, 1, 2, 3, 4]
    firsts = [choice for place, (_, choice) in enumerate(out) if choice not in [c for _, c in out[:place]]]
    assert firsts == [0, 1, 2, 3, 4] and len(out) == 10


def test_a_full_queue_fails_a_request_whatever_became_of_its_other_choices() -> None:
    async def main() -> tuple[list[Any], Engine]:
        engine = Engine((QueueFull("full", 1),), (asyncio.Event(),))
        return await seen(engine, generations((1,), (2,))), engine

    ((failure, _),), engine = run(main)
    assert isinstance(failure, Failure) and isinstance(failure.error, QueueFull)
    assert engine.running == []


def test_a_failure_of_one_choice_ends_all() -> None:
    async def main() -> tuple[list[Any], Engine]:
        engine = Engine((TextDelta("a"), asyncio.Event()), (TextDelta("b"), GenerationError("broken")))
        return await seen(engine, generations((1,), (2,))), engine

    out, engine = run(main)
    assert isinstance(out[-1][0], Failure) and str(out[-1][0].error) == "broken"
    assert sorted(engine.closed) == [0, 1]


@pytest.mark.parametrize("script", [(), (ValueError("secret"),), (Finish("cancelled", Usage(0, 0)),)])
def test_an_end_that_was_not_planned_is_a_failure(script: Any) -> None:
    async def main() -> list[Any]:
        return await seen(Engine(script), generations((1,)))

    ((failure, choice),) = run(main)
    assert isinstance(failure, Failure) and choice == 0


def test_silence_is_filled_and_a_stop_is_told() -> None:
    async def main() -> list[Any]:
        cut = asyncio.Event()
        out: list[Any] = []
        async for item in merged(generations((1,)), Engine((asyncio.Event(),)).start, 0.001, cut):
            out.append(item)
            if len(out) == 3:
                cut.set()
        return out

    *pings, (failure, _) = run(main)
    assert pings[:3] == [None] * 3 and isinstance(failure, Failure) and "shutting down" in str(failure.error)


def test_usage_counts_a_prompt_once_for_all_its_choices() -> None:
    chat = total(ChatRequest((), n=2), [DONE, Finish("stop", Usage(3, 4, 2, 1))])
    assert chat == Usage(3, 6, 1, 1)
    completions = total(CompletionRequest(("a", "b"), n=2), [DONE] * 4)
    assert completions == Usage(6, 8, 2, 0)
