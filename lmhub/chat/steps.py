"""What readers of calls that are being written have in common: text, and steps that take what they can from its front.

How a call is written is the business of the readers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lmhub.types import Tool


@dataclass(frozen=True, slots=True)
class Announced:
    """A call of `tool` has begun; the fragments that follow are its own."""

    tool: Tool


Step = Callable[[], Iterator[Announced | str]]


class StepReader(ABC):
    """Reads one region. A step takes what it can from the front of `_text`, and may put another in its own place."""

    def __init__(self, tools: Sequence[Tool]):
        self.announced = False
        self._tools = tools
        self._text = ""  # what has not been handed on
        self._step: Step = self._head

    def feed(self, text: str) -> Iterator[Announced | str]:
        """What `text` completes."""
        self._text += text
        while True:
            step, before = self._step, len(self._text)
            yield from step()
            if self._step == step and len(self._text) == before:
                return

    @abstractmethod
    def _head(self) -> Iterator[Announced | str]:
        """The first step: everything up to the arguments of a call."""

    def _nothing(self) -> Iterator[str]:
        """The last step."""
        return iter(())
