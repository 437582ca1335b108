"""`lmhub serve MODEL...`: answer HTTP clients until a signal comes."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lmhub.cli.options import (
    ENGINE,
    KV_DISK_MAX,
    KV_RAM,
    SERVER,
    SPEED,
    Batch,
    Ctx,
    ExpertCache,
    Experts,
    KVCacheDir,
    KVDiskMax,
    KVDiskSlots,
    KVRam,
    KVSlots,
    KVSlotsForce,
    KVType,
    Pin,
    Repack,
    Spec,
    Threads,
    borrowed,
    cached,
)
from lmhub.errors import LmhubError
from lmhub.settings import MIB, EngineSettings, ServerSettings

if TYPE_CHECKING:
    from lmhub.hub import Hub

SWITCH_S = 0.0005  # how long a thread that is busy in Python may keep the event loop from running
_NETWORK, _ACCESS, _REQUESTS, _REPORTS = "Network", "Who may ask", "Requests and replies", "Page and reports"


def serve(
    ctx: typer.Context,
    models: Annotated[
        list[Path],
        typer.Argument(
            metavar="MODEL...", help="GGUF files, or names that plugins bring; a request's `model` picks one."
        ),
    ],
    *,
    host: Annotated[
        str, typer.Option(envvar="LMHUB_HOST", help="Address to listen on.", rich_help_panel=_NETWORK)
    ] = SERVER.host,
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, envvar="LMHUB_PORT", help="0 = any free port.", rich_help_panel=_NETWORK),
    ] = SERVER.port,
    conns: Annotated[
        int,
        typer.Option(min=1, envvar="LMHUB_CONNS", help="Requests that are handled at once.", rich_help_panel=_NETWORK),
    ] = SERVER.conns,
    max_body: Annotated[
        int,
        typer.Option(
            min=1, envvar="LMHUB_MAX_BODY", help="Bytes of a request body, unpacked.", rich_help_panel=_NETWORK
        ),
    ] = SERVER.max_body,
    sse_ping_interval: Annotated[
        float,
        typer.Option(
            min=0,
            envvar="LMHUB_SSE_PING_INTERVAL",
            help="Seconds until a ping; 0 = never.",
            rich_help_panel=_NETWORK,
        ),
    ] = SERVER.ping_s,
    grace: Annotated[
        float,
        typer.Option(
            min=0,
            envvar="LMHUB_GRACE",
            help="Seconds that replies may go on after a signal to stop.",
            rich_help_panel=_NETWORK,
        ),
    ] = SERVER.grace_s,
    api_key: Annotated[
        list[str],
        typer.Option(
            envvar="LMHUB_API_KEY",
            help="A key that clients may send; repeatable.",
            show_default=False,
            rich_help_panel=_ACCESS,
        ),
    ] = [],  # noqa: B006
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            envvar="LMHUB_API_KEY_FILE", help="More keys, one a line; # begins a comment.", rich_help_panel=_ACCESS
        ),
    ] = None,
    allow_host: Annotated[
        list[str],
        typer.Option(
            envvar="LMHUB_ALLOW_HOST",
            help="A Host header to accept; repeatable.",
            show_default=False,
            rich_help_panel=_ACCESS,
        ),
    ] = [],  # noqa: B006
    cors_origin: Annotated[
        list[str],
        typer.Option(
            envvar="LMHUB_CORS_ORIGIN",
            help="Origin of web pages that may call; * is any.",
            show_default=False,
            rich_help_panel=_ACCESS,
        ),
    ] = [],  # noqa: B006
    context: Ctx = ENGINE.ctx,
    kv_dtype: KVType = "f16",
    repack: Repack = True,
    experts: Experts = "pack",
    expert_cache: ExpertCache = 0,
    kv_slots: KVSlots = ENGINE.kv_slots,
    kv_slots_force: KVSlotsForce = ENGINE.kv_slots_force,
    kv_ram: KVRam = KV_RAM,
    kv_cache_dir: KVCacheDir = ENGINE.kv_cache_dir,
    kv_disk_max: KVDiskMax = KV_DISK_MAX,
    kv_disk_slots: KVDiskSlots = ENGINE.kv_disk_slots,
    threads: Threads = ENGINE.threads,
    pin: Pin = ENGINE.pin,
    batch: Batch = ENGINE.batch,
    queue: Annotated[
        int,
        typer.Option(min=0, envvar="LMHUB_QUEUE", help="Requests that may wait for a model.", rich_help_panel=SPEED),
    ] = ENGINE.queue,
    spec: Spec = ENGINE.spec,
    read_ahead: Annotated[
        bool,
        typer.Option(
            envvar="LMHUB_READ_AHEAD",
            help="Between two turns of a chat, read what the next one begins with.",
            rich_help_panel=SPEED,
        ),
    ] = ENGINE.read_ahead,
    pipe_max: Annotated[
        int,
        typer.Option(
            min=1,
            envvar="LMHUB_PIPE_MAX",
            help="Bytes of a reply that may wait for their reader; it pauses then.",
            rich_help_panel=SPEED,
        ),
    ] = ENGINE.pipe_max,
    stall_timeout: Annotated[
        float,
        typer.Option(
            min=0,
            envvar="LMHUB_STALL_TIMEOUT",
            help="Seconds after which a paused reply that nobody reads is cancelled.",
            rich_help_panel=SPEED,
        ),
    ] = ENGINE.stall_timeout_s,
    request_timeout: Annotated[
        float,
        typer.Option(
            min=0,
            envvar="LMHUB_REQUEST_TIMEOUT",
            help="Seconds after which a reply is cut off; 0 = never.",
            rich_help_panel=SPEED,
        ),
    ] = ENGINE.request_timeout_s,
    alias: Annotated[
        list[str],
        typer.Option(
            envvar="LMHUB_ALIAS",
            help="Another name of the first model, or NAME=ID.",
            show_default=False,
            rich_help_panel=_REQUESTS,
        ),
    ] = [],  # noqa: B006
    strict_model: Annotated[
        bool,
        typer.Option(
            "--strict-model",
            envvar="LMHUB_STRICT_MODEL",
            help="Refuse names that no model has.",
            rich_help_panel=_REQUESTS,
        ),
    ] = SERVER.strict_model,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=2**64 - 1,
            envvar="LMHUB_SEED",
            help="Seed of requests that send none; else a new one each.",
            rich_help_panel=_REQUESTS,
        ),
    ] = SERVER.seed,
    default_max_tokens: Annotated[
        int,
        typer.Option(
            min=0,
            envvar="LMHUB_DEFAULT_MAX_TOKENS",
            help="Budget where none is sent; 0 = what is left.",
            rich_help_panel=_REQUESTS,
        ),
    ] = SERVER.default_max_tokens,
    max_n: Annotated[
        int, typer.Option(min=1, envvar="LMHUB_MAX_N", help="Replies to one prompt.", rich_help_panel=_REQUESTS)
    ] = SERVER.max_n,
    max_prompts: Annotated[
        int,
        typer.Option(
            min=1, envvar="LMHUB_MAX_PROMPTS", help="Prompts in one completion request.", rich_help_panel=_REQUESTS
        ),
    ] = SERVER.max_prompts,
    prefill: Annotated[
        bool,
        typer.Option(
            envvar="LMHUB_PREFILL",
            help="Continue a chat that ends with the assistant's turn.",
            rich_help_panel=_REQUESTS,
        ),
    ] = SERVER.prefill,
    lenient_reasoning: Annotated[
        bool,
        typer.Option(
            envvar="LMHUB_LENIENT_REASONING",
            help="Ignore a reasoning effort where the model cannot reason.",
            rich_help_panel=_REQUESTS,
        ),
    ] = SERVER.lenient_reasoning,
    reasoning_field: Annotated[
        Literal["reasoning_content", "both"],
        typer.Option(
            envvar="LMHUB_REASONING_FIELD",
            help="Where chat puts reasoning; both: in `reasoning` as well.",
            rich_help_panel=_REQUESTS,
        ),
    ] = SERVER.reasoning_field,
    lazy_tools: Annotated[
        bool,
        typer.Option(
            envvar="LMHUB_LAZY_TOOLS",
            help="Hold calls that the model opens to the tools' schemas.",
            rich_help_panel=_REQUESTS,
        ),
    ] = ENGINE.lazy_tools,
    strict_tools: Annotated[
        bool,
        typer.Option(
            "--strict-tools",
            envvar="LMHUB_STRICT_TOOLS",
            help="Refuse hosted tools, not ignore them.",
            rich_help_panel=_REQUESTS,
        ),
    ] = SERVER.strict_tools,
    responses_store: Annotated[
        int,
        typer.Option(
            min=0,
            envvar="LMHUB_RESPONSES_STORE",
            help="Responses kept in memory; 0 = none.",
            rich_help_panel=_REQUESTS,
        ),
    ] = SERVER.responses_store,
    ui: Annotated[
        bool, typer.Option(envvar="LMHUB_UI", help="Serve the chat page at /.", rich_help_panel=_REPORTS)
    ] = SERVER.ui,
    metrics: Annotated[
        bool, typer.Option(envvar="LMHUB_METRICS", help="Serve /metrics.", rich_help_panel=_REPORTS)
    ] = SERVER.metrics,
    metrics_open: Annotated[
        bool,
        typer.Option(
            "--metrics-open", envvar="LMHUB_METRICS_OPEN", help="/metrics needs no key.", rich_help_panel=_REPORTS
        ),
    ] = SERVER.metrics_open,
    access_log: Annotated[
        bool,
        typer.Option(
            "--access-log",
            envvar="LMHUB_ACCESS_LOG",
            help="Write a line for each request to stderr.",
            rich_help_panel=_REPORTS,
        ),
    ] = False,
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Print what it would take, and exit: 0 fits, 2 not.", rich_help_panel=_REPORTS),
    ] = False,
    plan_json: Annotated[bool, typer.Option("--plan-json", help="The same as JSON.", rich_help_panel=_REPORTS)] = False,
) -> None:
    """Serve models over HTTP to any OpenAI client."""
    from lmhub.cli.loading import ask_for
    from lmhub.cli.pull import located

    if not (plan or plan_json):
        models = located(models)
        if repack and experts == "pack":
            ask_for(models)
    from lmhub.cli.plan import report
    from lmhub.hub import Hub

    hub = Hub(ctx.obj)
    engine = EngineSettings(
        ctx=context,
        threads=threads,
        pin=pin,
        batch=batch,
        queue=queue,
        kv_dtype=kv_dtype,
        borrow=borrowed(repack, experts),
        expert_cache=cached(experts, expert_cache),
        kv_slots=kv_slots,
        kv_slots_force=kv_slots_force,
        kv_ram=kv_ram * MIB,
        kv_cache_dir=kv_cache_dir,
        kv_disk_max=kv_disk_max * MIB,
        kv_disk_slots=kv_disk_slots,
        spec=spec,
        read_ahead=read_ahead,
        pipe_max=pipe_max,
        stall_timeout_s=stall_timeout,
        request_timeout_s=request_timeout,
        lazy_tools=lazy_tools,
    )
    if plan or plan_json:
        raise typer.Exit(report(hub, models, engine, as_json=plan_json))
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
        grace_s=grace,
        ping_s=sse_ping_interval,
        seed=seed,
        default_max_tokens=default_max_tokens,
        max_n=max_n,
        max_prompts=max_prompts,
        prefill=prefill,
        lenient_reasoning=lenient_reasoning,
        reasoning_field=reasoning_field,
        strict_tools=strict_tools,
        responses_store=responses_store,
        ui=ui,
        metrics=metrics,
        metrics_open=metrics_open,
    )
    if access_log:
        _show_access()
    _run(hub, models, engine, server)


def _run(hub: Hub, models: Sequence[Path], engine: EngineSettings, server: ServerSettings) -> None:
    """Load and serve until a signal comes. The server is imported while the weights are packed."""
    from lmhub.cli.describe import describe
    from lmhub.cli.loading import begun, load
    from lmhub.cli.summary import print_summary
    from lmhub.cli.text import console
    from lmhub.server.listen import bind

    about, files = [], [hub.open(path) for path in models]
    for file in files:  # all of them before the first is loaded: the last one's mistake should not cost minutes
        hub.plan(file, engine)
        about.append(describe(file, hub, engine))

    def ready(address: str) -> None:
        gc.freeze()
        gc.enable()
        served = [hub.acquire(model.id) for model in hub.models]
        plans = [one.plan.as_dict() for one in served if one.plan is not None]
        told = [{**facts, "memory": plan} for facts, plan in zip(about, plans, strict=True)]
        print_summary(out, list(zip((one.model.id for one in served), told, strict=True)), address, server)

    with bind(server.host, server.port) as listener:
        sys.setswitchinterval(SWITCH_S)
        gc.disable()  # what is made before the server is ready stays: there is nothing to collect, now or later
        try:
            loaded = begun(lambda: load(hub, files, engine))
            from lmhub.server.run import serve as run_server

            out = console()
            run_server(hub, server, loaded, ready, listener)
        finally:
            gc.unfreeze()
            gc.enable()


def _show_access() -> None:
    """Let the lines of the access log out, each with its time."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log = logging.getLogger("lmhub.access")
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)


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
