"""The control groups of this process, which bound what a container may take of its machine (cgroups(7), version 2)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def groups(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Iterator[Path]:
    """The folders of this process's control group, and of those around it."""
    with suppress(OSError):
        name = next((line[3:] for line in own.read_text().splitlines() if line.startswith("0::")), "/")
        path = root / name.strip("/")
        yield from (each for each in (path, *path.parents) if each == root or root in each.parents)


def number_in(path: Path) -> int | None:
    """The number in a file of a control group; None for `max`, and for no such file."""
    with suppress(OSError, ValueError):
        return int(path.read_text())
    return None


def memory_most() -> int:
    """The memory, in bytes, that processes here may have together: the machine's, or less, by a control group."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = (number_in(group / "memory.max") for group in groups())
    return min([physical, *(limit for limit in limits if limit is not None)])
