"""Reads a reply: reasoning, visible text, tool calls.

    detect --think--> think --/think--> content <--/call-- call
       '----- text, call ------------------^--- call -----^
                                           '---> name ----'  a call whose marker the model forgot

One instance reads one reply, token by token. Blanks that may turn out to belong to a marker are held until what follows
decides; nothing else is. Stop strings, UTF-8 and counting tokens are the engine's business; how a call is written is a
`ToolStyle`'s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any, Literal

from lmhub.chat.call_items import CallItems
from lmhub.chat.markers import Marker, MarkerScanner
from lmhub.chat.xml_calls import is_within_value
from lmhub.family import ThinkMarkers, ToolStyle
from lmhub.types import Content, ReplyItem, Thought, Tool

MAX_CALL_BYTES = 1 << 20  # of one captured call

_BLANKS = b" \t\r\n"
_END_OF_FUNCTION = b"</function>"
_ESCAPED = re.compile(r"\\.", re.DOTALL)
_MAX_NAME = 256  # bytes of the name in a call without a marker
_MAX_LABEL = 32  # of the name of a channel

Mode = Literal["detect", "think", "content", "name", "call"]
Calls = Sequence[tuple[str, str]]


class ChannelParser:
    """The ReplyParser of a model with a reasoning channel, tool calls, both or neither."""

    def __init__(
        self,
        token_id: Callable[[str], int | None],
        *,
        think: ThinkMarkers | None = None,
        tools: ToolStyle | None = None,
        offered: Sequence[Tool] = (),
        opens_reasoning: bool = False,
    ):
        """`token_id` is the tokenizer's, `opens_reasoning` the prompt's; `tools` is None where no call is expected.

        `offered` are the tools that the prompt declares: they type arguments and tell calls without a marker from text.
        """
        self.reasoning_tokens = 0
        texts: dict[Marker, str] = {}
        if think is not None:
            texts |= {"think": think.open, "/think": think.close}
        if tools is not None:
            texts |= {"call": tools.open, "/call": tools.close}
            if tools.bare is not None and offered:
                texts["bare"] = tools.bare
        self._texts = {name: text.encode() for name, text in texts.items()}
        self._scanner = MarkerScanner(texts, token_id)
        self._offered = {tool.name: tool for tool in offered}
        self._parse = None if tools is None else imported(tools.parse)
        eager = None if tools is None or tools.eager is None else imported(tools.eager)
        self._items = CallItems(offered, eager)
        self._mode: Mode = "think" if opens_reasoning else "content" if think is None else "detect"
        self.in_reasoning = opens_reasoning
        self._held = b""  # blanks that have not been shown yet
        self._n_newlines = 1 if opens_reasoning else 0  # leading newlines that may still be dropped from the channel
        self._label: bytes | None = None  # of the channel that was opened last, while it is being written
        self._labelled = think is not None and bool(think.label)
        self._thought = False  # whether anything of this block of reasoning was shown
        self._captured = bytearray()
        self._before = b""  # the blanks that preceded the capture
        self._bare = False  # whether the capture began without a marker
        self._closes_late = False  # whether a call without a marker has just ended, so that its closing one is no text
        self._doubtful: int | None = None  # where in the capture a closing marker was taken for part of a value
        self._out: list[ReplyItem] = []

    @property
    def n_calls(self) -> int:
        """Calls that are complete."""
        return self._items.n_calls

    def feed(self, token: int, piece: bytes) -> Sequence[ReplyItem]:
        """What `token` completes. Never raises."""
        thinking = self.in_reasoning
        self._take(self._scanner.feed(token, piece))
        self.in_reasoning = self._mode == "think"
        self.reasoning_tokens += thinking or self.in_reasoning
        return self._drained()

    def finish(self, cut: bool = False) -> Sequence[ReplyItem]:
        """What the end of the reply decides: an open call is parsed as it is, held blanks were text.

        A call that was `cut` off before it was complete is text, unless it was announced already.
        """
        self._take(self._scanner.finish())
        if self._mode == "name":
            self._name_is_text()
        if self._mode == "call" and self._doubtful is not None and not self._calls(cut):
            self._close_earlier()
        if self._mode == "call":
            self._end_call(closed=False, cut=cut)
        if self._mode != "think" and not self._items.n_started:
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
            self._capture(data)
            return
        if self._mode == "name":
            self._captured += data
            self._match_name()
            return
        if self._label is not None:
            data = self._behind_label(data)
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
        self._closes_late = self._closes_late and not shown
        if self._mode == "content" and self._parse is None:
            shown = self._held + data  # no marker can follow that would make the blanks vanish
        self._emit(shown)
        self._held = (self._held + data)[len(shown) :]

    def _behind_label(self, data: bytes) -> bytes:
        """What follows the name of a channel; a line that is too long for one is no name."""
        assert self._label is not None
        label, newline, rest = (self._label + data).partition(b"\n")
        self._label = None if newline or len(label) > _MAX_LABEL else label
        return rest if newline else b"" if self._label is not None else label

    def _emit(self, data: bytes) -> None:
        self._thought = self._thought or bool(data)
        if data:
            self._out.append(Thought(data) if self._mode == "think" else Content(data))

    # --- markers ---

    def _marker(self, marker: Marker) -> None:
        if self._mode == "name":
            self._name_is_text()
        if self._mode == "call":
            self._marker_in_call(marker)
        elif marker == "call":
            self._open_call("call")
        elif marker == "bare" and self._mode != "think":
            self._open_call("name")
        elif marker == "think":
            self._open_reasoning()
        elif marker == "/think":
            self._close_reasoning()
        elif marker == "/call" and self._closes_late:
            self._closes_late = False
        else:
            self._literal(marker)

    def _open_reasoning(self) -> None:
        if self._mode == "think" and self._thought:
            self._literal("think")
        elif self._mode == "think":  # opened by the prompt, and again by the model
            self._n_newlines, self._label = 1, b"" if self._labelled else None
        elif self._mode == "detect" or self._scanner.is_token("think"):
            if self._mode == "content":
                self._emit(self._held)
            self._held, self._n_newlines, self._mode, self._thought = b"", 1, "think", False
            self._label = b"" if self._labelled else None
        else:
            self._literal("think")

    def _close_reasoning(self) -> None:
        if self._mode == "content" and not self._scanner.is_token("/think"):
            self._literal("/think")
            return
        self._label = None
        if self._mode != "content":  # a stray one within content is dropped
            self._held, self._n_newlines, self._mode = b"", 2, "content"

    def _literal(self, marker: Marker) -> None:
        self._text(self._texts[marker])

    # --- calls ---

    def _open_call(self, mode: Mode) -> None:
        self._label = None
        self._before = b"" if self._mode == "think" else self._held
        self._held, self._captured, self._mode = b"", bytearray(), mode
        self._bare, self._closes_late, self._doubtful = mode == "name", False, None
        self._n_newlines = 0
        if mode == "name":
            self._captured += self._texts["bare"]
        else:
            self._items.open()

    def _match_name(self) -> None:
        """Decide whether what follows the beginning of a call without marker is the name of a tool."""
        begun = bytes(self._captured[len(self._texts["bare"]) :])
        ends = [place for place in (begun.find(b">"), begun.find(b"\n")) if place >= 0]
        if ends and begun[: min(ends)].strip().decode("utf-8", "replace") in self._offered:
            captured, before = bytes(self._captured), self._before
            self._mode = "content"
            self._held = before
            self._open_call("call")
            self._bare = True
            self._capture(captured)
        elif ends or len(begun) > _MAX_NAME:
            self._name_is_text()

    def _name_is_text(self) -> None:
        data, self._held = bytes(self._captured), self._before
        self._mode, self._captured = "content", bytearray()
        head = len(self._texts["bare"])
        self._emit(self._held + data[:head])
        self._held = b""
        self._text(data[head:])

    def _capture(self, data: bytes) -> None:
        before = len(self._captured)
        self._captured += data
        if self._bare and (end := self._bare_end(before)) is not None:
            extra = len(self._captured) - end
            rest = bytes(self._captured[end:])
            del self._captured[end:]
            self._out += self._items.feed(data[: len(data) - extra])
            self._end_call(closed=False)
            self._closes_late = True
            self._text(rest)
            return
        self._out += self._items.feed(data)
        if len(self._captured) > MAX_CALL_BYTES:
            self._end_call(closed=False, cut=True)

    def _bare_end(self, before: int) -> int | None:
        """Where a call without marker ends: behind a closing tag up to which it can be read, whole parameters only."""
        at = max(0, before - len(_END_OF_FUNCTION))
        while (at := self._captured.find(_END_OF_FUNCTION, at)) >= 0:
            end = at + len(_END_OF_FUNCTION)
            body = bytes(self._captured[:at]).rstrip()
            if body.endswith(b"</parameter>") or body.count(b"<") == 1:
                return end
            at = end
        return None

    def _marker_in_call(self, marker: Marker) -> None:
        if marker == "/call":
            if self._inside_value():
                self._doubtful = len(self._captured) if self._doubtful is None else self._doubtful
                self._text(self._texts[marker])
            else:
                self._end_call(closed=True)
        elif marker == "call" and self._captured.rstrip().endswith((b"}", b"</function>")) and self._calls():
            self._end_call(closed=False)
            self._marker("call")
        else:
            self._text(self._texts[marker])

    def _inside_value(self) -> bool:
        """Whether a closing marker in the middle of a line belongs to a value that mentions it."""
        tail = self._captured.rstrip(b" ")
        if not tail or tail.endswith((b"\n", b"}", b">", b"]")):
            return False
        text = self._captured.decode("utf-8", "replace")
        if text.lstrip().startswith("<"):
            return is_within_value(text, list(self._offered.values()))
        return _ESCAPED.sub("", text).count('"') % 2 == 1

    def _close_earlier(self) -> None:
        """The closing marker that was taken for part of a value was one after all: no value went on behind it."""
        assert self._doubtful is not None
        rest = bytes(self._captured[self._doubtful + len(self._texts["/call"]) :])
        captured = bytes(self._captured)
        del self._captured[self._doubtful :]
        if not self._calls():
            self._captured[:] = captured
            return
        self._items.forget()
        self._end_call(closed=True)
        self._text(rest)

    def _calls(self, cut: bool = False) -> Calls | None:
        return self._parsed(self._captured.decode("utf-8", "replace"), cut)

    def _parsed(self, text: str, cut: bool = False) -> Calls | None:
        assert self._parse is not None
        try:
            calls: Calls | None = self._parse(text, list(self._offered.values()), cut)
        except Exception:  # a parser from a plugin; the reply must go on
            return None
        return calls

    def _end_call(self, *, closed: bool, cut: bool = False) -> None:
        items, rest = self._items.close(cut)
        self._out += items
        calls = self._calls(cut) if rest is None else self._parsed(rest, cut) if rest else ()
        if calls:
            self._mode = "content"
            self._out += self._items.put(calls)
        elif rest is None:
            self._flow_back(closed=closed)
        else:  # announced calls stay calls
            self._mode = "content"
            if rest:
                self._out.append(Content(rest.encode() + (self._texts["/call"] if closed else b""), literal=True))

    def _flow_back(self, *, closed: bool) -> None:
        """What was captured is no call: show it as it came, markers and blanks included."""
        self._mode = "content"
        self._emit(self._before)
        opener = b"" if self._bare else self._texts["call"]
        data = opener + self._captured + (self._texts["/call"] if closed else b"")
        self._out.append(Content(data, literal=True))


def imported(reference: str) -> Callable[..., Any]:
    """The function that "module:function" names."""
    module, _, name = reference.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found
