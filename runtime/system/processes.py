"""Facts about a process and this boot, from the kernel (proc(5)): enough to identify a process by pid and start."""

from __future__ import annotations

from pathlib import Path


def boot_id() -> bytes:
    """The id of this machine's present boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()


def started_at(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is none of that pid, or it is a zombie."""
    fields = _stat(pid)
    return None if not fields or fields[0] == "Z" else int(fields[19])


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, by a signal or a debugger, as the kernel reports it (proc(5))."""
    fields = _stat(pid)
    return bool(fields) and fields[0] in ("T", "t")


def _stat(pid: int) -> list[str]:
    """The fields of a process's stat, from its state on; empty where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    # The name in parentheses may contain anything, so the fields are counted from its end; the state is the first.
    return text.rpartition(")")[2].split()
