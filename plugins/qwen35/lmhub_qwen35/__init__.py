"""Qwen3.5, Qwen3.6 and Ternary-Bonsai 27B for lmhub. Start reading at `model.load`, then `csrc/qwen35.c`.

This module holds records only: nothing heavy is imported before a model is loaded.
"""

from __future__ import annotations

from lmhub import HERMES, XML, Caps, Family, ThinkMarkers, hookimpl


@hookimpl
def lmhub_families() -> list[Family]:
    return [
        Family(
            "qwen35",
            archs=("qwen35", "qwen35moe"),
            load="lmhub_qwen35.model:load",
            plan="lmhub_qwen35.model:plan",
            kernels="lmhub_qwen35._kernels",
            caps=Caps(tools=True, reasoning=True, rewind=False),
            think=ThinkMarkers(),
            tools=(XML, HERMES),
            sampling={"temperature": 1.0, "top_k": 20, "top_p": 0.95},
            doc="Qwen3.5 and 3.6, dense and mixture-of-experts; Ternary-Bonsai 27B",
        )
    ]
