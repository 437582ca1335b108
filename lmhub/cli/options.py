"""The options that several commands share, each with its environment variable."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from lmhub.settings import EngineSettings, ServerSettings

ENGINE, SERVER = EngineSettings(), ServerSettings()  # the defaults

ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="A GGUF file, or any part of a split one.")]
Ctx = Annotated[
    int,
    typer.Option("--ctx", min=1, envvar="LMHUB_CTX", help="Positions per sequence, at most the model's own."),
]
Threads = Annotated[int, typer.Option(min=0, max=256, envvar="LMHUB_THREADS", help="Compute threads; 0 = one per CPU.")]
KVType = Annotated[Literal["f16", "f32"], typer.Option(envvar="LMHUB_KV_DTYPE", help="How keys and values are cached.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
