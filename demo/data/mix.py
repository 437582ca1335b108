"""Whole conversations out of the skills, and in which proportions they are trained."""

from __future__ import annotations

from collections.abc import Callable

import backdrop
import copying
import errands
import facts
import memory
import records
import smalltalk
import sums
import unknown
import weather
from choice import Chooser
from talk import Talk

Skill = Callable[[Talk], object]
_WITH_TOOLS: dict[Skill, float] = {
    sums.sum_asked: 4.5, weather.weather_asked: 2.5, errands.errand_asked: 7.0, smalltalk.small_talk: 1.8, facts.about_lmhub: 1.2, unknown.unknown_asked: 1.2, records.record_asked: 0.5, memory.told: 0.5, copying.said_again: 0.3, copying.looked_up: 0.3,
}  # fmt: skip
_WITHOUT: dict[Skill, float] = {
    smalltalk.small_talk: 3.0, facts.about_lmhub: 5.0, unknown.unknown_asked: 2.2, records.record_asked: 3.2, sums.sum_asked: 1.6, weather.weather_asked: 0.3, memory.told: 1.6, memory.asked_back: 0.4, copying.said_again: 0.8, copying.looked_up: 1.0,
}  # fmt: skip
_LATER: dict[Skill, float] = {memory.asked_back: 3.0, memory.repeated: 0.6}


def conversation(seed: int, *, held_out: bool = False, skill: Skill | None = None, tools: bool | None = None) -> Talk:
    """Conversation number `seed`. The last exchange is one of `skill`, where that is given; `tools` declares some."""
    c = Chooser(f"{'held out' if held_out else 'trained'} {seed}", held_out=held_out)
    talk = Talk(c, thinking=c.chance(0.35))
    if c.chance(0.45) if tools is None else tools:
        backdrop.tool_box(c, talk, c.any((1, 1, 1, 2, 2, 3, 5)))
    if c.chance(0.3):
        talk.system = backdrop.system_prompt(
            c, c.any((10, 10, 10, 10, 10, 60, 120)) if c.chance(0.9) else c.number(200, 1000)
        )
    earlier = c.any((0, 0, 0, 1, 1, 2, 3) if talk.tools else (0, 0, 0, 0, 1, 1, 2, 3))
    for _ in range(earlier):
        _chosen(talk)(talk)
    (skill or _chosen(talk))(talk)
    if c.chance(0.04):
        first = next(turn for turn in talk.turns if turn.role == "user")
        first.text = backdrop.attachment(c) + first.text
    talk.returned = talk.thinking and c.chance(0.5)
    if not talk.returned and not held_out and talk.turns[-2].role == "tool" and c.chance(0.45):
        del talk.turns[-2:]  # a call that has just been made is seen with its reasoning, later without
    return talk


def _chosen(talk: Talk) -> Skill:
    options = dict(_WITH_TOOLS if talk.tools else _WITHOUT)
    if talk.turns:
        options |= _LATER
    if talk.told:
        options[memory.asked_back] += 3.0
    if talk.tools:  # what no tool here is for is asked less often
        options[sums.sum_asked] *= 1.0 if "calculator" in talk.tools else 0.4
        options[weather.weather_asked] *= 1.0 if "weather" in talk.tools else 0.4
        options[errands.errand_asked] *= any(kind in errands.ERRANDS for kind in talk.tools)
    found: Skill = talk.c.random.choices([*options], [*options.values()])[0]
    return found
