"""Inkling for lmhub. Start reading at `model.load`, then `csrc/inkling.c`.

This module holds records only: nothing heavy is imported before a model is loaded.
"""

from __future__ import annotations

from lmhub import Caps, Family, hookimpl


@hookimpl
def lmhub_families() -> list[Family]:
    return [
        Family(
            "inkling",
            archs=("inkling",),
            load="lmhub_inkling.model:load",
            plan="lmhub_inkling.model:plan",
            kernels="lmhub_inkling._kernels",
            caps=Caps(rewind=False),
            sampling={"temperature": 1.0, "top_p": 1.0},
            doc="Inkling and Inkling-Small",
        )
    ]
