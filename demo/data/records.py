"""JSON records from sentences. Without a word about keys, the order is free: a response format then decides it."""

from __future__ import annotations

import json
from collections.abc import Callable

import words
from choice import Chooser
from talk import Talk

Value = Callable[[Chooser], object]

# field -> its value, and the names under which it may be wanted
PERSON: dict[str, tuple[Value, str]] = {
    "name": (lambda c: words.name(c) if c.chance(0.6) else words.full_name(c), "name full_name person"),
    "age": (lambda c: c.number(2, 99), "age years age_years"),
    "city": (words.city, "city town home place residence location"),
    "job": (lambda c: words.one_of(c, words.JOBS), "job profession occupation work"),
    "country": (lambda c: words.one_of(c, words.COUNTRIES), "country nation from"),
    "email": (words.email, "email mail contact email_address"),
    "hobby": (lambda c: words.one_of(c, words.HOBBIES), "hobby interest likes pastime"),
    "pet": (lambda c: words.one_of(c, words.ANIMALS), "pet animal"),
    "company": (lambda c: words.invented(c, 2).capitalize(), "company employer firm organisation"),
}
_PERSON_SAID = {
    "age": ("is {age}", "is {age} years old", "has turned {age}"),
    "city": ("lives in {city}", "is from {city}", "comes from {city}"),
    "job": ("works as a {job}", "is a {job}", "is a {job} by trade"),
    "country": ("was born in {country}", "grew up in {country}"),
    "email": ("can be reached at {email}", "has the address {email}", "uses {email}"),
    "hobby": ("likes {hobby}", "loves {hobby}", "enjoys {hobby}"),
    "pet": ("has a {pet}", "owns a {pet}"),
    "company": ("works at {company}", "is employed by {company}"),
}
THING: dict[str, tuple[Value, str]] = {
    "product": (lambda c: words.one_of(c, words.THINGS), "product item name article"),
    "color": (lambda c: words.one_of(c, words.COLORS), "color colour"),
    "price": (lambda c: c.number(1, 900), "price cost amount"),
    "weight": (lambda c: c.number(1, 90), "weight weight_kg kg mass"),
    "quantity": (lambda c: c.number(2, 60), "quantity count amount number"),
}
MEETING: dict[str, tuple[Value, str]] = {
    "person": (words.name, "person with name attendee who"),
    "day": (lambda c: c.of(words.DAYS), "day weekday date when"),
    "time": (words.clock, "time start at hour"),
    "place": (lambda c: c.any((words.city(c), f"room {c.number(1, 99)}")), "place location where room"),
}
_SHARED = {"person": "name", "product": "name", "place": "city"}  # one usual name stands for either of two fields
_VAGUE = (
    "[give me|make|return|write] [a|the] JSON [record|object][|.|, please]", "[as|in|to] JSON[|.|, please]", "[extract|get] the [person|data|record|fields|information][| as JSON][|.]", "[turn|convert|put] [this|that|it] into JSON[|.]", "JSON[|:|, please]", "[Extract|Parse] [this|it][|.]", "[fill in|fill|make] the record[|.]",
    "[return|answer|reply] [with|in] JSON[| only][|.]",
)  # fmt: skip
_WANTED = (
    "[give me|make|return|write] [a|] JSON [record|object|] with {keys}[|.]", "[extract|get] {keys} as JSON[|.]", "[as|in] JSON with the [keys|fields] {keys}[|.]", "JSON with {keys}[|, please|.]", "[extract|return|find] {keys}[|.]", "[turn|convert|put] [this|that] into JSON with {keys}[|.]", "[Fields|Keys]: {keys}[|.]",
    "[I need|I want] {keys} as JSON[|.]",
)  # fmt: skip


def record_asked(talk: Talk) -> None:
    """A sentence with facts, and the record of them."""
    c = talk.c
    talk.skill = "records"
    kind = c.any(("person", "person", "person", "thing", "meeting"))
    fields = {"person": PERSON, "thing": THING, "meeting": MEETING}[kind]
    first = {"person": "name", "thing": "product", "meeting": "person"}[kind]
    chosen = [first, *c.some([one for one in fields if one != first], 1, 4 if kind == "person" else 3)]
    if {"color", "price", "quantity"} <= set(chosen) and kind == "thing":
        chosen.remove("quantity")
    values = {field: fields[field][0](c) for field in chosen}
    sentence = {"person": _person, "thing": _thing, "meeting": _meeting}[kind](c, values)
    named = c.chance(0.6)
    keys = chosen.copy()
    if named:
        keys = c.some(chosen, min(2, len(chosen)), len(chosen))
    elif c.chance(0.3):
        c.random.shuffle(keys)
    names = {field: c.of(fields[field][1].split()) if c.chance(0.5 if named else 0.25) else field for field in keys}
    if len(set(names.values())) < len(names):
        names = {field: field for field in keys}
    shown = [names[field] for field in keys]
    listed = c.any(
        (
            ", ".join(shown),
            " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1]))),
            ", ".join(f'"{one}"' for one in shown),
        )
    )
    ask = c.asked(_WANTED, keys=listed) if named else c.asked(_VAGUE)
    talk.user(
        c.any((f"{sentence} {ask}", f"{ask.rstrip('.')}: {sentence}", f"{sentence}\n{ask}", f"{ask}\n\n{sentence}"))
    )
    record = {names[field]: values[field] for field in keys}
    talk.answer(json.dumps(record, ensure_ascii=False), f"The record has {', '.join(shown)}.")


def meant(record: dict[str, object]) -> list[tuple[str, object]]:
    """The record under the usual names of its fields: what is right where the question names none."""
    usual = {
        name: _SHARED.get(field, field)
        for one in (MEETING, THING, PERSON)
        for field in one
        for name in one[field][1].split()
    }
    return sorted((usual.get(key, key), value) for key, value in record.items())


def _person(c: Chooser, values: dict[str, object]) -> str:
    rest = [one for one in values if one != "name"]
    c.random.shuffle(rest)
    parts = [c.any(_PERSON_SAID[one]).format(**values) for one in rest]
    style = c.number(0, 3)
    if style == 0 and "age" in values and "city" in values and len(values) == 3:
        return f"{values['name']}, {values['age']}, {c.any(('lives in', 'from'))} {values['city']}."
    if style == 1 and len(parts) > 1:
        return f"{values['name']} {parts[0]}. {c.any(('She', 'He', 'They also'))} {' and '.join(parts[1:])}."
    return f"{values['name']} {', '.join(parts[:-1]) + ' and ' if len(parts) > 1 else ''}{parts[-1]}."


def _thing(c: Chooser, values: dict[str, object]) -> str:
    thing = " ".join(str(values[one]) for one in ("quantity", "color", "product") if one in values)
    money = c.any(("euros", "dollars", "EUR"))
    more = [f"costs {values['price']} {money}"] if "price" in values else []
    more += [f"weighs {values['weight']} kg"] if "weight" in values else []
    if not more:
        return c.any((f"I would like {thing}.", f"Please send {thing}.", f"Order: {thing}."))
    return f"The {thing} {' and '.join(more)}."


def _meeting(c: Chooser, values: dict[str, object]) -> str:
    day = f" on {values['day']}" if "day" in values else ""
    time = f" at {values['time']}" if "time" in values else ""
    place = f" in {values['place']}" if "place" in values else ""
    return c.any(
        (
            f"Meeting with {values['person']}{day}{time}{place}.",
            f"I meet {values['person']}{day}{time}{place}.",
            f"Let us see {values['person']}{place}{day}{time}.",
        )
    )
