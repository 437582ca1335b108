"""Long arrays of strings are read in one go, and mean what they mean when they are read one by one."""

from __future__ import annotations

import struct

import pytest

from lmhub.gguf import parse
from lmhub.native import ffi, lib

PIECES = (b"", b"a", "\u0120hello".encode(), "\u4f60\u597d".encode(), "\U0001f600".encode(), b"\n", b"x" * 300)


def header(strings: list[bytes], behind: bytes = b"") -> bytes:
    """A GGUF file with one key, `k`, and no tensor."""
    array = b"".join(struct.pack("<Q", len(one)) + one for one in strings)
    key = struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 8, len(strings))
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + array + behind


def many(n: int = 3000) -> list[bytes]:
    return [PIECES[i % len(PIECES)] + str(i).encode() * (i % 3) for i in range(n)]


@pytest.fixture(params=[1, 1 << 30], ids=["in one go", "one by one"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse, "MANY", request.param)


pytestmark = pytest.mark.usefixtures("_way")


def test_each_string_is_itself() -> None:
    strings = many()
    assert parse.parse(header(strings)).metadata["k"] == [one.decode() for one in strings]
    assert parse.parse(header([])).metadata["k"] == []


def test_what_follows_is_read_from_where_they_end() -> None:
    second = struct.pack("<Q", 1) + b"z" + struct.pack("<II", 4, 7)
    data = header(many(), second).replace(struct.pack("<IQQ", 3, 0, 1), struct.pack("<IQQ", 3, 0, 2), 1)
    assert parse.parse(data).metadata["z"] == 7


def test_zero_bytes_are_text() -> None:
    strings = [*many(), b"\0", b"a\0b", b""]
    assert parse.parse(header(strings)).metadata["k"] == [one.decode() for one in strings]


@pytest.mark.parametrize("broken", [b"\xff", b"\xc3", "\u4f60".encode()[:2], b"\xed\xa0\x80"])
def test_the_first_that_is_no_text_is_named(broken: bytes) -> None:
    """Also where two halves of a character would meet."""
    strings = many()
    strings[2000:2002] = [broken, b"\xa0"]
    with pytest.raises(parse.Damaged, match="element 2000 of the metadata key k is not UTF-8 text"):
        parse.parse(header(strings))


@pytest.mark.parametrize("length", [1 << 20, (1 << 63) - 1, 1 << 63, (1 << 64) - 8, (1 << 64) - 1])
def test_lengths_are_compared_with_what_is_left(length: int) -> None:
    data = header(many())
    at = len(data) - len(many()[-1]) - 8
    data = data[:at] + struct.pack("<Q", length) + data[at + 8 :]
    with pytest.raises(parse.Damaged, match="element 2999 of the metadata key k reaches beyond the end of the file"):
        parse.parse(data)


def test_every_cut_is_damage() -> None:
    data = header(many(1100))
    for cut in (1, 4, 8, 9, 20, 500, 5000):
        with pytest.raises(parse.Damaged):
            parse.parse(data[:-cut])


@pytest.mark.parametrize("length", [0, 2, 3, 100, (1 << 64) - 1])
def test_a_length_that_has_changed_since_is_not_believed(length: int) -> None:
    """Somebody writes to the file between the first look at it and the second: no byte outside of `out` is touched."""
    data = bytearray(b"".join(struct.pack("<Q", 1) + b"a" for _ in range(3)) + b"b" * 200)
    out = bytearray(b"?" * 400)
    assert lib.lmk_strings_join(ffi.from_buffer(data), 0, 3, ffi.from_buffer(out), 6) == 0
    assert out[:6] == b"a\0a\0a\0"
    data[9:17] = struct.pack("<Q", length)
    assert lib.lmk_strings_join(ffi.from_buffer(data), 0, 3, ffi.from_buffer(out), 6) == -1
    assert out[6:] == b"?" * 394
