"""Reads a reply: reasoning, visible text, tool calls.

    detect --think--> think --/think--> content <--/call-- call
       '----- text, call ------------------^--- call -----^

One instance reads one reply, token by token. Blanks that may turn out to belong to a marker are held until what follows
decides; nothing else is. Stop strings, UTF-8 and counting tokens are the engine's business; how a call is written is a
`ToolStyle`'s.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Literal

from lmhub.chat.markers import Marker, MarkerScanner
from lmhub.family import ThinkMarkers, ToolStyle
from lmhub.types import Content, ReplyItem, Thought, ToolCallDelta, ToolCallStart

MAX_CALL_BYTES = 1 << 20  # of one captured call

_BLANKS = b" \t\r\n"

Mode = Literal["detect", "think", "content", "call"]
ParseCalls = Callable[[str], Sequence[tuple[str, str]] | None]


class ChannelParser:
    """The ReplyParser of a model with a reasoning channel, tool calls, both or neither."""

    def __init__(
        self,
        token_id: Callable[[str], int | None],
        *,
        think: ThinkMarkers | None = None,
        tools: ToolStyle | None = None,
        opens_reasoning: bool = False,
    ):
        """`token_id` is the tokenizer's, `opens_reasoning` the prompt's; `tools` is None where no call is expected."""
        self.reasoning_tokens = 0
        texts: dict[Marker, str] = {}
        if think is not None:
            texts |= {"think": think.open, "/think": think.close}
        if tools is not None:
            texts |= {"call": tools.open, "/call": tools.close}
        self._texts = {name: text.encode() for name, text in texts.items()}
        self._scanner = MarkerScanner(texts, token_id)
        self._parse = _parser_of(tools)
        self._mode: Mode = "think" if opens_reasoning else "content" if think is None else "detect"
        self._held = b""  # blanks that have not been shown yet
        self._n_newlines = 1 if opens_reasoning else 0  # leading newlines that may still be dropped from the channel
        self._thought = False  # whether anything of this block of reasoning was shown
        self._captured = bytearray()
        self._before = b""  # the blanks that preceded the capture
        self._n_calls = 0
        self._out: list[ReplyItem] = []

    def feed(self, token: int, piece: bytes) -> Sequence[ReplyItem]:
        """What `token` completes. Never raises."""
        thinking = self._mode == "think"
        self._take(self._scanner.feed(token, piece))
        self.reasoning_tokens += thinking or self._mode == "think"
        return self._drained()

    def finish(self) -> Sequence[ReplyItem]:
        """What the end of the reply decides: an open call is parsed as it is, held blanks were text."""
        self._take(self._scanner.finish())
        if self._mode == "call":
            self._end_call(closed=False)
        if self._mode != "think" and not self._n_calls:
            self._emit(self._held)
        self._held = b""
        return self._drained()

    def _drained(self) -> Sequence[ReplyItem]:
        out, self._out = self._out, []
        return out

    def _take(self, atoms: Iterable[Marker | bytes]) -> None:
        for atom in atoms:
            if isinstance(atom, bytes):
                self._text(atom)
            else:
                self._marker(atom)

    # --- text ---

    def _text(self, data: bytes) -> None:
        if self._mode == "call":
            self._captured += data
            if len(self._captured) > MAX_CALL_BYTES:
                self._flow_back(closed=False)
            return
        while self._n_newlines and data[:1] == b"\n" and self._mode != "detect":
            self._n_newlines -= 1
            data = data[1:]
        if not data:
            return
        shown = (self._held + data).rstrip(b"\n" if self._mode == "think" else _BLANKS)
        if self._mode == "detect":
            if not shown:
                self._held += data
                return
            self._mode = "content"
        self._n_newlines = 0
        if self._mode == "content" and self._parse is None:
            shown = self._held + data  # no marker can follow that would make the blanks vanish
        self._emit(shown)
        self._held = (self._held + data)[len(shown) :]

    def _emit(self, data: bytes) -> None:
        self._thought = self._thought or bool(data)
        if data:
            self._out.append(Thought(data) if self._mode == "think" else Content(data))

    # --- markers ---

    def _marker(self, marker: Marker) -> None:
        if self._mode == "call":
            self._marker_in_call(marker)
        elif marker == "call":
            self._before = b"" if self._mode == "think" else self._held
            self._held, self._captured, self._mode = b"", bytearray(), "call"
        elif marker == "think":
            self._open_reasoning()
        elif marker == "/think":
            self._close_reasoning()
        else:
            self._literal(marker)

    def _open_reasoning(self) -> None:
        if self._mode == "think" and self._thought:
            self._literal("think")
        elif self._mode == "think":  # opened by the prompt, and again by the model
            self._n_newlines = 1
        elif self._mode == "detect" or self._scanner.is_token("think"):
            if self._mode == "content":
                self._emit(self._held)
            self._held, self._n_newlines, self._mode, self._thought = b"", 1, "think", False
        else:
            self._literal("think")

    def _close_reasoning(self) -> None:
        if self._mode == "content" and not self._scanner.is_token("/think"):
            self._literal("/think")
            return
        if self._mode != "content":  # a stray one within content is dropped
            self._held, self._n_newlines, self._mode = b"", 2, "content"

    def _literal(self, marker: Marker) -> None:
        self._text(self._texts[marker])

    # --- calls ---

    def _marker_in_call(self, marker: Marker) -> None:
        if marker == "/call":
            self._end_call(closed=True)
        elif marker == "call" and self._captured.rstrip().endswith(b"}") and self._calls():
            self._end_call(closed=False)
            self._marker("call")
        else:
            self._text(self._texts[marker])

    def _calls(self) -> Sequence[tuple[str, str]] | None:
        assert self._parse is not None
        try:
            return self._parse(self._captured.decode("utf-8", "replace"))
        except Exception:  # a parser from a plugin; the reply must go on
            return None

    def _end_call(self, *, closed: bool) -> None:
        calls = self._calls()
        if not calls:
            self._flow_back(closed=closed)
            return
        self._mode = "content"
        for name, arguments in calls:
            self._out.append(ToolCallStart(self._n_calls, f"call_{secrets.token_hex(12)}", name))
            self._out.append(ToolCallDelta(self._n_calls, arguments))
            self._n_calls += 1

    def _flow_back(self, *, closed: bool) -> None:
        """What was captured is no call: show it as it came, markers and blanks included."""
        self._mode = "content"
        self._emit(self._before)
        data = self._texts["call"] + self._captured + (self._texts["/call"] if closed else b"")
        self._out.append(Content(data, literal=True))


def _parser_of(style: ToolStyle | None) -> ParseCalls | None:
    if style is None:
        return None
    module, _, function = style.parse.partition(":")
    parse: ParseCalls = getattr(import_module(module), function)
    return parse
