"""The hooks. A plugin implements any of them with `lmhub.hookimpl`; all are called at start-up or once per request.

None runs per token. Collecting hooks are called plugin by plugin, so that one which raises is reported by name and the
others still count. In `firstresult` hooks plugins answer in the order of their names and the core answers last;
returning None passes. docs/hooks.md shows a runnable example of each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    import numpy as np
    import typer

    from lmhub.dialect import Dialect
    from lmhub.family import Family, InnerTool, PluginOption, ThinkMarkers, ToolStyle
    from lmhub.gguf import GGUFFile
    from lmhub.hub import Hub
    from lmhub.loaded import LoadedModel
    from lmhub.tokenize import Tokenizer
    from lmhub.types import Event, GenerationRecord, GenerationRequest, Request

hookspec = pluggy.HookspecMarker("lmhub")
hookimpl = pluggy.HookimplMarker("lmhub")


@hookspec
def lmhub_families() -> Sequence[Family]:  # type: ignore[empty-body]
    """The model families that this plugin can load. Called once; records only, no file access and no kernels.

    Two plugins that claim one architecture are an error which names both.
    """


@hookspec
def lmhub_models() -> Mapping[str, Path]:  # type: ignore[empty-body]
    """Model files that come with this plugin, by the names under which they are found: {"demo": path}.

    Called when a name is asked for that is no file; open nothing. Two plugins that bring one name are an error which
    names both.
    """


@hookspec
def lmhub_options() -> Sequence[PluginOption]:  # type: ignore[empty-body]
    """Flags that this plugin adds to `lmhub serve` and `lmhub run`. Called when the CLI starts, or a hub first asks.

    Names begin with the plugin's, so that two plugins have none in common.
    """


@hookspec(firstresult=True)
def lmhub_open(path: Path, options: Mapping[str, Any]) -> GGUFFile | None:
    """The model at `path`, a folder or a file, or None to pass. Called once for each model that is named.

    The answer says of it what a GGUF file would: metadata under GGUF's keys, `general.architecture` among them, and
    tensors, which may lie in any mapped file. Look at names first and be cheap: everybody is asked about every path.
    The core answers last and reads GGUF files.
    """


@hookspec(firstresult=True)
def lmhub_tokenizer(model_file: GGUFFile) -> Tokenizer | None:
    """The tokenizer of this file, or None to pass. Called once per loaded model, on the loading thread.

    The core answers last with its BPE and SPM implementations.
    """


@hookspec
def lmhub_validate(model: LoadedModel, request: Request) -> None:
    """Raise RequestError to refuse a request before it is rendered or queued. Event-loop thread: be cheap."""


@hookspec(firstresult=True)
def lmhub_generate(model: LoadedModel, request: GenerationRequest) -> AsyncIterator[Event] | None:
    """The events of one reply, or None to pass. The core answers last with the model's engine.

    A hook wrapper can log, cache or moderate what comes out. Event-loop thread; closing the iterator cancels.
    """


@hookspec(firstresult=True)
def lmhub_tool_style(model: LoadedModel) -> ToolStyle | None:
    """How this model writes its tool calls, or None to pass. Called once per loaded model.

    The core answers last with the first style of the family's record that the file's chat template shows.
    """


@hookspec(firstresult=True)
def lmhub_inner_tool(model: LoadedModel) -> InnerTool | None:
    """The tool that this model runs by itself amid its replies, or None to pass. Called once per loaded model."""


@hookspec(firstresult=True)
def lmhub_think_markers(model: LoadedModel) -> ThinkMarkers | None:
    """How this model delimits its reasoning, or None to pass. Called once per loaded model.

    The core answers last with the family's record.
    """


@hookspec
def lmhub_dialects() -> Sequence[Dialect]:  # type: ignore[empty-body]
    """HTTP dialects: routes, parse, encode. The built-in ones register through it too. Called when a server starts."""


@hookspec
def lmhub_commands(cli: typer.Typer) -> None:
    """Add CLI commands to `cli`. Called when the CLI starts: import heavy things inside the commands."""


@hookspec
def lmhub_logits_processors(  # type: ignore[empty-body]
    model: LoadedModel, request: GenerationRequest
) -> Sequence[Callable[[np.ndarray, Sequence[int]], None]]:
    """Functions `(logits, history)` that edit a row of logits in place before sampling. Called once per request.

    `logits` is float32 `(n_vocab,)`; `history` holds the prompt and the reply so far. They run on the engine's thread,
    in the order of the plugins' names.
    """


@hookspec
def lmhub_startup(hub: Hub) -> None:
    """The server is about to accept requests. Must not block."""


@hookspec
def lmhub_shutdown(hub: Hub) -> None:
    """The engines have stopped: release what `lmhub_startup` acquired. Exceptions are logged, never raised."""


@hookspec
def lmhub_generation_finished(record: GenerationRecord) -> None:
    """One generation ended. Engine thread: must not block. For metrics and logs."""
