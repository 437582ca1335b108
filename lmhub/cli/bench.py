"""`lmhub bench MODEL`: how fast a model runs by itself, beside the least time that this machine needs for it.

`floors.py` reckons, `rates.py` measures, `bench_text.py` prints; this is the command that ties them together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmhub.cli.options import ExpertCache, Experts, Json, KVType, ModelFile, Pin, Repack, Threads, borrowed, cached

if TYPE_CHECKING:
    from lmhub.cli.rates import Bench, Figure
    from lmhub.gguf import GGUFFile
    from lmhub.hub import Served

Tell = Callable[[str], None]

PREFILL, DEPTHS, ROWS = (1, 8, 32, 128, 512, 2048), (0, 1024, 8192), (1, 2, 4, 8, 16)
QUICK = (512,)
OPS_PREFILL = 512  # the prompt, or the largest one below it, whose ops are shown
SPARE = 8  # positions that a run of decoding takes beside those that it counts


def _shown(sizes: tuple[int, ...]) -> str:
    return ",".join(map(str, sizes))


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured: tokens of prompts, positions before decoded tokens, sequences at once, tokens of each run."""

    prefill: tuple[int, ...]
    depths: tuple[int, ...]
    rows: tuple[int, ...]
    decoded: int

    @property
    def positions(self) -> int:
        """The context that all of it needs."""
        return max((*self.prefill, *(depth + self.decoded + SPARE for depth in (*self.depths, 0))))


def bench(
    ctx: typer.Context,
    model: ModelFile,
    *,
    prefill: Annotated[
        str | None, typer.Option(metavar="N,N", help=f"Tokens of prompts; by default {_shown(PREFILL)}.")
    ] = None,
    depth: Annotated[
        str | None, typer.Option(metavar="N,N", help=f"Positions before decoded tokens; by default {_shown(DEPTHS)}.")
    ] = None,
    rows: Annotated[
        str | None, typer.Option(metavar="N,N", help=f"Sequences decoded at once; by default {_shown(ROWS)}.")
    ] = None,
    decode: Annotated[int, typer.Option(min=1, help="Tokens of each sequence in a run of decoding.")] = 32,
    runs: Annotated[int, typer.Option("--runs", "-n", min=1, help="Runs of each figure; the best one counts.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="A prompt of 512 tokens, decoding from none.")] = False,
    ops: Annotated[bool, typer.Option("--ops", help="Tell as well where the time goes, op by op.")] = False,
    threads: Threads = 0,
    pin: Pin = False,
    kv_dtype: KVType = "f16",
    repack: Repack = True,
    experts: Experts = "pack",
    expert_cache: ExpertCache = 0,
    as_json: Json = False,
) -> None:
    """Measure tokens per second at prefill and decode, and how close they come to the floors of this machine.

    An empty list ("") leaves that part out. What the model's context has no room for is left out by default.
    """
    import json

    from lmhub.cli.bench_text import show, watched
    from lmhub.cli.loading import load
    from lmhub.hub import Hub
    from lmhub.settings import EngineSettings

    hub = Hub(ctx.obj)
    with hub.open(model) as file:
        sizes = _sizes(file, prefill, depth, rows, decode, quick)
        settings = EngineSettings(
            ctx=sizes.positions,
            threads=threads,
            pin=pin,
            batch=1,
            kv_slots=1,
            kv_dtype=kv_dtype,
            borrow=borrowed(repack, experts),
            expert_cache=cached(experts, expert_cache),
            spec=False,
        )
        [served] = load(hub, [file], settings)
        try:
            with watched() as tell:
                report = served.engine.call(lambda: _report(served, file, sizes, runs, ops, tell)).result()
        finally:
            hub.close()
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        show(report)


def _sizes(
    file: GGUFFile, prefill: str | None, depth: str | None, rows: str | None, decoded: int, quick: bool
) -> Sizes:
    """What was asked for, and where nothing was, what the model's context has room for. Raises RequestError."""
    from lmhub.errors import RequestError

    trained = file.get(f"{file.architecture}.context_length", 0)
    n_ctx = trained if isinstance(trained, int) and trained > 0 else 1 << 62
    room = n_ctx - decoded - SPARE
    lists = (QUICK, (0,), ()) if quick else (PREFILL, DEPTHS, ROWS)
    usual = (
        tuple(sorted({min(one, n_ctx) for one in lists[0]})),
        tuple(one for one in lists[1] if one <= room),
        lists[2] if room >= 0 else (),
    )
    given = ("--prefill", prefill, 1), ("--depth", depth, 0), ("--rows", rows, 1)
    asked = [
        default if text is None else _numbers(flag, text, least)
        for (flag, text, least), default in zip(given, usual, strict=True)
    ]
    sizes = Sizes(asked[0], asked[1], asked[2], decoded)
    if sizes.positions > n_ctx:
        raise RequestError(
            f"{file.path.name} has a context of {n_ctx}, {sizes.positions} positions are asked for; "
            f"lower --prefill, --depth or --decode"
        )
    return sizes


def _numbers(flag: str, text: str, least: int) -> tuple[int, ...]:
    from lmhub.errors import RequestError

    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdecimal() and len(word) < 10 and int(word) >= least for word in words):
        raise RequestError(f"{flag} takes whole numbers from {least} on, with commas between them")
    return tuple(int(word) for word in words)


def _report(served: Served, file: GGUFFile, sizes: Sizes, runs: int, with_ops: bool, tell: Tell) -> dict[str, Any]:
    """Everything, measured on the engine's thread; JSON-ready. Raises UnsupportedModel."""
    from lmhub import native
    from lmhub.cli.floors import costs
    from lmhub.cli.rates import Bench
    from lmhub.errors import UnsupportedModel
    from lmhub.gguf import GGMLType
    from lmhub.model import CausalLM

    lm = served.model.model
    if not isinstance(lm, CausalLM):
        raise UnsupportedModel(f"{served.model.id} denoises blocks; bench measures models that predict the next token")
    threads = native.threads()
    cost = costs(file, lm.new_state(1).row_nbytes, GGMLType[served.settings.kv_dtype.upper()])
    tell("the machine")
    bench = Bench(lm, cost, served.settings.prefill_chunk, runs, sizes.decoded, threads)
    detailed = max((one for one in sizes.prefill if one <= OPS_PREFILL), default=min(sizes.prefill, default=0))
    report: dict[str, Any] = {"prefill": [], "decode": [], "batch": []}
    for tokens in sizes.prefill:
        tell(f"a prompt of {tokens}")
        figure = bench.prefill(tokens, with_ops and tokens == detailed)
        report["prefill"].append(_entry("tokens", tokens, figure, bench, file))
    for depth in sizes.depths:
        tell(f"decoding behind {depth}")
        figure = bench.decode(depth, ops=with_ops)
        report["decode"].append(_entry("depth", depth, figure, bench, file))
    for rows in sizes.rows:
        tell(f"decoding {rows} at once")
        figure = bench.decode(min(sizes.depths, default=0), rows, with_ops and rows == max(sizes.rows))
        report["batch"].append(_entry("rows", rows, figure, bench, file))
    weights: dict[str, Any] = {
        "file_bytes": file.nbytes,
        "weight_bytes_per_token": cost.decode(0).nbytes,
        "kv_bytes_per_position": cost.kv_row,
        "operations_per_token": sum(cost.decode(0).operations.values()),
    }
    if (routed := cost.routed) is not None:
        steps = sorted({1, *sizes.rows, *(min(tokens, bench.chunk) for tokens in sizes.prefill)})
        shares = {rows: routed.touched(rows) for rows in steps}
        weights["experts"] = {"count": routed.n_expert, "used": routed.n_used, "expected_share": shares}
    return {"model": served.model.id, "runs": runs, "machine": _machine(bench), "weights": weights, **report}


def _machine(bench: Bench) -> dict[str, Any]:
    """What was measured of the machine: by number of threads, in bytes and operations per second."""
    from lmhub import native

    counts = sorted({1 << n for n in range(bench.threads.bit_length())} - {bench.threads})
    bandwidth = {n: native.memory_bandwidth(n) * 1e9 for n in counts} | {bench.threads: bench.machine.bandwidth}
    units: dict[str, Any] = {}
    for unit, peak in native.peaks(1).items():
        rates = {1: peak.rate * 1e9} | {bench.threads: bench.machine.peaks[unit]}
        units[unit] = {"instruction": peak.instruction, "operations_per_s": rates}
    return {
        "instruction_set": native.isa(),
        "threads": bench.threads,
        "bandwidth_bytes_per_s": bandwidth,
        "units": units,
    }


def _entry(name: str, size: int, figure: Figure, bench: Bench, file: GGUFFile) -> dict[str, Any]:
    from lmhub.cli.op_times import op_rows

    entry = {
        name: size,
        "tokens_per_s": figure.rate,
        "median_tokens_per_s": figure.median,
        "floor_tokens_per_s": figure.floor,
        "percent": figure.percent,
        "bound": figure.bound,
        "seconds": list(figure.seconds),
    }
    return entry | {"ops": op_rows(figure, bench.machine, file)} if figure.ops else entry
