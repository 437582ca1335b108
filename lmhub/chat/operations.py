"""What a chat template may do with values: the operators, methods, filters and tests it has, each of them bounded.

The names and their meaning are jinja's, as `transformers` sets it up for chat templates. Nothing is reachable that is
not listed here. Every operation charges the running budget for the size of what it reads and writes before it does the
work.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial, wraps
from typing import Any, cast

import markupsafe
from jinja2 import Environment, pass_environment
from jinja2.filters import FILTERS as DEFAULT_FILTERS
from jinja2.filters import make_attrgetter
from jinja2.tests import TESTS as DEFAULT_TESTS
from jinja2.utils import Namespace

from lmhub.chat.budget import (
    MAX_BITS,
    MAX_ITEMS,
    TooMuchWork,
    fit_items,
    fit_number,
    fit_text,
    spend,
    taken,
    weigh,
    weigh_deeply,
    weigh_search,
)
from lmhub.chat.traced import joined

Operation = Callable[..., Any]

_DIRECTIVE = re.compile(r"%(?:%|(?:\((\w+)\))?([-+ 0#]*\d{0,2}(?:\.\d{1,2})?[sdrfxXeg]))")
_FIELD = re.compile(r"\{\{|\}\}|\{(\w*)(?::([<>^+ ]?0?\d{0,2}(?:\.\d{1,2})?[sdfxXeg,%]?))?\}")
_LOOSE_PERCENT = re.compile(r"%")
_LOOSE_BRACE = re.compile(r"[{}]")
_CLOCK = re.compile(r"(?:[^%]|%-?[A-Za-z%])*")


# --- operators -------------------------------------------------------------------------------------------------------


def shown(value: Any) -> str:
    """`value` as `{{ value }}` prints it."""
    return value if isinstance(value, str) else str(weigh_deeply(value))


def concatenated(parts: Sequence[Any]) -> str:
    """The operator `~`, and the end of every macro: the parts as text, one behind the other."""
    texts = [shown(part) for part in parts]
    fit_text(sum(map(len, texts)))
    spend(len(texts))
    return joined(texts)


def contains(needle: Any, hay: Any) -> bool:
    """The operator `in`."""
    weigh_search(needle, hay)
    return needle in hay


def cut(value: Any, part: slice) -> Any:
    """`value[start:stop:step]`."""
    return weigh(value[part])


def added(left: Any, right: Any) -> Any:
    """The operator `+`."""
    if isinstance(left, str) and isinstance(right, str):
        fit_text(len(left) + len(right))
        return joined((left, right))
    if isinstance(left, str) or isinstance(right, str):
        other = type(right if isinstance(left, str) else left).__name__
        raise TypeError(f"a text and a value of type {other} cannot be joined by +")
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        fit_items(len(left) + len(right))
    return fit_number(left + right)


def multiplied(left: Any, right: Any) -> Any:
    """The operator `*`."""
    if isinstance(left, int):
        left, right = right, left
    if isinstance(right, int):
        if isinstance(left, str):
            fit_text(len(left) * max(right, 0))
        elif isinstance(left, list | tuple):
            fit_items(len(left) * max(right, 0))
    return fit_number(left * right)


def raised(base: Any, exponent: Any) -> Any:
    """The operator `**`."""
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > MAX_BITS:
        raise TooMuchWork(f"it computes a number of more than {MAX_BITS} bits")
    return base**exponent


def remainder(left: Any, right: Any) -> Any:
    """The operator `%`: a remainder of numbers, or the formatting of a text."""
    return percent_format(left, right) if isinstance(left, str) else left % right


BINARY: Mapping[str, Operation] = {
    "+": added,
    "-": operator.sub,
    "*": multiplied,
    "/": operator.truediv,
    "//": operator.floordiv,
    "**": raised,
    "%": remainder,
}


# --- text ------------------------------------------------------------------------------------------------------------


def percent_format(text: str, values: Any) -> str:
    """`text % values` with small widths only."""
    given = iter(values if isinstance(values, tuple) else (values,))

    def fill(directive: re.Match[str]) -> str:
        name, layout = directive.groups()
        if layout is None:
            return "%"
        try:
            value = values[name] if name else next(given)
        except StopIteration:
            raise TypeError("not enough arguments for format string") from None
        weigh_deeply(value)
        return value if layout == "s" and isinstance(value, str) else f"%{layout}" % (value,)

    return _filled(text, _DIRECTIVE, _LOOSE_PERCENT, fill)


def brace_format(text: str, *values: Any, **named: Any) -> str:
    """`text.format(...)` with plain fields and small widths only."""
    given = iter(values)

    def fill(field: re.Match[str]) -> str:
        name, layout = field.groups()
        if name is None:
            return field[0][0]
        try:
            value = values[int(name)] if name.isdigit() else named[name] if name else next(given)
        except StopIteration:
            raise IndexError("not enough arguments for the format string") from None
        weigh_deeply(value)
        return value if not layout and isinstance(value, str) else format(value, layout or "")

    return _filled(text, _FIELD, _LOOSE_BRACE, fill)


def _filled(text: str, field: re.Pattern[str], loose: re.Pattern[str], fill: Callable[[re.Match[str]], str]) -> str:
    """`text` with every `field` filled in. Raises ValueError if a `loose` character is left between the fields."""
    parts: list[str] = []
    at = 0
    for found in field.finditer(text):
        parts += (text[at : found.start()], fill(found))
        at = found.end()
    parts.append(text[at:])
    if any(loose.search(literal) for literal in parts[::2]):
        raise ValueError(f"the format string {text[:60]!r} has a field that is not supported")
    return concatenated(parts)


def split(text: str, sep: str | None = None, maxsplit: int = -1) -> list[str]:
    """`text.split(...)`."""
    return _sparse(text.split(sep, _at_most(maxsplit)))


def rsplit(text: str, sep: str | None = None, maxsplit: int = -1) -> list[str]:
    """`text.rsplit(...)`."""
    return _sparse(text.rsplit(sep, _at_most(maxsplit)))


def splitlines(text: str, keepends: bool = False) -> list[str]:
    """`text.splitlines(...)`."""
    fit_items(text.count("\n"))
    return _sparse(text.splitlines(keepends))


def _at_most(maxsplit: int) -> int:
    return MAX_ITEMS if maxsplit < 0 else min(maxsplit, MAX_ITEMS)


def _sparse(pieces: list[str]) -> list[str]:
    fit_items(len(pieces))
    return pieces


def replace(value: Any, old: str, new: str, count: int | None = None) -> str:
    """`text.replace(...)`, and the filter of that name."""
    text, times = shown(value), -1 if count is None else count
    hits = text.count(old)
    fit_text(len(text) + max(hits if times < 0 else min(hits, times), 0) * len(new))
    return text.replace(old, new, times)


def join_method(sep: str, parts: Any) -> str:
    """`sep.join(parts)`."""
    texts = taken(parts)
    fit_text(sum(map(len, texts)) + len(sep) * len(texts))
    return joined(texts, sep)


def padded(name: str, text: str, width: int, fill: str = " ") -> str:
    """`text.ljust`, `.rjust`, `.center` or `.zfill`."""
    fit_text(width)
    result: str = text.zfill(width) if name == "zfill" else getattr(str, name)(text, width, fill)
    return result


def _names(names: str) -> frozenset[str]:
    return frozenset(names.split())


# Methods of strings that take no longer than one pass over the string, and give no more than they read.
TEXT_METHODS = _names(
    "capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit islower isnumeric isspace "
    "istitle isupper lower lstrip partition removeprefix removesuffix rfind rindex rpartition rstrip startswith strip "
    "swapcase title upper"
)
BOUNDED_TEXT_METHODS: Mapping[str, Operation] = {
    "format": brace_format,
    "join": join_method,
    "replace": replace,
    "rsplit": rsplit,
    "split": split,
    "splitlines": splitlines,
    **{name: partial(padded, name) for name in ("ljust", "rjust", "center", "zfill")},
}
OTHER_METHODS: Mapping[type, frozenset[str]] = {
    dict: _names("get items keys values"),
    list: _names("count index"),
    tuple: _names("count index"),
}


# --- filters, tests, functions ---------------------------------------------------------------------------------------


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: Sequence[str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON with `", "` and `": "`, keys as they come, and nothing escaped for HTML."""
    weigh_deeply(value)
    if indent is not None:
        _check_width(indent if isinstance(indent, int) else len(indent))
    pair = None if separators is None else (separators[0], separators[1])
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=pair, sort_keys=sort_keys)


def indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """The lines of `text` behind `width` blanks, or behind a string: the first and empty lines only where asked."""
    _check_width(width if isinstance(width, int) else len(width))
    margin = width if isinstance(width, str) else " " * width
    lines = split(shown(text) + "\n", "\n")[:-1]
    return concatenated(
        [
            part
            for number, line in enumerate(lines)
            for part in ("\n" if number else "", margin if (number or first) and (line or blank) else "", line)
        ]
    )


@pass_environment
def join(environment: Environment, value: Any, d: str = "", attribute: str | int | None = None) -> str:
    """The elements of `value`, or an attribute of each, with `d` between them."""
    items = taken(value)
    if attribute is not None:
        items = [make_attrgetter(environment, attribute)(item) for item in items]
    return join_method(d, [shown(item) for item in items])


def rounded(value: float, precision: int = 0, method: str = "common") -> float:
    """`value` to `precision` decimals, as a float; `method` is common, ceil or floor."""
    _check_width(abs(precision))
    return float(DEFAULT_FILTERS["round"](value, precision, method))


def list_of(value: Any) -> list[Any]:
    """The elements of `value`."""
    return taken(value)


def escape(value: Any) -> str:
    """`value` with `& < > ' "` as HTML entities."""
    text = shown(value)
    fit_text(6 * len(text))
    return str(markupsafe.escape(text))


def _check_width(width: int) -> None:
    if width > 16:
        raise TooMuchWork("it pads or rounds by more than 16 places")


def _metered(function: Operation, charge: Callable[[Any], Any]) -> Operation:
    """`function` with every value charged for by `charge`, and lists where jinja's own gives generators."""
    skip = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        charge(args[skip])
        for value in (*args[skip + 1 :], *kwargs.values()):
            charge(value)
        result = function(*args, **kwargs)
        return taken(result) if isinstance(result, Iterator) else result

    return call


def _glance(value: Any) -> Any:
    return spend(1)


_LIGHT = _names(
    "abs capitalize float int items lower map reject rejectattr reverse select selectattr title trim upper wordcount"
)
_CHEAP = _names("count d default first last length")
_DEEP = _names("dictsort groupby max min sort unique")
_OWN: Mapping[str, Operation] = {
    "e": escape,
    "escape": escape,
    "format": lambda text, *values, **named: percent_format(shown(text), named or values),
    "indent": indent,
    "join": join,
    "list": list_of,
    "replace": replace,
    "round": rounded,
    "safe": shown,
    "string": shown,
    "tojson": tojson,
}
FILTERS: Mapping[str, Operation] = {
    **{name: _metered(DEFAULT_FILTERS[name], weigh) for name in _LIGHT},
    **{name: _metered(DEFAULT_FILTERS[name], _glance) for name in _CHEAP},
    **{name: _metered(DEFAULT_FILTERS[name], weigh_deeply) for name in _DEEP},
    **{name: _metered(function, weigh) for name, function in _OWN.items()},
}
_READING = _names("lower upper == != < <= > >= eq equalto ne lt le lessthan gt ge greaterthan sameas")
TESTS: Mapping[str, Operation] = {
    **{
        name: _metered(cast(Operation, DEFAULT_TESTS[name]), weigh_deeply if name in _READING else _glance)
        for name in DEFAULT_TESTS
    },
    "in": contains,
}


def clock(now: Callable[[], datetime]) -> Callable[[str], str]:
    """`strftime_now(layout)` on the clock `now`."""

    def strftime_now(layout: str) -> str:
        if len(layout) > 100 or not _CLOCK.fullmatch(layout):
            raise ValueError(f"strftime_now does not support the layout {layout[:60]!r}")
        return now().strftime(layout)

    return strftime_now


def bounded_range(*bounds: int) -> range:
    """`range(...)`."""
    numbers = range(*bounds)
    if len(numbers) > MAX_ITEMS:
        fit_items(len(numbers))
    return numbers


def globals_for(now: Callable[[], datetime]) -> dict[str, Any]:
    """The functions that a template can call by name, apart from `raise_exception`."""
    return {"range": bounded_range, "dict": dict, "namespace": Namespace, "strftime_now": clock(now)}
