"""Rotary positions: the frequencies that a file's `rope.*` keys ask for.

Knows the scaling rules (none, linear, YaRN, factors per pair) and nothing of how pairs are laid out: that is the
family's choice between LMK_ROPE_HALVES and LMK_ROPE_PAIRS.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmhub.errors import ModelFileError, UnsupportedModel, quoted
from lmhub.hparams import Keys


@dataclass(frozen=True, slots=True)
class Rope:
    """Radians per position of every rotated pair, float64 `(n_pairs,)`, and the magnitude of cos and sin."""

    inv_freq: NDArray[np.float64]
    magnitude: float


def read_rope(keys: Keys, head_dim: int, n_ctx_train: int, factors: NDArray[np.floating] | None = None) -> Rope:
    """The rotation of the first `rope.dimension_count` (default: all) entries of a head.

    `factors` `(n_pairs,)` divide the frequencies first (Llama 3 files store them as `rope_freqs.weight`). Raises
    ModelFileError for numbers out of range, UnsupportedModel for another scaling than none, linear and yarn.
    """
    theta = frequencies(keys, head_dim)
    if factors is not None:
        if factors.shape != theta.shape or not (np.isfinite(factors).all() and (factors > 1e-6).all()):
            raise _damaged(keys, f"rope_freqs.weight holds {factors.size} numbers, not {theta.size} positive ones")
        theta = theta / factors
    kind = keys.text("rope.scaling.type", "linear")
    if kind not in ("none", "linear", "yarn"):
        raise _unsupported(keys, f"position scaling of type {quoted(kind)}")
    if keys.real("rope.scaling.yarn_log_multiplier", -1e3, 1e3, 0.0) != 0:
        raise _unsupported(keys, "rope.scaling.yarn_log_multiplier")
    magnitude = keys.real("rope.scaling.attn_factor", 0.0, 1e3, 1.0)
    magnitude *= keys.real("rope.scaling.yarn_attn_factor", 0.0, 1e3, 1.0)
    factor = keys.real("rope.scaling.factor", 0.0, 1e6, keys.real("rope.scale_linear", 0.0, 1e6, 0.0))
    if kind == "none" or factor in (0.0, 1.0):
        return Rope(theta, magnitude)
    if factor < 1e-3:
        raise _damaged(keys, f"rope.scaling.factor is {factor:g}, but must be at least 0.001")
    if kind == "linear":
        return Rope(theta / factor, magnitude)
    original = keys.whole("rope.scaling.original_context_length", 1, 1 << 31, n_ctx_train)
    return _yarn(keys, Rope(theta, magnitude), base=_base(keys), factor=factor, original=original)


def frequencies(keys: Keys, head_dim: int, suffix: str = "") -> NDArray[np.float64]:
    """Radians per position of every rotated pair `(n_pairs,)`, before any scaling.

    `suffix` ends the names of the keys, where a model has a second rotation. Raises ModelFileError.
    """
    n_rot = keys.whole(f"rope.dimension_count{suffix}", 2, head_dim, head_dim)
    if n_rot % 2:
        raise _damaged(keys, f"{n_rot} rotated entries per head are not pairs")
    return _base(keys, suffix) ** (-2.0 * np.arange(n_rot // 2, dtype=np.float64) / n_rot)


def _base(keys: Keys, suffix: str = "") -> float:
    return keys.real(f"rope.freq_base{suffix}", 1.001, 1e12, 10000.0)


def _damaged(keys: Keys, what: str) -> ModelFileError:
    return ModelFileError(f"{keys.file.path.name}: {what}; convert the model again.")


def _unsupported(keys: Keys, what: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{keys.file.path.name}: {what} is not supported; use a file with none, linear or yarn scaling."
    )


def _yarn(keys: Keys, plain: Rope, *, base: float, factor: float, original: int) -> Rope:
    """YaRN (arXiv:2309.00071): fast pairs keep their frequency, slow ones are interpolated, a ramp lies between.

    Static: it holds at every position, of short prompts too. cos and sin grow by 1 + 0.1 ln(factor).
    """
    theta, magnitude, n_rot = plain.inv_freq, plain.magnitude, 2 * len(plain.inv_freq)
    mix = keys.real("rope.scaling.yarn_ext_factor", -1.0, 1.0, -1.0)
    mix = 1.0 if mix < 0 else mix

    def pair_of(rotations: float) -> float:
        """The (fractional) pair that turns `rotations` times within the original context."""
        return n_rot * math.log(original / (2 * math.pi * rotations)) / (2 * math.log(base))

    low = max(0, math.floor(pair_of(keys.real("rope.scaling.yarn_beta_fast", 1e-3, 1e6, 32.0))))
    high = min(n_rot - 1, math.ceil(pair_of(keys.real("rope.scaling.yarn_beta_slow", 1e-3, 1e6, 1.0))))
    ramp = np.clip((np.arange(n_rot // 2) - low) / max(0.001, high - low), 0.0, 1.0)
    keep = (1.0 - ramp) * mix
    if mix:
        magnitude *= 1.0 + 0.1 * math.log(factor)
    return Rope(theta / factor * (1.0 - keep) + theta * keep, magnitude)
