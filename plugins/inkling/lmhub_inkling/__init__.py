"""Inkling for lmhub. Start reading at `model.load`, then `csrc/inkling.c`.

This module holds records only: nothing heavy is imported before a model is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmhub import Caps, Family, ThinkMarkers, ToolStyle, hookimpl
from lmhub_inkling.wire import template

if TYPE_CHECKING:
    from lmhub.gguf import GGUFFile
    from lmhub.tokenize import Tokenizer

THINK = ThinkMarkers("<|content_thinking|>", "<|end_message|>")
CALLS = ToolStyle(
    "inkling",
    "<|content_invoke_tool_json|>",
    "<|end_message|>",
    parse="lmhub_inkling.calls:parse_calls",
    shape="lmhub_inkling.calls:shape",
    template_hint="<|content_invoke_tool_json|>",
)


@hookimpl
def lmhub_families() -> list[Family]:
    return [
        Family(
            "inkling",
            archs=("inkling",),
            load="lmhub_inkling.model:load",
            plan="lmhub_inkling.model:plan",
            kernels="lmhub_inkling._kernels",
            caps=Caps(tools=True, reasoning=True, rewind=False),
            think=THINK,
            tools=CALLS,
            template=template,
            reply="lmhub_inkling.reply:parser",
            sampling={"temperature": 1.0, "top_p": 1.0},
            doc="Inkling and Inkling-Small",
        )
    ]


@hookimpl
def lmhub_tokenizer(model_file: GGUFFile) -> Tokenizer | None:
    if model_file.architecture != "inkling":
        return None
    from lmhub_inkling.vocabulary import tokenizer

    return tokenizer(model_file.metadata)
