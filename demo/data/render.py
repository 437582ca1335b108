"""A conversation as the pieces of training text: what is markup, what is text, what the model is to learn.

Writes what template.jinja writes, in plain Python because there are many conversations; a test compares the two.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from talk import Talk, Turn

_TOOLS = "# Tools\n\nThese functions can be called:\n"
_CALL = '\n\nA call looks like this:\n<tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call>'


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of text. `markup`: control tokens in it count; `learnt`: the model is trained to write it.

    `headless`: all of it but the first token.
    """

    text: str
    markup: bool = False
    learnt: bool = False
    headless: bool = False


def pieces(talk: Talk) -> list[Piece]:
    """The whole conversation. The model learns the last answer, and the tails of earlier ones.

    The heads of earlier answers are left out because there the template has removed the reasoning or its absence.
    """
    out: list[Piece] = []
    if talk.declared:
        text = f"{talk.system}\n\n" if talk.system else ""
        out += [Piece("<|im_start|>system\n", True), Piece(text)] if text else [Piece("<|im_start|>system\n", True)]
        out.append(Piece(f"{_TOOLS}<tools>", True))
        for tool in talk.declared:
            out += [Piece("\n", True), Piece(json.dumps(tool, ensure_ascii=False))]
        out.append(Piece(f"\n</tools>{_CALL}<|im_end|>\n", True))
    elif talk.system:
        out += [Piece("<|im_start|>system\n", True), Piece(talk.system), Piece("<|im_end|>\n", True)]
    last = max(at for at, turn in enumerate(talk.turns) if turn.role == "user")
    for at, turn in enumerate(talk.turns):
        if turn.role == "assistant":
            newest = at == len(talk.turns) - 1
            out += _assistant(talk, turn, now=newest or (at > last and talk.returned))
        elif turn.role == "tool":
            first = talk.turns[at - 1].role != "tool"
            out += [Piece("<|im_start|>user\n<tool_response>\n" if first else "\n<tool_response>\n", True)]
            out += [Piece(turn.text), Piece("\n</tool_response>", True)]
            if at + 1 == len(talk.turns) or talk.turns[at + 1].role != "tool":
                out.append(Piece("<|im_end|>\n", True))
        else:
            out += [Piece("<|im_start|>user\n", True), Piece(turn.text), Piece("<|im_end|>\n", True)]
    return out


def _assistant(talk: Talk, turn: Turn, *, now: bool) -> list[Piece]:
    out = [Piece("<|im_start|>assistant\n", True)]
    if now and talk.thinking:
        out += [Piece("<think>\n", True, True), Piece(turn.think, False, True), Piece("\n</think>\n\n", True, True)]
    elif now:
        out.append(Piece("<think>\n\n</think>\n\n", True))
    if turn.text:
        out.append(Piece(turn.text, False, True, headless=not now))
    for number, (name, arguments) in enumerate(turn.calls):
        gap = "\n" if turn.text or number else ""
        out += [
            Piece(f"{gap}<tool_call>\n", True, now),
            Piece(f'{{"name": "{name}", "arguments": {json.dumps(arguments, ensure_ascii=False)}}}', False, True),
            Piece("\n</tool_call>", True, True),
        ]
    return [*out, Piece("<|im_end|>", True, True), Piece("\n", True)]
