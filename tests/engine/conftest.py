"""Engines over fake models, stopped at the end of each test, which must leave no thread behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from lmhub.engine import Engine
from lmhub.settings import EngineSettings
from lmhub.testing.fake import FakeModel, FakeTokenizer
from lmhub.types import GenerationRequest, SamplingParams

MakeEngine = Callable[..., Engine]
MakeRequest = Callable[..., GenerationRequest]


@pytest.fixture
def tokenizer() -> FakeTokenizer:
    return FakeTokenizer()


@pytest.fixture
def make_engine(tokenizer: FakeTokenizer) -> Iterator[MakeEngine]:
    threads_before = set(threading.enumerate())
    engines: list[Engine] = []

    def make(model: FakeModel, **options: Any) -> Engine:
        own = {
            name: options.pop(name)
            for name in ("n_ctx", "model_id", "family", "disk", "on_finished", "sample")
            if name in options
        }
        settings = EngineSettings(**{"kv_slots": options.get("batch", 4), **options})
        engines.append(Engine(model, tokenizer=tokenizer, settings=settings, **{"n_ctx": 512, **own}))
        return engines[-1]

    yield make
    for engine in engines:
        engine.stop()
    assert set(threading.enumerate()) <= threads_before


@pytest.fixture
def make_request(tokenizer: FakeTokenizer) -> MakeRequest:
    ids = count()

    def make(
        prompt: str = "Hi", max_tokens: int = 100, seed: int = 0, temperature: float = 0.0, **rest: Any
    ) -> GenerationRequest:
        return GenerationRequest(
            id=f"r{next(ids)}",
            prompt=tuple(tokenizer.encode(prompt)),
            sampling=rest.pop("sampling", SamplingParams(seed=seed, temperature=temperature)),
            max_tokens=max_tokens,
            eog=tokenizer.eog,
            **rest,
        )

    return make
