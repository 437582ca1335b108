"""The sampling that a model is meant to be run with: what its family's record advises, and what its file says.

Model cards advise one set of values for replies that reason first and another for those that do not; a file has room
for one set. So a file that repeats the family's advice for one of the two says nothing about the other.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from math import isclose
from typing import Any

from lmhub.errors import quoted
from lmhub.family import Advice, Family
from lmhub.types import SamplingParams

log = logging.getLogger("lmhub")

_FILE_SAMPLING: dict[str, tuple[str, float, float]] = {  # key -> field of SamplingParams, least, largest
    "temp": ("temperature", 0, 100),
    "top_k": ("top_k", 0, 2**31 - 1),
    "top_p": ("top_p", 0, 1),
    "min_p": ("min_p", 0, 1),
    "penalty_repeat": ("repeat_penalty", 1e-3, 100),
    "penalty_last_n": ("repeat_last_n", -1, 2**31 - 1),
}
_NAMES = ("name", "basename", "finetune", "size_label")

Values = Mapping[str, float]


def default_sampling(family: Family, metadata: Mapping[str, Any]) -> tuple[SamplingParams, SamplingParams]:
    """The sampling of replies that do not reason, and of those that reason first.

    The file's `general.sampling.*` keys go over the family's advice, unless they are what the family advises for the
    other kind of reply. What the file says out of bounds is left out, with a warning: requests can set better values.
    """
    given = _given(metadata)
    names = " ".join(name for key in _NAMES if isinstance(name := metadata.get(f"general.{key}"), str))
    plain, reasoning = (_advised(family, names, reasons) for reasons in (False, True))
    return _params(_chosen(plain, reasoning, given)), _params(_chosen(reasoning, plain, given))


def _given(metadata: Mapping[str, Any]) -> Values:
    values: dict[str, float] = {}
    for key, (name, least, largest) in _FILE_SAMPLING.items():
        value = metadata.get(f"general.sampling.{key}")
        if isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= largest:
            values[name] = value
        elif value is not None:
            said = quoted(value)
            log.warning("general.sampling.%s is %s and not used: it must be from %g to %g", key, said, least, largest)
    return values


def _advised(family: Family, names: str, reasons: bool) -> Values:
    if not isinstance(family.sampling, tuple):
        return family.sampling
    return next((one.values for one in family.sampling if _fits(one, names, reasons)), {})


def _fits(advice: Advice, names: str, reasons: bool) -> bool:
    return advice.reasons in (None, reasons) and re.search(advice.names, names, re.IGNORECASE) is not None


def _chosen(advised: Values, others: Values, given: Values) -> Values:
    return advised if _repeats(given, advised) or _repeats(given, others) else {**advised, **given}


def _repeats(given: Values, advised: Values) -> bool:
    """Whether the file says what is advised; it holds 32-bit numbers."""
    neutral = SamplingParams()
    return all(isclose(value, advised.get(name, getattr(neutral, name)), rel_tol=1e-6) for name, value in given.items())


def _params(values: Values) -> SamplingParams:
    whole = {one.name for one in fields(SamplingParams) if one.type == "int"}
    known: dict[str, Callable[[Any], Any]] = {name: int if name in whole else float for name in values}
    return SamplingParams(**{name: known[name](value) for name, value in values.items()})
