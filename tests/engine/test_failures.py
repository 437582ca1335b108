"""What goes wrong in one generation ends that one only; what goes wrong in a step ends as few as possible."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from lmhub.engine import Engine, Generation
from lmhub.engine.worker import Worker
from lmhub.errors import GenerationError, KernelError, LmhubError
from lmhub.model import Chunk
from lmhub.testing.fake import FakeModel, FakeState, Gate
from lmhub.types import Content, Event, Failure, Finish, GenerationRecord, GenerationRequest, ReplyItem, TextDelta

MakeEngine = Callable[..., Engine]
MakeRequest = Callable[..., GenerationRequest]


def text_of(generation: Generation) -> str:
    """The text of a generation that ended well."""
    events = list(generation.events())
    assert isinstance(events[-1], Finish), events[-1]
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def failure_of(generation: Generation) -> LmhubError:
    events: list[Event] = list(generation.events())
    assert isinstance(events[-1], Failure), events[-1]
    assert not any(isinstance(event, Finish | Failure) for event in events[:-1])
    assert isinstance(events[-1].error, LmhubError)
    return events[-1].error


@pytest.fixture
def beside(make_engine: MakeEngine, make_request: MakeRequest) -> Callable[..., LmhubError]:
    """Runs a bad request between two good ones in one batch, checks that these are untouched; returns its error."""

    def run(bad: dict[str, Any], model: type[FakeModel] = FakeModel, **options: Any) -> LmhubError:
        gate = Gate()
        engine = make_engine(model(bytes, gate=gate, **options), batch=3)
        before = engine.submit(make_request("before"))
        guilty = engine.submit(make_request(**{"prompt": "bad", **bad}))
        after = engine.submit(make_request("after"))
        gate.open()
        error = failure_of(guilty)
        assert (text_of(before), text_of(after)) == ("before", "after")
        assert text_of(engine.submit(make_request("later"))) == "later"
        return error

    return run


class Exploding:
    """A parser that breaks its promise at the second token."""

    reasoning_tokens = 0

    def __init__(self) -> None:
        self._n = 0

    def feed(self, token: int, piece: bytes) -> Sequence[ReplyItem]:
        self._n += 1
        if self._n == 2:
            raise ValueError("parser bug")
        return (Content(piece),)

    def finish(self) -> Sequence[ReplyItem]:
        return ()


def broken_processor(logits: Any, history: Any) -> None:
    raise ValueError("processor bug")


def test_a_parser_that_raises(beside: Callable[..., LmhubError]) -> None:
    error = beside({"parser": Exploding()})
    assert isinstance(error, GenerationError)
    assert "continuing the reply failed with ValueError" in str(error) and "parser bug" not in str(error)


def test_a_processor_that_raises(beside: Callable[..., LmhubError]) -> None:
    assert "continuing the reply failed with ValueError" in str(beside({"processors": (broken_processor,)}))


def test_logits_that_are_not_numbers(beside: Callable[..., LmhubError]) -> None:
    class Model(FakeModel):
        def row(self, tokens: tuple[int, ...], n_prompt: int) -> Any:
            row = super().row(tokens, n_prompt)
            if bytes(tokens).startswith(b"bad"):
                row[7] = np.nan
            return row

    assert "not numbers" in str(beside({}, Model))


def test_a_step_that_one_sequence_makes_fail(beside: Callable[..., LmhubError]) -> None:
    def refuse(chunks: Sequence[Chunk]) -> None:
        if any(bytes(chunk.tokens) == b"bad" for chunk in chunks):
            raise KernelError("no such expert")

    assert str(beside({}, before_step=refuse)) == "no such expert"


def test_a_sequence_that_gets_no_memory(beside: Callable[..., LmhubError]) -> None:
    class Model(FakeModel):
        def new_state(self, n_ctx: int) -> FakeState:
            if len(self.states) == 1:
                self.states.append(FakeState(n_ctx))
                raise MemoryError("no pages")
            return super().new_state(n_ctx)

    assert "making room for the sequence failed with MemoryError" in str(beside({}, Model))


def test_a_step_that_always_fails_ends_all_and_the_engine_goes_on(
    make_engine: MakeEngine, make_request: MakeRequest, caplog: pytest.LogCaptureFixture
) -> None:
    broken = True

    def fail(chunks: Sequence[Chunk]) -> None:
        if broken:
            raise RuntimeError("bus error")

    model = FakeModel(b"ok", before_step=fail)
    engine = make_engine(model, batch=3)
    generations = [engine.submit(make_request()) for _ in range(5)]
    for generation in generations:
        assert "the model's forward pass failed with RuntimeError; the log has" in str(failure_of(generation))
    assert any(record.exc_info for record in caplog.records)
    broken = False
    assert text_of(engine.submit(make_request())) == "ok"


def test_a_step_that_left_states_half_done_ends_all_of_it(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    gate = Gate()

    def half(chunks: Sequence[Chunk]) -> None:
        if len(chunks) == 2:
            assert isinstance(chunks[0].state, FakeState)
            chunks[0].state.tokens.append(0)
            raise KernelError("halfway")

    model = FakeModel(b"ok", gate=gate, before_step=half)
    engine = make_engine(model, batch=2)
    first, pair = engine.submit(make_request()), [engine.submit(make_request()) for _ in range(2)]
    gate.open()
    outcomes = [list(generation.events())[-1] for generation in (first, *pair)]
    assert sum(isinstance(outcome, Failure) for outcome in outcomes) >= 2
    assert text_of(engine.submit(make_request())) == "ok"
    assert len(model.states) >= 3  # the states of the failed step were not used again


def test_a_model_that_returns_too_few_rows(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    class Model(FakeModel):
        def forward(self, chunks: Sequence[Chunk]) -> Any:
            return super().forward(chunks)[:0]

    assert "ValueError" in str(failure_of(make_engine(Model()).submit(make_request())))


def test_a_broken_listener_is_logged_and_harmless(
    make_engine: MakeEngine, make_request: MakeRequest, caplog: pytest.LogCaptureFixture
) -> None:
    def listen(record: GenerationRecord) -> None:
        raise ValueError("listener bug")

    assert text_of(make_engine(FakeModel(b"ok"), on_finished=listen).submit(make_request())) == "ok"
    assert "on_finished" in caplog.text


def test_a_defect_of_the_engine_itself_is_reported_and_survived(
    make_engine: MakeEngine,
    make_request: MakeRequest,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = make_engine(FakeModel(b"ok"))
    with monkeypatch.context() as patch:
        patch.setattr(Worker, "_apply", lambda self, commit: 1 // 0)
        assert "ZeroDivisionError" in str(failure_of(engine.submit(make_request())))
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert text_of(engine.submit(make_request())) == "ok"
