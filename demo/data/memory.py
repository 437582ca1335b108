"""What was said earlier: names and likings that the user told, the last question, the last answer."""

from __future__ import annotations

from collections.abc import Callable

import words
from choice import Chooser
from talk import Talk

# what -> (its value, how it is told, what is answered, how it is asked for, the answer, the answer if it was never told)
TOLD: dict[str, tuple[Callable[[Chooser], str], tuple[str, ...], str, tuple[str, ...], str, str]] = {
    "name": (words.name,
        ("[my name is|I am|I'm|I am called|call me|this is] {x}[.|!|]", "[hi|hello|hey], [my name is|I am|I'm|this is] {x}[.|!|]", "[you can|please] call me {x}[.|]", "[hi|hello], {x} here[.|]", "my name's {x}[.|, nice to meet you|]", "{x} is my name[.|]", "[remember|note]: my name is {x}[.|]", "the name is {x}[.|]"),
        "Nice to meet you, {x}!", ("what is my name[?|]", "what's my name[?|]", "[do you remember|do you know|can you tell me|tell me] my name[?|]", "who am I[?|]", "how am I called[?|]", "[say|tell me] my name[.|]", "do you [still|] [remember|know] [who I am|me|what I am called][?|]", "and my name[?|]"),
        "Your name is {x}.", "You have not told me your name."),
    "city": (words.city,
        ("I live in {x}[.|]", "[I am|I'm] from {x}[.|]", "my home is {x}[.|]", "I am [in|staying in] {x}[| now| at the moment][.|]", "[my city|my town] is {x}[.|]", "I [moved|came] to {x}[.|]", "I work in {x}[.|]"),
        "{x}, I will remember that.", ("where do I live[?|]", "[which|what] city [am I in|do I live in|is my home][?|]", "where am I from[?|]", "do you remember where I live[?|]", "what is my [city|town|home][?|]", "tell me where I live[.|]", "where am I[?|]"),
        "You told me {x}.", "You have not told me where you live."),
    "color": (lambda c: words.one_of(c, words.COLORS),
        ("my [favourite|favorite] [color|colour] is {x}[.|]", "I like [the color|the colour|] {x}[.|]", "{x} is my [favourite|favorite] [color|colour][.|]", "my [car|house|bike|door] is {x}[.|]", "the [colour|color] that I like [best|most] is {x}[.|]", "I love {x}, it is a [great|nice] [color|colour][.|]", "[remember|note]: my color is {x}[.|]"),
        "{x}, I will remember that.", ("what is my [favourite|favorite] [color|colour][?|]", "[which|what] [color|colour] do I like[?|]", "do you remember my [color|colour][?|]", "what's my [favourite|favorite] [color|colour][?|]", "my [favourite|] [color|colour][?|]", "tell me my [color|colour][.|]", "[which|what] [color|colour] did I [say|tell you|mention][?|]"),
        "You told me {x}.", "You have not told me a color."),
    "pet": (words.name,
        ("my [dog|cat|parrot|pet|hamster] is [called|named] {x}[.|]", "I have a [dog|cat|rabbit|pet] [called|named] {x}[.|]", "the name of my [dog|cat|pet|horse] is {x}[.|]", "my [dog|cat|pet]'s name is {x}[.|]", "{x} is my [dog|cat|pet][.|]", "we have a [dog|cat|pet], {x}[.|]", "I got a new [pet|cat|dog], {x}[.|]"),
        "{x} is a fine name for a pet.", ("what is my [pet|dog|cat] called[?|]", "what is my [pet|dog|cat]'s name[?|]", "[do you remember|do you know] my [pet|dog|cat][?|]", "what did I call my [pet|dog|cat][?|]", "the name of my [pet|dog|cat][?|]", "who is my [pet|dog|cat][?|]", "what's my [pet|dog|cat] named[?|]"),
        "Your pet is called {x}.", "You have not told me of a pet."),
    "number": (lambda c: str(c.number(2, 9999)),
        ("my [lucky|favourite|secret|] number is {x}[.|]", "remember the number {x}[.|]", "[the|my] [code|pin|number] is {x}[.|]", "{x} is my [lucky|favourite] number[.|]", "[remember|note]: {x}[.|]", "keep the number {x} in mind[.|]", "I am thinking of [the number|] {x}[.|]"),
        "{x}, I will remember that.", ("what is my [lucky|favourite|secret|] number[?|]", "[which|what] number [did I tell you|was it|should you remember|did I say][?|]", "do you remember [the|my] number[?|]", "what was the [number|code|pin][?|]", "what's [my|the] number[?|]", "the number[?|]", "tell me [my|the] number[.|]"),
        "The number is {x}.", "You have not told me a number."),
}  # fmt: skip
_REPEAT = ("[repeat|say] that[| again][, please|.|]", "[can you|could you|please] repeat that[?|, please|]", "say [it|that] again[.|]", "what did you [just|] say[?|]", "once more[.|]", "again[, please|?|]", "I did not [hear|catch] that[.|]", "[pardon|come again|sorry, what did you say][?|]")  # fmt: skip
_LAST = ("what did I [just|] [ask|say][?|]", "what was my [last|] [question|message][?|]", "repeat my [question|last message][.|]", "[do you remember|what is] what I [asked|said][?|]", "what did I [ask|tell] you[?|]", "quote my last message[.|]", "my last [question|message][?|]")  # fmt: skip


def told(talk: Talk) -> None:
    """The user tells something."""
    c = talk.c
    what = c.any(("name", "name", "name", *TOLD))
    value, tells, answer, *_ = TOLD[what]
    said = value(c)
    if c.chance(0.1):
        said = said.lower()
    talk.user(c.asked(tells, x=said))
    talk.told[what] = said
    talk.answer(answer.format(x=said), f"The user tells me: {what} {said}.")
    talk.skill = "memory"


def asked_back(talk: Talk) -> None:
    """The user asks for what was told, or for what never was."""
    c = talk.c
    what = c.any(sorted(talk.told)) if talk.told and c.chance(0.85) else c.any(sorted(TOLD))
    _, _, _, asks, answer, unknown = TOLD[what]
    talk.user(c.asked(asks))
    if what in talk.told:
        talk.answer(answer.format(x=talk.told[what]), f"The user told me: {what} {talk.told[what]}.")
    else:
        talk.answer(unknown, f"The user has told me no {what}.")
    talk.skill = "memory"


def repeated(talk: Talk) -> None:
    """The user wants the last answer, or their own last message, again."""
    c = talk.c
    answers = [turn.text for turn in talk.turns if turn.role == "assistant"]
    said = [turn.text for turn in talk.turns if turn.role == "user"]
    if not said or not answers[-1] or len(answers[-1]) > 120 or len(said[-1]) > 90 or "\n" in said[-1] + answers[-1]:
        return told(talk)
    talk.skill = "memory"
    if c.chance(0.5):
        talk.user(c.asked(_REPEAT))
        return talk.answer(answers[-1], "The user wants my last answer again.")
    talk.user(c.asked(_LAST))
    return talk.answer(f'You said: "{said[-1]}"', "The user wants their own last message.")
