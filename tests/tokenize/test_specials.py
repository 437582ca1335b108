"""Splitting at special texts, against the plainest possible way of doing it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lmhub.tokenize.specials import Splitter


def plainly(ids: dict[str, int], text: str) -> list[str | int]:
    longest_first = sorted(ids, key=len, reverse=True)
    items: list[str | int] = []
    at = 0
    while at < len(text):
        found = next((special for special in longest_first if special and text.startswith(special, at)), None)
        if found is not None:
            items.append(ids[found])
        elif items and isinstance(items[-1], str):
            items[-1] += text[at]
        else:
            items.append(text[at])
        at += len(found or "x")
    return items


@given(st.sets(st.text("ab<]^-\\", max_size=4), max_size=8), st.text("ab<]^-\\", max_size=30))
def test_leftmost_then_longest(texts: set[str], text: str) -> None:
    ids = {special: i for i, special in enumerate(sorted(texts))}
    assert list(Splitter(ids).split(text)) == plainly(ids, text)


def test_thousands_of_specials_are_told_apart() -> None:
    ids = {f"<unused{i}>": i for i in range(6000)}
    text = "".join(f"<unused{i}><unused" for i in range(0, 6000, 7))
    found = [item for item in Splitter(ids).split(text) if isinstance(item, int)]
    assert found == list(range(0, 6000, 7))


def test_no_specials() -> None:
    assert list(Splitter({}).split("text")) == ["text"]
    assert list(Splitter({"": 3}).split("text")) == ["text"]
    assert list(Splitter({"x": 3}).split("")) == []
