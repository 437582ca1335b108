"""nanochat for lmhub. Start reading at `folder.open_folder`, then `model.load` and `csrc/nanochat.c`.

This module holds records and hooks only: nothing heavy is imported before a model is recognised.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lmhub import Caps, Family, hookimpl

if TYPE_CHECKING:
    from lmhub.gguf import GGUFFile

FAMILY = Family(
    "nanochat",
    archs=("nanochat",),
    load="lmhub_nanochat.model:load",
    plan="lmhub_nanochat.model:plan",
    kernels="lmhub_nanochat._kernels",
    caps=Caps(system_role=False),
    sampling={"temperature": 0.6, "top_k": 50},  # what nanochat's own command line takes
    doc="nanochat checkpoints of every generation",
)


@hookimpl
def lmhub_families() -> list[Family]:
    return [FAMILY]


@hookimpl
def lmhub_open(path: Path) -> GGUFFile | None:
    if not (path.is_dir() or path.suffix == ".pt"):
        return None
    from lmhub_nanochat.folder import open_folder

    return open_folder(path)
