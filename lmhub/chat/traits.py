"""What a chat template does, found out by rendering small conversations with it.

Templates say nothing about themselves, and reading their source would mean guessing; so they are asked. Every question
is put once per model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from lmhub.chat.messages import Turn, arrangements, turns_of
from lmhub.chat.order import with_results_inside
from lmhub.chat.template import ChatTemplate
from lmhub.errors import RequestError
from lmhub.family import ThinkMarkers
from lmhub.types import Message, Reasoning, Text, ToolCall, ToolResult

_USER = Message("user", (Text("probe-u"),))
_MORE = Message("user", (Text("probe-v"),))


class Traits:
    """The habits of one template. `tokens` are the variables that it always gets."""

    def __init__(self, template: ChatTemplate, tokens: Mapping[str, Any], think: ThinkMarkers | None):
        self._template = template
        self._tokens = tokens
        self._think = think

    @cached_property
    def wants_mappings(self) -> bool:
        """Whether call arguments must be parsed for this template.

        Their text is replayed as the model wrote it only where text and mapping come out alike, which keeps the tokens
        of earlier turns; a template that treats the two differently is written for mappings.
        """
        mapping, text = (self._rendered(*_history('{"probe": 1}'), parsed=parsed) for parsed in (True, False))
        return mapping is not None and mapping != text

    @property
    def wants_parts(self) -> bool:
        """Whether the template speaks of the parts of a turn, in the order in which they were written."""
        return self._template.mentions("parts")

    @cached_property
    def shows_tool_turns(self) -> bool:
        """Whether calls and their results appear in the prompt."""
        text = self._rendered(*_history('{"probe_key": "probe-value"}'), parsed=self.wants_mappings)
        return text is not None and all(part in text for part in ("probe_name", "probe-value", "probe-result"))

    @cached_property
    def shows_text_behind_calls(self) -> bool:
        """Whether the text of a turn that makes calls appears behind them."""
        user, called, result = _history("{}", Text("probe-a"))
        text = self._rendered(user, called, result, parsed=self.wants_mappings) or ""
        return text.find("probe-a") > text.find("probe_name") >= 0

    @cached_property
    def wants_results_inside(self) -> bool:
        """Whether results are to be part of the turn that called, which Gemma 4's first templates want."""
        if not self._template.mentions("tool_responses"):
            return False
        outside, inside = (self._rendered(*_history("{}"), folded=folded) for folded in (False, True))
        return inside is not None and "probe-result" in inside and inside != outside

    @cached_property
    def shows_nothing_as_none(self) -> bool:
        """Whether `null` in the arguments of a call appears as Python's name for it, which no model writes."""
        text = self._rendered(*_history('{"probe_key": null}'), parsed=self.wants_mappings) or ""
        return "None" in text and "null" not in text

    @cached_property
    def shows_orphans(self) -> bool:
        """Whether a result appears that does not follow any call."""
        text = self._rendered(_USER, Message("tool", (ToolResult("call_0", "probe-result"),)))
        return text is not None and "probe-result" in text

    @cached_property
    def shows_late_system(self) -> bool:
        """Whether a system message in the middle of a conversation is accepted, and appears where it stands."""
        said = Message("assistant", (Text("probe-a"),))
        text = self._rendered(_USER, said, Message("system", (Text("probe-s"),)), _MORE, as_is=True)
        return text is not None and text.find("probe-a") < text.find("probe-s") < text.find("probe-v")

    @cached_property
    def leaves_reasoning_inline(self) -> bool:
        """Whether reasoning that a client left in the text of an earlier turn would be shown as its content."""
        if self._think is None:
            return False
        inline = f"{self._think.open}{self._think.label}\nprobe-r\n{self._think.close}\n\nprobe-a"
        text = self._rendered(_USER, Message("assistant", (Text(inline),)), _MORE)
        return text is not None and "probe-r" in text

    @cached_property
    def closing(self) -> str:
        """What the template writes between a turn's reasoning and what follows, the closing marker included."""
        assert self._think is not None
        close = self._think.close
        reasoned, said = Reasoning("probe-r"), Text("probe-a")
        for behind in (said, ToolCall("call_0", "probe_name", "{}")):  # some show it before calls only
            text = self._rendered(_USER, Message("assistant", (reasoned, behind)), parsed=self.wants_mappings) or ""
            if found := re.search(rf"probe-r(\s*{re.escape(close)}\s*)", text):
                return found[1]
        return f"\n{close}\n\n"

    @cached_property
    def openers(self) -> tuple[str, ...]:
        """What the template may write to open the reply, with reasoning on, off and left alone; longest first.

        That is what `add_generation_prompt` adds behind a question. A template that changes more than the end has none.
        """
        switch = None if self._think is None else self._think.switch
        found: dict[str, str] = {}
        for settings in ({},) if switch is None else ({}, {switch: True}, {switch: False}):
            if opener := self.opener(settings):
                found.setdefault(str(opener), opener)
        return tuple(sorted(found.values(), key=len, reverse=True))

    def opener(self, settings: Mapping[str, bool]) -> str:
        """What opens the reply to a question where the reasoning switch is set like this; "" if nothing does."""
        bare = self._rendered(_USER, **settings)
        whole = self._rendered(_USER, **settings, add_generation_prompt=True)
        return whole[len(bare) :] if bare is not None and whole is not None and whole.startswith(bare) else ""

    @cached_property
    def turn_end(self) -> str:
        """What the template writes behind a question where no reply is opened."""
        text = self._rendered(_USER) or ""
        return text.partition("probe-u")[2]

    def _rendered(
        self, *messages: Message, parsed: bool = True, as_is: bool = False, folded: bool = False, **settings: bool
    ) -> str | None:
        """The prompt, or None if the template refuses these messages, rearranged as well unless `as_is`.

        `folded`: with results inside the turns that called.
        """
        variables = {**self._tokens, "tools": None, "add_generation_prompt": False, **settings}
        turns: list[Turn] = turns_of(messages, parsed_arguments=parsed, in_order=self.wants_parts)
        turns = with_results_inside(turns) if folded else turns
        for arranged in (turns,) if as_is else arrangements(turns, fold=False):
            try:
                return self._template.render({**variables, "messages": arranged})
            except RequestError:
                continue
        return None


def _history(arguments: str, *said: Text) -> tuple[Message, ...]:
    return (
        _USER,
        Message("assistant", (*said, ToolCall("call_0", "probe_name", arguments))),
        Message("tool", (ToolResult("call_0", "probe-result"),)),
    )
