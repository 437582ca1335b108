"""Reference arithmetic in float64 numpy: what a family's oracle is written with.

Slow, obvious and independent of the kernels: weights are expanded with the `gguf` package, nothing here is shared with
`lmhub.weights` or the C table. A family's test suite composes these into a forward pass of one sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from lmhub.gguf import GGUFFile

F64 = NDArray[np.float64]


def tensor(file: GGUFFile, name: str) -> F64:
    """A tensor of the file as float64, slowest dimension first."""
    from gguf import GGMLQuantizationType, dequantize

    found = file.tensors[name]
    floats = dequantize(np.asarray(found.data), GGMLQuantizationType[found.type.name])
    return floats.astype(np.float64).reshape(found.shape)


def vector_or(file: GGUFFile, name: str, default: float = 0.0) -> F64 | float:
    """A tensor of the file, or a neutral number where it is absent (an optional bias)."""
    return tensor(file, name) if name in file.tensors else default


def rms_norm(x: F64, w: F64 | float, eps: float) -> F64:
    """x / sqrt(mean(x²) + eps) * w over the last axis."""
    y: F64 = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w
    return y


def softmax(x: F64) -> F64:
    """Over the last axis; -inf entries get 0."""
    e: F64 = np.exp(x - x.max(-1, keepdims=True))
    e /= e.sum(-1, keepdims=True)
    return e


def silu(x: F64) -> F64:
    """x * sigmoid(x)."""
    return x / (1.0 + np.exp(-x))


def rope(x: F64, inv_freq: F64, *, pairs: bool = False, magnitude: float = 1.0) -> F64:
    """Rotate x `(n, heads, head_dim)` by its position 0..n-1, with frequencies `(n_pairs,)`.

    Pairs are (j, j + n_pairs), or neighbours (2j, 2j + 1) when `pairs`; later entries pass through.
    """
    n_pairs = len(inv_freq)
    angle = np.arange(len(x))[:, None, None] * inv_freq
    cos, sin = np.cos(angle) * magnitude, np.sin(angle) * magnitude
    first = slice(0, 2 * n_pairs, 2) if pairs else slice(0, n_pairs)
    second = slice(1, 2 * n_pairs, 2) if pairs else slice(n_pairs, 2 * n_pairs)
    y = x.copy()
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., second] * cos + x[..., first] * sin
    return y


def attention(q: F64, k: F64, v: F64, scale: float, window: int = 0) -> F64:
    """Causal attention of one sequence: q `(n, H, hd)`, k `(n, KV, hd)`, v `(n, KV, vd)` -> `(n, H * vd)`.

    Consecutive query heads share a kv head. `window` > 0 keeps the last `window` positions, the own one included.
    """
    n, n_head, _ = q.shape
    q, k, v = (np.repeat(a, n_head // a.shape[1], axis=1).swapaxes(0, 1) for a in (q, k, v))  # (H, n, hd)
    scores = q @ k.swapaxes(1, 2) * scale
    distance = np.arange(n)[:, None] - np.arange(n)[None, :]
    hidden = (distance < 0) | (distance >= window if window else False)
    weights = softmax(np.where(hidden, -np.inf, scores))
    out: F64 = (weights @ v).swapaxes(0, 1).reshape(n, -1)
    return out


def swiglu(x: F64, gate: F64, up: F64, down: F64) -> F64:
    """down(silu(gate x) * up x); weights `(ff, d)`, `(ff, d)`, `(d, ff)`."""
    return (silu(x @ gate.T) * (x @ up.T)) @ down.T


def experts(x: F64, router: F64, gate: F64, up: F64, down: F64, *, k: int) -> F64:
    """Softmax over all experts, the k largest (ties: lowest id) renormalised; a weight multiplies its expert's output.

    x `(n, d)`, router `(E, d)`, gate and up `(E, ff, d)`, down `(E, d, ff)`.
    """
    probability = softmax(x @ router.T)
    chosen = np.argsort(-probability, axis=-1, kind="stable")[:, :k]
    weight = np.take_along_axis(probability, chosen, -1)
    weight /= np.maximum(weight.sum(-1, keepdims=True), 2.0**-14)
    y = np.zeros_like(x)
    for row in range(len(x)):
        for e, w in zip(chosen[row], weight[row], strict=True):
            y[row] += w * swiglu(x[row], gate[e], up[e], down[e])
    return y


def yarn(
    base: float, n_rot: int, factor: float, original: int, *, fast: float = 32.0, slow: float = 1.0
) -> tuple[F64, float]:
    """Frequencies `(n_rot / 2,)` and magnitude of YaRN, from the paper's formulas pair by pair."""
    theta = np.array([base ** (-2.0 * j / n_rot) for j in range(n_rot // 2)])

    def pair_of(rotations: float) -> float:
        return float(n_rot * np.log(original / (rotations * 2 * np.pi)) / (2 * np.log(base)))

    low, high = max(0, int(np.floor(pair_of(fast)))), min(n_rot - 1, int(np.ceil(pair_of(slow))))
    for j in range(n_rot // 2):
        ramp = min(1.0, max(0.0, (j - low) / max(0.001, high - low)))
        theta[j] = theta[j] / factor * ramp + theta[j] * (1.0 - ramp)
    return theta, 1.0 + 0.1 * float(np.log(factor))


def nmse(got: NDArray[np.floating], want: NDArray[np.floating]) -> float:
    """Squared error over squared size: 0 is exact, 1 is unrelated."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    error: float = ((got - want) ** 2).sum() / (want**2).sum()
    return float(error)


def relative_error(got: NDArray[np.floating], want: NDArray[np.floating]) -> float:
    """Largest |got - want| over largest |want|."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    error: float = np.abs(got - want).max() / np.abs(want).max()
    return float(error)
