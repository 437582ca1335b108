"""The records that hooks return. Data only: importing a plugin's top module must load neither numpy nor its kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from lmhub.gguf import GGUFFile
    from lmhub.model import BlockLM, CausalLM

Borrow = Literal["none", "experts", "all"]
"""Which weights kernels read where they lie in the file, packing rows as they use them: less memory, less speed."""
KVDtype = str  # "f16" | "f32" | "q8_0" (head dimensions: multiples of 32)


Fallback = str | Callable[[Mapping[str, Any]], str | None]
"""See `Family.template`."""


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
    borrow: Borrow = "none"
    progress: Callable[[int, int], None] | None = None


@dataclass(frozen=True, slots=True)
class ThinkMarkers:
    """How a model's reasoning is delimited. `switch` is the template variable that turns it on and off, or None.

    `label` is the name of the channel, for models that write one behind the opening marker, up to the end of the line.
    """

    open: str = "<think>"
    close: str = "</think>"
    switch: str | None = "enable_thinking"
    label: str = ""


@dataclass(frozen=True, slots=True)
class ToolStyle:
    """How a model writes its tool calls. Functions are named as "module:function" and imported when first needed.

    `parse(text, tools, cut)` turns the text between the markers into (name, JSON arguments) pairs, or gives None for
    text that is no call; it then flows back as content, markers included. `cut`: the reply ended for want of budget, so
    that nothing unfinished may be repaired. `shape(tool, rule, schema, exact)` gives the lines of a Lark grammar in
    which `rule` matches the same text for one call of `tool`; without it, calls cannot be forced. `schema` is what the
    arguments must obey (None: any object), `exact` whether nothing less will do. `template_hint` is a text by which a
    chat template shows that it declares tools in this style. `bare` is what a call begins with where the model forgot
    the marker; the name of a tool and `>` or the end of the line follow. `tokens` are (name, text) pairs of special
    tokens within a call, which `shape` may use as rules of these names. `eager` makes a reader for arguments that are
    handed on while they are written (an `Eager` of `lmhub.chat.call_items`); without it they always come whole.
    `schema` turns the JSON schema of a tool's parameters into one that the family's chat templates show in full.
    `writes_null`: null is `null` in a call, so that a template which shows it as Python's `None` is not followed.
    `reply` is as `Family.reply`, for calls that stand between no markers: `open` and `close` are "" then.
    """

    name: str
    open: str
    close: str
    parse: str
    shape: str | None = None
    template_hint: str = ""
    bare: str | None = None
    eager: str | None = None
    tokens: tuple[tuple[str, str], ...] = ()
    schema: str | None = None
    writes_null: bool = False
    reply: str | None = None


_PARSE, _EAGER = "lmhub.chat.calls:parse_calls", "lmhub.chat.eager:EagerReader"
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
HERMES = ToolStyle("hermes", _OPEN, _CLOSE, _PARSE, "lmhub.chat.hermes:shape", "<tool_call>", eager=_EAGER)
LLAMA3 = ToolStyle(
    "llama3",
    "",
    "",
    _PARSE,
    "lmhub.chat.whole:shape",
    '{"name": function name, "parameters":',
    reply="lmhub.chat.whole:parser",
)
XML = ToolStyle("xml", _OPEN, _CLOSE, _PARSE, "lmhub.chat.xml_shape:shape", "<function=", "<function=", _EAGER)


def style_for(styles: ToolStyle | tuple[ToolStyle, ...] | None, template: str | None) -> ToolStyle | None:
    """The first of `styles` that the chat template `template` shows; None if it declares no tools in any of them."""
    offered = styles if isinstance(styles, tuple) else () if styles is None else (styles,)
    return next((style for style in offered if style.template_hint in (template or "")), None)


@dataclass(frozen=True, slots=True)
class InnerTool:
    """A tool that a model runs by itself while it replies, such as nanochat's calculator.

    What it writes between the special tokens `open` and `close` goes to `run`, "module:function", a function (text) ->
    str | None. An answer follows `close` whatever the model would say, between `answer_open` and `answer_close`. `run`
    is called on the engine's thread, between two tokens: it must be quick, and bounded whatever the text is. None of it
    is shown to the client; with `is_shown` both are, as code.
    """

    name: str
    open: str
    close: str
    answer_open: str
    answer_close: str
    run: str
    is_shown: bool = False


@dataclass(frozen=True, slots=True)
class PluginOption:
    """A flag that a plugin adds to `lmhub serve` and `lmhub run`: `--NAME`, or the variable LMHUB_NAME elsewhere.

    Its value is found under `name` where a hook is given `options`. A `switch` is False unless it is given, anything
    else is None. A `model` is no value: its path is served as if it had been named without the flag.
    """

    name: str  # words of small letters, joined by -
    help: str
    kind: Literal["switch", "whole", "real", "text", "model"] = "switch"


@dataclass(frozen=True, slots=True)
class Advice:
    """How replies are best sampled, as a model card says it: `values` are fields of SamplingParams.

    For files whose names match the regular expression `names`, letter case aside, and for replies that reason first
    (`reasons` True), that do not, or (None) for both.
    """

    values: Mapping[str, float]
    names: str = ""
    reasons: bool | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """One model family, as `lmhub_families` returns it.

    `load` is `"module:function"` with the signature `(file: GGUFFile, options: LoadOptions) -> CausalLM | BlockLM`;
    nothing heavy is imported before a model of the family is loaded. `plan` is `(file, options) -> MemoryPlan`, from
    metadata and the tensor directory alone. `kernels` names the family's compiled module ("lmhub_qwen3._kernels"), so
    that `lmhub plugins` and `lmhub doctor` can tell whether it fits this core without loading a model. `sampling` holds
    the family's recommended defaults (fields of SamplingParams), or advice of which the first that fits counts; the
    file's own `general.sampling.*` keys override it (`lmhub.advice`). Of several `tools`, the first that the file's
    chat template shows is used. `template` is the chat template of files that carry none: ChatML as a text, or
    a function of the metadata, asked for every file, that gives one in a language of the family's own, or None for the
    file's; None: plain ChatML. `reply` is "module:function", for families whose replies are not text between markers: a
    function (tokenizer's token_id, ids of the prompt, tools) -> ReplyParser.
    """

    name: str
    archs: tuple[str, ...]
    load: str
    plan: str | None = None
    kernels: str | None = None
    caps: Caps = Caps()
    think: ThinkMarkers | None = None
    tools: ToolStyle | tuple[ToolStyle, ...] | None = None
    template: Fallback | None = None
    reply: str | None = None
    sampling: Mapping[str, float] | tuple[Advice, ...] = ()
    doc: str = ""


Load = Callable[["GGUFFile", LoadOptions], "CausalLM | BlockLM"]
