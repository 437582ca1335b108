"""The life of generations: submit, run, join, leave, wait, cancel, finish. Every step is let through by the test."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from lmhub.engine import Engine, Generation, SlotStats
from lmhub.errors import PromptTooLong, QueueFull, RequestError
from lmhub.testing.fake import IM_END, FakeModel, FakeState, FakeTokenizer, Gate, NoiseModel
from lmhub.types import Event, Failure, Finish, GenerationRecord, GenerationRequest, SamplingParams, TextDelta, Usage

MakeEngine = Callable[..., Engine]
MakeRequest = Callable[..., GenerationRequest]


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def finish_of(events: list[Event]) -> Finish:
    """The Finish at the end, the only terminal event."""
    assert [isinstance(event, Finish | Failure) for event in events] == [False] * (len(events) - 1) + [True]
    assert isinstance(events[-1], Finish), events[-1]
    return events[-1]


def collect(generation: Generation) -> list[Event]:
    return list(generation.events())


def test_one_generation_from_end_to_end(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    records: list[GenerationRecord] = []
    model = FakeModel(b"Hello")
    engine = make_engine(model, model_id="m", family="f", on_finished=records.append, spec=False)
    request = make_request("Hi")
    events = collect(engine.submit(request))
    finish = finish_of(events)
    assert text_of(events) == "Hello"
    assert (finish.reason, finish.usage) == ("stop", Usage(prompt_tokens=2, completion_tokens=5))
    assert min(finish.timings.queued_s, finish.timings.prefill_s, finish.timings.decode_s) >= 0
    assert records == [GenerationRecord(request.id, "m", "f", "stop", finish.usage, finish.timings)]
    stats = engine.stats()
    assert (stats.queued, stats.running, stats.finished) == (0, 0, 1)
    assert (stats.steps, stats.prompt_tokens, stats.completion_tokens) == (6, 2, 5)


def test_stop_string_and_budget_reach_the_finish(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    engine = make_engine(FakeModel(b"one END two"))
    events = collect(engine.submit(make_request(stop=("END",))))
    assert text_of(events) == "one "
    assert (finish_of(events).reason, finish_of(events).stop_sequence) == ("stop_sequence", "END")
    events = collect(engine.submit(make_request(max_tokens=3)))
    assert (text_of(events), finish_of(events).reason) == ("one", "length")


def test_the_context_bounds_the_budget(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    engine = make_engine(FakeModel(b"x" * 100), n_ctx=16)
    finish = finish_of(collect(engine.submit(make_request("p" * 10, max_tokens=100))))
    assert (finish.reason, finish.usage.completion_tokens) == ("length", 6)


def test_requests_that_can_never_run_are_refused(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    engine = make_engine(FakeModel(b"ok"), n_ctx=16)
    with pytest.raises(PromptTooLong, match="16 tokens and the context holds 16"):
        engine.submit(make_request("p" * 16))
    with pytest.raises(RequestError, match="empty"):
        engine.submit(make_request(""))
    with pytest.raises(RequestError, match="max_tokens"):
        engine.submit(make_request(max_tokens=0))
    with pytest.raises(RequestError, match="stop string"):
        engine.submit(make_request(stop=("",)))
    outside = GenerationRequest("x", (1, 263), SamplingParams(), 5, frozenset())
    with pytest.raises(RequestError, match=r"0\.\.262"):
        engine.submit(outside)
    assert text_of(collect(engine.submit(make_request("p" * 13)))) == "ok"


def test_streams_join_and_leave_a_running_batch(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    gate = Gate()
    model = FakeModel(lambda prompt: b"abcdef" if prompt == tuple(b"long") else b"x", gate=gate)
    engine = make_engine(model, batch=2)
    long = engine.submit(make_request("long"))
    gate.arrive()
    gate.step()  # the long one has its first token
    short = engine.submit(make_request("short"))
    gate.step()  # the step that was under way; the short one joins behind it
    gate.open()
    assert text_of(collect(long)) == "abcdef"
    assert text_of(collect(short)) == "x"
    assert [len(step) for step in model.steps] == [1, 1, 2, 2, 1, 1, 1]


def test_the_batch_is_never_exceeded_and_states_are_reused(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    model = FakeModel(lambda prompt: bytes(prompt[:3]))
    engine = make_engine(model, batch=3, queue=20)
    generations = [engine.submit(make_request(f"{i:03} please")) for i in range(20)]
    assert [text_of(collect(generation)) for generation in generations] == [f"{i:03}" for i in range(20)]
    assert max(len(step) for step in model.steps) <= 3
    assert len(model.states) <= 3
    assert all(state.capacity == 512 for state in model.states)


def test_a_state_that_cannot_rewind_is_replaced(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    class Stubborn(FakeState):
        can_rewind = False

        def truncate(self, n_tokens: int) -> bool:
            return False

    class Model(FakeModel):
        def new_state(self, n_ctx: int) -> FakeState:
            self.states.append(Stubborn(n_ctx))
            return self.states[-1]

    model = Model(b"ok")
    engine = make_engine(model, batch=1)
    assert [text_of(collect(engine.submit(make_request()))) for _ in range(3)] == ["ok"] * 3
    assert len(model.states) == 3


def test_admission_is_first_come_first_served(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    order: list[str] = []
    gate = Gate()
    engine = make_engine(FakeModel(b"a", gate=gate), batch=1, on_finished=lambda record: order.append(record.id))
    requests = [make_request() for _ in range(5)]
    generations = [engine.submit(request) for request in requests]
    gate.open()
    for generation in generations:
        finish_of(collect(generation))
    assert order == [request.id for request in requests]


@pytest.mark.parametrize(("batch", "queue"), [(1, 0), (1, 2), (2, 3)])
def test_the_queue_bound_is_exact(make_engine: MakeEngine, make_request: MakeRequest, batch: int, queue: int) -> None:
    gate = Gate()
    engine = make_engine(FakeModel(b"a", gate=gate), batch=batch, queue=queue)
    generations = [engine.submit(make_request()) for _ in range(batch + queue)]
    with pytest.raises(QueueFull) as refusal:
        engine.submit(make_request())
    assert refusal.value.status == 429
    assert 1 <= refusal.value.retry_after_s <= 60
    gate.open()
    for generation in generations:
        assert finish_of(collect(generation)).reason == "stop"
    assert text_of(collect(engine.submit(make_request()))) == "a"


def test_a_cancelled_request_frees_its_place_in_the_queue_at_once(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    gate = Gate()
    engine = make_engine(FakeModel(b"a", gate=gate), batch=1, queue=1)
    engine.submit(make_request())
    gate.arrive()
    waiting = engine.submit(make_request())
    with pytest.raises(QueueFull):
        engine.submit(make_request())
    waiting.cancel()
    assert engine.stats().queued == 0
    other = engine.submit(make_request())
    gate.open()
    assert finish_of(collect(waiting)).reason == "cancelled"
    assert text_of(collect(other)) == "a"


def test_cancel_while_queued_never_runs(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    gate = Gate()
    model = FakeModel(b"a", gate=gate)
    engine = make_engine(model, batch=1)
    first = engine.submit(make_request("first"))
    gate.arrive()
    second = engine.submit(make_request("second"))
    second.cancel()
    gate.open()
    finish = finish_of(collect(second))
    assert (finish.reason, finish.usage) == ("cancelled", Usage(6, 0))
    assert text_of(collect(first)) == "a"
    assert all(row.tokens[:1] != tuple(b"s") for step in model.steps for row in step)


def test_cancel_while_prefilling_takes_effect_within_one_step(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    gate = Gate()
    model = FakeModel(b"a", gate=gate)
    engine = make_engine(model, prefill_chunk=8)
    generation = engine.submit(make_request("p" * 400))
    gate.arrive()
    gate.step()
    generation.cancel()
    gate.open()
    assert finish_of(collect(generation)).usage == Usage(400, 0)
    assert len(model.steps) == 2


def test_cancel_while_decoding_takes_effect_within_one_step(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    gate = Gate()
    model = FakeModel(b"abcdef", gate=gate)
    engine = make_engine(model)
    generation = engine.submit(make_request())
    gate.arrive()
    gate.step()
    gate.step()
    generation.cancel()
    gate.open()
    events = collect(generation)
    assert (text_of(events), finish_of(events).reason, len(model.steps)) == ("ab", "cancelled", 3)
    assert text_of(collect(engine.submit(make_request()))) == "abcdef"


def test_cancel_after_the_end_changes_nothing(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    engine = make_engine(FakeModel(b"ab"))
    generation = engine.submit(make_request())
    assert finish_of(collect(generation)).reason == "stop"
    generation.cancel()
    assert collect(generation) == []
    assert engine.stats().finished == 1


def test_closing_the_blocking_iterator_cancels(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    gate = Gate()
    ended = threading.Event()
    reasons: list[str] = []

    def note(record: GenerationRecord) -> None:
        reasons.append(record.finish)
        ended.set()

    engine = make_engine(FakeModel(b"x" * 400, gate=gate), on_finished=note)
    events = engine.submit(make_request(max_tokens=400)).events()
    gate.arrive()
    gate.let()
    assert next(events) == TextDelta("x")
    events.close()
    gate.open()
    assert ended.wait(30)
    assert reasons == ["cancelled"]


def test_a_reader_that_reads_late_gets_everything(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    engine = make_engine(FakeModel(lambda prompt: b"y" * 300 if prompt == tuple(b"slow") else b"z"), batch=2)
    slow = engine.submit(make_request("slow", max_tokens=400))
    while engine.stats().finished == 0:
        assert text_of(collect(engine.submit(make_request("quick")))) == "z"
        assert engine.stats().queued == 0
    assert text_of(collect(slow)) == "y" * 300


def test_a_long_prompt_does_not_stop_the_others(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    gate = Gate()
    model = FakeModel(lambda prompt: b"d" * 100, gate=gate)
    engine = make_engine(model, prefill_chunk=16, spec=False)
    engine.submit(make_request("hi"))
    gate.arrive()
    gate.step()
    long = engine.submit(make_request("p" * 320, max_tokens=1))
    gate.open()
    assert finish_of(collect(long)).reason == "length"
    prefill = [step for step in model.steps if any(len(row.tokens) > 1 and row.tokens[0] == ord("p") for row in step)]
    assert len(prefill) == 20
    assert all(sum(row.tokens == (ord("d"),) for row in step) == 1 for step in prefill)
    assert all(sum(len(row.tokens) for row in step) <= 16 + 1 for step in prefill)
    assert [row.want for step in prefill for row in step if len(row.tokens) > 1] == ["none"] * 19 + ["last"]


def test_the_same_request_gives_the_same_tokens_in_any_company(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    sampling = SamplingParams(temperature=1.0, repeat_penalty=1.2, repeat_last_n=8, seed=7)
    prompts = ["a", "some words", "p" * 70, "q" * 33, "a longer prompt than the first"]

    def replies(batch: int, chunk: int) -> list[str]:
        engine = make_engine(NoiseModel(), batch=batch, prefill_chunk=chunk)
        running = [engine.submit(make_request(prompt, sampling=sampling, max_tokens=40)) for prompt in prompts]
        return [text_of(collect(generation)) for generation in running]

    alone = replies(1, 512)
    assert len(set(alone)) == len(prompts)
    for batch, chunk in [(2, 5), (5, 1), (3, 64)]:
        assert replies(batch, chunk) == alone
    other = make_request(prompts[1], sampling=SamplingParams(temperature=1.0, seed=8), max_tokens=40)
    assert text_of(collect(make_engine(NoiseModel()).submit(other))) != alone[1]


def test_suppressed_ids_and_processors_reach_the_sampler(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    seen: list[tuple[int, ...]] = []

    def forbid_b(logits: Any, history: Any) -> None:
        seen.append(tuple(history))
        logits[ord("b")] = -1e30

    class Model(FakeModel):
        def row(self, tokens: tuple[int, ...], n_prompt: int) -> Any:
            row = super().row(tokens, n_prompt)
            row[[ord("a"), ord("b"), ord("c")]] = 30, 20, 15
            return row

    engine = make_engine(Model())
    request = make_request("Hi", max_tokens=2, suppressed=frozenset({ord("a")}), processors=(forbid_b,))
    assert text_of(collect(engine.submit(request))) == "cc"
    assert seen == [tuple(b"Hi"), tuple(b"Hic")]


def test_the_sampler_is_told_the_index_and_the_window(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    calls: list[tuple[int, dict[int, int]]] = []

    def sample(row: Any, params: Any, index: int, ids: Any, counts: Any, *rest: Any) -> int:
        calls.append((index, dict(zip(ids.tolist(), counts.tolist(), strict=True))))
        return int(row.argmax())

    engine = make_engine(FakeModel(b"ab"), sample=sample)
    penalised = make_request("xa", sampling=SamplingParams(presence_penalty=1.0, repeat_last_n=2))
    assert text_of(collect(engine.submit(penalised))) == "ab"
    x, a, b = b"xab"
    assert calls == [(0, {x: 1, a: 1}), (1, {a: 2}), (2, {a: 1, b: 1})]


def test_a_processor_edits_a_copy(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    class Model(FakeModel):
        def forward(self, chunks: Any) -> Any:
            self.last = super().forward(chunks)
            return self.last

    def erase(logits: Any, history: Any) -> None:
        logits[:] = 0

    model = Model(b"a")
    collect(make_engine(model).submit(make_request(max_tokens=1, processors=(erase,))))
    assert model.last[0].argmax() == ord("a")


def test_two_engines_side_by_side(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    gates = [Gate(), Gate()]
    engines = [make_engine(FakeModel(text, gate=gate)) for text, gate in zip((b"one", b"two"), gates, strict=True)]
    generations = [engine.submit(make_request()) for engine in engines]
    gates[1].open()
    assert text_of(collect(generations[1])) == "two"  # while the first is still held
    gates[0].open()
    assert text_of(collect(generations[0])) == "one"


def test_a_task_runs_on_the_worker_between_steps(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    gate = Gate()
    model = FakeModel(b"ab", gate=gate)
    engine = make_engine(model, model_id="m")
    assert engine.call(lambda: threading.current_thread().name).result(30) == "lmhub-engine m"
    generation = engine.submit(make_request())
    gate.arrive()
    steps = engine.call(lambda: len(model.steps))
    assert not steps.done()
    gate.open()
    assert steps.result(30) == 1
    with pytest.raises(ZeroDivisionError):
        engine.call(lambda: 1 // 0).result(30)
    assert text_of(collect(generation)) == "ab"


def test_any_interleaving_has_one_last_event(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    records: list[GenerationRecord] = []
    gate = Gate()
    model = FakeModel(lambda prompt: b"abcdefgh"[: prompt[0] % 8], gate=gate)
    engine = make_engine(model, batch=3, queue=300, prefill_chunk=4, on_finished=records.append)
    rng = random.Random(1)
    generations: list[Generation] = []
    for _ in range(200):
        prompt = chr(rng.randrange(65, 90)) + "p" * rng.randrange(12)
        generations.append(engine.submit(make_request(prompt, max_tokens=rng.randrange(1, 9))))
        gate.let(rng.randrange(3))
        if rng.random() < 0.5:
            rng.choice(generations).cancel()
    gate.open()
    reasons = [finish_of(collect(generation)).reason for generation in generations]
    assert {"cancelled", "stop", "length"} == set(reasons)
    assert sorted(record.id for record in records) == sorted(generation.request.id for generation in generations)
    stats = engine.stats()
    assert (stats.queued, stats.running, stats.finished) == (0, 0, 200)
    assert len(model.states) <= 3


def test_the_fake_tokenizer_is_byte_level_with_markers(tokenizer: FakeTokenizer) -> None:
    assert tokenizer.encode("é<|im_end|>") == [*"é<|im_end|>".encode()]
    assert tokenizer.encode("é<|im_end|>", special=True) == [*"é".encode(), IM_END]
    assert tokenizer.decode(tokenizer.encode("héllo")) == "héllo"
    assert (tokenizer.piece(IM_END), tokenizer.token_id("<|im_end|>")) == (b"", IM_END)
    assert tokenizer.eog == {257, 258}


def test_stats_tell_how_far_each_running_sequence_is(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    gate = Gate()
    engine = make_engine(FakeModel(b"Hello", gate=gate))
    generation = engine.submit(make_request("Hi"))
    gate.arrive()
    assert engine.stats().slots == (SlotStats(n_past=0, n_prompt=2, n_decoded=0, n_cached=0),)
    gate.step()
    assert engine.stats().slots == (SlotStats(n_past=2, n_prompt=2, n_decoded=1, n_cached=0),)
    gate.open()
    list(generation.events())
    engine.stop()
    assert engine.stats().slots == ()
