"""Shows one reply in the terminal as it comes: the text as it is, reasoning dimmed, and at the end what it took.

Where the output is no terminal, only the text itself is written.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import TYPE_CHECKING

from lmhub.cli.wrap import Wrap
from lmhub.types import Event, Finish, ReasoningDelta, TextDelta, ToolCallDelta, ToolCallStart

if TYPE_CHECKING:
    from rich.console import Console


class Answer:
    """A reply on `out`; `text` and `reasoning` are what came of it so far."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self.text = ""
        self.reasoning = ""
        self._thinks = False  # the last thing shown was reasoning
        self._wrap = Wrap(out.width)

    def show(self, events: Generator[Event, None, None]) -> Finish | None:
        """Show everything up to the end, which is returned. Raises LmhubError."""
        for event in events:
            match event:
                case ReasoningDelta(text):
                    self._think(text)
                case TextDelta(text):
                    self._say(text)
                case ToolCallStart(_, _, name):
                    self._write(f"\n[calls {name} ")
                case ToolCallDelta(_, fragment):
                    self._write(fragment)
                case Finish():
                    self.end()
                    if event.reason == "length" and self._out.is_terminal:
                        self._out.print("[cut: the context or max_tokens is used up]", style="dim")
                    return event
        return None

    def end(self) -> None:
        """End the line that the reply stands on."""
        if self._thinks:
            self._end_thought("\n")
        else:
            self._write("\n")

    def _think(self, text: str) -> None:
        text = text if self.reasoning else text.lstrip("\n")
        self.reasoning += text
        self._thinks = True
        self._show_thought(self._wrap.feed(printable(text)))

    def _show_thought(self, text: str) -> None:
        if self._out.is_terminal and text:
            self._out.print(text, style="dim italic", end="")

    def _end_thought(self, end: str) -> None:
        self._thinks = False
        self._show_thought(self._wrap.finish())
        self._wrap = Wrap(self._out.width)
        if self._out.is_terminal:
            self._out.print(end=end)

    def _say(self, text: str) -> None:
        if self._thinks:
            self._end_thought("\n\n")
        if not self.text and self.reasoning:
            text = text.lstrip("\n")
        self.text += text
        self._write(text)

    def _write(self, text: str) -> None:
        sys.stdout.write(self._wrap.feed(printable(text)) if self._out.is_terminal else text)
        sys.stdout.flush()


def took(finish: Finish) -> str:
    """What a reply took: "42 tokens, 38.1 tokens/s; prompt: 120 tokens, 96 of them cached, 410 tokens/s"."""
    usage, times = finish.usage, finish.timings
    n_read = usage.prompt_tokens - usage.cached_tokens
    parts = [f"{usage.completion_tokens} tokens{_rate(usage.completion_tokens, times.decode_s)}"]
    if usage.reasoning_tokens:
        parts[0] += f", {usage.reasoning_tokens} of them thoughts"
    cached = f", {usage.cached_tokens} of them cached" if usage.cached_tokens else ""
    parts.append(f"prompt: {usage.prompt_tokens} tokens{cached}{_rate(n_read, times.prefill_s)}")
    return "; ".join(parts)


def _rate(n_tokens: int, seconds: float) -> str:
    if n_tokens == 0 or seconds <= 0:
        return ""
    rate = n_tokens / seconds
    return f", {rate:.0f} tokens/s" if rate >= 99.5 else f", {rate:.1f} tokens/s"


def printable(text: str) -> str:
    """`text` without control characters but newline and tab: a model must not be able to drive the terminal."""
    return "".join(char for char in text if char in "\n\t" or char.isprintable())
