"""What replies tell beyond their dialects: the member `lmhub`. Knows no dialect: each has its own place for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lmhub.types import Finish


def extension(finishes: Iterable[Finish]) -> dict[str, Any]:
    """`{"lmhub": {...}}` of a reply whose choices ended so, or nothing.

    Choices of one request begin together, so that the one with the most steps has those of all.
    """
    told = [finish.experts for finish in finishes if finish.experts is not None]
    if not told:
        return {}
    most = max(told, key=lambda one: one.used)
    rate = most.hits / most.used if most.used else None
    return {"lmhub": {"experts": {"used": most.used, "hits": most.hits, "hit_rate": rate, "read_bytes": most.read}}}
