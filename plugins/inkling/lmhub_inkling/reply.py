"""Reads a reply of Inkling: blocks of tokens, told apart by token ids and never by text.

    between --model--> header --kind--> text, thinking or call --end_message--> between

In the header stands the author, the name of a tool, which nobody is shown. Models leave roles out; a block without a
kind was text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from lmhub.chat.call_items import CallItems
from lmhub.chat.eager import EagerReader
from lmhub.chat.reply import MAX_CALL_BYTES
from lmhub.types import Content, ReplyItem, ReplyParser, Thought, Tool
from lmhub_inkling.calls import parse_calls

State = Literal["between", "header", "text", "think", "call"]

KINDS: dict[str, State] = {
    "content_text": "text",
    "content_thinking": "think",
    "content_invoke_tool_json": "call",
    "content_invoke_tool_text": "text",
}


class ArgsReader(EagerReader):
    """Reads the payload of a call while it is written."""

    keys = ("args",)


class BlockParser:
    """The ReplyParser: one reply, token by token, from wherever the prompt has opened it."""

    def __init__(self, token_id: Callable[[str], int | None], prompt: Sequence[int], tools: Sequence[Tool]):
        self.reasoning_tokens = 0
        self._tools, self._calls = tools, CallItems(tools, ArgsReader)
        self._kinds = {id: kind for name, kind in KINDS.items() if (id := token_id(f"<|{name}|>")) is not None}
        self._model, self._end = token_id("<|message_model|>"), token_id("<|end_message|>")
        self._state = self._opened(prompt)
        self.in_reasoning = self._state == "think"
        self._name = ""  # of the tool, where the header said it
        self._payload = bytearray()  # of a call, or of a block whose kind is not known yet
        self._is_empty = True  # whether nothing of the block was shown
        self._thought = False  # whether what was shown last was reasoning
        self._out: list[ReplyItem] = []

    @property
    def n_calls(self) -> int:
        """See ReplyParser."""
        return self._calls.n_calls

    def feed(self, token: int, piece: bytes) -> Sequence[ReplyItem]:
        """See ReplyParser."""
        thought = self.in_reasoning
        self._take(token, piece)
        self.in_reasoning = self._state == "think"
        self.reasoning_tokens += thought or self.in_reasoning
        return self._drained()

    def finish(self, cut: bool = False) -> Sequence[ReplyItem]:
        """See ReplyParser. A call that is not complete is text."""
        self._close(cut)
        return self._drained()

    def _drained(self) -> Sequence[ReplyItem]:
        out, self._out = self._out, []
        return out

    def _opened(self, prompt: Sequence[int]) -> State:
        """What the last special token of the prompt has begun."""
        for token in reversed(prompt):
            if token in self._kinds:
                return self._kinds[token]
            if token in (self._model, self._end):
                return "header" if token == self._model else "between"
        return "between"

    def _take(self, token: int, piece: bytes) -> None:
        if token in (self._model, self._end):
            self._close()
            self._state = "header" if token == self._model else "between"
        elif token in self._kinds and (self._state in ("between", "header") or self._is_empty):
            self._open(self._kinds[token])
        elif piece:
            self._show(piece)

    def _open(self, kind: State) -> None:
        self._name = bytes(self._payload).decode("utf-8", "replace") if self._state == "header" else ""
        self._state, self._is_empty = kind, True
        self._payload.clear()
        if kind == "call":
            self._calls.open([tool for tool in self._tools if self._name in ("", tool.name)])

    def _show(self, piece: bytes) -> None:
        if self._state == "between":
            self._open("text")
        if self._state == "text":
            self._out.append(Content(piece))
        elif self._state == "think":
            self._out.append(Thought(b"\n" + piece if self._is_empty and self._thought else piece))
        elif len(self._payload) < MAX_CALL_BYTES:
            self._payload += piece
            self._out += self._calls.feed(piece) if self._state == "call" else ()
        self._is_empty = False
        if self._state != "header":
            self._thought = self._state == "think"

    def _close(self, cut: bool = False) -> None:
        """The end of a block."""
        data, self._is_empty = bytes(self._payload), True
        self._payload.clear()
        if self._state == "call":
            self._call(data, cut)
        elif self._state == "header" and data:
            self._out.append(Content(data))

    def _call(self, data: bytes, cut: bool) -> None:
        items, rest = self._calls.close(cut)
        self._out += items
        calls = parse_calls(data.decode("utf-8", "replace")) if rest is None else None
        if calls and self._name in ("", calls[0][0]):
            self._out += self._calls.put(calls)
        elif rest is None or rest:
            self._out.append(Content(data if rest is None else rest.encode(), literal=True))


def parser(token_id: Callable[[str], int | None], prompt: Sequence[int], tools: Sequence[Tool]) -> ReplyParser:
    """See `Family.reply`."""
    return BlockParser(token_id, prompt, tools)
