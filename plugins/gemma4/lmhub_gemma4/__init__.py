"""Gemma 4 and Gemma 3 for lmhub. Start reading at `model.load`, then `csrc/gemma.c`.

This module holds records only: nothing heavy is imported before a model is loaded.
"""

from __future__ import annotations

from functools import partial

from lmhub import Caps, Family, ThinkMarkers, ToolStyle, hookimpl
from lmhub_gemma4.templates import template

THINK = ThinkMarkers("<|channel>", "<channel|>", label="thought")
QUOTE = '<|"|>'
CALLS = ToolStyle(
    "gemma4",
    "<|tool_call>",
    "<tool_call|>",
    parse="lmhub_gemma4.calls:parse_calls",
    shape="lmhub_gemma4.shape:shape",
    eager="lmhub_gemma4.eager:EagerReader",
    template_hint="<|tool_call>",
    tokens=(("quote", QUOTE),),
    schema="lmhub_gemma4.declared:shown",
    writes_null=True,
)


@hookimpl
def lmhub_families() -> list[Family]:
    gemma = partial(
        Family,
        load="lmhub_gemma4.model:load",
        plan="lmhub_gemma4.model:plan",
        kernels="lmhub_gemma4._kernels",
        template=template,
        # What the model cards recommend, for both generations.
        sampling={"temperature": 1.0, "top_k": 64, "top_p": 0.95},
    )
    return [
        gemma(
            "gemma4",
            archs=("gemma4",),
            caps=Caps(tools=True, reasoning=True),
            think=THINK,
            tools=CALLS,
            doc="Gemma 4 E2B, E4B, dense and 26B-A4B",
        ),
        gemma("gemma3", archs=("gemma3",), doc="Gemma 3 270M to 27B"),
    ]
