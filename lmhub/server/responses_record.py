"""What the parser of a Responses request leaves for its encoder (`ChatRequest.echo`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lmhub.server.responses_store import Item


@dataclass(frozen=True, slots=True)
class Given:
    """An input item, and its JSON where the store has it already."""

    value: Mapping[str, Any]
    kept: Item | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """`fields` of the response object repeat the request; `input` is all that the model is given, oldest first.

    `namespaces` maps the name that the model calls a tool by to the tool's namespace and its name therein.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    input: tuple[Given, ...] = ()
    store: bool = False
    summarise: bool = False
    encrypt: bool = False  # reasoning items carry `encrypted_content`
    namespaces: Mapping[str, tuple[str, str]] = field(default_factory=dict)
