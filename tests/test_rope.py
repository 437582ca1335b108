"""Rotary frequencies against the formulas written out pair by pair, and the refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmhub.errors import ModelFileError, UnsupportedModel
from lmhub.gguf import open_gguf
from lmhub.gguf.writer import GGUFWriter
from lmhub.hparams import Keys
from lmhub.rope import read_rope
from lmhub.testing.reference import yarn

PLAIN = 5000.0 ** (-2.0 * np.arange(16) / 32)


@pytest.fixture
def keys(tmp_path: Path) -> Callable[..., Keys]:
    def make(**values: Any) -> Keys:
        with GGUFWriter(tmp_path / "keys.gguf", "a") as out:
            for name, value in {"freq_base": 5000.0, **values}.items():
                out.add(f"a.rope.{name.replace('__', '.')}", value)
        return Keys(open_gguf(tmp_path / "keys.gguf"))

    return make


def test_plain(keys: Callable[..., Keys]) -> None:
    rope = read_rope(keys(), 32, 512)
    assert np.allclose(rope.inv_freq, PLAIN, rtol=1e-15) and rope.magnitude == 1.0
    assert len(read_rope(keys(dimension_count=8), 32, 512).inv_freq) == 4


@pytest.mark.parametrize(
    "values",
    [
        {"scaling__factor": 4.0},  # the type defaults to linear
        {"scaling__type": "linear", "scaling__factor": 4.0},
        {"scale_linear": 4.0},
    ],
)
def test_linear(keys: Callable[..., Keys], values: dict[str, Any]) -> None:
    assert np.allclose(read_rope(keys(**values), 32, 512).inv_freq, PLAIN / 4, rtol=1e-15)


@pytest.mark.parametrize(
    "values",
    [
        {"scaling__type": "none", "scaling__factor": 4.0},
        {"scaling__type": "linear"},
        {"scaling__type": "yarn", "scaling__factor": 1.0},
    ],
)
def test_no_scaling(keys: Callable[..., Keys], values: dict[str, Any]) -> None:
    rope = read_rope(keys(**values), 32, 512)
    assert np.allclose(rope.inv_freq, PLAIN, rtol=1e-15) and rope.magnitude == 1.0


def test_yarn(keys: Callable[..., Keys]) -> None:
    given = {"scaling__type": "yarn", "scaling__factor": 4.0, "scaling__original_context_length": 64}
    want, magnitude = yarn(5000.0, 32, 4.0, 64)
    rope = read_rope(keys(**given), 32, 512)
    assert np.allclose(rope.inv_freq, want, rtol=1e-12) and rope.magnitude == pytest.approx(magnitude)
    rope = read_rope(keys(**given, scaling__attn_factor=0.5, scaling__yarn_attn_factor=3.0), 32, 512)
    assert rope.magnitude == pytest.approx(1.5 * magnitude)
    want, _ = yarn(5000.0, 32, 4.0, 64, fast=8.0, slow=2.0)
    rope = read_rope(keys(**given, scaling__yarn_beta_fast=8.0, scaling__yarn_beta_slow=2.0), 32, 512)
    assert np.allclose(rope.inv_freq, want, rtol=1e-12)


def test_yarn_without_extrapolation_is_linear(keys: Callable[..., Keys]) -> None:
    given = {"scaling__type": "yarn", "scaling__factor": 4.0, "scaling__yarn_ext_factor": 0.0}
    rope = read_rope(keys(**given), 32, 512)
    assert np.allclose(rope.inv_freq, PLAIN / 4) and rope.magnitude == 1.0


def test_the_original_context_defaults_to_the_trained_one(keys: Callable[..., Keys]) -> None:
    rope = read_rope(keys(scaling__type="yarn", scaling__factor=4.0), 32, 512)
    assert np.allclose(rope.inv_freq, yarn(5000.0, 32, 4.0, 512)[0])


def test_factors_divide(keys: Callable[..., Keys]) -> None:
    factors = np.linspace(1, 8, 16).astype(np.float32)
    assert np.allclose(read_rope(keys(), 32, 512, factors).inv_freq, PLAIN / factors)


@pytest.mark.parametrize(
    "values",
    [
        {"dimension_count": 7},
        {"dimension_count": 64},
        {"dimension_count": 0},
        {"freq_base": float("inf")},
        {"freq_base": float("nan")},
        {"freq_base": 0.0},
        {"freq_base": "10000"},
        {"scaling__factor": -2.0},
        {"scaling__factor": 1e-30},
        {"scaling__type": 3},
        {"scaling__type": "yarn", "scaling__factor": 2.0, "scaling__original_context_length": 0},
        {"scaling__type": "yarn", "scaling__factor": 2.0, "scaling__yarn_beta_fast": 0.0},
    ],
)
def test_damaged_numbers_are_refused(keys: Callable[..., Keys], values: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError, match=r"keys\.gguf"):
        read_rope(keys(**values), 32, 512)


@pytest.mark.parametrize("factors", [np.ones(15), np.zeros(16), np.full(16, np.nan), -np.ones(16)])
def test_damaged_factors_are_refused(keys: Callable[..., Keys], factors: np.ndarray) -> None:
    with pytest.raises(ModelFileError, match="rope_freqs"):
        read_rope(keys(), 32, 512, factors)


@pytest.mark.parametrize("values", [{"scaling__type": "longrope"}, {"scaling__yarn_log_multiplier": 0.1}])
def test_other_scalings_are_refused_by_name(keys: Callable[..., Keys], values: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel, match=r"longrope|yarn_log_multiplier"):
        read_rope(keys(**values), 32, 512)
