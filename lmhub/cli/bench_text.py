"""What `lmhub bench` prints: the machine, then a table for prompts, for decoding, for batches, and for the ops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lmhub.cli.text import clean, console, count, facts, size, table

Report = Mapping[str, Any]

FIGURES = (("prefill", "tokens", "prompt"), ("decode", "depth", "behind"), ("batch", "rows", "at once"))
OP_TITLES = ("op", "of", "calls", "ms", "share", "GB/s", "GOP/s", "of floor", "bound by")


@contextmanager
def watched() -> Iterator[Callable[[str], None]]:
    """A function that says on a terminal what is being measured."""
    out = console(err=True)
    if not out.is_terminal:
        yield lambda text: None
        return
    with out.status("") as status:
        yield lambda text: status.update(f"Measuring {text}")


def show(report: Report) -> None:
    """Everything, on stdout."""
    out = console()
    out.print(facts(_facts(report)))
    for key, field, title in FIGURES:
        if report[key]:
            out.print()
            out.print(_figures(report[key], field, key, title))
    for key, field, _ in FIGURES:
        for entry in report[key]:
            if "ops" in entry:
                out.print()
                out.print(f"{key}, {field} {entry[field]}: where the time goes")
                out.print(_ops(entry["ops"]))


def _facts(report: Report) -> list[tuple[str, str]]:
    machine, weights = report["machine"], report["weights"]
    memory = machine["bandwidth_bytes_per_s"]
    rows = [
        ("model", f"{clean(report['model'])}, {size(weights['file_bytes'])}"),
        ("machine", f"{machine['instruction_set']}, {_threads(machine['threads'])}"),
        ("memory", ", ".join(f"{size(rate)}/s on {_threads(n)}" for n, rate in memory.items())),
    ]
    for unit, one in machine["units"].items():
        name = "GOP/s" if unit.startswith("int") else "GFLOP/s"
        speeds = ", ".join(f"{rate / 1e9:.0f} {name} on {_threads(n)}" for n, rate in one["operations_per_s"].items())
        rows.append((unit, f"{speeds} ({one['instruction']})"))
    rows.append(
        (
            "each token",
            f"{size(weights['weight_bytes_per_token'])} of weights, "
            f"{count(weights['operations_per_token'])} operations, "
            f"{size(weights['kv_bytes_per_position'])} of cache for each position before it",
        )
    )
    if "experts" in weights:
        one = weights["experts"]
        shares = ", ".join(f"{100 * share:.0f} % for {rows}" for rows, share in one["expected_share"].items())
        rows.append(
            ("experts", f"{one['used']} of {one['count']} for each row; share expected in a step: {shares} rows")
        )
    return rows


def _threads(n: int) -> str:
    return f"{n} thread{'s' if n > 1 else ''}"


def _figures(entries: list[Report], field: str, key: str, title: str) -> Any:
    titles = (f"{key}: {title}", "tokens/s", "median", "of the first", "floor", "reached", "bound by")
    first = entries[0]["tokens_per_s"]
    rows = [
        (
            str(one[field]),
            f"{one['tokens_per_s']:.1f}",
            f"{one['median_tokens_per_s']:.1f}",
            f"{one['tokens_per_s'] / first:.2f}",
            f"{one['floor_tokens_per_s']:.1f}",
            f"{one['percent']:.0f} %",
            one["bound"],
        )
        for one in entries
    ]
    return table(titles, rows, right=titles[:6])


def _ops(ops: list[Report]) -> Any:
    rows = [
        (
            clean(one["op"]),
            clean(one["of"], 60),
            str(one["calls"] or ""),
            f"{1e3 * one['seconds']:.1f}",
            f"{one['share_percent']:.1f} %",
            _speed(one.get("bytes_per_s", 0.0)),
            _speed(one.get("operations_per_s", 0.0)),
            f"{one['percent']:.0f} %" if "percent" in one else "",
            one.get("bound", ""),
        )
        for one in ops
    ]
    return table(OP_TITLES, rows, right=OP_TITLES[2:8])


def _speed(rate: float) -> str:
    return f"{rate / 1e9:.1f}" if rate >= 5e7 else ""
