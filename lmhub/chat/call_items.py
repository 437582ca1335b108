"""The calls of one reply as the items that its reader gets: whole, or in fragments while they are being written.

Where the text of a call begins and ends is the business of whoever reads the reply.
"""

from __future__ import annotations

import codecs
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from lmhub.chat.calls import raw_input
from lmhub.chat.steps import Announced
from lmhub.types import ReplyItem, Tool, ToolCallDelta, ToolCallStart

_Utf8 = codecs.getincrementaldecoder("utf-8")


class Eager(Protocol):
    """Reads the text of one region while it is written. What it has announced stays a call, whatever follows."""

    announced: bool

    @property
    def rest(self) -> str:
        """What no announced call has taken; after the end of the region."""
        ...

    @property
    def is_whole(self) -> bool:
        """Whether the arguments of every announced call have ended."""
        ...

    def feed(self, text: str) -> Iterator[Announced | str]:
        """What `text` completes."""
        ...

    def finish(self) -> Iterator[str]:
        """The fragments that the end of the region decides."""
        ...


class CallItems:
    """Makes items of calls and counts them: `n_started` were announced, and `n_calls` of those are complete."""

    def __init__(self, offered: Sequence[Tool], reader: Callable[[Sequence[Tool]], Eager] | None = None):
        """`reader` is for regions with calls of those tools whose arguments are wanted as they come."""
        self.n_started = self.n_calls = 0
        self._offered = {tool.name: tool for tool in offered}
        self._reader = reader if any(tool.eager for tool in offered) else None
        self._eager: Eager | None = None
        self._utf8 = _Utf8("replace")

    def put(self, calls: Iterable[tuple[str, str]]) -> Iterator[ReplyItem]:
        """Complete calls, as (name, JSON text of the arguments)."""
        for name, arguments in calls:
            custom = name in self._offered and self._offered[name].custom
            yield self._start(name, custom)
            yield ToolCallDelta(self.n_started - 1, raw_input(arguments) if custom else arguments)
        self.n_calls = self.n_started

    def open(self, tools: Sequence[Tool] | None = None) -> None:
        """A region begins, whose calls may be those of `tools` (None: of all)."""
        tools = list(self._offered.values()) if tools is None else tools
        self._eager = None if self._reader is None else self._reader(tools)
        self._utf8.reset()

    def feed(self, data: bytes) -> Iterator[ReplyItem]:
        """More of the region: what that completes of calls that are wanted as they come."""
        if self._eager is not None:
            yield from self._items(self._eager.feed(self._utf8.decode(data)))

    def forget(self) -> None:
        """The region ended before what was fed last: unless a call has been announced, it is read as a whole."""
        if self._eager is not None and not self._eager.announced:
            self._eager = None

    def close(self, cut: bool) -> tuple[Sequence[ReplyItem], str | None]:
        """The region has ended: its last items, and what is behind the announced calls; None if none was announced.

        `cut`: the budget of the reply ended it, and what is not whole is not complete.
        """
        eager, self._eager = self._eager, None
        if eager is None:
            return (), None
        items = [*self._items(eager.feed(self._utf8.decode(b"", True)))]
        if not eager.announced:
            return (), None
        self.n_calls = self.n_started - (cut and not eager.is_whole)
        items += self._items(eager.finish())
        return items, eager.rest.strip().lstrip(",;")

    def _items(self, found: Iterable[Announced | str]) -> Iterator[ReplyItem]:
        for item in found:
            if isinstance(item, Announced):
                yield self._start(item.tool.name, item.tool.custom)
            elif item:
                yield ToolCallDelta(self.n_started - 1, item)

    def _start(self, name: str, custom: bool) -> ToolCallStart:
        self.n_started += 1
        return ToolCallStart(self.n_started - 1, f"call_{secrets.token_hex(12)}", name, custom)
