"""The request field `denoising`: how a diffusion model makes its blocks. All dialects share it; knows none."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from lmhub.server.fields import honoured

Temperature = Annotated[float, Meta(gt=0, le=100)]
Nats = Annotated[float, Meta(ge=0)]


class DenoisingFields(msgspec.Struct, forbid_unknown_fields=True):
    """What `lmhub.types.Denoising` says of each; `drafts` is for streams."""

    steps: Annotated[int, Meta(ge=1, le=1000)] | None = None
    t_min: Temperature | None = None
    t_max: Temperature | None = None
    entropy_bound: Nats | None = None
    stability: Annotated[int, Meta(ge=0, le=1000)] | None = None
    confidence: Nats | None = None
    drafts: bool | None = None


DENOISING_FIELD = honoured(
    "denoising",
    "of diffusion models, an object; what is left out is as the file says. `steps`: passes for a block at most (fewer: "
    "sooner and worse); `t_max`, `t_min`: temperatures of the first and of the last pass; `entropy_bound`: nats the "
    "positions kept by a pass have together; `stability`: passes without a change, and `confidence`: nats of mean "
    'entropy, at which a block is done; `drafts`: true sends SSE comments `: draft {"choice", "text"}` with the '
    "block as it stands after each pass; extension",
)


def denoising(fields: DenoisingFields | None) -> dict[str, float | int]:
    """Only what was given: the model's own defaults fill the rest."""
    given = {} if fields is None else msgspec.structs.asdict(fields)
    return {name: value for name, value in given.items() if value is not None and name != "drafts"}


def drafts(fields: DenoisingFields | None) -> bool:
    """Whether drafts are wanted."""
    return fields is not None and bool(fields.drafts)
