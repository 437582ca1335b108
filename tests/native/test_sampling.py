"""The sampler against a numpy reference, the draws against golden values, and every rule by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmhub import native
from lmhub.errors import GenerationError
from lmhub.sampling import LOWEST, Sampler, score, uniform
from lmhub.types import SamplingParams

INF = float("inf")


def draw(logits: Any, index: int = 0, counts: dict[int, int] | None = None, suppressed: Any = (), **params: Any) -> int:
    row, counts = np.asarray(logits, np.float32), counts or {}
    ids, times = (np.array(list(a), np.int32) for a in (counts.keys(), counts.values()))
    forbidden, bias = np.array(suppressed, np.int32), np.full(len(suppressed), -INF, np.float32)
    return Sampler(len(row)).sample(row, SamplingParams(**params), index, ids, times, forbidden, bias)


def chosen(logits: Any, draws: int = 2000, **params: Any) -> Counter[int]:
    """How often each id comes up."""
    row, sampler, resolved = np.asarray(logits, np.float32), Sampler(len(logits)), SamplingParams(**params)
    return Counter(sampler.sample(row, resolved, index) for index in range(draws))


def distribution(row: np.ndarray, p: SamplingParams, counts: dict[int, int], bias: dict[int, float], mask: Any) -> Any:
    """(ids, probabilities) of the kept candidates, best first, in float64; one id where the choice is greedy."""
    logits = row.astype(np.float64).copy()
    for token, value in bias.items():
        logits[token] = -INF if value <= -100 else logits[token] + value
    if mask is not None:
        logits[~mask] = -INF
    for token, n in counts.items():
        value = logits[token]
        value = value / p.repeat_penalty if value > 0 else value * p.repeat_penalty
        logits[token] = value - (n * p.frequency_penalty + p.presence_penalty)
    order = np.lexsort((np.arange(len(row)), -logits))
    if p.temperature < 1e-4:
        return order[:1], np.ones(1)
    weights = np.exp((logits[order] - logits[order[0]]) / p.temperature)
    if p.top_k:
        order, weights = order[: p.top_k], weights[: p.top_k]
    share = weights / weights.sum()
    keep = len(share)
    if p.top_p < 1:
        keep = min(keep, int(np.searchsorted(np.cumsum(share), p.top_p)) + 1)
    if p.min_p > 0:
        keep = min(keep, max(int((weights >= p.min_p).sum()), 1))
    return order[:keep], share[:keep] / share[:keep].sum()


def test_draws_are_the_golden_ones() -> None:
    assert [uniform(0, i) for i in range(4)] == [
        0.03401170130434639,
        0.422689454207122,
        0.542989080941885,
        0.07754009800395267,
    ]
    assert [uniform(1, 0), uniform(1, 1)] == [0.9140224628703029, 0.4808267241237778]
    assert [uniform(42, 0), uniform(42, 1)] == [0.9504380907279257, 0.6176152714052453]
    assert uniform(2**64 - 1, 0) == 0.4077623770414702


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 0.3, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 5, 300, 5000]),
    top_p=st.sampled_from([0.0, 0.3, 0.8, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    penalties=st.sampled_from([(1.0, 0.0, 0.0), (1.3, 0.0, 0.0), (0.8, 0.5, 0.2), (1.0, -1.0, 0.7)]),
)
def test_random_rows_agree_with_the_reference(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float, penalties: tuple[float, float, float]
) -> None:
    rng = np.random.default_rng(seed)
    n_vocab = int(rng.integers(1, 2000))
    row = (rng.standard_normal(n_vocab) * rng.choice([0.1, 2.0, 10.0])).astype(np.float32)
    row[rng.random(n_vocab) < 0.1] = -INF
    counts = {int(i): int(rng.integers(1, 5)) for i in rng.integers(0, n_vocab, 10)}
    suppressed = rng.integers(0, n_vocab, 3).astype(np.int32)
    repeat, presence, frequency = penalties
    params = SamplingParams(temperature, top_k, top_p, min_p, repeat, presence, frequency, seed=seed)
    bias = {int(i): float(rng.uniform(-3, 3)) for i in rng.integers(0, n_vocab, 3)} | dict.fromkeys(
        map(int, suppressed), -INF
    )
    allowed = rng.random(n_vocab) < rng.choice([0.1, 0.9, 1.0])
    bits = np.packbits(np.pad(allowed, (0, -n_vocab % 32)), bitorder="little").view(np.uint32)
    masked = np.where(allowed, row, -INF)
    masked[suppressed] = -INF
    if not np.isfinite(masked).any():
        return
    ids, times = np.array(list(counts), np.int32), np.array(list(counts.values()), np.int32)
    bias_ids, values = np.array(list(bias), np.int32), np.array(list(bias.values()), np.float32)
    token = Sampler(n_vocab).sample(row, params, 3, ids, times, bias_ids, values, bits)
    kept, share = distribution(row, params, counts, bias, allowed)
    at, u = np.cumsum(share), uniform(seed, 3)
    # The kernel's exp is a float: next to a boundary, either neighbour is right.
    near = {int(kept[min(int(np.searchsorted(at, x)), len(kept) - 1)]) for x in (u - 1e-5, u, u + 1e-5)}
    edges = {int(kept[-1]), *map(int, kept[:1])}
    assert token in near | (edges if len(near) > 1 else set())


def test_greedy_takes_the_lowest_id_of_the_largest() -> None:
    assert draw([1.0, 5.0, 5.0, 2.0]) == 1
    assert draw([-0.0, 0.0, -1.0]) == 0
    assert draw([1.0, 5.0], temperature=9e-5) == 1
    assert draw([-INF, -3.0, -INF]) == 1


def test_penalties_by_hand() -> None:
    """Positive logits are divided, negative ones multiplied; count times frequency and presence come off."""
    assert draw([4.0, 3.0], counts={0: 1}, repeat_penalty=2.0) == 1
    assert draw([4.0, 1.9], counts={0: 1}, repeat_penalty=2.0) == 0
    assert draw([-1.0, -1.5], counts={0: 1}, repeat_penalty=2.0) == 1
    assert draw([0.0, -0.1], counts={0: 5}, repeat_penalty=2.0) == 0
    assert draw([4.0, 2.9], counts={0: 2}, frequency_penalty=0.5) == 0
    assert draw([4.0, 2.9], counts={0: 3}, frequency_penalty=0.5) == 1
    assert draw([4.0, 2.9], counts={0: 9}, presence_penalty=1.2) == 1
    assert draw([4.0, 2.9], counts={1: 1}, presence_penalty=-1.2) == 1
    assert draw([-INF, -9.0], counts={0: 1}, repeat_penalty=2.0, presence_penalty=-2.0) == 1
    assert draw([4.0, 3.0], counts={0: 1, 7: 1, -1: 1}, repeat_penalty=2.0) == 1  # ids beyond the vocabulary


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("penalty", [5e-324, 1e-45, 1e-38])
def test_penalties_near_zero_free_nothing_and_spoil_nothing(penalty: float, temperature: float) -> None:
    near: dict[str, Any] = {"repeat_penalty": penalty, "temperature": temperature}
    assert draw([-INF, 1.0, 0.5], counts={0: 3, 1: 1}, **near) == 1
    assert draw([2.0, 1.0, 0.5], counts={0: 1, 1: 2}, suppressed=[0], **near) == 1
    assert draw([2.0, 1.0, -INF], counts={0: 1, 1: 1, 2: 1}, **near) in (0, 1)


def test_temperature_comes_before_the_nucleus() -> None:
    """p = (.6, .3, .1): a nucleus of .65 holds two ids; at temperature 0.5 the first alone has .78."""
    logits = np.log([0.6, 0.3, 0.1])
    assert set(chosen(logits, temperature=1.0, top_p=0.65)) == {0, 1}
    assert set(chosen(logits, temperature=0.5, top_p=0.65)) == {0}


def test_min_p_is_relative_to_the_best_tempered_probability() -> None:
    logits = np.log([0.5, 0.3, 0.2])
    assert set(chosen(logits, temperature=1.0, min_p=0.5)) == {0, 1}
    assert set(chosen(logits, temperature=0.5, min_p=0.5)) == {0}
    assert set(chosen(logits, temperature=1.0, min_p=1.0)) == {0}


def test_top_p_keeps_the_crossing_entry_and_at_least_one() -> None:
    logits = np.log([0.4, 0.4, 0.2])
    assert set(chosen(logits, temperature=1.0, top_p=0.5)) == {0, 1}
    assert set(chosen(logits, temperature=1.0, top_p=0.3)) == {0}
    assert set(chosen(logits, temperature=1.0, top_p=0.0)) == {0}


def test_top_k_renormalises_before_top_p() -> None:
    """Of (.5, .25, .25) the two best have .75; a nucleus of .6 of that is the best alone."""
    logits = np.log([0.5, 0.25, 0.25])
    assert set(chosen(logits, temperature=1.0, top_k=2, top_p=0.6)) == {0}
    assert set(chosen(logits, temperature=1.0, top_p=0.6)) == {0, 1}


def test_nothing_is_capped() -> None:
    n = 100_000
    row, sampler = np.zeros(n, np.float32), Sampler(n)
    params = SamplingParams(temperature=1.0, top_p=0.95)
    # With equal logits the ids are in order, so the draw u picks the id of rank u * 0.95 n.
    for index in range(5):
        assert abs(sampler.sample(row, params, index) - uniform(0, index) * 0.95 * n) <= 2
    assert chosen(np.zeros(1000), temperature=1.0, top_k=600).keys() - set(range(600)) == set()
    assert max(chosen(np.zeros(1000), temperature=1.0, top_k=600)) > 256


@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0, 4.0])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(0.7, top_p=0.95),
        SamplingParams(1.0),
        SamplingParams(1.5, min_p=0.01),
        SamplingParams(1.0, 4000, top_p=0.9),
        SamplingParams(1.0, top_p=0.99, min_p=1e-4),
    ],
)
def test_large_vocabularies_agree_with_the_reference(spread: float, params: SamplingParams) -> None:
    """Flat ones, where sorting would not end; equal logits; more ids than the kernel has pieces for."""
    rng = np.random.default_rng(3)
    n = 600_000 if spread == 1.0 else 100_000
    row = (rng.standard_normal(n) * spread).astype(np.float32)
    row[1::2] = np.round(row[1::2])
    allowed = np.ones(n, bool) if spread < 4 else rng.random(n) < 0.3
    allowed[5000:9000] = False
    bits = np.packbits(np.pad(allowed, (0, -n % 32)), bitorder="little").view(np.uint32)
    kept, share = distribution(row, params, {}, {}, allowed)
    at, sampler = np.cumsum(share), Sampler(n)
    for index in range(12):
        token, u = sampler.sample(row, params, index, mask=bits), uniform(0, index)
        first, last = (int(np.searchsorted(at, min(max(x, 0), at[-1]))) for x in (u - 2e-5, u + 2e-5))
        # Probabilities are floats: some ids apart by less than that may have changed places.
        assert token in kept[max(first - 2, 0) : last + 3], (index, u)


def test_every_level_draws_the_same(levels: tuple[str, ...]) -> None:
    code = (
        "import numpy as np\n"
        "from lmhub.sampling import Sampler, score\n"
        "from lmhub.types import SamplingParams\n"
        "for n in (700, 50_001):\n"
        "    row = np.random.default_rng(n).standard_normal(n).astype(np.float32)\n"
        "    for p in (SamplingParams(), SamplingParams(0.7, 20), SamplingParams(0.9, 0, 0.95), SamplingParams(2.0)):\n"
        "        print([Sampler(n).sample(row, p, i) for i in range(20)], score(row, 3, 5))\n"
    )
    said = []
    for level in levels:
        env = {**os.environ, "LMK_ISA": level}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        said.append(done.stdout)
    assert len(said[0].splitlines()) == 8 and set(said) == {said[0]}


def test_frequencies_follow_the_distribution() -> None:
    """Chi-square over 100,000 draws with 7 degrees of freedom: 24.3 is its 0.1 % tail."""
    p = np.array([0.3, 0.2, 0.15, 0.1, 0.1, 0.08, 0.05, 0.02])
    counts = chosen(np.log(p), draws=100_000, temperature=1.0, seed=5)
    expected = p * 100_000
    assert sum((counts[i] - expected[i]) ** 2 / expected[i] for i in range(8)) < 24.3


def test_suppressed_ids_are_never_drawn() -> None:
    assert draw([9.0, 1.0, 0.0], suppressed=[0]) == 1
    assert set(chosen(np.zeros(4), temperature=1.0)) == {0, 1, 2, 3}
    sampler, row = Sampler(4), np.zeros(4, np.float32)
    none = np.empty(0, np.int32)
    forbidden, bias = np.array([2, 0], np.int32), np.full(2, -INF, np.float32)
    ids = {sampler.sample(row, SamplingParams(1.0), i, none, none, forbidden, bias) for i in range(99)}
    assert ids == {1, 3}


def raw(row: Any, mask: int | None, bias: dict[int, float]) -> tuple[int, int]:
    """(status, token) of the C call itself, greedy, with an allow-mask of 32 bits and biases."""
    ffi, logits = native.ffi, np.asarray(row, np.float32)
    scratch, token = np.empty(12 * len(logits), np.uint8), ffi.new("int32_t *")
    params = ffi.new("lmk_sampling *", {"temperature": 0.0, "top_p": 1.0, "repeat_penalty": 1.0})
    bits = ffi.NULL if mask is None else ffi.new("uint32_t[]", [mask])
    status = native.lib.lmk_sample(
        ffi.from_buffer("float[]", logits), len(logits), params, bits, ffi.NULL, ffi.NULL, 0,
        ffi.new("int32_t[]", list(bias)), ffi.new("float[]", list(bias.values())), len(bias), 0.5,
        ffi.from_buffer(scratch), token,
    )  # fmt: skip
    return status, token[0]


def test_bias_is_added_before_the_mask() -> None:
    assert raw([1.0, 2.0, 3.0], None, {0: 5.0}) == (0, 0)
    assert raw([1.0, 2.0, 3.0], None, {2: -100.0}) == (0, 1)
    assert raw([1.0, 2.0, 3.0], 0b011, {}) == (0, 1)
    assert raw([1.0, 2.0, 3.0], 0b011, {2: 100.0}) == (0, 1)
    assert raw([1.0, 2.0, 3.0], 0b001, {0: -100.0}) == (0, 0)  # a ban yields where nothing else is left
    assert raw([1.0, 2.0, 3.0], 0b001, {0: -INF}) == (1, 0)
    assert raw([1.0, 2.0, 3.0], 0, {2: 100.0})[0] == 1


@pytest.mark.parametrize("bad", [np.nan, INF])
def test_numerical_failure_is_an_error_wherever_it_is(bad: float) -> None:
    for at in range(3):
        row = np.zeros(3, np.float32)
        row[at] = bad
        with pytest.raises(GenerationError, match="numerical failure"):
            draw(row)


def test_everything_excluded_is_an_error() -> None:
    with pytest.raises(GenerationError, match="Every token is excluded"):
        draw([1.0, 2.0], suppressed=[0, 1])
    with pytest.raises(GenerationError, match="Every token is excluded"):
        draw([-INF, -INF], temperature=1.0)


def test_the_row_is_left_alone_and_its_shape_is_checked() -> None:
    row = np.arange(8, dtype=np.float32)
    row.flags.writeable = False
    Sampler(8).sample(row, SamplingParams(0.7, repeat_penalty=1.5), 0, np.array([1], np.int32), np.array([2], np.int32))
    with pytest.raises(ValueError, match=r"float32 \(9,\)"):
        Sampler(9).sample(row, SamplingParams(), 0)


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32 - 1), n_top=st.integers(0, 20))
def test_log_probabilities_agree_with_the_reference(seed: int, n_top: int) -> None:
    rng = np.random.default_rng(seed)
    row = np.round(rng.normal(0, 4, int(rng.integers(1, 3000))), 1).astype(np.float32)  # rounded: many ties
    row[rng.random(len(row)) < 0.05] = -INF
    if not np.isfinite(row).any():
        return
    token = int(rng.integers(0, len(row)))
    exact = row.astype(np.float64)
    exact -= exact.max() + np.log(np.exp(exact - exact.max()).sum())
    found = score(row, token, n_top)
    order = np.lexsort((np.arange(len(row)), -row))[:n_top]
    assert [id for id, _ in found.top] == order.tolist()
    expected = np.maximum([exact[token], *exact[order]], LOWEST)
    np.testing.assert_allclose([found.logprob, *(value for _, value in found.top)], expected, atol=2e-6)


@pytest.mark.parametrize("bad", [float("nan"), INF])
def test_log_probabilities_of_no_numbers_are_an_error(bad: float) -> None:
    with pytest.raises(GenerationError, match="not numbers"):
        score(np.array([0.0, bad, 1.0], np.float32), 0, 1)
