"""`lmhub plan MODEL...`: what serving models would take, before anything is loaded. Exit status 0 fits, 2 does not.

Nothing is allocated and no tensor is read. The same tables are what `lmhub serve --plan` prints.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from lmhub.cli.options import (
    ENGINE,
    KV_DISK_MAX,
    KV_RAM,
    Batch,
    Ctx,
    ExpertCache,
    Experts,
    Json,
    KVCacheDir,
    KVDiskMax,
    KVRam,
    KVSlots,
    KVSlotsForce,
    KVType,
    ModelFiles,
    Repack,
    Spec,
    borrowed,
    cached,
)
from lmhub.settings import MIB, EngineSettings

if TYPE_CHECKING:
    from rich.console import Console

    from lmhub.hub import Hub
    from lmhub.memory import Plan

_BAR = 24  # cells of the longest bar


def plan(
    ctx: typer.Context,
    models: ModelFiles,
    *,
    context: Ctx = ENGINE.ctx,
    batch: Batch = ENGINE.batch,
    kv_dtype: KVType = "f16",
    repack: Repack = True,
    experts: Experts = "pack",
    expert_cache: ExpertCache = 0,
    kv_slots: KVSlots = ENGINE.kv_slots,
    kv_slots_force: KVSlotsForce = ENGINE.kv_slots_force,
    kv_ram: KVRam = KV_RAM,
    kv_cache_dir: KVCacheDir = ENGINE.kv_cache_dir,
    kv_disk_max: KVDiskMax = KV_DISK_MAX,
    spec: Spec = ENGINE.spec,
    as_json: Json = False,
) -> None:
    """Show what serving models would take, and whether this machine has it. Exit status: 0 yes, 2 no, 1 an error."""
    from lmhub.hub import Hub

    settings = EngineSettings(
        ctx=context,
        batch=batch,
        kv_dtype=kv_dtype,
        borrow=borrowed(repack, experts),
        expert_cache=cached(experts, expert_cache),
        kv_slots=kv_slots,
        kv_slots_force=kv_slots_force,
        kv_ram=kv_ram * MIB,
        kv_cache_dir=kv_cache_dir,
        kv_disk_max=kv_disk_max * MIB,
        spec=spec,
    )
    raise typer.Exit(report(Hub(ctx.obj), models, settings, as_json=as_json))


def report(hub: Hub, models: Sequence[Path], settings: EngineSettings, *, as_json: bool) -> int:
    """Print the plan of every file, each with what those before it leave. Returns the exit status."""
    from lmhub.errors import LmhubError

    plans: list[Plan] = []
    try:
        for path in models:
            with hub.open(path) as file:
                plans.append(hub.plan(file, settings, taken=sum(one.worst for one in plans)))
    except LmhubError as error:  # not the usual status 2: that says here that a plan does not fit
        typer.echo(f"lmhub: {error}", err=True)
        return 1
    _show(plans, as_json=as_json)
    return 0 if all(one.fits for one in plans) else 2


def _show(plans: Sequence[Plan], *, as_json: bool) -> None:
    import json

    from lmhub.cli.text import console

    if as_json:
        fits = all(one.fits for one in plans)
        typer.echo(json.dumps({"fits": fits, "plans": [one.as_dict() for one in plans]}, indent=2))
        return
    out = console()
    for number, one in enumerate(plans):
        if number:
            out.print()
        _print(out, one)


def _print(out: Console, one: Plan) -> None:
    from lmhub.cli.text import clean, facts, size, table

    top = max((item.nbytes for item in one.items), default=1)
    rows = [
        (item.name, size(item.nbytes), item.kind, _bar(item.nbytes / top), clean(item.detail)) for item in one.items
    ]
    out.print(
        f"{clean(one.model)}: {one.ctx} positions of {one.kv_dtype} cache, {one.batch} sequences at once, "
        f"{one.slots if one.fits else one.wanted} kept\n"
    )
    out.print(table(("item", "size", "when", "share", "what"), rows, right=("size",)))
    out.print()
    sums = [
        ("at load", size(one.committed)),
        ("typical", f"{size(one.typical)}, with every kept sequence a quarter full"),
        ("at most", f"{size(one.worst)}, and {size(one.mapped)} of the file in page cache"),
        ("available", f"{size(one.available)} of {size(one.machine)}"),
        ("verdict", _verdict(one)),
    ]
    out.print(facts(sums))
    for warning in one.warnings:
        out.print(f"Warning: {clean(warning, 1000)}.", style="yellow")
    if one.fixes:
        out.print("\nWhat would help:")
        out.print(
            facts([(f"  {fix.flags}", f"{size(fix.total)}{'' if fix.fits else ', not enough'}") for fix in one.fixes])
        )


def _bar(share: float) -> str:
    """A bar in eighths of a cell, at least one of them."""
    eighths = max(round(share * _BAR * 8), 1)
    return "█" * (eighths // 8) + ("▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else "")


def _verdict(one: Plan) -> str:
    if one.fits:
        return "fits"
    kept = f"; a server would keep {one.slots} of them" if one.verdict == "clamp" else ""
    return f"does not fit{kept}"
