"""Llama and its relatives for lmhub. Start reading at `model.load`, then `csrc/llama.c`.

This module holds records only: nothing heavy is imported before a model is loaded.
"""

from __future__ import annotations

from lmhub import HERMES, LLAMA3, Caps, Family, hookimpl


@hookimpl
def lmhub_families() -> list[Family]:
    return [
        Family(
            "llama",
            archs=("llama",),
            load="lmhub_llama.model:load",
            plan="lmhub_llama.model:plan",
            kernels="lmhub_llama._kernels",
            caps=Caps(tools=True),
            tools=(HERMES, LLAMA3),  # whichever the file's template speaks of
            sampling={"temperature": 0.7, "top_p": 0.9},
            doc="Llama 1 to 3, SmolLM2, TinyLlama, Mistral, Mixtral",
        )
    ]
