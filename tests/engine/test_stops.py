"""Stop strings: the vectors of the rule, and every way of cutting a reply."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmhub.engine.stops import MAX_STOP_BYTES, StopScanner
from lmhub.errors import RequestError

# stops, reply, what is released before one fires, which one fires
VECTORS = [
    (["END", "\n\n"], "END", "", "END"),
    (["END", "\n\n"], "xEx", "xEx", None),
    (["END", "\n\n"], "foo\n\nbar", "foo", "\n\n"),
    (["END", "\n\n"], "a\n", "a\n", None),
    (["ab", "abc"], "abc", "", "ab"),
    (["b", "abc"], "abc", "a", "b"),
    (["aab"], "aaab", "a", "aab"),
    (["cab", "ab"], "cab", "", "cab"),
    (["ab", "cab"], "cab", "", "cab"),
    (["x", "x"], "ax", "a", "x"),
    (["😊"], "a😊b", "a", "😊"),
    (["é"], "aèé", "aè", "é"),
    (["abcd", "bc"], "abce", "a", "bc"),
    (["abab"], "aababab", "a", "abab"),
    ([], "anything", "anything", None),
    (["whole"], "whole", "", "whole"),
]


def scan(stops: Sequence[str], chunks: Sequence[bytes]) -> tuple[bytes, str | None]:
    """All released bytes and what fired, with the end of the reply behind the last chunk."""
    scanner = StopScanner(stops)
    released = b""
    for chunk in chunks:
        data, fired = scanner.feed(chunk)
        released += data
        if fired is not None:
            return released, fired
    return released + scanner.flush(), None


def cuts(data: bytes) -> Iterator[list[bytes]]:
    """Every way to cut `data` into pieces."""
    for mask in range(1 << (len(data) - 1)):
        ends = [i + 1 for i in range(len(data) - 1) if mask >> i & 1]
        yield [data[a:b] for a, b in zip([0, *ends], [*ends, len(data)], strict=True)]


@pytest.mark.parametrize(("stops", "reply", "released", "fired"), VECTORS)
def test_vectors_in_every_cut(stops: list[str], reply: str, released: str, fired: str | None) -> None:
    for chunks in cuts(reply.encode()):
        assert scan(stops, chunks) == (released.encode(), fired)


def test_what_may_become_a_stop_string_is_held_and_nothing_else() -> None:
    scanner = StopScanner(["END", "\n\n"])
    assert scanner.feed(b"xE") == (b"x", None)
    assert scanner.feed(b"x") == (b"Ex", None)
    assert scanner.feed(b"EN") == (b"", None)
    assert scanner.feed(b"\n") == (b"EN", None)
    assert scanner.flush() == b"\n"
    assert scanner.feed(b"\n") == (b"", None)  # the newline before the flush does not count


def brute(stops: Sequence[str], data: bytes) -> tuple[bytes, str | None]:
    """The rule, spelt out: the first byte that completes any; the longest of those; then list order."""
    for end in range(1, len(data) + 1):
        complete = [stop for stop in stops if data[:end].endswith(stop.encode())]
        if complete:
            best = max(complete, key=len)
            return data[: end - len(best.encode())], best
    return data, None


@given(st.lists(st.text("ab", min_size=1, max_size=4), max_size=4), st.lists(st.text("abc", max_size=5), max_size=6))
def test_equals_the_rule_spelt_out(stops: list[str], chunks: list[str]) -> None:
    pieces = [chunk.encode() for chunk in chunks]
    assert scan(stops, pieces) == brute(stops, b"".join(pieces))


@pytest.mark.parametrize("stop", ["", "x" * (MAX_STOP_BYTES + 1), "\ud800"])
def test_unusable_stop_strings_are_refused(stop: str) -> None:
    with pytest.raises(RequestError, match="stop string") as refusal:
        StopScanner(["fine", stop])
    assert refusal.value.param == "stop"


def test_the_longest_allowed_stop_string() -> None:
    stop = "x" * MAX_STOP_BYTES
    assert scan([stop], [b"x" * (MAX_STOP_BYTES - 1), b"yx"]) == (b"x" * (MAX_STOP_BYTES - 1) + b"yx", None)
    assert scan([stop], [b"a", stop.encode()]) == (b"a", stop)
