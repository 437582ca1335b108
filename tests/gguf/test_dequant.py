"""Expanding every tensor type, bit for bit as the `gguf` package does, and the way back for the types lmhub writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lmhub.errors import ModelFileError
from lmhub.gguf import GGMLType, GGUFWriter, open_gguf
from lmhub.gguf.quant import dequantize, expand, quantize
from lmhub.native import lib

BY_FORMULA = {"Q1_0", "Q2_0", "PQ2_0"}
WITHOUT = {"Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"}
COMPARED = [kind for kind in GGMLType if kind.name not in BY_FORMULA | WITHOUT]


def assert_same_bits(got: np.ndarray, want: np.ndarray) -> None:
    """Equal bits, where one NaN is as good as another."""
    assert got.shape == want.shape
    assert got.dtype == want.dtype == np.float32
    same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
    assert same.all(), np.argwhere(~same)[:5]


def reference(data: np.ndarray, kind: GGMLType) -> np.ndarray:
    with np.errstate(all="ignore"):
        return quants.dequantize(data, GGMLQuantizationType(kind.id))


def test_the_table_agrees_with_the_gguf_package() -> None:
    for theirs, sizes in GGML_QUANT_SIZES.items():
        ours = GGMLType[theirs.name]
        assert ours.id == theirs.value
        if ours is not GGMLType.Q8_1:  # ggml's own struct has two halves where the package counts two floats
            assert (ours.block_elements, ours.block_bytes) == sizes


def test_the_table_agrees_with_the_c_code() -> None:
    for kind in GGMLType:
        expected = (-1, -1) if kind.name in WITHOUT else (kind.block_elements, kind.block_bytes)
        assert (lib.lmk_type_block(kind.id), lib.lmk_type_bytes(kind.id)) == expected


@pytest.mark.parametrize("kind", COMPARED, ids=lambda kind: kind.name)
def test_random_blocks(kind: GGMLType) -> None:
    # Random bytes give every code, every sub-scale, and among the scales NaNs, infinities and subnormals.
    rng = np.random.default_rng(kind.id)
    n_rows, n_blocks = 37, 24 if kind.block_elements > 1 else 1111
    data = rng.integers(0, 256, (n_rows, n_blocks * kind.block_bytes), dtype=np.uint8)
    got = expand(data, kind, (n_rows, n_blocks * kind.block_elements))
    assert_same_bits(got, reference(data, kind))


@pytest.mark.parametrize("kind", COMPARED, ids=lambda kind: kind.name)
@pytest.mark.parametrize("byte", [0x00, 0xFF, 0x7C, 0x80])
def test_uniform_blocks(kind: GGMLType, byte: int) -> None:
    data = np.full((1, 3 * kind.block_bytes), byte, np.uint8)
    assert_same_bits(expand(data, kind, (1, 3 * kind.block_elements)), reference(data, kind))


def test_every_half() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    want = halves.view(np.float16).astype(np.float32)
    assert_same_bits(expand(halves.view(np.uint8), GGMLType.F16, halves.shape), want)
    want = (halves.astype(np.uint32) << 16).view(np.float32)
    assert_same_bits(expand(halves.view(np.uint8), GGMLType.BF16, halves.shape), want)


@pytest.mark.parametrize("d", [1.5, -0.375, 6e-8])
def test_q1_0_by_its_formula(d: float) -> None:
    bits = np.random.default_rng(1).integers(0, 2, 128, dtype=np.uint8)
    data = np.concatenate([np.array([d], np.float16).view(np.uint8), np.packbits(bits, bitorder="little")])
    want = np.float32(np.float16(d)) * np.where(bits, 1, -1).astype(np.float32)
    assert_same_bits(expand(data, GGMLType.Q1_0, (128,)), want)


@pytest.mark.parametrize("kind", [GGMLType.Q2_0, GGMLType.PQ2_0], ids=lambda kind: kind.name)
@pytest.mark.parametrize("d", [1.5, -0.375, 6e-8])
def test_q2_0_by_its_formula(d: float, kind: GGMLType) -> None:
    n = kind.block_elements
    codes = np.concatenate([np.repeat(np.arange(4), 4), np.random.default_rng(1).integers(0, 4, n - 16)]).astype(
        np.uint8
    )
    packed = (codes.reshape(-1, 4) << np.array([0, 2, 4, 6], np.uint8)).sum(axis=1, dtype=np.uint8)
    data = np.concatenate([np.array([d], np.float16).view(np.uint8), packed])
    want = np.float32(np.float16(d)) * (codes.astype(np.float32) - 1)
    assert_same_bits(expand(data, kind, (n,)), want)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="33 bytes are not 32 elements"):
        expand(np.zeros(33, np.uint8), GGMLType.Q8_0, (32,))
    with pytest.raises(ValueError, match="not whole Q8_0 blocks"):
        expand(np.zeros(34, np.uint8), GGMLType.Q8_0, (31,))
    with pytest.raises(ValueError, match="cannot expand the type I32"):
        expand(np.zeros(4, np.uint8), GGMLType.I32, (1,))


def test_tensors_of_a_file(shared: Path) -> None:
    with open_gguf(shared / "zoo" / "qwen3" / "model-q4_k_m.gguf") as file:
        kinds = set()
        for tensor in file.tensors.values():
            rows = tensor.data.reshape(tensor.shape[0], -1) if len(tensor.shape) > 1 else tensor.data.reshape(1, -1)
            assert_same_bits(dequantize(tensor), reference(rows, tensor.type).reshape(tensor.shape))
            kinds.add(tensor.type.name)
        assert len(kinds) > 2


def test_a_type_without_expansion_is_an_error_of_the_file(tmp_path: Path) -> None:
    with GGUFWriter(tmp_path / "ints.gguf", "toy") as out:
        out.add_tensor("ids", np.zeros(12, np.uint8), GGMLType.I32, shape=(3,))
    with open_gguf(tmp_path / "ints.gguf") as file, pytest.raises(ModelFileError, match=r"tensor ids: .* type I32"):
        dequantize(file.tensors["ids"])


@pytest.mark.parametrize("kind", [GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0], ids=lambda kind: kind.name)
@settings(max_examples=40, deadline=None)
@given(values=arrays(np.float32, (3, 64), elements=st.floats(-60000, 60000, width=16)))
def test_quantising_agrees_with_the_gguf_package(kind: GGMLType, values: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        want = quants.quantize(values, GGMLQuantizationType(kind.id))
    np.testing.assert_array_equal(quantize(values, kind), want.reshape(-1).view(np.uint8))


def test_bf16_keeps_nan_and_infinity() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 3.4e38], np.float32)
    got = expand(quantize(values, GGMLType.BF16), GGMLType.BF16, (4,))
    np.testing.assert_array_equal(got, np.array([np.nan, np.inf, -np.inf, np.inf], np.float32))


def test_q8_0_of_the_smallest_and_of_what_it_cannot_store() -> None:
    tiny = np.full(32, np.finfo(np.float32).tiny, np.float32)
    assert not quantize(tiny, GGMLType.Q8_0).any()
    with pytest.raises(ValueError, match="NaN or infinity"):
        quantize(np.full(32, np.nan, np.float32), GGMLType.Q8_0)


def test_types_that_are_not_written_are_refused() -> None:
    with pytest.raises(ValueError, match="does not write the type Q4_K"):
        quantize(np.zeros(256, np.float32), GGMLType.Q4_K)
    with pytest.raises(ValueError, match="rows of 48"):
        quantize(np.zeros((2, 48), np.float32), GGMLType.Q8_0)
