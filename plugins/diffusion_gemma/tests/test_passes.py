"""Passes over canvases against the oracle, on tiny models; and that breaking any rule of theirs would be noticed.

What most engines get wrong is among the mutations: who sees whom, what is normed and scaled, which scale is whose.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import pytest
from lmhub_diffusion_gemma.sampler import EntropyBound, Noise, accepted, temperature

from lmhub.gguf import GGUFFile, open_gguf
from lmhub.model import Chunk
from lmhub.testing import drive
from lmhub.testing.reference import relative_error
from lmhub.testing.tiny import write
from lmhub.types import Denoising

MODELS = run_path(str(Path(__file__).with_name("tiny_diffusion.py")))["MODELS"]


@pytest.fixture(scope="module", params=list(MODELS))
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[GGUFFile, Any]:
    path = write(tmp_path_factory.mktemp("tiny") / "tiny.gguf", MODELS[request.param])
    return open_gguf(path), drive.load("lmhub_diffusion_gemma", path, 160)


def both(
    loaded: tuple[GGUFFile, Any], oracle: Callable[..., np.ndarray], n: int, told: bool, mutation: str = ""
) -> Any:
    """A pass behind `n` tokens by the model and by the oracle."""
    file, model = loaded
    prompt = drive.random_tokens(n, model.n_vocab, seed=n)
    state, canvas = model.new_state(160), model.canvas(Denoising(seed=n), 0, {})
    model.encode([Chunk(state, prompt)])
    probabilities = None
    if told:
        z = np.random.default_rng(n).normal(0.0, 4.0, (model.block_size, model.n_vocab))
        probabilities = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        canvas.soft = model.expected(probabilities.astype(np.float32))
    want = oracle(file, prompt, canvas.tokens.tolist(), probabilities, mutation)
    return model.logits([(state, canvas)])[0], want


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("n", [1, 5, 15, 16, 17, 40])
def test_passes_agree_with_the_oracle(loaded: Any, oracle: Any, n: int, told: bool) -> None:
    got, want = both(loaded, oracle, n, told)
    assert relative_error(got, want) <= 1e-4


@pytest.mark.parametrize(
    "mutation",
    [
        *("told nothing", "expectation not normed", "canvas not normed"),
        *("one scale for both", "a window one shorter", "a window one longer", "a window of each row"),
        "a canvas that looks back only",
    ],
)
def test_every_rule_counts(loaded: Any, oracle: Any, mutation: str) -> None:
    got, want = both(loaded, oracle, 40, True, mutation)
    assert relative_error(got, want) > 1e-3


# --- the sampler -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bound", "n_kept"), [(0.1, 4), (0.04, 3), (0.0, 1), (0.01, 2), (0.7, 5), (10.0, 5)])
def test_the_position_that_exceeds_the_bound_is_kept_too(bound: float, n_kept: int) -> None:
    kept = accepted(np.array([0.6, 0.02, 0.01, 0.05, 2.0]), bound)
    assert set(np.flatnonzero(kept).tolist()) == set([2, 1, 3, 0, 4][:n_kept])


def test_temperatures_fall() -> None:
    found = [temperature(Denoising(), n) for n in range(48, 0, -1)]
    assert found[0] == pytest.approx(0.8) and found[-1] == pytest.approx(0.4 + 0.4 / 48)
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize(("stability", "n_passes"), [(0, 1), (1, 2), (2, 3), (40, 10)])
def test_a_canvas_settles_once_it_stands_still_and_is_sure(stability: int, n_passes: int) -> None:
    canvas = EntropyBound(Denoising(steps=10, stability=stability), 0, 4, 50, {})
    best = np.arange(4, dtype=np.int32)
    while not canvas.is_settled:
        canvas.advance(canvas.judged(best, best, np.full(4, 1e-3), best), None)
    assert canvas.n_passes == n_passes and canvas.draft.tolist() == best.tolist()


def test_a_canvas_that_moves_or_doubts_goes_on() -> None:
    for moves, entropy in ((True, 1e-3), (False, 1.0)):
        canvas = EntropyBound(Denoising(steps=6), 0, 4, 50, {})
        while not canvas.is_settled:
            best = np.full(4, canvas.n_passes if moves else 0, np.int32)
            canvas.advance(canvas.judged(best, best, np.full(4, entropy), best), None)
        assert canvas.n_passes == 6


def test_noise_is_spread_over_the_vocabulary() -> None:
    noise = Noise(3, 0, 0, 20_000, 100)
    assert np.bincount(noise.tokens, minlength=100).min() > 120 and noise.tokens.max() == 99
    assert noise.uniform.min() >= 0.0 and noise.uniform.max() < 1.0
    assert abs(noise.uniform.mean() - 0.5) < 0.02
    others = [Noise(4, 0, 0, 8, 100), Noise(3, 1, 0, 8, 100), Noise(3, 0, 1, 8, 100)]
    assert all(one.tokens.tolist() != Noise(3, 0, 0, 8, 100).tokens.tolist() for one in others)


def test_draws_follow_the_probabilities(loaded: Any) -> None:
    """Of the sampler's own numbers: what is drawn over many seeds is what a pass says of a position."""
    _, model = loaded
    state = model.new_state(160)
    model.encode([Chunk(state, [1, 2, 3])])
    canvas = model.canvas(Denoising(t_min=30.0, t_max=30.0), 0, {})
    z = model.logits([(state, canvas)])[0].astype(np.float64) / 30.0
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    rows = np.tile(model.logits([(state, canvas)])[0][:1], (model.block_size, 1))
    counts = np.zeros(model.n_vocab)
    for seed in range(300):
        other = model.canvas(Denoising(t_min=30.0, t_max=30.0, entropy_bound=1e6, seed=seed), 0, {})
        outcome, _ = model._judged(other, np.ascontiguousarray(rows))
        counts += np.bincount(outcome.tokens, minlength=model.n_vocab)
    assert np.abs(counts / counts.sum() - p[0]).max() < 0.01
