"""Every numbered conformance statement has a test of its number, or a reason why it has none.

A name like `test_064_and_065_...` covers two statements, `test_068_to_070_...` three.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

LAST = 222
WITHOUT = {
    209: "no model makes embeddings; 211 tests the refusal",
    210: "no model ranks documents; 211 tests the refusal",
    212: "there is no Ollama dialect",
    213: "there is no Ollama dialect",
    214: "there is no Ollama dialect",
}

_NAME = re.compile(r"^(?:async )?def test_((?:\d{3}_(?:(?:and|to)_)?)+)", re.MULTILINE)
_LINK = re.compile(r"(\d{3})(_to_\d{3})?")


def covered(name: str) -> Iterator[int]:
    """The numbers that a name begins with."""
    for first, rest in _LINK.findall(name):
        last = int(rest.removeprefix("_to_")) if rest else int(first)
        yield from range(int(first), last + 1)


def test_names_are_read() -> None:
    assert list(covered("001_")) == [1]
    assert list(covered("094_to_096_and_108_")) == [94, 95, 96, 108]
    assert list(covered("025_026_028_")) == [25, 26, 28]


def test_every_statement_has_a_test_or_a_reason() -> None:
    names = [name for path in Path(__file__).parent.glob("test_*.py") for name in _NAME.findall(path.read_text())]
    tested = {number for name in names for number in covered(name)}
    every = set(range(1, LAST + 1))
    assert not tested - every
    assert sorted(every - tested) == sorted(WITHOUT), "without a test; or tested, and listed as if not"
