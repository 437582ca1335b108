"""`open_gguf` on sound files: the golden models, self-written files, split files, the life of views."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from lmhub.errors import ModelFileError
from lmhub.gguf import GGMLType, GGUFWriter, open_gguf
from lmhub.gguf.quant import dequantize

SMALL = (
    "qwen3/model-q4_k_m.gguf",
    "llama-spm/model-bf16.gguf",
    "gemma4-moe/model-q8_0.gguf",
    "kimi-k3/model-mxfp4_moe.gguf",
)


def write_parts(folder: Path, n_parts: int = 3, **overrides: int) -> list[Path]:
    """A model of one tensor per part; `overrides` are split keys (with _ for .) that every part states wrongly."""
    paths = []
    for index in range(n_parts):
        path = folder / f"model-{index + 1:05}-of-{n_parts:05}.gguf"
        with GGUFWriter(path, "toy" if index == 0 else None) as out:
            keys = {"split.no": index, "split.count": n_parts, "split.tensors.count": n_parts}
            keys |= {key.replace("_", "."): value for key, value in overrides.items()}
            for key, value in keys.items():
                out.add(key, value, "uint16")
            out.add_tensor(f"t{index}", np.full((2, 3), index, np.float32))
        paths.append(path)
    return paths


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    path = tmp_path / "toy.gguf"
    with GGUFWriter(path, "toy") as out:
        out.add("toy.count", 7)
        out.add("toy.scale", 0.5)
        out.add("toy.flag", True)
        out.add("toy.sizes", [1, 2, 3])
        out.add_tensor("a", np.arange(12, dtype=np.float32).reshape(3, 4))
        out.add_tensor("b", np.arange(64, dtype=np.float32).reshape(2, 32), GGMLType.Q8_0)
    return path


def test_every_golden_file_opens_and_its_tensors_lie_in_the_file(shared: Path) -> None:
    paths = sorted(shared.glob("zoo/*/*.gguf")) + sorted(shared.glob("vocab/*.gguf"))
    assert paths
    for path in paths:
        with open_gguf(path) as file:
            assert file.architecture
            assert file.facts().n_tensors == len(file.tensors)
            assert sum(tensor.nbytes for tensor in file.tensors.values()) <= file.nbytes
            for tensor in file.tensors.values():
                assert tensor.data.nbytes == tensor.nbytes


@pytest.mark.parametrize("name", SMALL)
def test_agrees_with_the_gguf_package(shared: Path, name: str) -> None:
    path = shared / "zoo" / name
    want = GGUFReader(path)
    with open_gguf(path) as file:
        keys = [key for key in want.fields if not key.startswith("GGUF.")]
        assert list(file.metadata) == keys
        for key in keys:
            assert file.metadata[key] == want.fields[key].contents(), key
        assert list(file.tensors) == [tensor.name for tensor in want.tensors]
        for expected in want.tensors:
            tensor = file.tensors[expected.name]
            assert tensor.shape == tuple(reversed(expected.shape.tolist()))
            assert tensor.type.name == expected.tensor_type.name
            assert tensor.n_elements == expected.n_elements
            np.testing.assert_array_equal(tensor.data, expected.data.reshape(-1).view(np.uint8))


def test_a_split_golden_model_holds_the_tensors_of_the_whole_one(shared: Path) -> None:
    folder = shared / "zoo" / "llama-spm"
    with open_gguf(folder / "model-f32.gguf") as whole, open_gguf(folder / "model-f32-00002-of-00003.gguf") as split:
        assert [path.name[10:15] for path in split.paths] == ["00001", "00002", "00003"]
        assert split.architecture == "llama"
        assert set(split.tensors) == set(whole.tensors)
        for name, tensor in whole.tensors.items():
            assert tensor.shape == split.tensors[name].shape
            np.testing.assert_array_equal(tensor.data, split.tensors[name].data)


def test_any_part_opens_the_whole_model(tmp_path: Path) -> None:
    for given in write_parts(tmp_path):
        with open_gguf(given) as file:
            assert file.path.name == "model-00001-of-00003.gguf"
            assert file.architecture == "toy"
            assert [tensor.data.view(np.float32)[0] for tensor in file.tensors.values()] == [0, 1, 2]


def test_missing_parts_are_named(tmp_path: Path) -> None:
    paths = write_parts(tmp_path)
    paths[0].unlink()
    paths[2].unlink()
    with pytest.raises(ModelFileError) as caught:
        open_gguf(paths[1])
    assert "model-00001-of-00003.gguf, model-00003-of-00003.gguf" in str(caught.value)
    assert "2 of the model's 3 parts are missing" in str(caught.value)


def test_parts_of_different_models_do_not_join(tmp_path: Path) -> None:
    paths = write_parts(tmp_path)
    content = paths[1].read_bytes()
    paths[1].write_bytes(paths[2].read_bytes())
    with pytest.raises(ModelFileError, match="part 2 of 3"):
        open_gguf(paths[0])
    paths[1].write_bytes(content)
    paths[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(ModelFileError, match="rename the parts"):
        open_gguf(tmp_path / "renamed.gguf")


def test_the_tensors_of_all_parts_are_counted_and_distinct(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, split_tensors_count=4)
    with pytest.raises(ModelFileError, match="3 tensors instead of 4"):
        open_gguf(paths[0])
    paths = write_parts(tmp_path)
    paths[2].write_bytes(paths[2].read_bytes().replace(b"t2", b"t1"))
    with pytest.raises(ModelFileError, match="t1 is in another part as well"):
        open_gguf(paths[0])


def test_required_values_are_typed(toy: Path) -> None:
    with open_gguf(toy) as file:
        assert file.require("toy.count", int) == 7
        assert file.require("toy.scale", float) == 0.5
        assert file.require("toy.count", float) == 7.0
        assert file.require("toy.flag", bool) is True
        assert file.require("toy.sizes", list) == [1, 2, 3]
        assert file.optional("toy.absent", int, 9) == 9
        assert file.get("toy.absent") is None
        with pytest.raises(ModelFileError, match=r"toy\.gguf: the metadata key toy\.absent is missing"):
            file.require("toy.absent", int)
        with pytest.raises(ModelFileError, match=r"toy\.flag holds bool where int is expected"):
            file.require("toy.flag", int)
        with pytest.raises(ModelFileError, match=r"toy\.scale holds float where int is expected"):
            file.optional("toy.scale", int, 1)
        with pytest.raises(ModelFileError, match="the tensor c is missing"):
            file.tensor("c")


def q2_file(path: Path, kind: GGMLType, n_rows: int) -> Path:
    """Two tensors of 2-bit codes, equal values in either layout, both under the number 42; one of floats between."""
    rng = np.random.default_rng(2)
    halves = rng.uniform(0.5, 1.5, (n_rows, 2)).astype(np.float16)
    codes = rng.integers(0, 256, (n_rows, 2, 32), np.uint8)
    parts = 128 // kind.block_elements
    blocks = np.empty((n_rows, 2, parts, kind.block_bytes), np.uint8)
    blocks[..., :2] = halves.view(np.uint8).reshape(n_rows, 2, 1, 2)
    blocks[..., 2:] = codes.reshape(n_rows, 2, parts, -1)
    with GGUFWriter(path, "toy") as out:
        out.add_tensor("first.weight", blocks.reshape(-1), kind, shape=(n_rows, 256))
        out.add_tensor("norm.weight", np.ones(3, np.float32))
        out.add_tensor("last.weight", blocks.reshape(-1), kind, shape=(n_rows, 256))
    data = bytearray(path.read_bytes())
    for name in (b"first.weight", b"last.weight"):
        at = data.index(name) + len(name) + 4 + 2 * 8
        data[at : at + 4] = (42).to_bytes(4, "little")
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("n_rows", [8, 33])
def test_codes_of_two_bits_in_blocks_of_64_and_of_128(tmp_path: Path, n_rows: int) -> None:
    new, old = (q2_file(tmp_path / f"{k.name}.gguf", k, n_rows) for k in (GGMLType.Q2_0, GGMLType.PQ2_0))
    with open_gguf(new) as one, open_gguf(old) as other:
        for name in ("first.weight", "last.weight"):
            assert (one.tensor(name).type, other.tensor(name).type) == (GGMLType.Q2_0, GGMLType.PQ2_0)
            assert dequantize(one.tensor(name)).tobytes() == dequantize(other.tensor(name)).tobytes()
    old.write_bytes(old.read_bytes()[:-60])
    with pytest.raises(ModelFileError, match=r"last\.weight ends at byte|overlap"):
        open_gguf(old)


def test_facts_count_parameters_and_types(toy: Path) -> None:
    with open_gguf(toy) as file:
        facts = file.facts()
    assert (facts.n_tensors, facts.n_params, facts.nbytes) == (2, 76, 48 + 68)
    assert {name: (share.n_tensors, share.n_params, share.nbytes) for name, share in facts.types.items()} == {
        "Q8_0": (1, 64, 68),
        "F32": (1, 12, 48),
    }
    assert list(facts.types) == ["Q8_0", "F32"]


def test_views_are_read_only_and_outlive_the_file(toy: Path) -> None:
    with open_gguf(toy) as file:
        tensor = file.tensors["a"]
        view = tensor.data
        assert not view.flags.writeable
        assert tensor.data.ctypes.data == view.ctypes.data
    np.testing.assert_array_equal(view.view(np.float32), np.arange(12))
    with pytest.raises(ModelFileError, match="has been closed"):
        _ = tensor.data


def test_released_tensors_can_be_read_again(toy: Path) -> None:
    with open_gguf(toy) as file:
        for tensor in file.tensors.values():
            before = tensor.data.copy()
            tensor.release()
            np.testing.assert_array_equal(tensor.data, before)


def test_looking_at_a_file_does_not_import_numpy(toy: Path) -> None:
    code = (
        "import sys; from lmhub.gguf import open_gguf; file = open_gguf(sys.argv[1]); file.facts(); file.close();"
        "sys.exit('numpy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(toy)], check=True, cwd=Path(__file__).parents[2])


def test_a_tensor_is_asked_for_in_pieces_that_linux_reads_as_a_whole(tmp_path: Path) -> None:
    """Of a larger request than the read-ahead, 128 KiB by default, only the beginning would be read."""
    asked: list[tuple[int, int, int]] = []

    class Noted(mmap.mmap):
        def madvise(self, option: int, start: int = 0, length: int = 0) -> None:
            asked.append((option, start, length))
            super().madvise(option, start, length)

    with GGUFWriter(tmp_path / "m.gguf", "test") as out:
        for name in ("first.weight", "second.weight"):
            out.add_tensor(name, np.zeros((300, 500), np.float32))
    with open_gguf(tmp_path / "m.gguf") as file, (tmp_path / "m.gguf").open("rb") as raw:
        part = file.tensors["second.weight"]._part
        part.map = Noted(raw.fileno(), 0, access=mmap.ACCESS_READ)
        tensor = file.tensors["second.weight"]
        tensor.prefetch()
        assert {option for option, _, _ in asked} == {mmap.MADV_WILLNEED}
        assert all(0 < length <= 128 << 10 and start % mmap.PAGESIZE == 0 for _, start, length in asked)
        assert asked[0][1] <= tensor.offset < asked[0][1] + mmap.PAGESIZE
        ends = [start + length for _, start, length in asked]
        assert ends == [*(start for _, start, _ in asked[1:]), tensor.offset + tensor.nbytes]
        asked.clear()
        tensor.release()
        [(option, start, length)] = asked
        assert (option, start + length) == (mmap.MADV_DONTNEED, tensor.offset + tensor.nbytes)
