"""Random lives of a pool: whatever comes together, its books are right after every turn, and every reply is exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmhub.engine import Generation
from lmhub.engine.disk import DiskTier
from lmhub.engine.drafts import Speculator
from lmhub.engine.generation import cost
from lmhub.engine.rates import StepTimes
from lmhub.errors import KernelError
from lmhub.model import Chunk
from lmhub.testing.fake import N_VOCAB, PATIENCE_S, FakeState
from lmhub.testing.recurrent import RecurrentModel
from lmhub.testing.turns import Letters, Turns
from lmhub.types import Event, Failure, Finish, GenerationRequest, TextDelta

MakeRequest = Callable[..., GenerationRequest]

TRUNKS = [
    letter * 10 + ": what several of them begin with, long enough to be copied, and kept. " * 3 for letter in "ABC"
]
LETTER = 65  # bytes that an event with one letter counts for

moves = st.one_of(
    st.tuples(st.just("submit"), st.integers(0, 2), st.integers(0, 230), st.integers(0, 3)),
    st.tuples(st.just("follow"), st.integers(0, 5), st.integers(0, 3), st.just(0)),
    st.tuples(st.sampled_from(["turn", "turn", "quiet"]), st.integers(1, 12), st.just(0), st.just(0)),
    st.tuples(st.just("read"), st.integers(0, 5), st.integers(1, 10), st.just(0)),
    st.tuples(st.sampled_from(["cancel", "fail", "ahead", "wait"]), st.integers(0, 5), st.just(0), st.just(0)),
)


class Mood(Letters):
    """Fails where it is told to, and sometimes has no memory."""

    fails_at = -1
    is_full = False

    def new_state(self, n_ctx: int) -> FakeState:
        if self.is_full:
            self.is_full = False
            raise MemoryError("no pages")
        return super().new_state(n_ctx)

    def forward(self, chunks: Sequence[Chunk]) -> Any:
        if any(chunk.state is self.states[self.fails_at] for chunk in chunks if 0 <= self.fails_at < len(self.states)):
            raise KernelError("moody")
        return super().forward(chunks)


class Moody(Mood):
    calm = Letters


class MoodyAndRecurrent(Mood, RecurrentModel):
    calm = RecurrentModel


class Life:
    """A pool, those who ask it, and what they must be told."""

    def __init__(self, bench: Bench, **options: Any):
        self.model = bench.model()
        self.turns = Turns(self.model, stall_timeout_s=100.0, **options)
        self._bench = bench
        self.asked: list[tuple[Generation, Iterator[Event], list[Event]]] = []

    def move(self, kind: str, a: int, b: int, c: int) -> None:
        turns = self.turns
        match kind:
            case "submit":
                self.submit(TRUNKS[a][:b] + "tail"[:c])
            case "follow" if self.asked:
                generation = self.asked[a % len(self.asked)][0]
                self.submit(bytes(generation.request.prompt).decode() + self.text(generation)[:9] + "?" * b)
            case "turn":
                turns.turn(a)
            case "quiet":
                turns.turn(a, quiet=True)
            case "read" if self.asked:
                self.read(*self.asked[a % len(self.asked)], b)
            case "cancel" if self.asked:
                self.asked[-1 - a % len(self.asked)][0].cancel()
            case "fail":
                self.model.fails_at, self.model.is_full = a, a == 0
                turns.turn()
                self.model.fails_at = -1
            case "ahead":
                turns.ahead((TRUNKS[a % 3] + "!").encode())
            case "wait":
                turns.now_s += 30.0

    def submit(self, prompt: str) -> None:
        if prompt:
            generation = self.turns.submit(self._bench.make_request(prompt, 15, n_stable=max(1, len(prompt) - 5)))
            self.asked.append((generation, generation.events(), []))

    def text(self, generation: Generation) -> str:
        """What it must be told."""
        known, prompt = self._bench.texts, bytes(generation.request.prompt).decode()
        if prompt not in known:
            known[prompt] = Turns(self.model.calm(), batch=1).run(self._bench.make_request(prompt, 15)).text
        return known[prompt]

    def read(self, generation: Generation, events: Iterator[Event], got: list[Event], n: int) -> None:
        """As much as is there, the event in the reader's hands aside."""
        for _ in range(n):
            if generation.backlog <= (cost(got[-1]) if got else 0) or (got and isinstance(got[-1], Finish | Failure)):
                return
            got.append(next(events))

    def end(self, seen: Counter[str]) -> None:
        """Everybody reads to the end, and has been told the right thing."""
        for _ in range(3000):
            left = [one for one in self.asked if one[0].request.id not in self.turns.records]
            if not left:
                break
            for one in left:
                self.read(*one, 3)
            for slot in self.turns.pool.running:
                if slot.restoring is not None:
                    slot.restoring.result(PATIENCE_S)
            self.turns.turn()
        assert not left, "somebody waits for ever"
        for generation, events, got in self.asked:
            got.extend(events)
            text = "".join(event.text for event in got if isinstance(event, TextDelta))
            whole = self.text(generation)
            record = self.turns.records[generation.request.id]
            assert text == whole if record.finish == "length" else whole.startswith(text)
            assert record.usage.cached_tokens < len(generation.request.prompt)
            seen[record.finish] += 1
            seen[record.source] += 1
        self.turns.turn()
        assert all(slot.is_ahead for slot in self.turns.pool.running)


class Bench:
    """What all lives share: replies that are known, and what has happened."""

    def __init__(self, model: type[Moody | MoodyAndRecurrent], make_request: MakeRequest, folder: Path):
        self.model, self.make_request, self.folder = model, make_request, folder
        self.texts: dict[str, str] = {}
        self.seen: Counter[str] = Counter()


@given(
    moves=st.lists(moves, min_size=20, max_size=100),
    batch=st.sampled_from([1, 1, 2, 4]),
    slots=st.sampled_from([0, 1, 1, 2, 5]),
    kv_ram=st.sampled_from([0, 0, 500, 1 << 20]),
    chunk=st.sampled_from([16, 64, 512]),
    has_disk=st.sampled_from([True, True, False]),
    spec=st.booleans(),
    pipe=st.sampled_from([8 * LETTER, 1 << 20]),
)
@settings(
    max_examples=80,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
def lives(
    bench: Bench,
    moves: list[Any],
    batch: int,
    slots: int,
    kv_ram: int,
    chunk: int,
    has_disk: bool,
    spec: bool,
    pipe: int,
) -> None:
    folder = bench.folder
    with ExitStack() as stack:
        disk = None
        if has_disk:
            disk = DiskTier(folder / str(len(list(folder.iterdir()))), "model", max_bytes=1 << 20, max_files=20)
            stack.callback(disk.close, PATIENCE_S)
            assert disk.scanned.wait(PATIENCE_S)
        life = Life(
            bench,
            batch=batch,
            kv_slots=slots,
            kv_ram=kv_ram,
            prefill_chunk=chunk,
            pipe_max=pipe,
            disk=disk,
            speculator=Speculator(N_VOCAB) if spec else None,
            times=StepTimes(200.0),
        )
        for move in moves:
            life.move(*move)
        life.end(bench.seen)
        life.turns.close()


@pytest.mark.parametrize("model", [Moody, MoodyAndRecurrent])
def test_whatever_comes_together(model: type[Any], make_request: MakeRequest, tmp_path: Path) -> None:
    lives(bench := Bench(model, make_request, tmp_path))
    expected = ("length", "failed", "cancelled", "none", "slot", "copy", "ram", "disk")
    assert not [name for name in expected if not bench.seen[name]], bench.seen
