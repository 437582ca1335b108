"""What stands before a question and has nothing to do with it: system prompts, short and very long, and other tools."""

from __future__ import annotations

import json
from functools import cache

import errands
import manual
import sums
import weather
import words
from choice import Chooser
from talk import Talk, ToolDef

_SHORT = (
    "You are a helpful assistant.", "You are [a|an] [helpful|friendly|honest|careful|concise] assistant.", "Be [brief|kind|concise|friendly|precise].", "Answer [briefly|shortly|in one sentence|politely].", "You are the assistant of {name}.", "You are an AI assistant for {company}. Be polite.", "Use the tools when they help.", "You have access to tools. Use them when needed.",
    "You are demo, a small model.", "Today is {day}.", "The user is called {name}.", "You are a chatbot on a web page about {x}.", "Assist the user with {x}.", "Think before you answer.", "You answer questions about lmhub.", "You are a coding agent. Working folder: {file}.", "Keep answers under {n} words.", "You talk to customers of {company}.",
    "Extract information and return JSON.", "You are a calculator assistant.", "You are a weather bot.",
)  # fmt: skip
_RULES = (
    "You must [always|never] {verb} the {thing} before the {thing2}.", "When the user asks about {x}, {verb} the {thing} first.", "[Do not|Never|Always] {verb} files in {file} without [asking|a test|a reason].", "IMPORTANT: the {thing} is [only|always|never] for {x}.", "If the {thing} fails, {verb} it again and tell {name}.", "- Use `{cmd}` to {verb} the {thing}.",
    "# {x}", "## Rules for {thing}", "- {name} is responsible for the {thing}.", "Working directory: /home/{w}/{w2}", "Platform: linux", "Today's date: {n}-{n2}", "The {thing} costs {n} and comes from {city}.", "1. {verb} the {thing}\n2. {verb} the {thing2}\n3. stop", "<env>\n{w}={n}\n</env>", "Example: user: {x}? assistant: see {file}.",
    "You are {name}, an agent for software engineering. Help with {x}.", "Prefer short answers; explain the {thing} only when asked.", "Commit messages say why, not what: \"{verb} the {thing}\".",
)  # fmt: skip
_VERBS = "check read write build test move open close count remove update keep clean store load explain restart review sort mention avoid".split()
_COMMANDS = ("make test", "git status", "npm run build", "ls -la", "cargo check", "pytest -q", "go vet", "rg --files")


@cache
def _prose() -> list[str]:
    return manual.prose()


def system_prompt(c: Chooser, tokens: int) -> str:
    """A system prompt of about so many tokens: one line, or rules and pages of other things."""
    if tokens < 40:
        return _filled(c, c.of(_SHORT))
    parts, size = [_filled(c, c.of(_SHORT))], 0
    while size < tokens * 3:
        parts.append(_filled(c, c.of(_RULES)) if c.chance(0.6) else c.of(_prose()))
        size += len(parts[-1])
    return c.any(("\n", "\n\n")).join(parts)[: tokens * 4]


def _filled(c: Chooser, pattern: str) -> str:
    return c.expand(
        pattern, name=words.name(c), company=words.invented(c, 2).capitalize(), day=c.any(words.DAYS), x=words.topic(c), file=words.file_name(c), n=c.number(2, 2000),
        n2=c.number(1, 12), verb=c.any(_VERBS), thing=c.any(words.THINGS), thing2=c.any(words.THINGS), cmd=c.any(_COMMANDS), w=words.invented(c), w2=words.invented(c), city=words.city(c),
    )  # fmt: skip


def _pages_own() -> dict[str, ToolDef]:
    """The tools of the chat page, as lmhub/server/ui/tools.js declares them."""
    sums_ = {"expression": {"type": "string", "description": "For example: (3 + 4) * 12"}}
    city = {"city": {"type": "string", "description": "For example: Lisbon"}}
    about = "Evaluate an arithmetic expression with + - * / ^ % and parentheses."
    return {
        "calculator": ToolDef("expression", "calculator", about, {"expression": "expression"}, sums_, ("expression",)),
        "weather": ToolDef(
            "weather", "weather", "Get the current weather of a city.", {"city": "city"}, city, ("city",)
        ),
    }


def tool_box(c: Chooser, talk: Talk, most: int) -> None:
    """Declare between one and `most` tools, in any order, some with much to read."""
    chosen: dict[str, ToolDef] = {}
    if not c.held_out and c.chance(0.06):
        talk.tools = _pages_own()
        talk.declared = [tool.declared(c) for tool in talk.tools.values()]
        return None
    if c.chance(0.5):
        chosen["calculator"] = sums.calculator(c) if c.chance(0.8) else sums.adder(c)
    if c.chance(0.45):
        chosen["weather"] = weather.weather_tool(c)
    for kind in c.some(list(errands.ERRANDS), 0 if chosen else 1, most):
        chosen[kind] = errands.errand_tool(c, kind)
    if len({tool.name for tool in chosen.values()}) < len(chosen):
        return tool_box(c, talk, most)
    kinds = list(chosen)
    c.random.shuffle(kinds)
    talk.tools = {kind: chosen[kind] for kind in kinds}
    talk.declared = [tool.declared(c) for tool in talk.tools.values()]
    if c.chance(0.08):  # as coding agents describe their tools
        one = c.any(talk.declared)["function"]
        if "description" in one:
            one["description"] += "\n" + system_prompt(c, c.number(50, 150))
    return None


def attachment(c: Chooser) -> str:
    """What agents put in front of a user's words."""
    kind = c.any(("system-reminder", "context", "environment", "file"))
    body = (
        system_prompt(c, c.number(40, 120))
        if c.chance(0.7)
        else json.dumps({words.invented(c): words.invented(c) for _ in range(4)})
    )
    return f"<{kind}>\n{body}\n</{kind}>\n"
