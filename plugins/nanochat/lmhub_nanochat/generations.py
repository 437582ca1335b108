"""The generations of nanochat: what tells them apart, and the constants that each forward pass was written with.

A checkpoint does not say which code it belongs to; its tensors do. Dates are those of the commits in nanochat's
repository.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil

from lmhub.errors import UnsupportedModel
from lmhub.gguf import Tensor

log = logging.getLogger("lmhub")

GATE = "attn.ve_gate.weight"
_DEVELOPMENT = ("value_embed_A", "value_embed_B", "value_embed.", "v0_lambdas", "bigram_")


def _half(length: int) -> int:
    return length // 2


def _part(divisor: int) -> Callable[[int], int]:
    """A part of the length, in tiles of 128."""
    return lambda length: ceil(ceil(length / divisor) / 128) * 128


@dataclass(frozen=True, slots=True)
class Generation:
    """`short` gives how far back a layer of the kind S sees, of the training length; None: there are no such layers."""

    name: str
    rope_base: float = 1e4
    qk_scale: float = 1.0
    gate_scale: float = 0.0
    short: Callable[[int], int] | None = None


FIRST = Generation("first")  # 2025-10
LAMBDAS = Generation("lambdas")  # 2026-01-11, before windows
WINDOWS = Generation("windows", short=_half)  # the same day, with them
VALUES = Generation("value embeddings", gate_scale=2.0, short=_half)  # 2026-01-16
SHARP = Generation("sharper queries", 1e5, 1.15, 3.0, _part(3))  # 2026-03-09
SMEAR = Generation("smear", 1e5, 1.2, 3.0, _part(4))  # 2026-03-14

WIDE_GATE = 32  # channels that a gate of the generation VALUES reads; later ones read 12


def generation_of(name: str, tensors: Mapping[str, Tensor], has_pattern: bool) -> Generation:
    """The generation of the checkpoint `name`. `has_pattern`: its configuration has a window pattern.

    Raises UnsupportedModel for the development snapshots of January 2026, whose code did not last.
    """
    if odd := next((one for one in tensors if one.startswith(_DEVELOPMENT)), None):
        raise UnsupportedModel(
            f"{name} holds {odd[:60]}: it was made by a development snapshot of nanochat of January 2026, which no "
            f"release kept; train it with a release."
        )
    gate = next((tensor for one, tensor in tensors.items() if one.endswith(GATE)), None)
    width = gate.shape[-1] if gate is not None and gate.shape else 0
    if "smear_gate.weight" in tensors:
        if gate is None:
            log.warning("%s smears but has no value embeddings; the latest constants are taken", name)
        return SMEAR
    if gate is not None:
        if width not in (12, WIDE_GATE):
            log.warning("%s has gates of %d channels, which no release had; the nearest one is assumed", name, width)
        return SHARP if width < WIDE_GATE else VALUES
    if "resid_lambdas" in tensors or "x0_lambdas" in tensors:
        return WINDOWS if has_pattern else LAMBDAS
    return FIRST


def windows(generation: Generation, pattern: str, length: int, n_layer: int) -> list[int]:
    """The positions that each layer sees, its own included; 0: all.

    A query sees keys up to `w` positions back, so w + 1 of them; the last layer is always a long one.
    """
    if generation.short is None:
        return [0] * n_layer
    short = generation.short(length)
    kinds = [pattern[il % len(pattern)].upper() for il in range(n_layer - 1)] + ["L"]
    return [(short if kind == "S" else length) + 1 for kind in kinds]
