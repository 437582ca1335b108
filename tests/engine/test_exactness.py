"""A request's answer is its own: whatever runs beside it and whatever it is spared, it is that of a run alone.

Random timetables (joins, cancels, readers who do not read, chunks, batches, threads, speculation, every place that a
prefix can come from) on a real tiny model and on a scripted one; every reply is compared bit by bit with the same
request alone on a fresh engine that does nothing clever. LMHUB_EXACT_EXAMPLES=500 makes it a long run with new cases.
"""

from __future__ import annotations

import os
import random
import threading
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from lmhub import native
from lmhub.chat.reply import ChannelParser
from lmhub.engine import Engine
from lmhub.engine.disk import DiskTier
from lmhub.family import ThinkMarkers
from lmhub.gguf import open_gguf
from lmhub.grammar import GrammarEngine
from lmhub.model import CausalLM, Chunk
from lmhub.settings import MIB, EngineSettings
from lmhub.testing.drive import load
from lmhub.testing.fake import PATIENCE_S, FakeModel, FakeState, FakeTokenizer
from lmhub.testing.timetable import Asked, Hooked, Outcome, play
from lmhub.testing.tiny import decoder, tiny_gguf, write
from lmhub.tokenize import Tokenizer, load_tokenizer
from lmhub.types import GenerationRequest, GrammarSpec, SamplingParams

N_CTX = 640
LETTERS = "abcd"  # few, so that texts repeat themselves and guesses about them are often right
LONG = int(os.environ.get("LMHUB_EXACT_EXAMPLES", "0"))
UNHURRIED = (HealthCheck.too_slow, HealthCheck.data_too_large)


# --- cases -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wish:
    """A request and when it comes. Its prompt goes on from that of wish `follows` (and its reply), or from a trunk."""

    follows: int | None
    trunk: int
    keep: int  # tokens of what it goes on from
    tail: str
    sampling: SamplingParams
    max_tokens: int
    free: bool  # all tokens may be chosen, not the letters and the end alone
    logprobs: int | None
    stop: tuple[str, ...]
    grammar: str | None
    extra: str | None
    stable: int | None
    after: int
    cancel: int | None
    leave: int | None


@dataclass(frozen=True)
class Case:
    """A life of an engine, perhaps with a restart before wish `restart`."""

    wishes: tuple[Wish, ...]
    settings: EngineSettings  # its kv_dtype picks the model
    threads: int
    disk: bool
    restart: int


GRAMMARS: dict[str, GrammarSpec] = {
    "regex": GrammarSpec("regex", "(ab|cd){2,6} (yes|no), (the cat|the dog) [a-d]{3}", "regex"),
    "schema": GrammarSpec(
        "json_schema",
        '{"type":"object","properties":{"first":{"enum":["aab","aac"]},"second":{"type":"integer"}},'
        '"required":["first","second"],"additionalProperties":false}',
        "schema",
    ),
}


def a_sampling(rng: random.Random) -> SamplingParams:
    """Greedy more often than not: what repeats itself is what can be guessed."""
    return SamplingParams(
        temperature=rng.choice((0.0, 0.0, 0.0, 0.3, 1.0)),
        top_k=rng.choice((0, 0, 3)),
        top_p=rng.choice((1.0, 0.7)),
        min_p=rng.choice((0.0, 0.2)),
        repeat_penalty=rng.choice((1.0, 1.0, 1.0, 1.2)),
        presence_penalty=rng.choice((0.0, 0.0, 0.5)),
        frequency_penalty=rng.choice((0.0, 0.0, -0.4)),
        repeat_last_n=rng.choice((-1, 8, 64)),
        seed=rng.randrange(4),
    )


def a_wish(rng: random.Random, index: int) -> Wish:
    """Wish number `index` of a case."""
    return Wish(
        follows=rng.choice((None, None, *range(index))),
        trunk=rng.randrange(3),
        keep=rng.choice((300, 300, 300, 150, 70, 40, 0)),
        tail="".join(rng.choices(LETTERS, k=rng.randrange(1, 12))),
        sampling=a_sampling(rng),
        max_tokens=rng.choice((1, 7, 20, 40, 40)),
        free=rng.random() < 0.2,
        logprobs=rng.choice((None, 0, 3)),
        stop=rng.choice(((), (), ("abc",), ("dd", "cab"))),
        grammar=rng.choice((None, None, None, *GRAMMARS)),
        extra=rng.choice((None, None, None, None, "scored", "edited", "thinking")),
        stable=rng.choice((None, rng.randrange(60))),
        after=rng.choice((0, 0, 1, 3, 9)),
        cancel=rng.choice((0, 1, 2, 6)) if rng.random() < 0.15 else None,
        leave=rng.choice((1, 4)) if rng.random() < 0.1 else None,
    )


def a_case(batch: int, setting: int, seeds: Sequence[int]) -> Case:
    """A case from numbers, one for each wish: hypothesis then finds the fewest wishes that go wrong together."""
    rng = random.Random(setting)
    engine = EngineSettings(
        ctx=N_CTX,
        batch=batch,
        queue=1000,
        kv_dtype=rng.choice(("f16", "f16", "q8_0")),
        kv_slots=rng.choice((0, batch, batch, batch + 1)),
        kv_ram=rng.choice((0, 1 << 17, 1 << 22)),
        spec=rng.random() < 0.7,
        prefill_chunk=rng.choice((1, 16, 50, 512)),
        latency_s=rng.choice((1e-5, 0.08, 10.0)),
        pipe_max=rng.choice((4, 300, MIB)),
    )
    return Case(
        wishes=tuple(a_wish(random.Random(f"{seed}/{index}"), index) for index, seed in enumerate(seeds)),
        settings=engine,
        threads=rng.randrange(1, 5),
        disk=rng.random() < 0.6,
        restart=rng.randrange(len(seeds) + 1),
    )


def cases(most: int) -> st.SearchStrategy[Case]:
    """Cases of at most `most` wishes."""
    number = st.integers(0, 2**32 - 1)
    batch = st.sampled_from((1, 2, 3, 4, 8, 16, 1, 2))
    return st.builds(a_case, batch, number, st.lists(number, min_size=most // 2, max_size=most))


def a_tour(kv_dtype: str) -> Case:
    """Three conversations in turns where only one has a place: they go on from memory, and from disk when restarted."""
    plain = replace(
        a_wish(random.Random(1), 0), keep=300, sampling=SamplingParams(), max_tokens=20, logprobs=3, grammar=None,
        stop=(), free=False, extra=None, cancel=None, leave=None, stable=None,
    )  # fmt: skip
    settings = EngineSettings(ctx=N_CTX, batch=1, kv_slots=1, kv_ram=1 << 22, kv_dtype=kv_dtype, queue=1000)
    wishes = tuple(replace(plain, trunk=trunk, tail=tail, after=40) for tail in "abcd" for trunk in range(3))
    return Case(wishes, settings, threads=2, disk=True, restart=6)


def fixed_cases(number: int, most: int, n: int) -> Iterator[Case]:
    """The same `n` every time, whatever else runs: what hypothesis draws depends on more than its seed."""
    for at in range(n):
        first = 1000 * number + at
        yield a_case(BATCHES[at % len(BATCHES)], first, range(first, first + most))


# --- running them ----------------------------------------------------------------------------------------------------


class Bench:
    """A model (by the type of its cache), the answers that are known, and what happened in all cases so far."""

    def __init__(self, models: Mapping[str, CausalLM], tokenizer: Tokenizer, folder: Path):
        self.models, self.tokenizer, self.folder = models, tokenizer, folder
        self.known: dict[object, Outcome] = {}
        self.seen: Counter[str] = Counter()
        self.letters = frozenset(tokenizer.encode(" ".join(LETTERS)))
        self.eog = frozenset(tokenizer.eog)
        self.n_vocab = models["f16"].n_vocab
        self.grammars = GrammarEngine(tokenizer, self.n_vocab, self.eog)
        rng = np.random.default_rng(5)
        motifs = ["".join(rng.choice(list(LETTERS), 9)) for _ in range(12)]
        self.trunks = [tokenizer.encode("".join(rng.choice(motifs, 40))) for _ in range(3)]

    def request(self, wish: Wish, prompt: tuple[int, ...]) -> GenerationRequest:
        """A new one: constraints and parsers are used up by a reply."""
        ends = self.letters | self.eog
        bound = not wish.free and wish.grammar is None and wish.extra != "thinking"
        options: dict[str, Any] = {}
        if wish.grammar is not None:
            options["constraint"] = self.grammars.constraint(GRAMMARS[wish.grammar])
        elif wish.extra == "thinking":
            options |= {
                "parser": ChannelParser(self.tokenizer.token_id, think=ThinkMarkers(), opens_reasoning=True),
                "reasoning_budget": 5,
                "close_reasoning": tuple(self.tokenizer.encode("</think>", special=True)),
            }
        if wish.extra == "edited":
            options["processors"] = (no_repetition,)
        return GenerationRequest(
            "r",
            prompt,
            wish.sampling,
            wish.max_tokens,
            self.eog,
            stop=wish.stop,
            suppressed=frozenset(range(self.n_vocab)) - ends if bound else frozenset(),
            logit_bias={next(iter(self.eog)): -2.0} if bound else {},
            logprobs=wish.logprobs,
            score_prompt=wish.extra == "scored",
            return_token_ids=True,
            n_stable=wish.stable,
            **options,
        )

    def alone(self, wish: Wish, prompt: tuple[int, ...], kv_dtype: str) -> Outcome:
        """Its answer on an engine of its own, with nothing that could go wrong."""
        key = (
            replace(wish, follows=None, trunk=0, keep=0, tail="", after=0, cancel=None, leave=None),
            prompt,
            kv_dtype,
        )
        if key not in self.known:
            native.set_threads(1)
            plain = EngineSettings(ctx=N_CTX, batch=1, spec=False, latency_s=10.0, kv_dtype=kv_dtype)
            with self.engine(plain, None) as (engine, model):
                [self.known[key]] = play(engine, model, [Asked(lambda: self.request(wish, prompt))])
        return self.known[key]

    @contextmanager
    def engine(self, plain: EngineSettings, folder: Path | None) -> Iterator[tuple[Engine, Hooked]]:
        """An engine, and the model to be watched."""
        model = Hooked(self.models[plain.kv_dtype])
        disk = None
        if folder is not None:
            disk = DiskTier(folder, plain.kv_dtype, max_bytes=1 << 24, max_files=64)
            assert disk.scanned.wait(PATIENCE_S)
        engine = Engine(model, tokenizer=self.tokenizer, n_ctx=N_CTX, settings=plain, disk=disk)
        try:
            yield engine, model
        finally:
            engine.stop(grace_s=30.0)

    def check(self, case: Case) -> None:
        """Every reply is that of a run alone."""
        prompts: list[tuple[int, ...]] = []
        expected: list[Outcome] = []
        for wish in case.wishes:
            base = self.trunks[wish.trunk][: wish.keep]
            if wish.follows is not None:
                base = [*prompts[wish.follows], *expected[wish.follows].tokens[: wish.keep]]
            prompt = tuple([*base, *self.tokenizer.encode(wish.tail)][-(N_CTX - 50) :])
            prompts.append(prompt)
            expected.append(self.alone(wish, prompt, case.settings.kv_dtype))
        table = [self.asked(wish, prompt) for wish, prompt in zip(case.wishes, prompts, strict=True)]
        folder = self.folder / f"{len(list(self.folder.iterdir()))}" if case.disk else None
        native.set_threads(case.threads)
        got: list[Outcome] = []
        for part in (table[: case.restart], table[case.restart :]):
            with self.engine(case.settings, folder) as (engine, model):
                got += play(engine, model, part)
                stats = engine.stats()
            self.note(case, stats)
        for wish, prompt, mine, whole in zip(case.wishes, prompts, got, expected, strict=True):
            assert mine.begins(whole), (wish, prompt)
            assert wish.cancel is not None or wish.leave is not None or mine == whole, (wish, prompt)
            self.seen["cut short"] += mine != whole
            self.seen[f"ended by {whole.end[0]}" if whole.end else "no end"] += 1

    def asked(self, wish: Wish, prompt: tuple[int, ...]) -> Asked:
        return Asked(lambda: self.request(wish, prompt), wish.after, wish.cancel, wish.leave)

    def note(self, case: Case, stats: Any) -> None:
        """What a case has been about."""
        self.seen["rejected"] += stats.drafted - stats.accepted
        self.seen.update({"accepted": stats.accepted, f"batch of {case.settings.batch}": 1})
        self.seen.update({f"prefix from {source}": n for source, n in stats.hits.items()})
        assert case.settings.spec or not stats.drafted
        assert stats.running == stats.queued == 0


def no_repetition(logits: np.ndarray, history: Sequence[int]) -> None:
    """A processor: what was just said is half as likely."""
    logits[history[-1]] -= 0.7


class Rows(FakeState):
    """A row is the token itself."""

    layout, row_nbytes = "tokens", 4

    def read_rows(self, start: int, stop: int) -> np.ndarray:
        return np.array(self.tokens[start:stop], np.int32).view(np.uint8)

    def write_rows(self, rows: np.ndarray) -> None:
        self.tokens += rows.view(np.int32).tolist()


class Loops(FakeModel):
    """Says what it said before in the same place, mostly: its logits depend on two tokens, and a little on all."""

    def new_state(self, n_ctx: int) -> FakeState:
        return Rows(n_ctx)

    def row(self, tokens: tuple[int, ...], n_prompt: int) -> Any:
        """Noise of both kinds."""
        return 3.0 * _noise(tokens[-2:], self.n_vocab) + 0.3 * _noise(tokens, self.n_vocab)


def _noise(tokens: Sequence[int], n: int) -> Any:
    seed = zlib.crc32(np.asarray(tokens, np.int32).tobytes())
    return np.random.default_rng(seed).standard_normal(n, np.float32)


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(dict.fromkeys(("f16", "q8_0"), Loops()), FakeTokenizer(), tmp_path_factory.mktemp("scripted"))


def bench_of(plugin: str, path: Path) -> Bench:
    """A model file, with either cache."""
    models = {dtype: load(plugin, path, n_ctx=N_CTX, kv_dtype=dtype) for dtype in ("f16", "q8_0")}
    with open_gguf(path) as file:
        tokenizer = load_tokenizer(file.metadata)
    folder = path.parent / "states"
    folder.mkdir()
    return Bench(models, tokenizer, folder)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    path = tmp_path_factory.mktemp("real") / "tiny.gguf"
    return bench_of("lmhub_qwen3", tiny_gguf("qwen3", path, qk_norm=True, tied=True, n_ctx=N_CTX, seed=3))


@pytest.fixture(scope="module")
def sliding(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Two layers that see a window of 40 positions, and one that sees all; each kind has a cache of its own."""
    keys = {"attention.sliding_window": 40, "attention.sliding_window_pattern": 3}
    model = decoder("gemma3", n_layer=3, qk_norm=True, tied=True, n_ctx=N_CTX, **keys)
    norms = {f"blk.{i}.{norm}.weight": (64,) for i in range(3) for norm in ("post_attention_norm", "post_ffw_norm")}
    path = write(tmp_path_factory.mktemp("sliding") / "tiny.gguf", model.with_tensors(norms), seed=3)
    return bench_of("lmhub_gemma4", path)


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Two layers whose memory can only be kept whole, and one of attention."""
    tiny = run_path(str(Path(__file__).parents[2] / "plugins/qwen35/tests/tiny_qwen35.py"))["MODELS"]["dense"]
    model = replace(tiny, hparams={**tiny.hparams, "context_length": N_CTX})
    return bench_of("lmhub_qwen35", write(tmp_path_factory.mktemp("recurrent") / "tiny.gguf", model, seed=3))


@pytest.fixture(scope="module")
def smeared(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Layers whose input has a share of the token before, which is neither key nor value: states keep ids, too."""
    tiny = run_path(str(Path(__file__).parents[2] / "plugins/nanochat/tests/tiny_nanochat.py"))["MODELS"]["latest"]
    model = replace(tiny, hparams={**tiny.hparams, "context_length": N_CTX})
    return bench_of("lmhub_nanochat", write(tmp_path_factory.mktemp("smeared") / "tiny.gguf", model, seed=3))


@pytest.fixture(autouse=True)
def leaves_nothing() -> Iterator[None]:
    """No thread survives a test, and the number of compute threads is what it was."""
    threads, before = native.threads(), set(threading.enumerate())
    yield
    native.set_threads(threads)
    assert set(threading.enumerate()) <= before


# --- the tests -------------------------------------------------------------------------------------------------------


GUESSES = ("accepted", "rejected")
BATCHES = (1, 2, 3, 4, 8, 16)
EVERYTHING = (
    *GUESSES,
    *("cut short", "ended by stop", "ended by length", "ended by stop_sequence"),
    *(f"prefix from {source}" for source in ("none", "slot", "copy", "ram", "disk")),
    *(f"batch of {n}" for n in BATCHES),
)


def check_cases(bench: Bench, number: int, most: int, examples: int, about: Sequence[str] = ()) -> None:
    """Two tours and series `number` of cases with at most `most` wishes: every reply is that of a run alone.

    Half of the cases are fixed; `about` is what must have happened in these, or they were about nothing.
    """

    @seed(random.randrange(2**32) if LONG else number)
    @given(case=cases(most))
    @settings(max_examples=LONG or examples // 2, deadline=None, database=None, suppress_health_check=UNHURRIED)
    def check(case: Case) -> None:
        bench.check(case)

    for kv_dtype in ("f16", "q8_0"):
        bench.check(a_tour(kv_dtype))
    for case in fixed_cases(number, most, examples // 2):
        bench.check(case)
    assert not [name for name in about if not bench.seen[name]], bench.seen
    check()


def test_replies_of_a_scripted_model_are_those_of_a_run_alone(scripted: Bench) -> None:
    check_cases(scripted, 1, most=12, examples=60, about=EVERYTHING)


def test_replies_of_a_real_model_are_those_of_a_run_alone(real: Bench) -> None:
    check_cases(real, 2, most=10, examples=60, about=EVERYTHING)


def test_replies_over_caches_of_two_kinds_are_those_of_a_run_alone(sliding: Bench) -> None:
    check_cases(sliding, 3, most=10, examples=15)


def test_replies_over_states_that_cannot_be_cut_are_those_of_a_run_alone(recurrent: Bench) -> None:
    check_cases(recurrent, 4, most=10, examples=15, about=GUESSES)


def test_replies_over_states_that_keep_ids_are_those_of_a_run_alone(smeared: Bench) -> None:
    check_cases(smeared, 5, most=10, examples=10)


class Swayed(Loops):
    """Not row invariant: its logits are another number's neighbours where it has company."""

    def forward(self, chunks: Sequence[Chunk]) -> Any:
        logits = super().forward(chunks)
        return np.nextafter(logits, np.float32(np.inf)) if len(chunks) > 1 else logits


def test_a_single_bit_is_noticed(tmp_path: Path) -> None:
    bench = Bench({"f16": Swayed()}, FakeTokenizer(), tmp_path)
    bench.check(a_tour("f16"))
    case = a_tour("f16")
    wishes = tuple(replace(wish, after=0) for wish in case.wishes)
    with pytest.raises(AssertionError, match="Wish"):
        bench.check(replace(case, wishes=wishes, settings=replace(case.settings, batch=4, kv_slots=4)))
