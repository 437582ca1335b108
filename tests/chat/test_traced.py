"""Strings that know their author: operations give the string's own result, each character with its mark."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmhub.chat.traced import Traced, joined, segments, written

# Characters whose mark can be told from the character itself: capitals are the template's.
mixed = st.text("AB <>\nab", max_size=20)
short = st.text("Aa <\n", min_size=1, max_size=2)


def traced(text):
    return Traced(text, bytes(char.isupper() for char in text))


def check(result, expected):
    assert result == expected
    if isinstance(result, str):
        for text, markup in segments(result):
            assert all(char.isupper() == markup for char in text), (result, segments(result))
    elif isinstance(result, list | tuple):
        for part, want in zip(result, expected, strict=True):
            check(part, want)


@given(mixed, mixed, short, st.integers(-1, 3))
def test_operations_keep_every_characters_mark(text, other, sep, limit):
    marked = traced(text)
    for name, args in [
        *((name, ()) for name in ("strip", "lstrip", "rstrip", "split", "rsplit", "splitlines")),
        *((name, (sep,)) for name in ("strip", "lstrip", "rstrip", "partition", "rpartition")),
        *((name, (sep, limit)) for name in ("split", "rsplit")),
        *((name, (None, limit)) for name in ("split", "rsplit")),
        *((name, (sep,)) for name in ("removeprefix", "removesuffix")),
        ("splitlines", (True,)),
        ("replace", (sep, traced(other))),
        ("replace", (sep, traced(other), limit)),
    ]:
        check(getattr(marked, name)(*args), getattr(text, name)(*args))
    check(marked + traced(other), text + other)
    check(marked * 3, text * 3)
    check(marked[1:-1], text[1:-1])
    check(marked[::-1], text[::-1])
    check(list(marked), list(text))
    check(traced(sep).join([traced(text), traced(other), "a"]), sep.join([text, other, "a"]))
    check(joined([traced(text), traced(other)]), text + other)


@given(mixed, mixed)
def test_plain_text_never_becomes_markup(text, other):
    for result in (
        text + written("A"),
        written("A") + text,
        written("A").replace("A", text),
        joined([written(""), text]),
    ):
        assert "".join(part for part, markup in segments(result) if markup) == ("A" if result != text else "")
    assert segments(Traced(text)) == segments(text)


def test_case_keeps_marks_only_letter_by_letter():
    assert segments(written("abc").upper()) == (("ABC", True),)
    assert segments(written("straße").upper()) == (("STRASSE", False),)


def test_it_is_its_string():
    text = written("<a>")
    assert text == "<a>" and hash(text) == hash("<a>") and {"<a>": 1}[text] == 1
    assert str(text) is text
    assert segments("") == ()
    with pytest.raises(TypeError):
        text + 1
