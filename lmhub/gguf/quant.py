"""Tensor bytes to float32 and back. Expanding is done in C for every type (`csrc/dequant.c`); the way back exists in
numpy for the four types that lmhub writes itself: F32, F16, BF16, Q8_0. Knows nothing of the layout of files.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from lmhub.errors import ModelFileError
from lmhub.gguf.types import GGMLType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lmhub.gguf.reader import Tensor


def dequantize(tensor: Tensor) -> NDArray[np.float32]:
    """A tensor of an open file as a new float32 array of its shape. `ModelFileError` for a type without expansion."""
    try:
        return expand(tensor.data, tensor.type, tensor.shape)
    except ValueError as error:
        raise ModelFileError(f"the tensor {tensor.name}: {error}; convert the model to another type.") from None


def expand(data: NDArray[np.uint8], kind: GGMLType, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The stored bytes (uint8, contiguous) of a tensor of that type and shape as float32.

    Bit for bit what the `gguf` package's dequantisers give, except for the payload of NaNs. `ValueError` when the type
    has no expansion or the number of bytes does not fit the shape.
    """
    from lmhub.native import ffi, lib

    if lib.lmk_type_block(kind.id) < 0:
        raise ValueError(f"lmhub cannot expand the type {kind.name} to float32")
    n_elements = math.prod(shape)
    if data.nbytes != kind.row_bytes(n_elements):
        raise ValueError(f"{data.nbytes} bytes are not {n_elements} elements of type {kind.name}")
    out = np.empty(shape, np.float32)
    source, target = ffi.from_buffer(data), ffi.from_buffer("float[]", out, require_writable=True)
    if lib.lmk_dequant_row(kind.id, source, target, n_elements) != 0:
        raise ValueError(f"lmhub cannot expand the type {kind.name} to float32")
    return out


def quantize(values: NDArray[np.float32], kind: GGMLType) -> NDArray[np.uint8]:
    """The bytes that store `values` (float32, rows along the last axis) as `kind`: uint8, one dimension.

    `ValueError` for a type that lmhub does not write, or rows that are not whole blocks.
    """
    flat = np.ascontiguousarray(values, np.float32).reshape(-1)
    row = values.shape[-1] if values.ndim else 1
    if row % kind.block_elements:
        raise ValueError(f"rows of {row} are not a multiple of the {kind.name} block of {kind.block_elements}")
    if kind is GGMLType.F32:
        return flat.view(np.uint8)
    if kind is GGMLType.F16:
        with np.errstate(over="ignore"):
            return flat.astype(np.float16).view(np.uint8)
    if kind is GGMLType.BF16:
        return _bf16(flat)
    if kind is GGMLType.Q8_0:
        return _q8_0(flat)
    raise ValueError(f"lmhub does not write the type {kind.name}, only F32, F16, BF16 and Q8_0")


def _bf16(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """The upper half of each float, rounded to nearest even; a NaN stays one."""
    bits = values.view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    quiet = (bits >> 16) | np.uint32(0x40)
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16).view(np.uint8)


def _q8_0(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Per 32 values: half d = max|x| / 127, then round(x / d) as int8, halves away from zero (ggml's reference)."""
    blocks = values.reshape(-1, 32)
    d = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    if not np.isfinite(d).all():
        raise ValueError("Q8_0 cannot store NaN or infinity; write the tensor as F32")
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / d
        half = d.astype(np.float16)
    inverse[np.isinf(inverse)] = 0  # d is zero, or so small that as a half it is
    scaled = blocks * inverse
    whole = np.trunc(scaled)
    out = np.empty((len(blocks), 34), np.uint8)
    out[:, :2] = half.view(np.uint8)
    out[:, 2:] = (whole + np.trunc(2 * (scaled - whole))).astype(np.int8).view(np.uint8)
    return out.reshape(-1)
