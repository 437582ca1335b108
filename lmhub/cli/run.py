"""`lmhub run MODEL [PROMPT]`: a conversation in the terminal (chat.py), or one answer. Knows no HTTP."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lmhub.cli.options import ENGINE, Ctx, KVCacheDir, KVType, ModelFile, Spec, Threads
from lmhub.settings import EngineSettings


def run(
    ctx: typer.Context,
    model: ModelFile,
    prompt: Annotated[str | None, typer.Argument(help="Answer this and exit; else stdin, or a conversation.")] = None,
    *,
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="0 = always the likeliest token.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The same seed gives the same reply.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest reply, in tokens.")] = None,
    think: Annotated[bool | None, typer.Option("--think/--no-think", help="Reason before answering, or not.")] = None,
    context: Ctx = ENGINE.ctx,
    threads: Threads = ENGINE.threads,
    kv_dtype: KVType = "f16",
    kv_cache_dir: KVCacheDir = ENGINE.kv_cache_dir,
    spec: Spec = ENGINE.spec,
) -> None:
    """Chat with a model in the terminal, or answer one prompt."""
    from lmhub.api import Model
    from lmhub.cli.answer import Answer
    from lmhub.cli.chat import Chat
    from lmhub.cli.loading import load
    from lmhub.cli.pull import located
    from lmhub.cli.text import console
    from lmhub.errors import RequestError
    from lmhub.hub import Hub

    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read().strip()
        if not prompt:
            raise RequestError("stdin is empty; give a prompt as an argument, through a pipe, or in a terminal")
    hub = Hub(ctx.obj)
    settings = EngineSettings(
        ctx=context, threads=threads, batch=1, kv_dtype=kv_dtype, kv_cache_dir=kv_cache_dir, spec=spec
    )
    [served] = load(hub, located([model]), settings)
    sampling: dict[str, float | int | None] = {"temperature": temperature, "seed": seed, "max_tokens": max_tokens}
    options = {name: value for name, value in sampling.items() if value is not None}
    with Model(hub, served, owns_hub=True) as loaded:
        chat = Chat(loaded, console(), system=system, think=think, options=options)
        if prompt is None:
            chat.converse()
        else:
            chat.add(prompt)
            Answer(console()).show(chat.reply())
