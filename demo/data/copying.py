"""Saying after the user, and finding a value in what the user pasted: the plainest uses of what was just read."""

from __future__ import annotations

import json

import words
from choice import Chooser
from talk import Talk

_SAY = (
    "[say|repeat|echo|write|copy|print] {x}", "[say|repeat|echo|write|copy|print]: {x}", "[please|can you|could you] [say|repeat|write] {x}", "[repeat|say] after me: {x}", "say [exactly|only|just] {x}", "[reply|answer] with {x}", "[repeat|copy] [this|these words|the following]: {x}", "[say|repeat|write] \"{x}\"", "the word is {x}, [repeat|say] it[.|]",
)  # fmt: skip
_FIND = (
    "[what is|what's|give me|tell me|find] {key}[?|]", "[what is|which is] the value of {key}[?|]", "value of {key}[?|]", "{key}[?|]", "[look up|read] {key}[.|]", "and {key}[?|]", "[what does|what do I have for] {key} [say|here][?|]", "[which|what] value [does {key} have|belongs to {key}|has {key}][?|]",
)  # fmt: skip


def said_again(talk: Talk) -> None:
    """The user dictates, the answer is the same words."""
    c = talk.c
    talk.skill = "copying"
    said = words.phrase(c) if c.chance(0.3) else " ".join(_item(c) for _ in range(c.any((1, 1, 2, 2, 3, 4, 6, 9))))
    if c.chance(0.1):
        said = said.replace(" ", ", ")
    talk.user(c.asked(_SAY, x=said))
    talk.answer(said, "I say the same words.")


def looked_up(talk: Talk) -> None:
    """A short list of keys and values, and questions for some of them."""
    c = talk.c
    talk.skill = "copying"
    table: dict[str, str | int] = {}
    for _ in range(c.number(2, 6)):
        table[_item(c)] = c.number(0, 9999) if c.chance(0.3) else _item(c)
    style, sign = c.number(0, 2), c.any((": ", " = ", " is ", " -> "))
    shown = (
        json.dumps(table) if style == 0 else (", " if style == 1 else "\n").join(f"{k}{sign}{table[k]}" for k in table)
    )
    for nth, key in enumerate(c.some(list(table), 1, 3)):
        question = c.asked(_FIND, key=key)
        talk.user(
            question if nth else c.any((f"{shown}\n{question}", f"{question}\n{shown}", f"{shown}\n\n{question}"))
        )
        talk.answer(f"{key}: {table[key]}", f"I look for {key}.")


def copied(talk: Talk) -> None:
    """One of both."""
    talk.c.any((said_again, looked_up))(talk)


def _item(c: Chooser) -> str:
    kind = c.number(0, 9)
    if kind < 4:
        return words.invented(c)
    if kind < 6:
        return words.name(c)
    if kind < 7:
        return str(c.number(0, 99999))
    if kind < 8:
        return c.of(words.THINGS)
    if kind < 9:
        return f"{words.invented(c)}{c.any('_-./:')}{words.invented(c)}"
    return words.invented(c, 2).upper() if c.chance(0.5) else words.file_name(c)
