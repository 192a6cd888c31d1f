"""The control groups of this process, which bound what a container may take of its machine: cgroups(7), both versions.

Whoever asks for memory, cores or processes of this machine asks here, so that a container goes by its own limits.

In version 2 one group has all controllers. In version 1, and where both are mounted, each controller has groups of its
own, in a folder of its name. A group bounds those within it, so the least limit of a process's groups holds. In a
container the groups around its own may be out of sight; then the folder that is mounted is its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
OWN: Final = Path("/proc/self/cgroup")
MEMINFO: Final = Path("/proc/meminfo")


def groups(controller: str, root: Path = ROOT, own: Path = OWN) -> Iterator[Path]:
    """The folders of this process's control group, by a controller, and of those around it."""
    with suppress(OSError):
        rows = [line.split(":", 2) for line in own.read_text().splitlines()]
        for _, controllers, name in rows:
            if controllers == "":
                yield from _upwards(root, name)
                # Where both versions are mounted, as systemd does it: the second one has a folder beside the first's.
                yield from _upwards(root / "unified", name)
            elif controller in controllers.split(","):
                yield from _upwards(root / controller, name)


def _upwards(root: Path, name: str) -> Iterator[Path]:
    path = root / name.strip("/")
    yield from (each for each in (path, *path.parents) if each == root or root in each.parents)


def memory_most(root: Path = ROOT, own: Path = OWN) -> int:
    """The memory, in bytes, that processes here may have together: the machine's, or less, by a control group."""
    limits = (limit for limit, _ in _memory(root, own))
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *limits])


def memory_free(root: Path = ROOT, own: Path = OWN) -> int | None:
    """The memory, in bytes, that processes here may still take; None where the machine does not say."""
    try:
        lines = MEMINFO.read_text().splitlines()
        free = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None
    return min([free, *(max(0, limit - used) for limit, used in _memory(root, own))])


def _memory(root: Path, own: Path) -> Iterator[tuple[int, int]]:
    """Limit and use of each group that has a limit. Pages of files that the kernel would drop first are not in use."""
    for group in groups("memory", root, own):
        for limit_in, used_in, droppable in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            if (limit := number_in(group / limit_in)) is not None:
                used = (number_in(group / used_in) or 0) - _row_of(group / "memory.stat", droppable)
                yield limit, max(0, used)


def processes_free(root: Path = ROOT, own: Path = OWN) -> int | None:
    """How many processes and threads the control groups still permit; None without a limit."""
    rooms = [(number_in(group / "pids.max"), number_in(group / "pids.current")) for group in groups("pids", root, own)]
    return min((most - used for most, used in rooms if most is not None and used is not None), default=None)


def cores_most(root: Path = ROOT, own: Path = OWN) -> float:
    """The cores that this process may use: by its affinity, and by the quotas of its control groups."""
    count = float(len(os.sched_getaffinity(0)))
    for group in groups("cpu", root, own):
        with suppress(OSError, ValueError):
            quota, period = (group / "cpu.max").read_text().split()
            count = min(count, float(quota) / float(period))
        quotas = number_in(group / "cpu.cfs_quota_us"), number_in(group / "cpu.cfs_period_us")
        if quotas[0] is not None and quotas[1] is not None and quotas[0] > 0 < quotas[1]:
            count = min(count, quotas[0] / quotas[1])
    return count


def number_in(path: Path) -> int | None:
    """The number in a file of a control group; None for `max`, and for no such file."""
    with suppress(OSError, ValueError):
        return int(path.read_text())
    return None


def _row_of(path: Path, name: str) -> int:
    """A row of a file of names and numbers, 0 without it."""
    with suppress(OSError, ValueError):
        return next((int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith(f"{name} ")), 0)
    return 0
