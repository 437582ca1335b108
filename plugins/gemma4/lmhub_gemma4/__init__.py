"""Gemma 4 and Gemma 3 for lmhub. Start reading at `model.load`, then `csrc/gemma.c`.

This module holds records only: nothing heavy is imported before a model is loaded.
"""

from __future__ import annotations

from lmhub import Caps, Family, hookimpl

SAMPLING = {"temperature": 1.0, "top_k": 64, "top_p": 0.95}
"""What the model cards recommend, for both generations."""


@hookimpl
def lmhub_families() -> list[Family]:
    return [
        Family(
            "gemma4",
            archs=("gemma4", "gemma3"),
            load="lmhub_gemma4.model:load",
            plan="lmhub_gemma4.model:plan",
            kernels="lmhub_gemma4._kernels",
            caps=Caps(),
            sampling=SAMPLING,
            doc="Gemma 4 E2B, E4B, dense and 26B-A4B; Gemma 3 270M to 27B",
        )
    ]
