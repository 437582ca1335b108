"""What memory there is: the kernel's figures, and the limits of control groups in both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmhub.machine import Memory, disk_free, memory, resident

GIB = 1 << 30


def system(root: Path, cgroup: str = "", **files: str) -> Path:
    """A root folder with 16 GiB, 12 of them available; `files` go below it, with `__` for `/`."""
    meminfo = f"MemTotal: {16 << 20} kB\nMemFree: 5 kB\nMemAvailable: {12 << 20} kB\n"
    for name, text in {"proc__meminfo": meminfo, "proc__self__cgroup": cgroup, **files}.items():
        path = root / "/".join(name.split("__"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v2(group: str, limit: str, used: int, stat: str = "anon 5\ninactive_file 0\n") -> dict[str, str]:
    """The files of one group in version 2."""
    folder = f"sys__fs__cgroup{group}__memory."
    return {f"{folder}max": f"{limit}\n", f"{folder}current": f"{used}\n", f"{folder}stat": stat}


def v1(group: str, limit: int, used: int, stat: str) -> dict[str, str]:
    """The files of one group in version 1."""
    folder = f"sys__fs__cgroup__memory{group}__memory."
    return {
        f"{folder}limit_in_bytes": f"{limit}\n",
        f"{folder}usage_in_bytes": f"{used}\n",
        f"{folder}stat": stat,
    }


def test_without_groups_the_kernel_is_believed(tmp_path: Path) -> None:
    assert memory(system(tmp_path)) == Memory(16 * GIB, 12 * GIB)


def test_a_limit_counts_and_cold_page_cache_is_free(tmp_path: Path) -> None:
    stat = f"anon {GIB}\nfile {3 * GIB}\ninactive_file {2 * GIB}\nactive_file {GIB}\n"
    files = v2("", str(8 * GIB), 6 * GIB, stat)
    assert memory(system(tmp_path, "0::/\n", **files)) == Memory(8 * GIB, 4 * GIB)


def test_what_the_machine_has_left_counts_as_well(tmp_path: Path) -> None:
    assert memory(system(tmp_path, "0::/\n", **v2("", str(15 * GIB), GIB))) == Memory(15 * GIB, 12 * GIB)


@pytest.mark.parametrize("limit", ["max", str(32 * GIB)])
def test_no_limit_is_none(tmp_path: Path, limit: str) -> None:
    assert memory(system(tmp_path, "0::/\n", **v2("", limit, 2 * GIB))) == Memory(16 * GIB, 12 * GIB)


def test_every_group_around_the_process_counts(tmp_path: Path) -> None:
    files = v2("__user", str(4 * GIB), 3 * GIB) | v2("__user__shell", "max", GIB)
    assert memory(system(tmp_path, "0::/user/shell\n", **files)) == Memory(4 * GIB, GIB)


def test_more_than_the_limit_is_used(tmp_path: Path) -> None:
    assert memory(system(tmp_path, "0::/\n", **v2("", str(2 * GIB), 3 * GIB))) == Memory(2 * GIB, 0)


def test_version_1(tmp_path: Path) -> None:
    stat = f"inactive_file 1\ntotal_inactive_file {GIB}\n"
    files = v1("__box", 6 * GIB, 4 * GIB, stat) | v1("", (1 << 63) - 4096, 9 * GIB, "")
    cgroup = "9:cpu:/\n4:memory:/box\n1:name=systemd:/\n"
    assert memory(system(tmp_path, cgroup, **files)) == Memory(6 * GIB, 3 * GIB)


def test_version_1_inside_a_container_that_is_mounted_at_the_root(tmp_path: Path) -> None:
    files = v1("", 2 * GIB, GIB, "total_inactive_file 0\n")
    assert memory(system(tmp_path, "4:memory:/docker/abc\n", **files)) == Memory(2 * GIB, GIB)


def test_a_group_cannot_lead_out_of_its_folder(tmp_path: Path) -> None:
    files = v2("", str(8 * GIB), 0) | {"memory.max": "1", "memory.current": "1"}
    assert memory(system(tmp_path, "0::/../../../..\n", **files)) == Memory(8 * GIB, 8 * GIB)


def test_this_machine_has_some() -> None:
    ram = memory()
    assert 0 < ram.available <= ram.total


def test_a_disk_has_room_before_its_folder_exists(tmp_path: Path) -> None:
    free = disk_free(tmp_path / "not" / "yet")
    assert free is not None and free > 0


def test_what_a_process_holds(tmp_path: Path) -> None:
    assert resident(system(tmp_path, proc__self__status="Name: x\nVmRSS:\t  2048 kB\n")) == 2 << 20
    assert resident(tmp_path / "elsewhere") is None
