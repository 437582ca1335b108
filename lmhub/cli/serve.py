"""`lmhub serve MODEL...`: answer HTTP clients until a signal comes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from lmhub.cli.options import ENGINE, SERVER, Ctx, KVType, Threads
from lmhub.errors import LmhubError
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
        list[str],
        typer.Option(envvar="LMHUB_API_KEY", help="A key that clients may send; repeatable.", show_default=False),
    ] = [],  # noqa: B006
    api_key_file: Annotated[
        Path | None, typer.Option(envvar="LMHUB_API_KEY_FILE", help="More keys, one a line; # begins a comment.")
    ] = None,
    alias: Annotated[
        list[str],
        typer.Option(envvar="LMHUB_ALIAS", help="Another name of the first model, or NAME=ID.", show_default=False),
    ] = [],  # noqa: B006
    strict_model: Annotated[
        bool, typer.Option("--strict-model", envvar="LMHUB_STRICT_MODEL", help="Refuse names that no model has.")
    ] = SERVER.strict_model,
    allow_host: Annotated[
        list[str],
        typer.Option(envvar="LMHUB_ALLOW_HOST", help="A Host header to accept; repeatable.", show_default=False),
    ] = [],  # noqa: B006
    cors_origin: Annotated[
        list[str],
        typer.Option(
            envvar="LMHUB_CORS_ORIGIN", help="Origin of web pages that may call; * is any.", show_default=False
        ),
    ] = [],  # noqa: B006
    max_body: Annotated[
        int, typer.Option(min=1, envvar="LMHUB_MAX_BODY", help="Bytes of a request body, unpacked.")
    ] = SERVER.max_body,
    sse_ping_interval: Annotated[
        float, typer.Option(min=0, envvar="LMHUB_SSE_PING_INTERVAL", help="Seconds until a ping; 0 = never.")
    ] = SERVER.ping_s,
    default_max_tokens: Annotated[
        int,
        typer.Option(min=0, envvar="LMHUB_DEFAULT_MAX_TOKENS", help="Budget where none is sent; 0 = what is left."),
    ] = SERVER.default_max_tokens,
    max_n: Annotated[int, typer.Option(min=1, envvar="LMHUB_MAX_N", help="Replies to one prompt.")] = SERVER.max_n,
    max_prompts: Annotated[
        int, typer.Option(min=1, envvar="LMHUB_MAX_PROMPTS", help="Prompts in one completion request.")
    ] = SERVER.max_prompts,
    prefill: Annotated[
        bool, typer.Option(envvar="LMHUB_PREFILL", help="Continue a chat that ends with the assistant's turn.")
    ] = SERVER.prefill,
    lenient_reasoning: Annotated[
        bool,
        typer.Option(envvar="LMHUB_LENIENT_REASONING", help="Ignore a reasoning effort where the model cannot reason."),
    ] = SERVER.lenient_reasoning,
    reasoning_field: Annotated[
        Literal["reasoning_content", "both"],
        typer.Option(envvar="LMHUB_REASONING_FIELD", help="Where chat puts reasoning; both: in `reasoning` as well."),
    ] = SERVER.reasoning_field,
    lazy_tools: Annotated[
        bool, typer.Option(envvar="LMHUB_LAZY_TOOLS", help="Hold calls that the model opens to the tools' schemas.")
    ] = ENGINE.lazy_tools,
    strict_tools: Annotated[
        bool,
        typer.Option("--strict-tools", envvar="LMHUB_STRICT_TOOLS", help="Refuse hosted tools, not ignore them."),
    ] = SERVER.strict_tools,
    responses_store: Annotated[
        int, typer.Option(min=0, envvar="LMHUB_RESPONSES_STORE", help="Responses kept in memory; 0 = none.")
    ] = SERVER.responses_store,
    metrics: Annotated[bool, typer.Option(envvar="LMHUB_METRICS", help="Serve /metrics.")] = SERVER.metrics,
    metrics_open: Annotated[
        bool, typer.Option("--metrics-open", envvar="LMHUB_METRICS_OPEN", help="/metrics needs no key.")
    ] = SERVER.metrics_open,
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
    engine = EngineSettings(
        ctx=context, threads=threads, batch=batch, queue=queue, kv_dtype=kv_dtype, lazy_tools=lazy_tools
    )
    server = ServerSettings(
        host=host,
        port=port,
        conns=conns,
        api_keys=(*filter(None, api_key), *(read_keys(api_key_file) if api_key_file else ())),
        alias=tuple(alias),
        strict_model=strict_model,
        allow_host=tuple(allow_host),
        cors_origin=tuple(cors_origin),
        max_body=max_body,
        ping_s=sse_ping_interval,
        default_max_tokens=default_max_tokens,
        max_n=max_n,
        max_prompts=max_prompts,
        prefill=prefill,
        lenient_reasoning=lenient_reasoning,
        reasoning_field=reasoning_field,
        strict_tools=strict_tools,
        responses_store=responses_store,
        metrics=metrics,
        metrics_open=metrics_open,
    )
    about = []
    for path in models:  # all of them before the first is loaded: the last one's mistake should not cost minutes
        with open_gguf(path) as file:
            hub.plan(file, engine)
            about.append(describe(file, hub, engine))

    def ready(address: str) -> None:
        print_summary(console(), list(zip((model.id for model in hub.models), about, strict=True)), address, server)

    run_server(hub, server, lambda: load(hub, models, engine), ready)


def read_keys(path: Path) -> tuple[str, ...]:
    """The keys of a file: one a line, blank lines and comments left out. Raises LmhubError if there is none."""
    try:
        lines = [line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise LmhubError(f"cannot read the keys in {path.name}: {error.__class__.__name__}; name a text file") from None
    keys = tuple(line for line in lines if line)
    if not keys:  # an empty file must not open the server to everybody
        raise LmhubError(f"{path.name} holds no key; write one a line")
    return keys
