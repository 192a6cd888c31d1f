"""Logs that other processes append to, kept within a bound of disk.

Whoever writes a log has it open for appending, and goes on at its end after it was cut. So it is cut in place: its end
moves into `NAME.log.1`, which replaces the one before. What a process writes between the two is lost.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

LOG_BYTES: Final = 16 << 20
"""A log is cut where it is longer: it takes twice that of disk, and what its writer adds between two looks."""
LOOK_SECONDS: Final = 10.0


def former(log: Path) -> Path:
    """Where the part of a log lies that was cut off last."""
    return log.with_name(f"{log.name}.1")


def cut(folder: Path, bytes_max: int = LOG_BYTES) -> None:
    """Cut the logs of a folder that are too long; a disk that takes no copy costs that, and the log is cut."""
    for log in sorted(folder.glob("*.log")):
        with suppress(OSError), log.open("r+b") as file:
            size = file.seek(0, 2)
            if size <= bytes_max:
                continue
            file.seek(size - bytes_max)
            with suppress(OSError):
                former(log).write_bytes(file.read(bytes_max))
            file.truncate(0)


def read(log: Path) -> str:
    """The text of a log, with what was cut off last; OSError if it cannot be read."""
    with suppress(FileNotFoundError):
        return former(log).read_text(errors="replace") + log.read_text(errors="replace")
    return log.read_text(errors="replace")
