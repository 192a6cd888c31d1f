"""What control groups permit of a machine: their files are made here; tests/engines has a real group."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from isthmus.runtime.system import control_groups
from isthmus.runtime.system.control_groups import cores_most, groups, memory_free, memory_most, processes_free
from isthmus.runtime.wire.segments import MEMORY_SHARE, SegmentPool

PHYSICAL = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
MIB = 1 << 20
FIRST = "9:pids:/box\n4:memory:/box/inner\n3:cpuset:/\n2:cpu,cpuacct:/box\n"
"""A process's groups in version 1."""


def tree(folder: Path, own: str, files: Mapping[str, str]) -> tuple[Path, Path]:
    """A made /sys/fs/cgroup with these files, and the groups of a process."""
    (folder / "own").write_text(own)
    for name, text in files.items():
        path = folder / "sys" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "sys", folder / "own"


def test_the_groups_of_a_process_are_its_own_and_those_around_it(tmp_path: Path) -> None:
    sys, own = tree(tmp_path, "0::/outer/inner\n", {"outer/inner/memory.max": "1"})
    inner = sys / "outer" / "inner"
    assert list(groups("memory", sys, own))[:3] == [inner, inner.parent, sys]
    assert list(groups("memory", sys, tmp_path / "none")) == []
    (tmp_path / "own").write_text(FIRST)
    assert list(groups("memory", sys, own)) == [sys / "memory/box/inner", sys / "memory/box", sys / "memory"]
    assert list(groups("cpu", sys, own)) == [sys / "cpu/box", sys / "cpu"]


@pytest.mark.parametrize(
    ("own", "files"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": f"{64 * MIB}", "memory.max": f"{128 * MIB}"}),
        ("0::/a/b\n", {"a/b/memory.max": "no number", "a/memory.max": f"{64 * MIB}"}),
        (
            FIRST,
            {
                "memory/box/inner/memory.limit_in_bytes": f"{64 * MIB}",
                "memory/memory.limit_in_bytes": f"{2**63 - 4096}",
            },
        ),
        (FIRST, {"memory/box/memory.limit_in_bytes": f"{64 * MIB}"}),
        # A container whose own group is what is mounted.
        (FIRST, {"memory/memory.limit_in_bytes": f"{64 * MIB}"}),
        # Both versions, the second beside the first.
        (f"0::/box\n{FIRST}", {"unified/box/memory.max": f"{64 * MIB}"}),
        (f"0::/box\n{FIRST}", {"memory/box/memory.limit_in_bytes": f"{64 * MIB}"}),
    ],
)
def test_memory_is_the_machines_or_the_least_that_a_group_permits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, files: Mapping[str, str]
) -> None:
    assert memory_most(*tree(tmp_path, "0::/\n4:memory:/\n", {})) == PHYSICAL
    made = tree(tmp_path, own, files)
    assert memory_most(*made) == 64 * MIB
    assert memory_free(*made) == 64 * MIB
    monkeypatch.setattr(control_groups.memory_most, "__defaults__", made)
    assert SegmentPool()._bytes_max == 64 * MIB // MEMORY_SHARE


def test_pages_of_files_that_the_kernel_would_drop_are_free(tmp_path: Path) -> None:
    second = {
        "memory.max": f"{64 * MIB}",
        "memory.current": f"{50 * MIB}",
        "memory.stat": f"anon 7\ninactive_file {20 * MIB}\n",
    }
    assert memory_free(*tree(tmp_path, "0::/\n", second)) == 34 * MIB
    first = {
        "memory/memory.limit_in_bytes": f"{64 * MIB}",
        "memory/memory.usage_in_bytes": f"{80 * MIB}",
        "memory/memory.stat": f"inactive_file 5\ntotal_inactive_file {4 * MIB}\n",
    }
    assert memory_free(*tree(tmp_path / "sys", FIRST, first)) == 0


def test_cores_and_processes_are_those_that_groups_permit(tmp_path: Path) -> None:
    nothing = tree(tmp_path, FIRST, {})
    affinity = len(os.sched_getaffinity(0))
    assert (cores_most(*nothing), processes_free(*nothing)) == (affinity, None)
    second = {
        "cpu.max": "50000 100000",
        "pids.max": "9",
        "pids.current": "4",
        "a/cpu.max": "max 100000",
        "a/pids.max": "max",
    }
    made = tree(tmp_path, "0::/a\n", second)
    assert (cores_most(*made), processes_free(*made)) == (0.5, 5)
    first = {
        "cpu/box/cpu.cfs_quota_us": "25000",
        "cpu/box/cpu.cfs_period_us": "100000",
        "cpu/cpu.cfs_quota_us": "-1",
        "cpu/cpu.cfs_period_us": "100000",
        "pids/box/pids.max": "7",
        "pids/box/pids.current": "4",
    }
    made = tree(tmp_path / "sys", FIRST, first)
    assert (cores_most(*made), processes_free(*made)) == (0.25, 3)
