"""The file format: what is written byte for byte, and that nothing but that is read."""

from __future__ import annotations

import io
import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lmhub.engine.disk import lmkv

WIDTH = 12
N = 600  # rows: two whole chunks and a rest
TOKENS = np.arange(N, dtype=np.int32) * 7
ROWS = np.random.default_rng(1).integers(0, 256, (N, WIDTH), np.uint8)
STATES = ((256, b"early" * 20), (600, b"late" * 30))


def written(path: Path, states: tuple[tuple[int, bytes], ...] = STATES, n: int = N) -> bytes:
    planned = lmkv.plan(
        identity="model=abc numerics=1",
        layout="f16",
        row_nbytes=WIDTH,
        n_tokens=n,
        n_stable=500 if n > 500 else 0,
        rewind=not states,
        states=states,
        created=1.5e9,
        writer="lmhub test",
    )
    with io.FileIO(path, "wb") as file:
        read = lambda a, b: ROWS[a:b].ravel()  # noqa: E731
        assert lmkv.write(file, planned, TOKENS[:n], read, states, lambda: True) is not None
    data = path.read_bytes()
    assert len(data) == planned[2]
    return data


def read_all(path: Path) -> tuple[lmkv.Header, bytes, NDArray[np.uint8], list[bytes]]:
    """Everything in a file, every checksum checked."""
    with io.FileIO(path) as file:
        header, tokens_at = lmkv.read_header(file, path.stat().st_size)
        tokens = lmkv.read_tokens(file, header, tokens_at)
        buffer = np.empty(lmkv.CHUNK_ROWS * header.row_nbytes, np.uint8)
        rows = [lmkv.read_rows(file, chunk, buffer).copy() for chunk in header.chunks]
        return header, tokens, np.concatenate(rows), [lmkv.read_blob(file, blob) for blob in header.states]


def test_what_was_written_is_read(tmp_path: Path) -> None:
    written(tmp_path / "a")
    header, tokens, rows, blobs = read_all(tmp_path / "a")
    assert (header.n_tokens, header.n_stable, header.identity, header.layout) == (
        600,
        500,
        "model=abc numerics=1",
        "f16",
    )
    assert tokens == TOKENS.tobytes()
    assert rows.tobytes() == ROWS.tobytes()
    assert blobs == [blob for _, blob in STATES]
    assert [(chunk.first, chunk.n) for chunk in header.chunks] == [(0, 256), (256, 256), (512, 88)]
    assert all(part.offset % 64 == 0 for part in (*header.chunks, *header.states))


def test_every_byte_of_a_small_file(tmp_path: Path) -> None:
    """The format is what the documentation says; reckoned here by hand, without a constant of the code."""
    data = written(tmp_path / "a", states=(), n=3)
    rows = ROWS[:3].tobytes()
    text = (
        '{"v":1,"identity":"model=abc numerics=1","layout":"f16","row_nbytes":12,"n_rows":3,"n_tokens":3,"n_stable":0,'
        f'"prefix":{{"rows":0}},"rewind":true,"chunks":[[0,3,4160,36,{zlib.crc32(rows)}]],"states":[],'
        '"created":1500000000.0,"writer":"lmhub test"}'
    )
    header = text.encode().ljust(4080)
    expected = b"LMKV\x00\x01\r\n" + struct.pack("<II", 4080, zlib.crc32(header)) + header
    ids = struct.pack("<3I", 0, 7, 14)
    expected += ids + struct.pack("<I", zlib.crc32(ids))
    expected = expected.ljust(4160, b"\0") + rows
    expected += struct.pack("<Q", len(expected) + 16) + b"LMKVEND\n"
    assert data == expected


def test_a_file_cut_anywhere_is_damaged(tmp_path: Path) -> None:
    data = written(tmp_path / "a")
    cuts = {*range(0, 64), *range(4000, len(data), 97), *range(len(data) - 64, len(data))}
    for size in sorted(cuts):
        (tmp_path / "b").write_bytes(data[:size])
        with pytest.raises(lmkv.Damaged):
            read_all(tmp_path / "b")


def covered(header: lmkv.Header, tokens_at: int, size: int) -> list[range]:
    """The bytes that a checksum or a mark stands for: all but the gaps that alignment leaves."""
    parts = [range(part.offset, part.offset + part.nbytes) for part in (*header.chunks, *header.states)]
    return [range(0, tokens_at), range(tokens_at, tokens_at + 4 * header.n_tokens + 4), *parts, range(size - 16, size)]


def test_a_flipped_bit_anywhere_is_damage(tmp_path: Path) -> None:
    data = written(tmp_path / "a")
    with io.FileIO(tmp_path / "a") as file:
        header, tokens_at = lmkv.read_header(file, len(data))
    regions = covered(header, tokens_at, len(data))
    assert len(regions) == 3 + 3 + 2
    for region in regions:
        for at in {region[0], region[len(region) // 3], region[-1]}:
            broken = bytearray(data)
            broken[at] ^= 1 << (at % 8)
            (tmp_path / "b").write_bytes(broken)
            with pytest.raises((lmkv.Damaged, lmkv.Unknown)):
                read_all(tmp_path / "b")


def sealed(header: bytes, body: bytes) -> bytes:
    """A file with this header, all checksums and lengths right."""
    data = lmkv.MAGIC + struct.pack("<II", len(header), zlib.crc32(header)) + header + body
    return data + struct.pack("<Q", len(data) + 16) + lmkv.END


def parse(tmp_path: Path, data: bytes) -> lmkv.Header:
    (tmp_path / "b").write_bytes(data)
    return read_all(tmp_path / "b")[0]


WRONG: dict[str, object] = {
    "n_tokens": [599, 0, -1, 1 << 24, (1 << 24) + 1, 1 << 80, 3.5, "600", None, True],
    "n_rows": [599, 601],
    "n_stable": [601, -1],
    "row_nbytes": [0, 11, 13, 1 << 40, -12],
    "identity": [5, "x" * 5000],
    "layout": [None],
    "rewind": [1, "yes"],
    "chunks": [[], [[0, 600, 8192, 7200, 1]], [[0, 256, 64, 3072, 1]], [[0, 256, 1 << 60, 3072, 1]], {}, [[0]], [7]],
    "states": [[[0, 64, 1, 1]], [[700, 64, 1, 1]], [[5, 1 << 52, 1, 1]], [[5, 8192, 1 << 52, 1]], [["a"]]],
    "created": ["now"],
    "writer": [0],
    "prefix": [None, 0, {"rows": -1}, {}],
}


@pytest.mark.parametrize("key", WRONG)
def test_a_wrong_header_is_damage_even_with_a_right_checksum(tmp_path: Path, key: str) -> None:
    data = written(tmp_path / "a")
    n_header = struct.unpack_from("<I", data, 8)[0]
    good = json.loads(data[16 : 16 + n_header])
    body = data[16 + n_header : -16]
    assert parse(tmp_path, sealed(json.dumps(good).encode().ljust(n_header), body)).n_tokens == N
    values = WRONG[key]
    assert isinstance(values, list)
    for value in values:
        with pytest.raises(lmkv.Damaged):
            parse(tmp_path, sealed(json.dumps({**good, key: value}).encode().ljust(n_header), body))
    with pytest.raises(lmkv.Damaged):
        parse(tmp_path, sealed(json.dumps({k: v for k, v in good.items() if k != key}).encode().ljust(n_header), body))


def test_each_chunk_must_follow_the_one_before(tmp_path: Path) -> None:
    data = written(tmp_path / "a")
    n_header = struct.unpack_from("<I", data, 8)[0]
    good = json.loads(data[16 : 16 + n_header])
    body = data[16 + n_header : -16]
    for index in range(3):
        for field in range(4):
            for step in (-64, -1, 1, 64):
                chunks = [list(chunk) for chunk in good["chunks"]]
                chunks[index][field] += step
                with pytest.raises(lmkv.Damaged):
                    parse(tmp_path, sealed(json.dumps({**good, "chunks": chunks}).encode().ljust(n_header), body))


def test_later_versions_are_unknown_not_damaged(tmp_path: Path) -> None:
    data = written(tmp_path / "a")
    n_header = struct.unpack_from("<I", data, 8)[0]
    good = json.loads(data[16 : 16 + n_header])
    for text in ({"v": 2, "anything": [1]}, {**good, "prefix": {"rows": 16, "kind": "cartridge"}}):
        with pytest.raises(lmkv.Unknown):
            parse(tmp_path, sealed(json.dumps(text).encode().ljust(n_header), data[16 + n_header : -16]))
    more = json.dumps({**good, "later": {"deep": [[1]]}}).encode().ljust(n_header)
    assert parse(tmp_path, sealed(more, data[16 + n_header : -16])).n_tokens == N


HOSTILE = [
    b"[" * 4000, b'{"v":' + b"[" * 4000, b'{"v":1,"x":' + b'{"a":' * 700, b"", b"nul", b"9" * 4000,
    b'{"v":' + b"9" * 4000 + b"}", b'{"v":1e999}', b"\xff\xfe", b"{}",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_json_is_damage(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(lmkv.Damaged):
        parse(tmp_path, sealed(text.ljust(4080), b"\0" * 64))


def test_a_header_that_claims_to_be_huge_is_not_read(tmp_path: Path) -> None:
    for n_header in (0, 1, 4079, 4 << 20, (8 << 20) - 16, 2**32 - 16):
        data = lmkv.MAGIC + struct.pack("<II", n_header, 0) + b" " * 4080
        with pytest.raises(lmkv.Damaged):
            parse(tmp_path, data + struct.pack("<Q", len(data) + 16) + lmkv.END)


def test_mutants_never_do_worse_than_damage(tmp_path: Path) -> None:
    """A few hundred random changes of header bytes, resealed so that only the parser stands in their way."""
    data = written(tmp_path / "a")
    n_header = struct.unpack_from("<I", data, 8)[0]
    text, body = data[16 : 16 + n_header].rstrip(), data[16 + n_header : -16]
    random = np.random.default_rng(7)
    n_refused = 0
    for _ in range(400):
        mutant = bytearray(text)
        for _ in range(random.integers(1, 6)):
            at = int(random.integers(len(mutant)))
            kind = random.integers(3)
            if kind == 0:
                mutant[at] = int(random.integers(256))
            elif kind == 1:
                mutant[at:at] = random.choice([b"9", b"-", b"0", b"[", b"}", b'"', b",", b"e9", b"1.5"])
            else:
                del mutant[at : at + int(random.integers(1, 20))]
        try:
            parse(tmp_path, sealed(bytes(mutant).ljust(n_header), body))
        except (lmkv.Damaged, lmkv.Unknown):
            n_refused += 1
    assert n_refused > 200


def test_the_largest_header_fits(tmp_path: Path) -> None:
    planned = lmkv.plan(
        identity="x" * 300,
        layout="y" * 300,
        row_nbytes=100_000,
        n_tokens=lmkv.MAX_ROWS,
        n_stable=0,
        rewind=True,
        states=(),
        created=0.0,
        writer="",
    )
    assert planned[1] <= lmkv.MAX_HEADER
