"""`GGUFWriter`: what is written is what `open_gguf` and the `gguf` package read."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

from lmhub.gguf import GGMLType, GGUFWriter, open_gguf

VALUES: dict[str, tuple[Any, str | None]] = {
    "u8": (200, "uint8"),
    "i8": (-5, "int8"),
    "u16": (60000, "uint16"),
    "i16": (-30000, "int16"),
    "u32": (1 << 31, None),
    "i32": (-7, None),
    "u64": (1 << 63, None),
    "i64": (-(1 << 40), None),
    "f32": (0.25, None),
    "f64": (0.1, "float64"),
    "yes": (True, None),
    "text": ("grüße ✓", None),
    "strings": (["", "a", "日本"], None),
    "flags": ([True, False], None),
    "ints": ([1, -2, 3], None),
    "shorts": ([1, 2], "uint16"),
    "floats": ([0.5, 2.0], None),
    "empty": ([], None),
    "nested": ([[1, 2], [], [3]], None),
}


def test_metadata_of_every_type_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "meta.gguf"
    with GGUFWriter(path, "toy") as out:
        for key, (value, kind) in VALUES.items():
            out.add(key, value, kind)
    with open_gguf(path) as file:
        assert file.metadata == {"general.architecture": "toy"} | {key: value for key, (value, _) in VALUES.items()}
        assert all(type(file.metadata[key]) is type(value) for key, (value, _) in VALUES.items())
    theirs = GGUFReader(path)
    for key, (value, _) in VALUES.items():
        if key not in ("nested", "empty"):  # which the package flattens, and does not represent
            assert theirs.fields[key].contents() == value


@pytest.mark.parametrize("alignment", [32, 256])
def test_tensors_come_back(tmp_path: Path, alignment: int) -> None:
    path = tmp_path / "tensors.gguf"
    values = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    raw = np.arange(2 * 144, dtype=np.uint8)
    with GGUFWriter(path, "toy", alignment) as out:
        out.add_tensor("f32", values)
        out.add_tensor("f16", values, GGMLType.F16)
        out.add_tensor("one", np.float32([3.0]))
        out.add_tensor("late", lambda: values, GGMLType.Q8_0, shape=(5, 64))
        out.add_tensor("raw", raw, GGMLType.Q4_K, shape=(1, 2, 256))
    with open_gguf(path) as file:
        assert file.alignment == alignment
        assert {name: tensor.shape for name, tensor in file.tensors.items()} == {
            "f32": (5, 64),
            "f16": (5, 64),
            "one": (1,),
            "late": (5, 64),
            "raw": (1, 2, 256),
        }
        np.testing.assert_array_equal(file.tensors["f32"].data.view(np.float32), values.reshape(-1))
        np.testing.assert_array_equal(file.tensors["f16"].data.view(np.float16), values.astype(np.float16).reshape(-1))
        np.testing.assert_array_equal(file.tensors["raw"].data, raw)
        assert all(tensor.data.ctypes.data % 32 == 0 for tensor in file.tensors.values())
    theirs = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    np.testing.assert_array_equal(theirs["f32"].data, values)
    assert theirs["late"].tensor_type.name == "Q8_0"


def test_tensors_are_not_held_together(tmp_path: Path) -> None:
    shape = (1024, 1024)

    def make() -> np.ndarray:
        return np.ones(shape, np.float32)

    tracemalloc.start()
    with GGUFWriter(tmp_path / "large.gguf", "toy") as out:
        for index in range(8):
            out.add_tensor(f"t{index}", make, GGMLType.F16, shape=shape)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (tmp_path / "large.gguf").stat().st_size > 8 * 2 * 1024 * 1024
    assert peak < 4 * 4 * 1024 * 1024


def test_nothing_is_left_behind_by_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "failed.gguf"
    with pytest.raises(ValueError, match="does not fit its shape"), GGUFWriter(path, "toy") as out:
        out.add_tensor("t", lambda: np.ones(3, np.float32), shape=(4,))
    with pytest.raises(RuntimeError), GGUFWriter(path, "toy"):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_mistakes_are_named(tmp_path: Path) -> None:
    out = GGUFWriter(tmp_path / "x.gguf", "toy")
    with pytest.raises(ValueError, match=r"general\.architecture has been added"):
        out.add("general.architecture", "other")
    with pytest.raises(ValueError, match="needs a shape"):
        out.add_tensor("t", np.zeros(34, np.uint8), GGMLType.Q8_0)
    with pytest.raises(ValueError, match="block of 32"):
        out.add_tensor("t", np.zeros((2, 33), np.float32), GGMLType.Q8_0)
    out.add_tensor("t", np.zeros(1, np.float32))
    with pytest.raises(ValueError, match="t has been added"):
        out.add_tensor("t", np.zeros(1, np.float32))
