"""`lmhub serve MODEL...`: answer HTTP clients until a signal comes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lmhub.cli.options import ENGINE, SERVER, Ctx, KVType, Threads
from lmhub.settings import EngineSettings, ServerSettings


def serve(
    ctx: typer.Context,
    models: Annotated[
        list[Path], typer.Argument(metavar="MODEL...", help="GGUF files; a request's `model` picks one.")
    ],
    *,
    host: Annotated[str, typer.Option(envvar="LMHUB_HOST", help="Address to listen on.")] = SERVER.host,
    port: Annotated[int, typer.Option(min=0, max=65535, envvar="LMHUB_PORT", help="0 = any free port.")] = SERVER.port,
    context: Ctx = ENGINE.ctx,
    threads: Threads = ENGINE.threads,
    queue: Annotated[
        int, typer.Option(min=0, envvar="LMHUB_QUEUE", help="Requests that may wait for a model.")
    ] = ENGINE.queue,
    conns: Annotated[
        int, typer.Option(min=1, envvar="LMHUB_CONNS", help="Requests that are handled at once.")
    ] = SERVER.conns,
    batch: Annotated[int, typer.Option(min=1, envvar="LMHUB_BATCH", help="Sequences that run at once.")] = ENGINE.batch,
    api_key: Annotated[
        str | None, typer.Option(envvar="LMHUB_API_KEY", help="The key that clients must send.", show_envvar=True)
    ] = None,
    kv_dtype: KVType = "f16",
) -> None:
    """Serve models over HTTP to any OpenAI client."""
    from lmhub.cli.describe import describe
    from lmhub.cli.loading import load
    from lmhub.cli.summary import print_summary
    from lmhub.cli.text import console
    from lmhub.gguf import open_gguf
    from lmhub.hub import Hub
    from lmhub.server.run import serve as run_server

    hub = Hub(ctx.obj)
    engine = EngineSettings(ctx=context, threads=threads, batch=batch, queue=queue, kv_dtype=kv_dtype)
    server = ServerSettings(host=host, port=port, conns=conns, api_key=api_key or None)
    about = []
    for path in models:  # all of them before the first is loaded: the last one's mistake should not cost minutes
        with open_gguf(path) as file:
            hub.plan(file, engine)
            about.append(describe(file, hub, engine))

    def ready(address: str) -> None:
        print_summary(console(), list(zip((model.id for model in hub.models), about, strict=True)), address, server)

    run_server(hub, server, lambda: load(hub, models, engine), ready)
