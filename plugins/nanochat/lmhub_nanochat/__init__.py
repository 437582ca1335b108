"""nanochat for lmhub. Start reading at `folder.open_folder`, then `model.load` and `csrc/nanochat.c`.

This module holds records and hooks only: nothing heavy is imported before a model is recognised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmhub import Caps, Family, hookimpl
from lmhub.errors import RequestError
from lmhub.family import InnerTool, PluginOption
from lmhub.types import ChatRequest, Request, ToolCall, ToolResult

if TYPE_CHECKING:
    import typer

    from lmhub.gguf import GGUFFile
    from lmhub.loaded import LoadedModel

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
CALCULATOR = InnerTool(
    "calculator",
    "<|python_start|>",
    "<|python_end|>",
    "<|output_start|>",
    "<|output_end|>",
    run="lmhub_nanochat.calculator:evaluate",
)


@hookimpl
def lmhub_families() -> list[Family]:
    return [FAMILY]


@hookimpl
def lmhub_options() -> list[PluginOption]:
    return [
        PluginOption("nanochat", "A nanochat checkpoint to serve, like MODEL.", "model"),
        PluginOption("nanochat-merge-system", "Put system messages before the user's, instead of refusing them."),
        PluginOption("nanochat-no-calculator", "Do not answer what the model asks its calculator."),
        PluginOption("nanochat-show-calculator", "Show what it asks, and the answer, as code."),
        PluginOption("nanochat-head-dim", "Dimensions of a head, of an export without sizes.", "whole"),
        PluginOption("nanochat-sequence-len", "Positions that it was trained for.", "whole"),
        PluginOption("nanochat-window-pattern", "Which layers see how far: S and L, repeated.", "text"),
        PluginOption("nanochat-softcap", "Cap of the logits: 20 for checkpoints of early March 2026.", "real"),
    ]


@hookimpl
def lmhub_open(path: Path, options: Mapping[str, Any]) -> GGUFFile | None:
    if not (path.is_dir() or path.suffix == ".pt"):
        return None
    from lmhub_nanochat.folder import Options, open_folder

    return open_folder(path, Options.checked(options))


@hookimpl
def lmhub_inner_tool(model: LoadedModel) -> InnerTool | None:
    if model.family.name != "nanochat" or model.options.get("nanochat-no-calculator"):
        return None
    return replace(CALCULATOR, is_shown=bool(model.options.get("nanochat-show-calculator")))


@hookimpl
def lmhub_validate(model: LoadedModel, request: Request) -> None:
    if model.family.name != "nanochat" or not isinstance(request, ChatRequest):
        return
    for message in request.messages:
        if message.role == "system" and not model.options.get("nanochat-merge-system"):
            raise RequestError(
                "nanochat has no system role; put the instructions into the user's message, or serve with "
                "--nanochat-merge-system",
                param="messages",
            )
        if any(isinstance(part, ToolCall | ToolResult) for part in message.parts):
            raise RequestError("nanochat has no tool messages; send the conversation without them", param="messages")


@hookimpl
def lmhub_commands(cli: typer.Typer) -> None:
    from lmhub_nanochat.command import group

    cli.add_typer(group(), name="nanochat")
