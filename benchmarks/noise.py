"""Random weights as stored bytes, of any type, by the gigabyte. Knows no model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from lmhub.gguf import GGMLType
from lmhub.gguf.quant import expand

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Blocks:
    """How random bytes become blocks of a type: where the half-precision scale is, and the minimum beside it.

    A minimum of `factor` times the scale makes the mean of the values zero.
    """

    scale: int
    minimum: int = -1
    factor: float = 0.0


BLOCKS = {
    GGMLType.Q4_0: Blocks(0),
    GGMLType.Q4_1: Blocks(0, 2, -7.5),
    GGMLType.Q5_0: Blocks(0),
    GGMLType.Q5_1: Blocks(0, 2, -15.5),
    GGMLType.Q8_0: Blocks(0),
    GGMLType.Q2_K: Blocks(80, 82, 1.5),
    GGMLType.Q3_K: Blocks(108),
    GGMLType.Q4_K: Blocks(0, 2, 7.5),
    GGMLType.Q5_K: Blocks(0, 2, 15.5),
    GGMLType.Q6_K: Blocks(208),
    GGMLType.IQ1_S: Blocks(0),
    GGMLType.IQ2_XXS: Blocks(0),
    GGMLType.IQ2_XS: Blocks(0),
    GGMLType.IQ2_S: Blocks(0),
    GGMLType.IQ3_XXS: Blocks(0),
    GGMLType.IQ3_S: Blocks(0),
    GGMLType.IQ4_NL: Blocks(0),
    GGMLType.IQ4_XS: Blocks(0),
}
FLOATS = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)


def noise(rng: np.random.Generator, kind: GGMLType, shape: tuple[int, ...], std: float) -> Bytes:
    """The bytes of a random weight of `shape` with a standard deviation of about `std`, stored as `kind`."""
    n_blocks = math.prod(shape) // kind.block_elements
    if kind in FLOATS:
        # Drawing from a table of normal numbers is ten times faster than drawing the numbers.
        table = (rng.standard_normal(1 << 16) * std).astype(np.float32)
        stored: NDArray[np.generic] = table
        if kind is GGMLType.F16:
            stored = table.astype(np.float16)
        elif kind is GGMLType.BF16:
            stored = (table.view(np.uint32) >> 16).astype(np.uint16)
        return stored[rng.integers(0, 1 << 16, n_blocks, np.uint16)].view(np.uint8)
    blocks = random_blocks(rng, kind, n_blocks)
    scale_blocks(blocks, kind, std / spread(kind))
    return blocks.reshape(-1)


def random_blocks(rng: np.random.Generator, kind: GGMLType, n_blocks: int) -> Bytes:
    """`n_blocks` of random bytes, (n_blocks, block_bytes): any codes and sub-scales; the scales come later."""
    nbytes = n_blocks * kind.block_bytes
    words = rng.integers(0, 1 << 64, -(-nbytes // 8), np.uint64)
    blocks: Bytes = words.view(np.uint8)[:nbytes].reshape(n_blocks, kind.block_bytes)
    if kind is GGMLType.Q8_0:
        quants = blocks[:, 2:].view(np.int8)
        np.maximum(quants, -127, out=quants)  # what quantisers write
    return blocks


def scale_blocks(blocks: Bytes, kind: GGMLType, scale: float) -> None:
    """Give every block that scale, as near as the type can store it."""
    if kind is GGMLType.MXFP4:
        blocks[:, 0] = 127 + round(math.log2(scale))
        return
    layout = BLOCKS[kind]
    blocks[:, layout.scale : layout.scale + 2] = half(scale)
    if layout.minimum >= 0:
        blocks[:, layout.minimum : layout.minimum + 2] = half(scale * layout.factor)


def half(value: float) -> Bytes:
    """The two bytes of a half-precision number."""
    return np.frombuffer(np.float16(value).tobytes(), np.uint8)


@cache
def spread(kind: GGMLType) -> float:
    """Standard deviation of random blocks of that type with a scale of one."""
    blocks = random_blocks(np.random.default_rng(0), kind, 4096)
    scale_blocks(blocks, kind, 1.0)
    return float(expand(blocks.reshape(-1), kind, (len(blocks), kind.block_elements)).std())
