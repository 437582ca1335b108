"""Which checkpoints of a sequence are kept where there are too many. Knows no states and no files."""

from __future__ import annotations

from typing import TypeVar

CHECKPOINTS = 8  # per sequence

T = TypeVar("T")


def thin(checkpoints: list[tuple[int, T]]) -> None:
    """Where there are more than CHECKPOINTS, give up the one that leaves the smallest gap, but not the newest two.

    `checkpoints` are (tokens, whatever brings a state there), ascending.
    """
    if len(checkpoints) > CHECKPOINTS:
        places = [0, *(at for at, _ in checkpoints)]
        least = min(range(len(checkpoints) - 2), key=lambda i: places[i + 2] - places[i])
        del checkpoints[least]
