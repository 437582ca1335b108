"""The options that several commands share, each with its environment variable, and how a long list of them is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from lmhub.settings import MIB, EngineSettings, ServerSettings

ENGINE, SERVER = EngineSettings(), ServerSettings()  # the defaults
KV_RAM, KV_DISK_MAX = ENGINE.kv_ram // MIB, ENGINE.kv_disk_max // MIB  # in the unit of their flags

MEMORY, SPEED = "Memory", "Scheduling and speed"  # headings under which options are listed

ModelFile = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A GGUF file, a plugin's model by name, or ORG/REPO:QUANT.")
]
ModelFiles = Annotated[
    list[Path],
    typer.Argument(metavar="MODEL...", help="GGUF files, plugins' models by name, or ORG/REPO:QUANT."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

Ctx = Annotated[
    int,
    typer.Option(
        "--ctx",
        min=1,
        envvar="LMHUB_CTX",
        help="Positions per sequence, at most the model's own.",
        rich_help_panel=MEMORY,
    ),
]
KVType = Annotated[
    Literal["f16", "f32", "q8_0"],
    typer.Option(
        envvar="LMHUB_KV_DTYPE", help="How keys and values are cached; q8_0: in half of f16.", rich_help_panel=MEMORY
    ),
]
KVSlots = Annotated[
    int,
    typer.Option(
        min=0,
        envvar="LMHUB_KV_SLOTS",
        help="Sequences kept in memory, running ones included; 0 = twice the batch, as far as it fits.",
        rich_help_panel=MEMORY,
    ),
]
KVSlotsForce = Annotated[
    bool,
    typer.Option(
        "--kv-slots-force",
        envvar="LMHUB_KV_SLOTS_FORCE",
        help="Keep that many even where they may not fit.",
        rich_help_panel=MEMORY,
    ),
]
KVRam = Annotated[
    int,
    typer.Option(
        min=0, envvar="LMHUB_KV_RAM", help="MiB of further sequences beyond the slots.", rich_help_panel=MEMORY
    ),
]
KVCacheDir = Annotated[
    str,
    typer.Option(
        metavar="DIR",
        envvar="LMHUB_KV_CACHE_DIR",
        help="Folder in which sequences survive a restart.",
        rich_help_panel=MEMORY,
        show_default=False,
    ),
]
KVDiskMax = Annotated[
    int,
    typer.Option(min=1, envvar="LMHUB_KV_DISK_MAX", help="MiB of that folder, for each model.", rich_help_panel=MEMORY),
]
KVDiskSlots = Annotated[
    int,
    typer.Option(
        min=1, envvar="LMHUB_KV_DISK_SLOTS", help="Sequences in that folder, for each model.", rich_help_panel=MEMORY
    ),
]
Repack = Annotated[
    bool,
    typer.Option(
        "--repack/--no-repack",
        envvar="LMHUB_REPACK",
        help="Pack weights for speed; else read them in the file: no copy, slower, the same replies.",
        rich_help_panel=MEMORY,
    ),
]
Experts = Annotated[
    Literal["pack", "borrow", "stream"],
    typer.Option(
        envvar="LMHUB_EXPERTS",
        help="borrow: leave a mixture's experts in the file; stream: and keep only some of them in memory.",
        rich_help_panel=MEMORY,
    ),
]
ExpertCache = Annotated[
    int,
    typer.Option(
        min=0,
        envvar="LMHUB_EXPERT_CACHE",
        help="MiB of experts that `--experts stream` keeps in memory; 0 = half of what is free.",
        rich_help_panel=MEMORY,
    ),
]
Threads = Annotated[
    int,
    typer.Option(
        min=0, max=256, envvar="LMHUB_THREADS", help="Compute threads; 0 = one per CPU.", rich_help_panel=SPEED
    ),
]
Pin = Annotated[
    bool,
    typer.Option(
        "--pin/--no-pin",
        envvar="LMHUB_PIN",
        help="Bind compute threads to a CPU each, on a machine that does nothing else.",
        rich_help_panel=SPEED,
    ),
]
Batch = Annotated[
    int, typer.Option(min=1, envvar="LMHUB_BATCH", help="Sequences that run at once.", rich_help_panel=SPEED)
]
Spec = Annotated[
    bool,
    typer.Option(
        "--spec/--no-spec",
        envvar="LMHUB_SPEC",
        help="Guess tokens ahead where that pays; replies stay the same.",
        rich_help_panel=SPEED,
    ),
]


def borrowed(repack: bool, experts: str) -> Literal["none", "experts", "all"]:
    """The setting that these two flags mean together."""
    return "all" if not repack else "none" if experts == "pack" else "experts"


def cached(experts: str, mib: int) -> int:
    """Bytes of experts that are kept in memory; 0 for other modes than `stream`."""
    if experts != "stream":
        return 0
    from lmhub.machine import memory

    return mib << 20 or memory().available // 2


class Panels(TyperCommand):
    """A command whose help lists its options under the headings that they name."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments first, then every heading in the order in which it is first used."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                other = "Arguments" if param.param_type_name == "argument" else "Options"
                sections.setdefault(getattr(param, "rich_help_panel", None) or other, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)
