"""`lmhub doctor`: whether this installation can work, and how fast this machine can read its memory."""

from __future__ import annotations

from typing import Any

import typer

from lmhub.cli.options import Json, Threads

_PACKAGES = ("numpy", "tokenizers", "starlette", "uvicorn", "pluggy", "typer")


def doctor(ctx: typer.Context, threads: Threads = 0, as_json: Json = False) -> None:
    """Check instruction set, threads, memory bandwidth and plugins. Exit status 1 if something is wrong."""
    import json

    from lmhub.cli.health import examine
    from lmhub.errors import LmhubError
    from lmhub.hub import Hub

    problems: list[str] = []
    report: dict[str, Any] = _versions()
    try:
        report |= _kernels(threads)
    except LmhubError as error:
        problems.append(str(error))
    healths = examine(Hub(ctx.obj))
    problems += [f"{one.plugin}: {one.problem}" for one in healths if one.state == "broken"]
    if not any(one.state == "ok" and one.architectures for one in healths):
        problems.append("no plugin serves a model family; install one, for example: pip install lmhub-qwen3")
    if as_json:
        plugins = [one.as_dict() for one in healths]
        typer.echo(json.dumps({**report, "plugins": plugins, "problems": problems}, indent=2))
    else:
        _print(report, healths, problems)
    if problems:
        raise typer.Exit(1)


def _versions() -> dict[str, Any]:
    """Software, machine and memory, JSON-ready."""
    import os
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from lmhub import __version__
    from lmhub.machine import memory

    def installed(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return "missing"

    ram = memory()
    return {
        "lmhub": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: installed(name) for name in _PACKAGES},
        "memory": {"total": ram.total, "available": ram.available},
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


def _kernels(threads: int) -> dict[str, Any]:
    """Level, threads and read bandwidth (bytes per second) at 1, 2, 4, ... threads. Raises KernelError."""
    from lmhub import native

    native.set_threads(threads)
    most = native.threads()
    steps = [*(1 << power for power in range(most.bit_length()) if 1 << power < most), most]
    return {
        "instruction_set": native.isa(),
        "instruction_set_reason": native.isa_reason(),
        "kernel_api": f"{native.ABI[0]}.{native.ABI[1]}",
        "threads": most,
        "bandwidth": [{"threads": n, "bytes_per_s": native.memory_bandwidth(n) * 1e9} for n in steps],
    }


def _print(report: dict[str, Any], healths: list[Any], problems: list[str]) -> None:
    from lmhub.cli.health import as_table
    from lmhub.cli.text import clean, console, facts, size

    packages, ram = report["packages"], report["memory"]
    rows = [
        ("lmhub", f"{report['lmhub']}, Python {report['python']}, {report['system']}"),
        ("packages", ", ".join(f"{name} {version}" for name, version in packages.items())),
        ("memory", f"{size(ram['available'])} of {size(ram['total'])} available"),
    ]
    if "threads" in report:
        rates = (f"{size(one['bytes_per_s'])}/s on {one['threads']}" for one in report["bandwidth"])
        rows += [
            ("instruction set", f"{report['instruction_set']}: {report['instruction_set_reason']}"),
            ("threads", f"{report['threads']} on {report['cpus']} usable CPUs"),
            ("bandwidth", f"{', '.join(rates)} thread{'s' if report['threads'] > 1 else ''}"),
            ("kernel API", report["kernel_api"]),
        ]
    out = console()
    out.print(facts(rows))
    if healths:
        out.print()
        out.print(as_table(healths))
    out.print()
    for problem in problems:
        out.print(f"Problem: {clean(problem, 1000)}")
    if not problems:
        out.print("Everything is in order.")
