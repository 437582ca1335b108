"""Reads the few pickles that checkpoints hold, without Python's unpickler, which runs whatever a file asks for.

A small machine of the opcodes that torch and tiktoken write. A global is a name on a list, never an import; what it
would have made is a `Made`. Every opcode takes a byte of the file and makes at most one object, so that a file cannot
ask for more than its own size; keys of dictionaries are texts, bytes or numbers, whose hash costs no more than they do.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from lmhub.errors import quoted
from lmhub.gguf.parse import Damaged


@dataclass(slots=True, eq=False)
class Global:
    """A name that a pickle may use."""

    name: str


@dataclass(slots=True, eq=False)
class Made:
    """What calling the global `name` with `args` would give, and the state that it would be given."""

    name: str
    args: tuple[Any, ...]
    state: Any = field(default=None)


@dataclass(slots=True, eq=False)
class Persistent:
    """What lies outside of the pickle; `id` says where."""

    id: Any


_MARK = object()
_NUMBERS = {b"J": "<i", b"K": "<B", b"M": "<H", b"G": ">d"}
_TEXTS = {b"\x8c": "<B", b"X": "<I", b"\x8d": "<Q"}
_BYTES = {b"C": "<B", b"B": "<I", b"\x8e": "<Q"}
_CONSTANTS: dict[bytes, Any] = {b"N": None, b"\x88": True, b"\x89": False}
_EMPTY: dict[bytes, Callable[[], Any]] = {b")": tuple, b"}": dict, b"]": list}
_TUPLES = {b"\x85": 1, b"\x86": 2, b"\x87": 3}
MAPPING = "collections.OrderedDict"


def unpickled(data: bytes, allowed: Collection[str]) -> Any:
    """The object in `data`, in which the globals `allowed` are `Made` and an OrderedDict is a dict. Raises Damaged."""
    machine = _Machine(data, allowed)
    try:
        return machine.run()
    except (IndexError, struct.error, KeyError, TypeError, ValueError, UnicodeDecodeError):
        raise Damaged("it holds a pickle that is damaged, or of another kind than checkpoints have") from None


class _Machine:
    """One run over one pickle."""

    def __init__(self, data: bytes, allowed: Collection[str]):
        self._data, self._at = data, 0
        self._allowed = allowed
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        while (code := self._take(1)) != b".":
            self._step(code)
        [made] = self._stack
        return made

    def _take(self, n: int) -> bytes:
        if n > len(self._data) - self._at:
            raise Damaged("its pickle ends too early")
        self._at += n
        return self._data[self._at - n : self._at]

    def _number(self, code: str) -> Any:
        return struct.unpack(code, self._take(struct.calcsize(code)))[0]

    def _line(self) -> str:
        end = self._data.index(b"\n", self._at)
        line, self._at = self._data[self._at : end].decode(), end + 1
        return line

    def _popped(self) -> list[Any]:
        """What lies above the last mark."""
        at = len(self._stack) - 1
        while self._stack[at] is not _MARK:
            at -= 1
        above = self._stack[at + 1 :]
        del self._stack[at:]
        return above

    def _step(self, code: bytes) -> None:
        push = self._stack.append
        if code in _NUMBERS:
            push(self._number(_NUMBERS[code]))
        elif code in _TEXTS:
            push(self._take(self._number(_TEXTS[code])).decode())
        elif code in _BYTES:
            push(self._take(self._number(_BYTES[code])))
        elif code in _CONSTANTS:
            push(_CONSTANTS[code])
        elif code in _EMPTY:
            push(_EMPTY[code]())
        elif code == b"\x8a":  # a whole number of up to 255 bytes
            push(int.from_bytes(self._take(self._number("<B")), "little", signed=True))
        elif code == b"(":
            push(_MARK)
        elif code in _TUPLES:
            items = [self._stack.pop() for _ in range(_TUPLES[code])]
            push(tuple(reversed(items)))
        elif code == b"t":
            push(tuple(self._popped()))
        elif code in b"\x80\x95":  # protocol and frame say nothing that matters here
            self._take(1 if code == b"\x80" else 8)
        elif code in b"qrhj\x94":
            self._remember(code)
        elif code in b"c\x93R\x81Q":
            self._call(code)
        else:
            self._fill(code)

    def _remember(self, code: bytes) -> None:
        if code in b"hj":
            self._stack.append(self._memo[self._number("<B" if code == b"h" else "<I")])
            return
        at = len(self._memo) if code == b"\x94" else self._number("<B" if code == b"q" else "<I")
        self._memo[at] = self._stack[-1]

    def _call(self, code: bytes) -> None:
        if code == b"Q":
            self._stack.append(Persistent(self._stack.pop()))
            return
        if code in b"c\x93":
            if code == b"c":
                name = f"{self._line()}.{self._line()}"
            else:
                last, module = self._stack.pop(), self._stack.pop()
                name = (
                    f"{module}.{last}" if isinstance(module, str) and isinstance(last, str) else "a name that is none"
                )
            if name not in self._allowed and name != MAPPING:
                raise Damaged(f"its pickle asks for {quoted(name)}, which no checkpoint needs: it may be hostile")
            self._stack.append(Global(name))
            return
        args, called = self._stack.pop(), self._stack.pop()
        if not isinstance(called, Global) or not isinstance(args, tuple):
            raise Damaged("its pickle calls what cannot be called")
        self._stack.append({} if called.name == MAPPING and not args else Made(called.name, args))

    def _fill(self, code: bytes) -> None:
        if code == b"b":
            state, target = self._stack.pop(), self._stack[-1]
            if isinstance(target, Made):
                target.state = state
            elif not isinstance(target, dict):
                raise Damaged("its pickle gives a state to what has none")
        elif code in b"su":
            above = self._popped() if code == b"u" else [self._stack.pop(-2), self._stack.pop()]
            target = self._stack[-1]
            if not isinstance(target, dict) or len(above) % 2:
                raise Damaged("its pickle sets items of what has none")
            for key, value in zip(above[::2], above[1::2], strict=True):
                if type(key) not in (str, bytes, int):
                    raise Damaged("its pickle has a key that is neither text nor a number")
                target[key] = value
        elif code in b"ae":
            above = self._popped() if code == b"e" else [self._stack.pop()]
            target = self._stack[-1]
            if not isinstance(target, list):
                raise Damaged("its pickle appends to what is no list")
            target.extend(above)
        else:
            raise Damaged(f"its pickle has the instruction {code!r}, which no checkpoint needs")
