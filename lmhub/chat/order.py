"""Histories in the order in which a model wrote them, for templates that keep another one.

A model writes its text, then its calls, then reads the results. A template may show the text of a turn with calls
behind the results, where the model would answer next; or it may want the results within the turn that called. Both are
put right here: what the model wrote is then where the next prompt has it, and need not be read again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lmhub.chat.traced import find_hidden, hidden, joined

Turn = dict[str, Any]

_FIRST_ANCHOR = 0xF0000  # of a plane that is for private use, as far as needed


def without_texts(turns: Sequence[Turn]) -> tuple[list[Turn], dict[str, str]]:
    """The turns with the texts of those that make calls taken out, and these by an anchor hidden in the first call."""
    out: list[Turn] = []
    texts: dict[str, str] = {}
    for turn in turns:
        text = turn["content"].strip() if turn.get("tool_calls") else ""
        if text:
            anchor = chr(_FIRST_ANCHOR + len(texts) % 0xFFFE)
            texts[anchor] = text
            first, *others = turn["tool_calls"]
            function = first["function"] | {"name": joined((hidden(anchor), first["function"]["name"]))}
            out.append(turn | {"content": "", "tool_calls": [first | {"function": function}, *others]})
        else:
            out.append(turn)
    return out, texts


def with_texts(prompt: str, texts: Mapping[str, str], opener: str) -> str | None:
    """`prompt` with each text before the `opener` of the call that has its anchor; None if there is no such place."""
    for anchor, text in texts.items():
        at = find_hidden(prompt, anchor)
        place = prompt.rfind(opener, 0, max(at, 0))
        if place < 0:
            return None
        prompt = joined((prompt[:place], text, prompt[place:]))
    return prompt


def with_results_inside(turns: Sequence[Turn]) -> list[Turn]:
    """The turns with results moved into the turns that called for them, as `tool_responses`."""
    out: list[Turn] = []
    for turn in turns:
        if turn["role"] == "tool" and out and out[-1].get("tool_calls"):
            result = {"name": turn["name"], "response": turn["content"]}
            out[-1] = out[-1] | {"tool_responses": [*out[-1].get("tool_responses", ()), result]}
        else:
            out.append(turn)
    return out
