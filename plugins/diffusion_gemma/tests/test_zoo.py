"""DiffusionGemma against stored passes of transformers, on a golden model beside the repository (else skipped).

The archive has single passes after prompts shorter and longer than the window (16), and two whole generations with
every random number that they drew, which are put in the place of ours.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lmhub_diffusion_gemma.sampler import F64, EntropyBound, Ids, Noise, Outcome

from lmhub.model import Chunk, State
from lmhub.testing import drive
from lmhub.types import Denoising

PROMPTS = ("rand1", "rand5", "rand16", "rand17", "rand40", "text")
TOLERANCE = 2e-3  # of logits with a standard deviation of 8


@pytest.fixture(scope="module")
def golden(zoo: Path) -> Any:
    return np.load(zoo / "diffusion-gemma" / "golden.npz")


@pytest.fixture(scope="module")
def model(zoo: Path) -> Any:
    return drive.load("lmhub_diffusion_gemma", zoo / "diffusion-gemma" / "model-f32.gguf", 160)


def encoded(model: Any, *parts: Any) -> State:
    """A state behind these tokens."""
    state: State = model.new_state(160)
    for tokens in parts:
        model.encode([Chunk(state, [int(one) for one in tokens])])
    return state


def canvas_of(model: Any, tokens: Any) -> Any:
    """A canvas that holds those tokens."""
    canvas = model.canvas(model.denoising, 0, {})
    canvas.tokens = np.ascontiguousarray(tokens, np.int32)
    return canvas


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(-1, keepdims=True).astype(np.float64))
    p: np.ndarray = (e / e.sum(-1, keepdims=True)).astype(np.float32)
    return p


@pytest.mark.parametrize("prompt", PROMPTS)
def test_single_passes(model: Any, golden: Any, prompt: str) -> None:
    first, second, committed = golden[f"{prompt}.canvas"]
    state = encoded(model, golden[f"{prompt}.tokens"])
    assert np.abs(model.logits([(state, canvas_of(model, first))])[0] - golden[f"{prompt}.step1"]).max() < TOLERANCE
    told = canvas_of(model, second)
    told.soft = model.expected(softmax(golden[f"{prompt}.step1"] / 0.8))
    assert np.abs(model.logits([(state, told)])[0] - golden[f"{prompt}.step2"]).max() < TOLERANCE
    model.encode([Chunk(state, committed.tolist())])
    assert np.abs(model.logits([(state, canvas_of(model, second))])[0] - golden[f"{prompt}.block2"]).max() < TOLERANCE


class Recorded(EntropyBound):
    """A canvas with the random numbers of a trace from pass `at` on; `seen` is what each pass was and found."""

    def __init__(self, trace: dict[str, np.ndarray], at: int, wish: Denoising, n_vocab: int):
        super().__init__(wish, 0, trace["canvas"].shape[1], n_vocab, {})
        self.trace, self.at = trace, at
        self.tokens = trace["canvas"][at].astype(np.int32)
        self.seen: list[tuple[Ids, Ids, F64, np.ndarray]] = []

    def noise(self) -> Noise:
        found = super().noise()
        if self.n_passes or hasattr(self, "trace"):
            found.tokens = self.trace["renoise"][self.at + self.n_passes].astype(np.int32)
        return found

    def judged(self, best: Ids, drawn: Ids, entropy: F64, renoise: Ids) -> Outcome:
        drawn = self.trace["sample"][self.at + self.n_passes].astype(np.int32)
        outcome = super().judged(best, drawn, entropy, renoise)
        self.seen.append((self.tokens, best, entropy, outcome.kept))
        return outcome


@pytest.mark.parametrize("name", ["trace_greedy", "trace_sampled"])
def test_whole_generations(model: Any, golden: Any, name: str) -> None:
    trace = {key.removeprefix(f"{name}."): golden[key] for key in golden.files if key.startswith(f"{name}.")}
    wish = Denoising(steps=8, greedy=name == "trace_greedy")
    prompt, eos = trace["prompt"].tolist(), set(trace["eos"].tolist())
    state, out, at = encoded(model, prompt), list(prompt), 0
    while at < len(trace["canvas"]):
        canvas = Recorded(trace, at, wish, model.n_vocab)
        while not canvas.is_settled:
            model.denoise([(state, canvas)])
        for n, (tokens, best, entropy, kept) in enumerate(canvas.seen):
            assert tokens.tolist() == trace["canvas"][at + n].tolist(), f"canvas {at + n}"
            assert best.tolist() == trace["argmax"][at + n].tolist(), f"likeliest tokens {at + n}"
            assert kept.tolist() == trace["accepted"][at + n].tolist(), f"kept positions {at + n}"
            assert np.abs(entropy - trace["entropy"][at + n]).max() < 1e-3
        block = canvas.draft.tolist()
        ends = [place for place, token in enumerate(block) if token in eos]
        out += block[: ends[0] + 1] if ends else block
        at += canvas.n_passes
        model.encode([Chunk(state, block)])
    want = trace["sequence"].tolist()
    assert out == want[: len(out)] and set(want[len(out) :]) <= {0}


def test_a_quantised_file(zoo: Path, golden: Any) -> None:
    """An 8-bit pass differs from float activations on the same weights far less than the quantised weights do."""
    model = drive.load("lmhub_diffusion_gemma", zoo / "diffusion-gemma" / "model-q8_0.gguf", 160)
    for prompt in ("rand5", "rand17", "text"):
        state = encoded(model, golden[f"{prompt}.tokens"])
        got = model.logits([(state, canvas_of(model, golden[f"{prompt}.canvas"][0]))])[0]
        want = golden[f"{prompt}.step1.q8_0.dequant"]
        off = np.median(np.abs(got - want).mean(axis=1))
        print(prompt, off, np.median(np.abs(golden[f"{prompt}.step1"] - want).mean(axis=1)))
        assert off < 1.0
