"""Incremental decoding: no broken character, and the same text however the bytes are cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lmhub.tokenize import Utf8Stream

SAMPLE = "aé€😊\u0301👩‍👧 x".encode()


def fed(parts: list[bytes]) -> str:
    stream = Utf8Stream()
    return "".join(map(stream.feed, parts)) + stream.finish()


def test_an_emoji_appears_when_it_is_complete() -> None:
    stream = Utf8Stream()
    emoji = "😊".encode()
    assert [stream.feed(bytes((byte,))) for byte in b"a" + emoji] == ["a", "", "", "", "😊"]
    assert stream.is_clean


def test_every_cut_in_two_and_in_three() -> None:
    n = len(SAMPLE)
    for i in range(n + 1):
        for j in range(i, n + 1):
            parts = [SAMPLE[:i], SAMPLE[i:j], SAMPLE[j:]]
            stream = Utf8Stream()
            texts = [stream.feed(part) for part in parts]
            assert "\ufffd" not in "".join(texts)
            assert "".join(texts) + stream.finish() == SAMPLE.decode()


@given(st.lists(st.binary(max_size=6), max_size=8))
def test_any_bytes_in_any_cut_give_what_the_whole_gives(parts: list[bytes]) -> None:
    text = fed(parts)
    assert text == b"".join(parts).decode("utf-8", "replace")
    assert text.encode().decode() == text  # nothing that JSON could not carry


def test_invalid_bytes_are_replaced_at_once() -> None:
    stream = Utf8Stream()
    assert stream.feed(b"\xff") == "\ufffd"
    assert stream.feed(b"\xe2\x82") == ""
    assert not stream.is_clean
    assert stream.feed(b"x") == "\ufffdx"


def test_an_incomplete_end_is_replaced_and_the_stream_starts_anew() -> None:
    stream = Utf8Stream()
    assert stream.feed(b"ok\xf0\x9f") == "ok"
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""
    assert stream.feed(b"\x98") == "\ufffd"
