"""Asks the demo model what it was never trained on, through lmhub itself, greedily: python demo/evaluate.py [demo]

Every question is drawn from the wordings, names and places that were kept out of the training, and counts as right only
if the whole reply is: the call with its arguments, then the sentence after the result. MODEL_CARD.md says where more
than one reply is right; --card writes the table into it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "data"))

import copying
import errands
import facts
import lmhub
import memory
import records
import smalltalk
import sums
import unknown
import unseen
import weather
from choice import Chooser
from lmhub.api import Model, Reply
from mix import Skill, conversation
from talk import Talk

CARD = Path(__file__).with_name("MODEL_CARD.md")
MARKS = "<!-- evaluation -->\n", "<!-- end of evaluation -->"
Message = dict[str, Any]
_BUDGET = 160  # tokens of a reply
_TRIES = 100_000


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: which conversations are asked, and what of a reply counts."""

    name: str
    skill: Skill
    tools: bool | None = None
    thinking: bool = False
    fits: Callable[[Talk], bool] = lambda talk: True
    schema: bool = False
    bare: bool = False  # the question alone: nothing before it


def called(talk: Talk) -> bool:
    """Whether the last question needs a tool."""
    return bool(talk.turns[-2].role == "tool")


def short(talk: Talk) -> bool:
    """Whether nothing long stands before the question."""
    return len(talk.system) < 200


ROWS = (
    Row("small talk", smalltalk.small_talk, False, fits=short),
    Row("small talk, tools declared", smalltalk.small_talk, True, fits=short),
    Row("small talk behind a long system prompt", smalltalk.small_talk, fits=lambda talk: len(talk.system) > 1200),
    Row("questions about lmhub", facts.about_lmhub, False, fits=short),
    Row("calculator: call and sentence", sums.sum_asked, True, fits=called),
    Row("calculator, with reasoning", sums.sum_asked, True, True, fits=called),
    Row("sums without a tool", sums.sum_asked, False, fits=short),
    Row("weather: call and sentence", weather.weather_asked, True, fits=called),
    Row("other tools: call and sentence", errands.errand_asked, True, fits=called),
    Row("other tools behind a long system prompt", errands.errand_asked, True, fits=lambda t: len(t.system) > 1200),
    Row("JSON record", records.record_asked, False, fits=short),
    Row("JSON record held to a schema", records.record_asked, False, fits=short, schema=True),
    Row("remembers what was said", memory.asked_back, False, fits=lambda talk: bool(talk.told)),
    Row("says that it does not know", unknown.unknown_asked, False, fits=short),
    Row("says the same words, looks up in a list", copying.copied, False, fits=short),
    Row("small talk in other words", unseen.small_talk, bare=True),
    Row("questions about lmhub in other words", unseen.about_lmhub, bare=True),
    Row("questions about the world in other words", unseen.beyond, bare=True),
)  # fmt: skip


def talks(row: Row, n: int) -> Iterator[Talk]:
    """The first `n` held-out conversations of a row."""
    found = 0
    for seed in range(_TRIES):
        if row.tools and row.skill is errands.errand_asked and not _has_errand(seed):
            continue
        if row.bare:
            talk = Talk(Chooser(f"bare {seed}", held_out=True), thinking=False)
            row.skill(talk)
        else:
            talk = conversation(seed, held_out=True, skill=row.skill, tools=row.tools)
        if row.fits(talk):
            talk.thinking = row.thinking
            yield talk
            found += 1
            if found == n:
                return


def _has_errand(seed: int) -> bool:
    talk = conversation(seed, held_out=True, skill=smalltalk.small_talk, tools=True)
    return any(kind in errands.ERRANDS for kind in talk.tools)


def asked(model: Model, messages: list[Message], talk: Talk, schema: Any = None) -> Reply:
    """The model's likeliest reply."""
    return model.chat(
        messages, tools=talk.declared, reasoning=talk.thinking, temperature=0, max_tokens=_BUDGET, json_schema=schema
    )


def is_right(model: Model, talk: Talk, row: Row) -> tuple[bool, str]:
    """Ask the last question; every step of the answer must be right. Returns what the model wrote as well."""
    messages, last = history(talk)
    wrote = []
    for turn in talk.turns[last:]:
        if turn.role != "assistant":
            messages.append(_message(turn, messages))
            continue
        schema = _schema(turn.text) if row.schema else None
        reply = asked(model, messages, talk, schema)
        calls = [(call.name, json.loads(call.arguments)) for call in reply.tool_calls]
        wrote.append(reply.text or str(calls))
        right = calls == list(turn.calls) and (not turn.text or _same(row, reply.text.strip(), turn.text, talk))
        if not right or bool(reply.reasoning) != talk.thinking:
            return False, f"{' / '.join(wrote)}  WANTED {turn.text or turn.calls}"
        messages.append(_message(turn, messages))
    return True, " / ".join(wrote)


def _same(row: Row, said: str, wanted: str, talk: Talk) -> bool:
    if said == wanted:
        return True
    if row.skill in (smalltalk.small_talk, unseen.small_talk):  # any of the answers to that kind of remark
        return any(said in answers and wanted in answers for _, answers, _ in smalltalk.INTENTS.values())
    if row.skill is sums.sum_asked:
        return said.replace(" = ", " is ") == wanted.replace(" = ", " is ")
    if row.skill is records.record_asked:
        try:
            told, meant = json.loads(said), json.loads(wanted)
            if any(key not in _question(talk) for key in meant):  # no names were asked for: the usual ones are right
                return records.meant(told) == records.meant(meant)
            return bool(told == meant)
        except (ValueError, AttributeError, TypeError):
            return False
    return False


def _question(talk: Talk) -> str:
    return next(turn.text for turn in reversed(talk.turns) if turn.role == "user")


def _schema(text: str) -> dict[str, Any]:
    record = json.loads(text)
    kinds = {key: {"type": "integer" if isinstance(value, int) else "string"} for key, value in record.items()}
    return {"type": "object", "properties": kinds, "required": list(record), "additionalProperties": False}


def history(talk: Talk) -> tuple[list[Message], int]:
    """The messages up to the last question, and the place of the turn behind it."""
    messages: list[Message] = [{"role": "system", "content": talk.system}] if talk.system else []
    last = max(at for at, turn in enumerate(talk.turns) if turn.role == "user")
    for turn in talk.turns[: last + 1]:
        messages.append(_message(turn, messages))
    return messages, last + 1


def _message(turn: Any, before: list[Message]) -> Message:
    if turn.role == "tool":
        return {"role": "tool", "tool_call_id": before[-1]["tool_calls"][0]["id"], "content": turn.text}
    message: Message = {"role": turn.role, "content": turn.text}
    if turn.calls:
        message["tool_calls"] = [
            {"id": f"call{len(before)}", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for name, arguments in turn.calls
        ]
    return message


def trained(folder: Path, model: str) -> Iterator[str]:
    """What the log of a training and its file say of it."""
    last = json.loads((folder / "log.jsonl").read_text().splitlines()[-1])
    with lmhub.Hub().open(model) as file:
        n_bytes, n_params = file.nbytes, file.facts().n_params
    minutes, processor = last["seconds"] / 60, last["cpu_seconds"] / 60
    yield f"The file has {n_bytes:,} bytes and {n_params:,} parameters. The last run of its training took"
    yield f"{last['step']:,} steps, {minutes:.0f} minutes, and {processor:.0f} minutes of processor time in each"
    yield f"process; the loss of the assistant's tokens was {last['loss']:.3f} nats at its end."


def main() -> None:
    """Parse the command line, ask, and print the table."""
    parser = argparse.ArgumentParser(description="Evaluate the demo model on held-out questions.")
    parser.add_argument("model", nargs="?", default="demo", help="a GGUF file, or the shipped one")
    parser.add_argument("-n", type=int, default=100, help="questions of each row")
    parser.add_argument("--wrong", type=int, default=0, help="show so many wrong replies of each row")
    parser.add_argument(
        "--card", type=Path, metavar="DIR", help="write the table and the figures of the training in DIR"
    )
    options = parser.parse_args()
    lines = ["| skill | right |", "|---|---|"]
    with lmhub.open(options.model, ctx=4096) as model:
        for row in ROWS:
            results = [(talk, *is_right(model, talk, row)) for talk in talks(row, options.n)]
            lines.append(f"| {row.name} | {sum(right for _, right, _ in results)} of {len(results)} |")
            print(lines[-1], flush=True)
            for talk, _, wrote in [one for one in results if not one[1]][: options.wrong]:
                print(f"    {_question(talk)!r} -> {wrote}")
    if options.card:
        head, _, rest = CARD.read_text().partition(MARKS[0])
        told = "\n".join((*lines, "", *trained(options.card, options.model)))
        CARD.write_text(f"{head}{MARKS[0]}\n{told}\n\n{MARKS[1]}{rest.partition(MARKS[1])[2]}")


if __name__ == "__main__":
    main()
