"""The records that hooks return. Data only: importing a plugin's top module must load neither numpy nor its kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmhub.gguf import GGUFFile
    from lmhub.model import BlockLM, CausalLM

KVDtype = str  # "f16" | "f32"


@dataclass(frozen=True, slots=True)
class Caps:
    """What a family can do. A request that needs more is refused by name."""

    system_role: bool = True
    tools: bool = False
    reasoning: bool = False
    rewind: bool = True  # State.truncate works at any position


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a model is to be loaded. `progress(done_bytes, total_bytes)` is called on the loading thread."""

    n_ctx: int = 4096
    kv_dtype: KVDtype = "f16"
    progress: Callable[[int, int], None] | None = None


@dataclass(frozen=True, slots=True)
class ThinkMarkers:
    """How a model's reasoning is delimited. `switch` is the template variable that turns it on and off, or None."""

    open: str = "<think>"
    close: str = "</think>"
    switch: str | None = "enable_thinking"


@dataclass(frozen=True, slots=True)
class ToolStyle:
    """How a model writes its tool calls: `parse` turns the text between the markers into (name, JSON arguments) pairs.

    `parse` returns None for text that is not a call; it then flows back as content, markers included.
    """

    name: str
    open: str
    close: str
    parse: str  # "module:function", (text: str) -> Sequence[tuple[str, str]] | None


HERMES = ToolStyle("hermes", "<tool_call>", "</tool_call>", "lmhub.chat.hermes:parse_calls")


@dataclass(frozen=True, slots=True)
class Family:
    """One model family, as `lmhub_families` returns it.

    `load` is `"module:function"` with the signature `(file: GGUFFile, options: LoadOptions) -> CausalLM | BlockLM`;
    nothing heavy is imported before a model of the family is loaded. `plan` is `(file, options) -> MemoryPlan`, from
    metadata and the tensor directory alone. `kernels` names the family's compiled module ("lmhub_qwen3._kernels"), so
    that `lmhub plugins` and `lmhub doctor` can tell whether it fits this core without loading a model. `sampling` holds
    the family's recommended defaults (fields of SamplingParams), which the file's own `general.sampling.*` keys
    override.
    """

    name: str
    archs: tuple[str, ...]
    load: str
    plan: str | None = None
    kernels: str | None = None
    caps: Caps = Caps()
    think: ThinkMarkers | None = None
    tools: ToolStyle | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)
    doc: str = ""


Load = Callable[["GGUFFile", LoadOptions], "CausalLM | BlockLM"]
