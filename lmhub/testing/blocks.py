"""Random tensors of any GGML type, as stored bytes: every code and sub-scale occurs, values have the size asked for.

For types that nothing here can quantise to. Draws the bytes of a block at random and sets only its floating-point
scales; `gguf` expands them again, so this file need not know how codes are packed.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from lmhub.gguf.types import GGMLType

# Where a block keeps its float16 scale, and its float16 minimum with the multiple of the scale that centres the values.
_SCALE_AT: dict[str, int] = {
    "Q4_0": 0, "Q4_1": 0, "Q5_0": 0, "Q5_1": 0, "Q8_0": 0, "Q2_K": 80, "Q3_K": 108, "Q4_K": 0, "Q5_K": 0, "Q6_K": 208,
    "IQ4_NL": 0, "IQ4_XS": 0, "IQ3_XXS": 0, "IQ3_S": 0, "IQ2_XXS": 0, "IQ2_XS": 0, "IQ2_S": 0, "IQ1_S": 0,
    "TQ1_0": 52, "TQ2_0": 64,
}  # fmt: skip
_MINIMUM_AT: dict[str, tuple[int, float]] = {
    "Q4_1": (2, -7.5), "Q5_1": (2, -15.5), "Q2_K": (82, 1.5), "Q4_K": (2, 7.5), "Q5_K": (2, 15.5),
}  # fmt: skip
_MXFP4_EXPONENTS = (120, 124)

RANDOM_KINDS = tuple(GGMLType[name] for name in (*_SCALE_AT, "MXFP4"))
"""The types that `random_blocks` can make."""


def random_blocks(kind: GGMLType, shape: tuple[int, ...], std: float, rng: np.random.Generator) -> NDArray[np.uint8]:
    """uint8 bytes of a tensor of that type and shape, whose values have about the standard deviation `std`.

    Rows (the last dimension) must be whole blocks.
    """
    kind.row_bytes(shape[-1])
    n_blocks = math.prod(shape) // kind.block_elements
    blocks = rng.integers(0, 256, (n_blocks, kind.block_bytes), np.uint8)
    if kind is GGMLType.MXFP4:
        low, high = _MXFP4_EXPONENTS
        shift = round(math.log2(std / _std_of(kind, _with_exponents(blocks, low, high, rng))))
        return _with_exponents(blocks, low + shift, high + shift, rng).reshape(-1)
    unit = _std_of(kind, _with_scale(kind, blocks, np.ones(n_blocks)))
    scales = std / unit * rng.uniform(0.7, 1.3, n_blocks)
    return _with_scale(kind, blocks, scales).reshape(-1)


def _with_scale(kind: GGMLType, blocks: NDArray[np.uint8], scales: NDArray[np.float64]) -> NDArray[np.uint8]:
    out = blocks.copy()
    at = _SCALE_AT[kind.name]
    out[:, at : at + 2] = scales.astype(np.float16)[:, None].view(np.uint8)
    if kind.name in _MINIMUM_AT:
        at, multiple = _MINIMUM_AT[kind.name]
        out[:, at : at + 2] = (scales * multiple).astype(np.float16)[:, None].view(np.uint8)
    return out


def _with_exponents(blocks: NDArray[np.uint8], low: int, high: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    out = blocks.copy()
    out[:, 0] = rng.integers(low, high, len(out), np.uint8)
    return out


def _std_of(kind: GGMLType, blocks: NDArray[np.uint8]) -> float:
    from gguf import GGMLQuantizationType, dequantize

    return float(dequantize(blocks[:512].reshape(-1), GGMLQuantizationType[kind.name]).std())
