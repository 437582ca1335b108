"""The text of a tool call region: JSON objects or XML functions, told apart by the first letter.

Models that were trained on one of the two write the other now and then, so both are read whatever the model's style is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from lmhub.chat import hermes, xml_calls
from lmhub.types import Tool


def parse_calls(text: str, tools: Sequence[Tool] = (), cut: bool = False) -> Sequence[tuple[str, str]] | None:
    """The calls between two markers as (name, JSON text of the arguments) pairs; None if there are none. Never raises.

    `tools` give the types of XML values. `cut`: the reply was cut off, so that nothing missing may be added.
    """
    if text.lstrip().startswith("<"):
        return xml_calls.parse_calls(text, tools, cut)
    return hermes.parse_calls(text, cut=cut)


def raw_input(arguments: str) -> str:
    """The text that a custom tool was given: the argument `input`, or the only one, or else all of them as they are."""
    try:
        members = json.loads(arguments)
    except ValueError:
        return arguments
    values = [members["input"]] if "input" in members else list(members.values())
    return values[0] if len(values) == 1 and isinstance(values[0], str) else arguments
