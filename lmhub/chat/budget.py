"""What rendering a chat template may cost: steps, string sizes, list sizes, number sizes.

A template comes with a model file, so it may be hostile or merely broken. Work is counted, not timed: the same template
with the same conversation passes or fails alike on every machine. One unit is some 100 ns: a name or a constant costs
none, an attribute one, a call several; whatever takes time in proportion to a size is charged by size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from typing import Any

MAX_SOURCE = 1 << 17  # characters of a template
MAX_WORK = 12_000_000  # units for one rendering
MAX_TEXT = 1 << 23  # characters of any string, the rendered prompt included
MAX_ITEMS = 1 << 18  # elements of any list
MAX_BITS = 4096  # of any whole number
MAX_DEPTH = 200  # of nested lists and mappings

_CHARS_PER_UNIT = 16


class TooMuchWork(Exception):
    """A limit of this file was passed. `str` names the limit."""


class Budget:
    """The units that one rendering has left."""

    __slots__ = ("left",)

    def __init__(self, units: int = MAX_WORK):
        self.left = units


_current: ContextVar[Budget] = ContextVar("lmhub_template_budget")


@contextmanager
def budget(units: int = MAX_WORK) -> Iterator[Budget]:
    """Everything charged inside is taken from one new budget of `units`."""
    token = _current.set(Budget(units))
    try:
        yield _current.get()
    finally:
        _current.reset(token)


def spend(units: int) -> bool:
    """Take `units` from the running budget; always true, so that it can stand in a condition. Raises TooMuchWork."""
    running = _current.get()
    running.left -= units
    if running.left < 0:
        raise TooMuchWork("it takes too many steps")
    return True


def weigh(value: Any) -> Any:
    """Charge for one pass over `value`, not over what it holds, and return it."""
    if isinstance(value, str):
        spend(1 + len(value) // _CHARS_PER_UNIT)
    elif isinstance(value, list | tuple | Mapping | range):
        spend(1 + len(value))
    return value


def weigh_deeply(value: Any) -> Any:
    """Charge for one pass over `value` and everything inside it, as comparing or printing it takes, and return it."""
    _weigh_level(value, 0)
    return value


def _weigh_level(value: Any, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise TooMuchWork(f"it handles values nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, str):
        spend(1 + len(value) // _CHARS_PER_UNIT)
    elif isinstance(value, Mapping):
        spend(2 + depth)
        for key, item in value.items():
            _weigh_level(key, depth + 1)
            _weigh_level(item, depth + 1)
    elif isinstance(value, list | tuple):
        spend(2 + depth)
        for item in value:
            _weigh_level(item, depth + 1)
    else:
        spend(2)


def weigh_search(needle: Any, hay: Any) -> None:
    """Charge for `needle in hay`."""
    if isinstance(hay, str):
        weigh(needle)
        weigh(hay)
    elif isinstance(hay, Mapping | set | frozenset):
        spend(1)
    elif hasattr(hay, "__len__"):
        each = 1 + len(needle) // (16 * _CHARS_PER_UNIT) if isinstance(needle, str) else _cost(needle)
        spend(1 + len(hay) * each)


def _cost(value: Any) -> int:
    before = _current.get().left
    weigh_deeply(value)
    return 1 + before - _current.get().left


def fit_text(length: int) -> None:
    """Charge for a string of `length` characters that is about to be made. Raises TooMuchWork."""
    if length > MAX_TEXT:
        raise TooMuchWork(f"it builds a text of more than {MAX_TEXT} characters")
    spend(1 + length // _CHARS_PER_UNIT)


def fit_items(length: int) -> None:
    """Charge for a list of `length` elements that is about to be made. Raises TooMuchWork."""
    if length > MAX_ITEMS:
        raise TooMuchWork(f"it builds a list of more than {MAX_ITEMS} elements")
    spend(1 + length)


def fit_number(value: Any) -> Any:
    """`value`, unless it is a whole number of too many digits. Raises TooMuchWork."""
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise TooMuchWork(f"it computes a number of more than {MAX_BITS} bits")
    return value


def taken(items: Iterable[Any]) -> list[Any]:
    """The elements of a lazy sequence, as a list that is charged for. Raises TooMuchWork."""
    taken = list(islice(items, MAX_ITEMS + 1))
    fit_items(len(taken))
    return taken
