"""Weights: shapes, packing, ties, progress, what was not used, and the structs of a plugin that they are bound to."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cffi
import numpy as np
import pytest

from lmhub import native, weights
from lmhub.errors import ModelFileError, UnsupportedModel
from lmhub.family import Borrow
from lmhub.gguf import GGMLType, GGUFFile, GGUFWriter, Tensor, open_gguf
from lmhub.gguf.quant import dequantize
from lmhub.weights import Matrix, Weights, packed_bytes

ROWS, COLS = 70, 96


@pytest.fixture
def file(tmp_path: Path) -> Any:
    rng = np.random.default_rng(3)
    with GGUFWriter(tmp_path / "model.gguf", "test") as out:
        out.add_tensor("plain.weight", rng.standard_normal((ROWS, COLS), np.float32))
        out.add_tensor("packed.weight", rng.standard_normal((ROWS, COLS), np.float32), GGMLType.Q8_0)
        out.add_tensor("experts.weight", rng.standard_normal((3, ROWS, COLS), np.float32), GGMLType.Q8_0)
        out.add_tensor("norm.weight", rng.standard_normal(COLS, np.float32), GGMLType.F16)
        out.add_tensor("a.0.weight", rng.standard_normal((ROWS, COLS), np.float32))
        out.add_tensor("a.1.weight", rng.standard_normal((ROWS, COLS), np.float32))
    with open_gguf(tmp_path / "model.gguf") as opened:
        yield opened


def product(ops: Any, matrix: Matrix, x: np.ndarray) -> np.ndarray:
    return np.asarray(ops.linear(ops.ffi.cast("lmk_weight *", matrix.address), x))


@pytest.mark.parametrize("name", ["plain.weight", "packed.weight"])
def test_a_matrix_multiplies(name: str, file: GGUFFile, kernels: Callable[..., Any], rng: np.random.Generator) -> None:
    taken = Weights(file)
    matrix, x = taken.matrix(name, ROWS, COLS), rng.standard_normal((4, COLS), np.float32)
    want = x.astype(np.float64) @ dequantize(file.tensor(name)).T
    taken.pack()
    y = product(kernels(None), matrix, x)
    assert np.abs(y - want).max() < (0.3 if "packed" in name else 1e-4)
    assert bool(matrix.packed_bytes) == ("packed" in name)
    assert taken.nbytes_packed() == matrix.packed_bytes


def test_the_file_is_asked_for_ahead_and_each_tensor_once(file: GGUFFile, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    prefetch = Tensor.prefetch

    def noted(tensor: Tensor) -> None:
        asked.append(tensor.name)
        prefetch(tensor)

    monkeypatch.setattr(Tensor, "prefetch", noted)
    monkeypatch.setattr(weights, "AHEAD_BYTES", 1)
    taken = Weights(file)
    taken.matrix("packed.weight", ROWS, COLS)
    taken.pack()
    assert asked == ["packed.weight", "experts.weight"]
    taken.matrix("plain.weight", ROWS, COLS)
    assert asked == ["packed.weight", "experts.weight", "plain.weight"]
    monkeypatch.setattr(weights, "AHEAD_BYTES", 1 << 26)
    taken.matrix("experts.weight", ROWS, COLS, 3)
    taken.pack()
    assert sorted(asked) == sorted(file.tensors)


def test_packing_in_slices_gives_the_same_bytes(file: GGUFFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def packed(name: str, n_expert: int) -> bytes:
        taken = Weights(file)
        matrix = taken.matrix(name, ROWS, COLS, n_expert)
        taken.pack()
        return bytes(native.ffi.buffer(native.ffi.cast("char *", matrix.c.packed), matrix.packed_bytes))

    whole = packed("packed.weight", 1), packed("experts.weight", 3)
    monkeypatch.setattr(weights, "SLICE_BYTES", 1)
    assert (packed("packed.weight", 1), packed("experts.weight", 3)) == whole
    monkeypatch.setattr(weights, "RUN_BYTES", 1)
    assert (packed("packed.weight", 1), packed("experts.weight", 3)) == whole


def test_weights_are_packed_in_the_order_of_the_file(file: GGUFFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "RUN_BYTES", 1)
    seen: list[int] = []
    taken = Weights(file, lambda done, total: seen.append(done))
    taken.matrix("experts.weight", ROWS, COLS, 3)
    taken.matrix("packed.weight", ROWS, COLS)
    assert seen == []
    taken.pack()
    first, second = file.tensor("packed.weight").nbytes, file.tensor("experts.weight").nbytes // 3
    assert seen == [first + n * second for n in range(4)]
    taken.pack()  # nothing is packed twice
    assert len(seen) == 4


def test_rows_can_be_read_after_packing(file: GGUFFile, kernels: Callable[..., Any]) -> None:
    """A tied embedding: packed for the head, still read row by row from the file."""
    taken, ops = Weights(file), kernels(None)
    matrix = taken.matrix("packed.weight", ROWS, COLS)
    assert taken.matrix("packed.weight", ROWS, COLS) is matrix
    taken.pack()
    rows = ops.get_rows(ops.ffi.cast("lmk_weight *", matrix.address), [0, 69, 5])
    assert np.array_equal(rows, dequantize(file.tensor("packed.weight"))[[0, 69, 5]])


def test_vectors_are_float32(file: GGUFFile) -> None:
    vector = Weights(file).vector("norm.weight", COLS)
    assert vector.dtype == np.float32
    assert np.array_equal(vector, dequantize(file.tensor("norm.weight")))


def test_a_wrong_shape_names_the_tensor_what_it_has_and_what_is_wanted(file: GGUFFile) -> None:
    for take in (
        lambda: Weights(file).matrix("plain.weight", 64, COLS),
        lambda: Weights(file).vector("norm.weight", 7),
    ):
        with pytest.raises(ModelFileError) as error:
            take()
        assert "model.gguf: the tensor " in str(error.value)
    with pytest.raises(ModelFileError, match=r"plain.weight has the shape \(70, 96\).*sizes ask for \(64, 96\)"):
        Weights(file).matrix("plain.weight", 64, COLS)
    with pytest.raises(ModelFileError, match=r"experts.weight has the shape \(3, 70, 96\).*ask for \(2, 70, 96\)"):
        Weights(file).matrix("experts.weight", ROWS, COLS, 2)
    with pytest.raises(ModelFileError, match=r"the tensor absent\.weight is missing"):
        Weights(file).matrix("absent.weight", 1, 1)


def test_optional_tensors_may_be_missing(file: GGUFFile) -> None:
    taken = Weights(file)
    assert taken.optional_matrix("absent.weight", 1, 1) is None
    assert taken.optional_vector("absent.bias", 1) is None
    assert taken.optional_vector("norm.weight", COLS) is not None
    assert taken.has("norm.weight") and not taken.has("absent.bias")


def test_progress_ends_at_the_total(file: GGUFFile) -> None:
    seen: list[tuple[int, int]] = []
    taken = Weights(file, lambda done, total: seen.append((done, total)))
    taken.matrix("packed.weight", ROWS, COLS)
    taken.matrix("experts.weight", ROWS, COLS, 3)
    taken.vector("norm.weight", COLS)
    taken.finish(skip=["plain.*", "a.*"])
    total = sum(tensor.nbytes for tensor in file.tensors.values())
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert {t for _, t in seen} == {total}
    assert seen[-1] == (total, total)


def test_unused_tensors_are_named(file: GGUFFile, caplog: pytest.LogCaptureFixture) -> None:
    taken = Weights(file)
    taken.vector("norm.weight", COLS)
    with caplog.at_level(logging.WARNING, "lmhub.weights"):
        assert taken.finish(skip=["a.*", "experts.weight"]) == ("plain.weight", "packed.weight")
    assert "2 tensors are not used by this family: plain.weight, packed.weight" in caplog.text


def test_an_unknown_scale_tensor_is_refused(tmp_path: Path) -> None:
    with GGUFWriter(tmp_path / "scaled.gguf", "test") as out:
        out.add_tensor("blk.0.attn_q.scale", np.ones(1, np.float32))
    with open_gguf(tmp_path / "scaled.gguf") as opened, pytest.raises(UnsupportedModel, match=r"attn_q\.scale scales"):
        Weights(opened).finish()


def test_a_type_without_kernel_is_refused(tmp_path: Path) -> None:
    with GGUFWriter(tmp_path / "whole.gguf", "test") as out:
        out.add_tensor("ids.weight", np.zeros(64, np.uint8), GGMLType.I32, shape=(4, 4))
    with (
        open_gguf(tmp_path / "whole.gguf") as opened,
        pytest.raises(UnsupportedModel, match=r"ids\.weight of type I32"),
    ):
        Weights(opened).matrix("ids.weight", 4, 4)


def test_borrowed_weights_are_left_in_the_file(file: GGUFFile, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(Tensor, "prefetch", lambda tensor: asked.append(tensor.name))
    packed: dict[Borrow, list[bool]] = {}
    for borrow in ("none", "experts", "all"):
        taken = Weights(file, borrow=borrow)
        both = taken.matrix("packed.weight", ROWS, COLS), taken.matrix("experts.weight", ROWS, COLS, 3)
        taken.pack()
        packed[borrow] = [bool(one.packed_bytes) for one in both]
        assert taken.nbytes_packed() == sum(packed_bytes(tensor, borrow) for tensor in file.tensors.values())
        assert (borrow == "none") == ("experts.weight" in asked)
        asked.clear()
    assert packed == {"none": [True, True], "experts": [True, False], "all": [False, False]}


@pytest.mark.parametrize("borrow", ["none", "all"])
def test_stacked_matrices_of_a_packed_type_are_packed_one_by_one(
    borrow: Borrow, tmp_path: Path, kernels: Callable[..., Any], rng: np.random.Generator
) -> None:
    """They cannot be borrowed: what is one weight must lie in one piece."""
    names = [f"blk.0.ffn_up.{expert}.weight" for expert in range(3)]
    with GGUFWriter(tmp_path / "old.gguf", "test") as out:
        for name in names:
            out.add_tensor(name, rng.standard_normal((ROWS, COLS), np.float32), GGMLType.Q8_0)
    with open_gguf(tmp_path / "old.gguf") as opened:
        taken, alone, ops = Weights(opened, borrow=borrow), Weights(opened), kernels(None)
        stacked = taken.stack(names, ROWS, COLS)
        singles = [alone.matrix(name, ROWS, COLS) for name in names]
        taken.pack()
        alone.pack()
        assert stacked.packed_bytes == taken.nbytes_packed() > 0
        x, logits = rng.standard_normal((9, COLS), np.float32), rng.standard_normal((9, 3), np.float32)
        r, expert, _ = ops.route(logits, 1)
        y = ops.linear_experts(ops.ffi.cast("lmk_weight *", stacked.address), x, r, False)
        for row, which in enumerate(expert[:, 0]):
            own = product(ops, singles[which], x[row : row + 1])
            assert y[row].tobytes() == own.tobytes()


def test_plain_matrices_stack_into_experts(file: GGUFFile, kernels: Callable[..., Any]) -> None:
    taken = Weights(file)
    stacked = taken.stack(["a.0.weight", "a.1.weight"], ROWS, COLS)
    ops, x = kernels(None), np.eye(COLS, dtype=np.float32)[:2]
    r, _, _ = ops.route(np.array([[5.0, 0.0], [0.0, 5.0]], np.float32), 1)
    y = ops.linear_experts(ops.ffi.cast("lmk_weight *", stacked.address), x, r, False)
    assert np.array_equal(y, [dequantize(file.tensor(f"a.{i}.weight"))[:, i] for i in range(2)])
    assert not {"a.0.weight", "a.1.weight"} & set(taken.finish())


def test_fields_of_a_plugin_struct_are_bound_by_value_and_by_pointer(file: GGUFFile) -> None:
    ffi = cffi.FFI()  # a plugin's own: its types are not the core's
    ffi.cdef(
        """
        typedef struct { int32_t type, n_expert; int64_t rows, cols; const void *data, *packed; } lmk_weight;
        typedef struct { lmk_weight value; const lmk_weight *pointer; const float *vector, *absent; } layer;
        """
    )
    taken, layers = Weights(file), ffi.new("layer[2]")
    matrix, vector = taken.matrix("packed.weight", ROWS, COLS), taken.vector("norm.weight", COLS)
    for struct in (layers[1], ffi.addressof(layers[0])):
        taken.bind(ffi, struct, "value", matrix)
        taken.bind(ffi, struct, "pointer", matrix)
        taken.bind(ffi, struct, "vector", vector)
        taken.bind(ffi, struct, "absent", None)
    for layer in layers:
        assert (layer.value.rows, layer.value.cols, layer.value.type) == (ROWS, COLS, GGMLType.Q8_0.id)
        assert layer.value.packed == layer.pointer.packed != ffi.NULL
        assert list(layer.vector[0:COLS]) == vector.tolist()
        assert layer.absent == ffi.NULL
