"""Prompts that begin like earlier ones go on from their states, and nobody can tell from the reply."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmhub.engine import Engine
from lmhub.engine.parked import common
from lmhub.settings import EngineSettings
from lmhub.testing.drive import load
from lmhub.testing.fake import FakeModel, FakeState, FakeTokenizer, Gate, NoiseModel
from lmhub.testing.tiny import tiny_gguf
from lmhub.types import Event, Finish, GenerationRequest, PromptScored, SamplingParams, TextDelta

MakeEngine = Callable[..., Engine]
MakeRequest = Callable[..., GenerationRequest]


def run(engine: Engine, request: GenerationRequest) -> tuple[str, int]:
    """The text, and how many tokens of the prompt were taken over."""
    events = list(engine.submit(request).events())
    assert isinstance(events[-1], Finish), events[-1]
    return "".join(event.text for event in events if isinstance(event, TextDelta)), events[-1].usage.cached_tokens


def test_common() -> None:
    def n(one: list[int], other: list[int]) -> int:
        return common(np.array(one, np.int32), np.array(other, np.int32))

    assert [n([], [1]), n([1, 2], [1, 2, 3]), n([1, 2, 3], [1, 2]), n([2], [1]), n([1, 2, 3], [1, 5, 3])] == [
        0,
        2,
        2,
        0,
        1,
    ]


def test_the_same_prompt_again_forwards_only_its_last_token(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    model = FakeModel(b"ok")
    engine = make_engine(model, batch=1)
    prompt = "a prompt of some length"
    assert run(engine, make_request(prompt)) == ("ok", 0)
    n_before = len(model.steps)
    assert run(engine, make_request(prompt)) == ("ok", len(prompt) - 1)
    [row] = model.steps[n_before]
    assert (row.n_before, row.tokens) == (len(prompt) - 1, (ord("h"),))
    assert len(model.states) == 1


def test_a_conversation_goes_on_from_its_reply(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    model = FakeModel(b"reply")
    engine = make_engine(model, batch=2)
    run(engine, make_request("question "))
    # The last token of a reply was never forwarded when it ended the reply.
    assert run(engine, make_request("question reply, and then?")) == ("reply", len("question reply"))


def test_a_prompt_that_leaves_the_path_keeps_what_is_shared(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    engine = make_engine(FakeModel(b"r"), batch=1)
    run(engine, make_request("system. first question"))
    assert run(engine, make_request("system. second question")) == ("r", len("system. "))
    assert run(engine, make_request("other")) == ("r", 0)


def test_conversations_do_not_push_each_other_out(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    model = FakeModel(b"r")
    engine = make_engine(model, batch=2)
    one, two = "one: a long first prompt", "two: another long prompt"
    for prompt in (one, two, one, two):
        run(engine, make_request(prompt))
    assert run(engine, make_request(one))[1] == len(one) - 1
    assert run(engine, make_request(two))[1] == len(two) - 1
    three = "three: the one that waited longest has to go"
    assert run(engine, make_request(three))[1] == 0
    assert run(engine, make_request(two))[1] == len(two) - 1
    assert run(engine, make_request(one))[1] == 0
    assert len(model.states) == 2


def test_a_running_prompt_is_shared(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    gate = Gate()
    engine = make_engine(FakeModel(b"reply", gate=gate), batch=2)
    prompt = "a prompt that two requests share"
    first = engine.submit(make_request(prompt))
    gate.arrive()
    gate.step()  # the prompt is read
    second = engine.submit(make_request(prompt))
    gate.open()
    finishes = [list(one.events())[-1] for one in (first, second)]
    assert [one.usage.cached_tokens for one in finishes if isinstance(one, Finish)] == [0, len(prompt) - 1]


class Stubborn(FakeState):
    """A state that cannot rewind, only start over."""

    can_rewind = False

    def truncate(self, n_tokens: int) -> bool:
        return n_tokens == 0 and super().truncate(0)

    def copy_prefix(self, other: Any, n_tokens: int) -> bool:
        self.truncate(0)
        return False


class StubbornModel(NoiseModel):
    def new_state(self, n_ctx: int) -> FakeState:
        self.states.append(Stubborn(n_ctx))
        return self.states[-1]


def test_a_state_that_cannot_rewind_is_used_where_it_need_not(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    model = StubbornModel()
    engine = make_engine(model, batch=1)
    prompt = "a prompt of some length"
    text, _ = run(engine, make_request(prompt, max_tokens=4))
    assert run(engine, make_request(prompt, max_tokens=4)) == (text, 0)
    held = tuple(model.states[0].tokens)
    longer = make_request("", max_tokens=4)
    object.__setattr__(longer, "prompt", (*held, 1, 2))
    assert run(engine, longer)[1] == len(held)
    assert len(model.states) == 1


def test_a_scored_prompt_is_read_from_its_start(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    engine = make_engine(NoiseModel(), batch=1)
    run(engine, make_request("some prompt", max_tokens=1))
    events = list(engine.submit(make_request("some prompt", max_tokens=1, score_prompt=True)).events())
    assert isinstance(events[0], PromptScored)
    assert isinstance(events[-1], Finish)
    assert events[-1].usage.cached_tokens == 0


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tiny_gguf("qwen3", tmp_path_factory.mktemp("prefix") / "tiny.gguf", qk_norm=True, tied=True)
    return load("lmhub_qwen3", Path(path), n_ctx=256, kv_dtype="f16")


def logged(model: Any, prompts: list[list[int]], seed: int, batch: int) -> list[tuple[list[Event], int]]:
    """Each prompt's events with every log probability, one after the other on one engine; and what was cached."""
    settings = EngineSettings(batch=batch, prefill_chunk=16, spec=False)
    engine = Engine(model, tokenizer=FakeTokenizer(), n_ctx=256, settings=settings)
    try:
        out = []
        for prompt in prompts:
            request = GenerationRequest(
                "r", tuple(prompt), SamplingParams(1.0, seed=seed), 12, frozenset(), logprobs=20, return_token_ids=True
            )
            events = list(engine.submit(request).events())
            assert isinstance(events[-1], Finish)
            out.append((events[:-1], events[-1].usage.cached_tokens))
        return out
    finally:
        engine.stop(grace_s=30.0)  # an idle one ends at once; nothing must be aborted, the model is used again


@pytest.mark.parametrize("batch", [1, 3])
def test_a_reused_prefix_changes_no_bit(tiny: Any, batch: int) -> None:
    """A real model: logits after reuse are those of a fresh run, to the last bit of every log probability."""
    rng = np.random.default_rng(7)
    trunk = rng.integers(0, 280, 40).tolist()
    prompts = [
        trunk[:n] + rng.integers(0, 280, m).tolist() for n, m in ((40, 0), (40, 9), (25, 30), (40, 1), (0, 20), (33, 3))
    ]
    prompts += [prompts[0], prompts[2]]
    reused = logged(tiny, prompts, 3, batch)
    fresh = list(itertools.chain.from_iterable(logged(tiny, [prompt], 3, batch) for prompt in prompts))
    assert [events for events, _ in reused] == [events for events, _ in fresh]
    assert [cached for _, cached in fresh] == [0] * len(prompts)
    assert sum(cached > 0 for _, cached in reused) >= 4
    assert all(cached < len(prompt) for (_, cached), prompt in zip(reused, prompts, strict=True))
