"""What this machine has: memory, and the name of the system. Reads the operating system's own figures."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Memory:
    """Main memory in bytes. `available` can be had without swapping; it includes reclaimable page cache."""

    total: int
    available: int


def memory() -> Memory:
    """This machine's memory, or that of the container that the process is confined to if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = _meminfo().get("MemAvailable", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"))
    limit, used = _number(_CGROUP / "memory.max"), _number(_CGROUP / "memory.current")
    if limit is not None and used is not None and limit < total:
        return Memory(limit, min(available, max(0, limit - used)))
    return Memory(total, available)


def _meminfo() -> dict[str, int]:
    """/proc/meminfo in bytes; empty on systems without it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split()[:2] for line in lines if line.endswith(" kB"))
    return {name.rstrip(":"): int(value) * 1024 for name, value in pairs}


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
