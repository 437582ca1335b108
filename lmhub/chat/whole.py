"""Replies that are a tool call as a whole: JSON `{"name": ..., "parameters": {...}}`, without a marker before it.

So writes Llama 3 where its template declares tools. Until the reply has ended it may still turn out to be an ordinary
text in JSON: it is a call if it names a tool that was declared.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lmhub.chat.calls import parse_calls, raw_input
from lmhub.chat.lark import json_call
from lmhub.types import Content, ReplyItem, ReplyParser, Tool, ToolCallDelta, ToolCallStart

MAX_CALL_BYTES = 1 << 20


class WholeCallParser:
    """The ReplyParser of one such reply."""

    def __init__(self, tools: Sequence[Tool]):
        self.reasoning_tokens, self.in_reasoning, self.n_calls = 0, False, 0
        self._offered = {tool.name: tool for tool in tools}
        self._held: bytearray | None = bytearray()  # what may be a call; None once it is known to be text

    def feed(self, token: int, piece: bytes) -> Sequence[ReplyItem]:
        """See ReplyParser. A text is handed on as it comes, unless it begins like a call."""
        if self._held is None:
            return (Content(piece),) if piece else ()
        self._held += piece
        begun = self._held.lstrip()
        return () if bytes(begun[:1]) in (b"", b"{") and len(self._held) <= MAX_CALL_BYTES else self._text()

    def finish(self, cut: bool = False) -> Sequence[ReplyItem]:
        """See ReplyParser."""
        if self._held is None:
            return ()
        calls = parse_calls(self._held.decode("utf-8", "replace"), list(self._offered.values()), cut)
        if not calls or any(name not in self._offered for name, _ in calls):
            return self._text()
        items: list[ReplyItem] = []
        for name, arguments in calls:
            custom = self._offered[name].custom
            items.append(ToolCallStart(self.n_calls, f"call_{secrets.token_hex(12)}", name, custom))
            items.append(ToolCallDelta(self.n_calls, raw_input(arguments) if custom else arguments))
            self.n_calls += 1
        return items

    def _text(self) -> Sequence[ReplyItem]:
        held, self._held = self._held, None
        return (Content(bytes(held)),) if held else ()


def parser(token_id: Callable[[str], int | None], prompt: Sequence[int], tools: Sequence[Tool]) -> ReplyParser:
    """See `ToolStyle.reply`."""
    return WholeCallParser(tools)


def shape(tool: Tool, rule: str, schema: Mapping[str, Any] | None, exact: bool) -> str:
    """Lark lines in which `rule` is a reply that calls `tool`; see `ToolStyle`."""
    return json_call(tool, rule, schema, f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "parameters": ')
