"""DiffusionGemma for lmhub. Start reading at `sampler`, how a block comes about, then `model`, the passes.

The layers, the template and the notation of calls are Gemma 4's. This module holds records only: nothing heavy is
imported before a model is loaded.
"""

from __future__ import annotations

from lmhub_gemma4 import CALLS, THINK
from lmhub_gemma4.templates import template

from lmhub import Caps, Family, hookimpl


@hookimpl
def lmhub_families() -> list[Family]:
    return [
        Family(
            "diffusion-gemma",
            archs=("diffusion-gemma",),
            load="lmhub_diffusion_gemma.model:load",
            plan="lmhub_diffusion_gemma.model:plan",
            kernels="lmhub_diffusion_gemma._kernels",
            caps=Caps(tools=True, reasoning=True),
            think=THINK,
            tools=CALLS,
            template=template,
            sampling={"temperature": 1.0},
            doc="DiffusionGemma 26B-A4B",
        )
    ]
