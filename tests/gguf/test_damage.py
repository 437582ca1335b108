"""Damaged and hostile files: each ends in one `ModelFileError` sentence that names the file."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from lmhub.errors import ModelFileError
from lmhub.gguf import GGUFWriter, open_gguf

HUGE = (1 << 64) - 1


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def pair(key: str | bytes, kind: int, payload: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + payload


def entry(name: str | bytes, dims: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def build(
    pairs: list[bytes] | None = None,
    entries: list[bytes] | None = None,
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_pairs: int | None = None,
    n_entries: int | None = None,
    data: bytes = bytes(4096),
) -> bytes:
    pairs, entries = pairs or [], entries or []
    n_pairs = len(pairs) if n_pairs is None else n_pairs
    n_entries = len(entries) if n_entries is None else n_entries
    head = magic + struct.pack("<IQQ", version, n_entries, n_pairs) + b"".join(pairs + entries)
    return head + bytes(-len(head) % 32) + data


def array(kind: int, count: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + payload


def nested(depth: int) -> bytes:
    return array(9, 1) * (depth - 1) + array(0, 0)


CASES = {
    "empty": (b"", "the file is empty"),
    "short": (b"GG", "not a GGUF file"),
    "magic": (build(magic=b"GGML"), "not a GGUF file"),
    "magic not text": (build(magic=b"\n\xff\0\r"), "not a GGUF file"),
    "only magic": (b"GGUF", "ends within the header"),
    "version 1": (build(version=1), "version 1"),
    "version 4": (build(version=4), "version 4"),
    "version 0": (build(version=0), "version 0"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + bytes(64), "big-endian"),
    "huge key count": (build(n_pairs=HUGE), f"claims {HUGE} keys"),
    "huge tensor count": (build(n_entries=HUGE), f"claims {HUGE} tensors"),
    "many keys": (build(n_pairs=70000, data=bytes(1 << 20)), "more than the 65536 that"),
    "many tensors": (build(n_entries=300_000, data=bytes(8 << 20)), "more than the 131072 that"),
    "key count beyond the file": (build(n_pairs=1000), "claims 1000 keys"),
    "huge key length": (build([struct.pack("<Q", HUGE)]), "name of metadata key 0"),
    "long key": (build([text("k" * 65536)], data=bytes(70000)), "65536 bytes long"),
    "key not UTF-8": (build([pair(b"\xff\xfe", 0, b"\0")]), "name of metadata key 0 is not UTF-8"),
    "key twice": (build([pair("k", 0, b"\0"), pair("k", 0, b"\0")]), "key k occurs twice"),
    "value type": (build([pair("k", 13, b"\0")]), "unknown value type 13"),
    "bool 2": (build([pair("k", 7, b"\2")]), "neither 0 nor 1"),
    "string beyond the file": (build([pair("k", 8, struct.pack("<Q", 1 << 40))]), "ends within the metadata key k"),
    "string not UTF-8": (build([pair("k", 8, text(b"\xc3"))]), "metadata key k is not UTF-8"),
    "array type": (build([pair("k", 9, array(77, 0))]), "unknown element type 77"),
    "huge array": (build([pair("k", 9, array(0, HUGE))]), f"claims {HUGE} elements"),
    "huge array of wide elements": (build([pair("k", 9, array(10, 1000))]), "claims 1000 elements"),
    "huge array of strings": (build([pair("k", 9, array(8, 1000))]), "claims 1000 elements"),
    "huge array of arrays": (build([pair("k", 9, array(9, 1000))]), "claims 1000 elements"),
    "array string beyond": (
        build([pair("k", 9, array(8, 2, text("a") + b"\xff" * 8))]),
        "element 1 of the metadata key k",
    ),
    "array string not UTF-8": (
        build([pair("k", 9, array(8, 1, text(b"\x80")))]),
        "element 0 of the metadata key k is not",
    ),
    "deep nesting": (build([pair("k", 9, nested(9))]), "deeper than 8"),
    "bottomless nesting": (build([pair("k", 9, nested(100_000))]), "deeper than 8"),
    "alignment 0": (build([pair("general.alignment", 4, struct.pack("<I", 0))]), "general.alignment"),
    "alignment 24": (build([pair("general.alignment", 4, struct.pack("<I", 24))]), "general.alignment"),
    "alignment huge": (build([pair("general.alignment", 4, struct.pack("<I", 1 << 31))]), "general.alignment"),
    "alignment as text": (build([pair("general.alignment", 8, text("32"))]), "general.alignment"),
    "alignment as bool": (build([pair("general.alignment", 7, b"\1")]), "general.alignment"),
    "tensor name not UTF-8": (build([], [entry(b"\xff", [4])]), "name of a tensor is not UTF-8"),
    "tensor twice": (build([], [entry("t", [4]), entry("t", [4], offset=32)]), "tensor t occurs twice"),
    "five dimensions": (build([], [entry("t", [1, 1, 1, 1, 1])]), "5 dimensions"),
    "huge rank": (build([], [text("t") + struct.pack("<I", 0xFFFFFFFF) + bytes(64)]), "4294967295 dimensions"),
    "dimension 0": (build([], [entry("t", [4, 0])]), "dimension of 0"),
    "dimensions overflow": (build([], [entry("t", [1 << 63, 1 << 63, 4, 1 << 62])]), "but the file has"),
    "removed type": (build([], [entry("t", [32], 31)]), "type 31 (Q4_0_4_4)"),
    "unknown type": (build([], [entry("t", [32], 999)]), "unknown type 999"),
    "part of a block": (build([], [entry("t", [33], 8)]), "rows of 33, not a multiple of the Q8_0 block of 32"),
    "beyond the file": (build([], [entry("t", [2000])]), "ends at byte 8064, but the file has 4160"),
    "offset beyond the file": (build([], [entry("t", [4], offset=1 << 40)]), "but the file has"),
    "offset overflow": (build([], [entry("t", [4], offset=HUGE - 31)]), "but the file has"),
    "offset not aligned": (build([], [entry("t", [4], offset=8)]), "not a multiple of the alignment 32"),
    "overlap": (build([], [entry("a", [64]), entry("b", [64], offset=224)]), "tensors a and b overlap"),
    "same place": (build([], [entry("a", [4]), entry("b", [4])]), "tensors a and b overlap"),
    "name with line break": (build([], [entry("a\nb", [4], 999)]), "'a\\nb'"),
    "endless name": (build([], [entry("n" * 60000, [4], 999)], data=bytes(70000)), "nnn..."),
    "split count": (build([pair("split.count", 8, text("3"))]), "split.count"),
    "split without a name": (build([pair("split.count", 2, b"\3\0")]), "one of 3 parts"),
}


def refused(path: Path) -> str:
    """The message that opening `path` ends in, once its form has been checked."""
    with pytest.raises(ModelFileError) as caught:
        open_gguf(path)
    message = str(caught.value)
    assert path.name in message
    assert message.isprintable()
    assert message.endswith(".")
    assert len(message) < 600
    return message


@pytest.mark.parametrize("name", CASES)
def test_damage_is_named(tmp_path: Path, name: str) -> None:
    data, fragment = CASES[name]
    path = tmp_path / "damaged.gguf"
    path.write_bytes(data)
    assert fragment in refused(path)


def test_the_undamaged_form_of_these_files_opens(tmp_path: Path) -> None:
    path = tmp_path / "sound.gguf"
    pairs = [pair("k", 9, nested(8)), pair("general.alignment", 4, struct.pack("<I", 32))]
    entries = [entry("a", [64]), entry("b", [64], offset=256), entry("scalar", [], offset=512)]
    for version in (2, 3):
        path.write_bytes(build(pairs, entries, version=version))
        with open_gguf(path) as file:
            assert file.version == version
            assert [tensor.shape for tensor in file.tensors.values()] == [(64,), (64,), ()]


def test_cut_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    with GGUFWriter(path, "toy") as out:
        out.add("toy.tokens", ["a", "bc", ""])
        out.add("toy.nested", [[1, 2], [3]])
        out.add("toy.flags", [True, False])
        out.add_tensor("t", np.ones((2, 5), np.float32))
        out.add_tensor("u", np.ones(3, np.float32))
    data = path.read_bytes()
    open_gguf(path).close()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        refused(path)


def test_elements_of_all_arrays_share_one_budget(tmp_path: Path) -> None:
    path = tmp_path / "many.gguf"
    half = (1 << 21) + 1
    pairs = [pair(key, 9, array(0, half, bytes(half))) for key in "ab"]
    path.write_bytes(build(pairs))
    assert "above 4194304 array elements" in refused(path)


def test_what_is_no_file(tmp_path: Path) -> None:
    assert "cannot be opened" in refused(tmp_path / "absent.gguf")
    assert "not a regular file" in refused(tmp_path)
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "not a regular file" in refused(tmp_path / "pipe.gguf")
