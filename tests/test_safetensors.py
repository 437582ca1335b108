"""Tensors of Hugging Face folders: read as they were written, and one sentence for whatever is wrong with a file."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmhub.errors import ModelFileError
from lmhub.gguf import GGMLType
from lmhub.safetensors import MAX_HEADER, open_tensors, read_json, write_tensors

RNG = np.random.default_rng(0)
ARRAYS = {
    "a": (GGMLType.F32, RNG.standard_normal((3, 5), np.float32)),
    "b.weight": (GGMLType.BF16, RNG.integers(0, 1 << 16, (7,), np.uint16)),
    "c": (GGMLType.I64, np.arange(4).reshape(2, 2)),
    "d": (GGMLType.F32, np.float32(2.5).reshape(())),
}


def save(folder: Path, name: str = "model.safetensors", only: str = "") -> Path:
    stored = {key: (kind, a.shape, a.tobytes) for key, (kind, a) in ARRAYS.items() if not only or key == only}
    write_tensors(folder / name, stored)
    return folder / name


def raw(folder: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if length is None else length
    (folder / "model.safetensors").write_bytes(size.to_bytes(8, "little") + text + data)
    return folder


def test_tensors_come_back_as_they_were(tmp_path: Path) -> None:
    save(tmp_path)
    parts, tensors = open_tensors(tmp_path)
    assert list(tensors) == list(ARRAYS) and len(parts) == 1
    for name, (kind, array) in ARRAYS.items():
        assert (tensors[name].type, tensors[name].shape) == (kind, array.shape)
        assert tensors[name].data.tobytes() == array.tobytes()
        tensors[name].release()
        assert tensors[name].data.tobytes() == array.tobytes()


def test_shards_are_read_by_their_index(tmp_path: Path) -> None:
    weight_map = {key: f"model-{i}.safetensors" for i, key in enumerate(ARRAYS)}
    for key, name in weight_map.items():
        save(tmp_path, name, only=key)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    parts, tensors = open_tensors(tmp_path)
    assert set(tensors) == set(ARRAYS) and len(parts) == len(ARRAYS)


@pytest.mark.parametrize(
    ("weight_map", "named"),
    [
        ({"a": "../model-0.safetensors"}, "no .safetensors file beside it"),
        ({"a": "/etc/passwd"}, "no .safetensors file beside it"),
        ({"a": 3}, "no weight_map"),
        ([], "names 0 files"),
        ({"a": "model-9.safetensors"}, "cannot be opened"),
        ({"a": "model-0.safetensors", "z": "model-0.safetensors"}, "the tensor z"),
    ],
)
def test_damaged_indexes(tmp_path: Path, weight_map: Any, named: str) -> None:
    save(tmp_path, "model-0.safetensors", only="a")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ModelFileError, match=named):
        open_tensors(tmp_path)


def test_elements_that_are_not_aligned_are_copied(tmp_path: Path) -> None:
    """No usual writer makes such a file, but nothing in the format forbids it."""
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    text = json.dumps({"a": entry})
    text += " " * ((1 - len(text)) % 4)
    _, tensors = open_tensors(raw(tmp_path, text.encode(), np.array([1.5, -2], np.float32).tobytes()))
    assert tensors["a"].data.ctypes.data % 4 == 0
    tensors["a"].release()
    assert tensors["a"].data.view(np.float32).tolist() == [1.5, -2]


def entry(**changes: Any) -> dict[str, Any]:
    return {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


@pytest.mark.parametrize(
    ("header", "named"),
    [
        (entry(dtype="F8_E4M3"), "F8_E4M3"),
        (entry(dtype=["F32"]), "type that is none"),
        (entry(shape=[-2]), "no shape"),
        (entry(shape=[0]), "no shape"),
        (entry(shape=[True, 2]), "no shape"),
        (entry(shape=[1] * 9 + [2]), "no shape"),
        (entry(shape=[1 << 40, 1 << 40]), "asks for"),
        (entry(shape=2), "no shape"),
        (entry(data_offsets=[0, 9]), "not lie within"),
        (entry(data_offsets=[8, 0]), "not lie within"),
        (entry(data_offsets=[0]), "not lie within"),
        (entry(data_offsets=[-8, 0]), "not lie within"),
        (entry(data_offsets=[0, 4]), "4 bytes where"),
        ({"a": 3}, "no entry"),
        ({**entry(), "b": entry()["a"]}, "overlap"),
        (b'{"a": 1, "a": 2}', "occurs twice"),
        (b"[]", "no object"),
        (b"{", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"\xff\xfe", "no JSON"),
    ],
)
def test_damaged_headers(tmp_path: Path, header: Any, named: str) -> None:
    with pytest.raises(ModelFileError, match=named) as refusal:
        open_tensors(raw(tmp_path, header, bytes(8)))
    assert "model.safetensors" in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize("length", [9, 1 << 20, 1 << 62])
def test_a_header_that_is_longer_than_the_file(tmp_path: Path, length: int) -> None:
    with pytest.raises(ModelFileError, match="fewer than its header says"):
        open_tensors(raw(tmp_path, b"{}", length=length))


def test_a_header_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    with open(raw(tmp_path, b"{}", length=MAX_HEADER + 1) / "model.safetensors", "r+b") as file:
        file.truncate(2 * MAX_HEADER)  # holes, which take no disk
    with pytest.raises(ModelFileError, match="longer than"):
        open_tensors(tmp_path)


def test_metadata_of_the_writer_is_no_tensor(tmp_path: Path) -> None:
    _, tensors = open_tensors(raw(tmp_path, {"__metadata__": {"format": "pt"}, **entry()}, bytes(8)))
    assert list(tensors) == ["a"]


def test_any_damage_is_refused_or_harmless(tmp_path: Path) -> None:
    sound, rng = save(tmp_path).read_bytes(), random.Random(0)
    for _ in range(600):
        data = bytearray(sound)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(min(len(data), 330))] = rng.randrange(256)
        (tmp_path / "model.safetensors").write_bytes(data[: rng.randint(0, len(data))] if rng.random() < 0.2 else data)
        try:
            parts, tensors = open_tensors(tmp_path)
        except ModelFileError as error:
            assert "\n" not in str(error)
            continue
        assert all(len(tensor.data) == tensor.nbytes for tensor in tensors.values())
        for part in parts:
            part.close()


def test_json_of_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for text, named in ((b"[1]", "no object"), (b'{"a":' * 50_000, "no JSON"), (b" " * 100, "longer than")):
        path.write_bytes(text)
        with pytest.raises(ModelFileError, match=named):
            read_json(path, 1 << 20 if b"{" in text or b"[" in text else 99)
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_json(tmp_path)
