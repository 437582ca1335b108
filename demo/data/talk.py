"""A conversation while it is being written: its tools, its turns, what the user has told. Skills add exchanges to it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from choice import Chooser


@dataclass(frozen=True, slots=True)
class ToolDef:
    """A declared tool: what it is for (`kind`), and its parameters by the meaning that the skill gives them."""

    kind: str
    name: str
    description: str
    names: dict[str, str]  # meaning -> name of the parameter
    properties: dict[str, Any]
    required: tuple[str, ...]

    def declared(self, c: Chooser) -> dict[str, Any]:
        """As OpenAI's clients declare it."""
        parameters: dict[str, Any] = {"type": "object", "properties": self.properties, "required": list(self.required)}
        if c.chance(0.25):
            parameters["additionalProperties"] = False
        function: dict[str, Any] = {"name": self.name}
        if self.description:
            function["description"] = self.description
        return {"type": "function", "function": function | {"parameters": parameters}}


@dataclass(slots=True)
class Turn:
    """One message. `calls` are (name, arguments) of an assistant; `think` is what it reasons first."""

    role: str
    text: str = ""
    calls: Sequence[tuple[str, dict[str, Any]]] = ()
    think: str = ""


@dataclass(slots=True)
class Talk:
    """Everything that is rendered, and the memory that skills share. `skill` names that of the last exchange.

    `returned`: the client sends the reasoning of a call back with its result, as few do.
    """

    c: Chooser
    thinking: bool
    system: str = ""
    tools: dict[str, ToolDef] = field(default_factory=dict)
    declared: list[dict[str, Any]] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    told: dict[str, str] = field(default_factory=dict)
    skill: str = ""
    returned: bool = False

    def user(self, text: str) -> None:
        """The user says something."""
        self.turns.append(Turn("user", text))

    def answer(self, text: str, think: str) -> None:
        """The assistant answers in words."""
        self.turns.append(Turn("assistant", text, think=think))

    def call(self, tool: ToolDef, arguments: dict[str, Any], think: str) -> None:
        """The assistant calls a tool; arguments by meaning."""
        named = {tool.names[meaning]: value for meaning, value in arguments.items()}
        self.turns.append(Turn("assistant", calls=[(tool.name, named)], think=think))

    def result(self, text: object) -> None:
        """What a tool gave."""
        self.turns.append(Turn("tool", text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)))
