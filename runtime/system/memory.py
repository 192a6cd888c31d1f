"""The memory that this process has, with its share of what others have, too (PSS).

Hosts share libraries, pages of the process that they were forked from, and segments: resident sets count these once for
each process. The kernel walks all pages of a process to tell, so this is asked for in a thread, at most a thousandth of
the time.
"""

from __future__ import annotations

import resource
import threading
import time
from pathlib import Path
from typing import Final

INTERVAL_SECONDS_MIN: Final = 5.0
INTERVALS: Final = 1000
"""Times as long as the last look took, until the next."""


class ProportionalMemory:
    """The most proportional memory that was seen; the highest resident set until the kernel has told."""

    def __init__(self) -> None:
        self._seen_bytes = 0
        self._due = time.monotonic()
        self._thread: threading.Thread | None = None

    @property
    def peak_bytes(self) -> int:
        """Bytes."""
        return self._seen_bytes or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def look(self) -> None:
        """Ask the kernel again, if it is time; returns at once."""
        if time.monotonic() >= self._due and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._ask, name="memory", daemon=True)
            self._thread.start()

    def _ask(self) -> None:
        begun = time.monotonic()
        self._seen_bytes = max(self._seen_bytes, proportional_bytes() or 0)
        ended = time.monotonic()
        self._due = ended + max(INTERVAL_SECONDS_MIN, INTERVALS * (ended - begun))


def proportional_bytes(pid: int | str = "self") -> int | None:
    """The proportional set of a process in bytes; None where the kernel does not tell."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), None)
