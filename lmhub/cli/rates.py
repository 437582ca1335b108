"""Measures how fast a model runs by itself: prefill, decode behind a filled cache, decode of several rows at once.

Drives the model through chunks on its engine's thread: no HTTP, no sampler, no tokenizer. The machine is measured
before and after every figure that takes its time, and the better of the two counts, as the best of several runs does:
whoever else uses the machine can only make both look worse. Knows no file and prints nothing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lmhub import native
from lmhub.cli.floors import Costs, Machine, Work
from lmhub.model import CausalLM, Chunk, State

if TYPE_CHECKING:
    from lmhub.native import OpTime

Task = Callable[[], None]

_WARM_UP = 4  # tokens of a run before the clock starts
_SEED = 256  # positions that are computed to fill a cache; the rest repeats them
_FRESH_S = 1.0  # for how long a measurement of the machine holds
_PATIENCE_S = 6.0  # after which no further run of the same figure begins


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: `size` tokens of a prompt, positions before a decoded token, or rows; the seconds that `tokens` took.

    `floor_s` is the least that they can take, by `bound`. `ops` is filled where they were asked for, of one more run.
    """

    size: int
    tokens: int
    seconds: tuple[float, ...]
    floor_s: float
    bound: str
    ops: tuple[OpTime, ...] = ()
    ops_s: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens per second of the best run."""
        return self.tokens / min(self.seconds)

    @property
    def median(self) -> float:
        """Tokens per second of the run in the middle."""
        return self.tokens / statistics.median(self.seconds)

    @property
    def floor(self) -> float:
        """Tokens per second at the floor."""
        return self.tokens / self.floor_s

    @property
    def percent(self) -> float:
        """How much of the floor the best run reached."""
        return 100 * self.floor_s / min(self.seconds)


@dataclass
class Bench:
    """Measures one model. `chunk`: rows of a prefill step; `runs` of each figure, fewer where they take long."""

    model: CausalLM
    costs: Costs
    chunk: int
    runs: int
    decoded: int  # tokens of each sequence in a run of decode
    threads: int
    machine: Machine = field(default=Machine(0.0, {}), init=False)  # the best so far
    _latest: Machine = field(init=False)
    _measured_at: float = field(init=False)

    def __post_init__(self) -> None:
        state = self.model.new_state(2 * _WARM_UP)
        self._read(state, _WARM_UP)
        self._step([state])
        self._measure()

    def prefill(self, tokens: int, ops: bool = False) -> Figure:
        """A prompt of that many tokens into an empty cache."""
        states: list[State] = []

        def prepare() -> None:
            states[:] = [self.model.new_state(tokens)]

        def work() -> None:
            self._read(states[0], tokens)

        return self._figure(tokens, tokens, prepare, work, self.costs.prefill(tokens, self.chunk), ops)

    def decode(self, depth: int, rows: int = 1, ops: bool = False) -> Figure:
        """Tokens of `rows` sequences, one of each in a step, behind `depth` positions. `size` is the depth."""
        states = [self.model.new_state(depth + _WARM_UP + self.decoded) for _ in range(rows)]

        def prepare() -> None:
            for state in states:
                if state.n_tokens < depth or not state.truncate(depth):
                    self._fill(state, depth)
            for _ in range(_WARM_UP):
                self._step(states)

        def work() -> None:
            for _ in range(self.decoded):
                self._step(states)

        steps = [self.costs.decode(depth, rows)] * self.decoded
        return self._figure(depth, rows * self.decoded, prepare, work, steps, ops)

    def _figure(
        self, size: int, tokens: int, prepare: Task, work: Task, steps: Sequence[Work], with_ops: bool
    ) -> Figure:
        before, begun = self._latest, time.perf_counter()
        seconds: list[float] = []
        while len(seconds) < self.runs and (not seconds or time.perf_counter() - begun < _PATIENCE_S):
            prepare()
            seconds.append(_timed(work))
        if time.perf_counter() - self._measured_at > _FRESH_S:
            self._measure()
        machine = best(before, self._latest)
        ops: list[OpTime] = []
        ops_s = 0.0
        if with_ops:
            prepare()
            with native.profile() as ops:
                ops_s = _timed(work)
        floors = [step.floor(machine) for step in steps]
        return Figure(size, tokens, tuple(seconds), sum(one for one, _ in floors), floors[0][1], tuple(ops), ops_s)

    def _measure(self) -> None:
        self._latest, self._measured_at = measured(self.threads), time.perf_counter()
        self.machine = best(self._latest, self.machine)

    def _read(self, state: State, tokens: int) -> None:
        """A prompt in steps, as the engine reads it. Any ids will do; these differ, as those of a prompt."""
        prompt = [(at * 7919 + 13) % self.model.n_vocab for at in range(tokens)]
        for start in range(0, tokens, self.chunk):
            last = start + self.chunk >= tokens
            self.model.forward([Chunk(state, prompt[start : start + self.chunk], "last" if last else "none")])

    def _step(self, states: Sequence[State]) -> None:
        """One more token for every sequence. They differ from row to row and step to step, for the sake of experts."""
        ids = [(state.n_tokens * 7919 + 31 * row + 5) % self.model.n_vocab for row, state in enumerate(states)]
        self.model.forward([Chunk(state, [token]) for state, token in zip(states, ids, strict=True)])

    def _fill(self, state: State, depth: int) -> None:
        """Rows up to `depth`: those of a prompt, repeated where the state takes rows. Speed does not look at values."""
        state.truncate(0)
        self._read(state, min(depth, _SEED) if state.layout else depth)
        while state.n_tokens < depth:
            state.write_rows(state.read_rows(0, min(state.n_tokens, depth - state.n_tokens)))


def measured(threads: int) -> Machine:
    """This machine right now, on that many threads."""
    peaks = {unit: peak.rate * 1e9 for unit, peak in native.peaks(threads).items()}
    return Machine(native.memory_bandwidth(threads) * 1e9, peaks)


def best(one: Machine, other: Machine) -> Machine:
    """The better figure of each kind."""
    peaks = {unit: max(rate, other.peaks.get(unit, 0.0)) for unit, rate in one.peaks.items()}
    return Machine(max(one.bandwidth, other.bandwidth), peaks)


def _timed(work: Task) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
