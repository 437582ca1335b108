"""What this machine has: memory, and room on its disks. Reads the operating system's own figures.

A container's limit counts, in both versions of Linux' control groups, and so do the limits of the groups around it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class Memory:
    """Main memory in bytes. `available` can be had without swapping; it includes reclaimable page cache."""

    total: int
    available: int


@dataclass(frozen=True, slots=True)
class _Version:
    """Where one version of control groups keeps its numbers. `cold` is page cache that is given up without harm."""

    folder: str
    limit: str
    used: str
    cold: str


_V2 = _Version("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
_V1 = _Version("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def memory(root: Path = _ROOT) -> Memory:
    """This machine's memory, or that of the container that the process is confined to if that is less.

    Where the system does not say what is available, all of it is taken to be. Another `root` is for tests.
    """
    about = _pairs(root / "proc/meminfo")
    total = about.get("MemTotal:", 0) * 1024 or _pages("SC_PHYS_PAGES")
    available = about["MemAvailable:"] * 1024 if "MemAvailable:" in about else _pages("SC_AVPHYS_PAGES") or total
    for group, version in _groups(root):
        limit, used = _number(group / version.limit), _number(group / version.used)
        if limit is None or used is None or limit >= total:  # without a limit, version 1 states an immense one
            continue
        cold = _pairs(group / "memory.stat").get(version.cold, 0)
        total, available = limit, min(available, max(0, limit - used + min(cold, used)))
    return Memory(total, available)


def resident(root: Path = _ROOT) -> int | None:
    """Bytes of memory that this process holds now, mapped files included; None where the system does not say."""
    kib = _pairs(root / "proc/self/status").get("VmRSS:")
    return None if kib is None else kib * 1024


def disk_free(folder: str | Path) -> int | None:
    """Bytes that may still be written below `folder`, which need not exist yet; None if that cannot be told."""
    place = Path(folder).absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        return shutil.disk_usage(place).free
    except OSError:
        return None


def _groups(root: Path) -> Iterator[tuple[Path, _Version]]:
    """The folders of the memory control groups around this process, the outermost first.

    Inside a container the path in /proc may be that on the host, where nothing is to be found; the mounted folder
    itself is then the container's.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = ["0::/"]
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number != "0" and "memory" not in controllers.split(","):
            continue
        version = _V2 if number == "0" else _V1
        group = root / version.folder
        yield group, version
        for name in path.split("/"):
            if name not in ("", ".", ".."):
                group /= name
                yield group, version


def _pairs(path: Path) -> dict[str, int]:
    """The names and numbers that a file of the kernel's holds, one pair a line; empty if there is none."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    words = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in words if len(pair) >= 2 and pair[1].isdigit()}


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _pages(name: str) -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf(name)
    except (ValueError, OSError):
        return 0
