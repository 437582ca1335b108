"""Request fields that switch reasoning on and off and bound it. Knows no dialect."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from lmhub.errors import RequestError
from lmhub.server.fields import honoured
from lmhub.server.grammar_fields import GrammarFields

EFFORTS = {"none": False, "minimal": False} | dict.fromkeys(("low", "medium", "high", "xhigh", "max", "default"), True)

Budget = Annotated[int, Meta(ge=-1)]


class ReasoningFields(GrammarFields, kw_only=True):
    """A part of a request body, together with sampling and constraints (records of one body can only form a chain)."""

    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    think: bool | None = None
    reasoning_budget: Budget | None = None
    thinking_budget_tokens: Budget | None = None


REASONING_TABLE = (
    honoured("chat_template_kwargs", "variables of the template; `enable_thinking` beats the effort"),
    honoured("enable_thinking", "switches reasoning on or off"),
    honoured("think", "another name of `enable_thinking`, which wins"),
    honoured("reasoning_budget", "tokens after which the reasoning is closed; 0 switches it off; -1 is no limit"),
    honoured("thinking_budget_tokens", "another name of `reasoning_budget`, which wins"),
)


def reasoning(fields: ReasoningFields, effort: str | None, param: str) -> bool | None:
    """Whether the model is to reason first; None leaves it to the template. The explicit switches beat the effort.

    `param` is the field that holds `effort`. Raises RequestError.
    """
    if effort is not None and effort not in EFFORTS:
        raise RequestError(f"{param} must be one of {', '.join(EFFORTS)}, not {effort[:100]!r}", param)
    in_template = (fields.chat_template_kwargs or {}).get("enable_thinking")
    if in_template is not None and not isinstance(in_template, bool):
        raise RequestError("chat_template_kwargs.enable_thinking must be true or false", "chat_template_kwargs")
    if reasoning_budget(fields) == 0:
        return False
    for switch in (in_template, fields.enable_thinking, fields.think):
        if switch is not None:
            return switch
    return None if effort is None else EFFORTS[effort]


def template_kwargs(fields: ReasoningFields, effort: str | None = None) -> dict[str, Any]:
    """What else the template is given. Some templates know degrees of effort, under the name `reasoning_effort`."""
    kwargs = {name: value for name, value in (fields.chat_template_kwargs or {}).items() if name != "enable_thinking"}
    if effort not in (None, "default") and EFFORTS[effort]:
        kwargs.setdefault("reasoning_effort", effort)
    return kwargs


def reasoning_budget(fields: ReasoningFields) -> int | None:
    """Tokens after which the reasoning is closed; -1 is the same as none given."""
    budget = fields.thinking_budget_tokens if fields.reasoning_budget is None else fields.reasoning_budget
    return None if budget == -1 else budget
