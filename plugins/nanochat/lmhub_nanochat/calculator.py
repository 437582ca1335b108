"""nanochat's calculator: `evaluate("12+30")` is "42". A parser of what the model was trained to write, no `eval`.

Arithmetic is Python's: numbers, + - * / //, signs, parentheses; beside it, how often one text occurs in another.
Whatever else is asked has no answer. The rules, and what counts as an answer, are those of nanochat's engine; sizes are
bounded.
"""

from __future__ import annotations

import re
from operator import floordiv, mul, truediv

MAX_TEXT = 512  # characters of an expression
MAX_DEPTH = 64  # of parentheses and signs
MAX_DIGITS = 4096  # of a whole number
_BITS = int(MAX_DIGITS * 3.33)

_ARITHMETIC = re.compile(r"[0-9*+\-/.() ]*")
_WORDS = re.compile(r"""[A-Za-z0-9'"(). _]*""")
_REFUSED = (
    "__", "import", "exec", "eval", "compile", "open", "file", "input", "raw_input", "globals", "locals", "vars", "dir",
    "getattr", "setattr", "delattr", "hasattr",
)  # fmt: skip
_NUMBER = re.compile(r"(\d+\.\d*|\.\d+)|(\d+)")
_OPERATOR = re.compile(r"//|[+\-*/]")
_METHOD = re.compile(r" *\. *(lower|upper|strip) *\( *\)")
_COUNT = re.compile(r" *\. *count *\(")
_LITERAL = re.compile(r""" *('[^']*'|"[^"]*")""")


class _NoAnswer(Exception):
    """The text is no expression of this language, or has no value."""


def evaluate(text: str) -> str | None:
    """What the calculator answers; None: nothing. Never raises, and never takes long."""
    text = text.replace(",", "")
    if len(text) > MAX_TEXT:
        return None
    try:
        if _ARITHMETIC.fullmatch(text):
            return None if "**" in text else _shown(_Arithmetic(text).value())
        if not _WORDS.fullmatch(text) or any(word in text.lower() for word in _REFUSED) or ".count(" not in text:
            return None
        return str(_Counting(text).value())
    except (_NoAnswer, ZeroDivisionError, OverflowError):
        return None


def _shown(value: int | float | tuple[()]) -> str:
    if isinstance(value, int) and value.bit_length() > _BITS:
        raise _NoAnswer
    return str(value)


class _Cursor:
    """A position in a text."""

    def __init__(self, text: str):
        self.text, self.at = text, 0

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """What matches here, stepped over."""
        match = pattern.match(self.text, self.at)
        if match is not None:
            self.at = match.end()
        return match

    def blanks(self) -> None:
        """Step over blanks."""
        while self.at < len(self.text) and self.text[self.at] == " ":
            self.at += 1

    def peek(self, char: str) -> bool:
        """Whether `char` comes next, blanks aside; it is stepped over then."""
        self.blanks()
        if self.text[self.at : self.at + 1] != char:
            return False
        self.at += 1
        return True

    def end(self) -> None:
        """Nothing but blanks may follow."""
        self.blanks()
        if self.at < len(self.text):
            raise _NoAnswer


class _Arithmetic(_Cursor):
    """expression: term (+ term | - term)*;  term: factor (* factor | / factor | // factor)*;  factor: sign* atom"""

    def value(self) -> int | float | tuple[()]:
        """The value of the whole text."""
        if re.fullmatch(r" *\( *\) *", self.text):
            return ()  # which Python takes for an empty tuple
        value = self._sum(0)
        self.end()
        return value

    def _sum(self, depth: int) -> int | float:
        value = self._product(depth)
        while (operator := self._operator("+-")) is not None:
            right = self._product(depth)
            value = value + right if operator == "+" else value - right
        return _bounded(value)

    def _product(self, depth: int) -> int | float:
        value = self._factor(depth)
        while (operator := self._operator("*/")) is not None:
            right = self._factor(depth)
            value = _bounded({"*": mul, "/": truediv, "//": floordiv}[operator](value, right))
        return value

    def _operator(self, first: str) -> str | None:
        self.blanks()
        match = _OPERATOR.match(self.text, self.at)
        if match is None or match[0][0] not in first:
            return None
        self.at = match.end()
        return match[0]

    def _factor(self, depth: int) -> int | float:
        if depth > MAX_DEPTH:
            raise _NoAnswer
        if self.peek("-"):
            return -self._factor(depth + 1)
        if self.peek("+"):
            return self._factor(depth + 1)
        if self.peek("("):
            value = self._sum(depth + 1)
            if not self.peek(")"):
                raise _NoAnswer
            return value
        return self._number()

    def _number(self) -> int | float:
        self.blanks()
        match = self.take(_NUMBER)
        if match is None:
            raise _NoAnswer
        if match[1]:
            return float(match[1])
        if match[2][0] == "0" and match[2].strip("0"):  # 012, which Python refuses
            raise _NoAnswer
        return int(match[2])


def _bounded(value: int | float) -> int | float:
    if isinstance(value, int) and value.bit_length() > _BITS:
        raise _NoAnswer
    return value


class _Counting(_Cursor):
    """text (.lower() | .upper() | .strip())* .count(text), the first text perhaps in parentheses"""

    def value(self) -> int:
        """The value of the whole text."""
        hay = self._chained(0)
        if self.take(_COUNT) is None:
            raise _NoAnswer
        needle = self._chained(0)
        if not self.peek(")"):
            raise _NoAnswer
        self.end()
        return hay.count(needle)

    def _chained(self, depth: int) -> str:
        """A text with what is done to it."""
        if depth > MAX_DEPTH:
            raise _NoAnswer
        if self.peek("("):
            text = self._chained(depth + 1)
            if not self.peek(")"):
                raise _NoAnswer
        else:
            text = self._literals()
        while (match := self.take(_METHOD)) is not None:
            text = {"lower": text.lower, "upper": text.upper, "strip": text.strip}[match[1]]()
        return text

    def _literals(self) -> str:
        """Texts in quotes; neighbours are one."""
        found = []
        while (match := self.take(_LITERAL)) is not None:
            found.append(match[1][1:-1])
        if not found:
            raise _NoAnswer
        return "".join(found)
