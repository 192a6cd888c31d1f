"""When the next life of a replica begins: at once the first time, later where lives of it end again and again.

A life that served for HEALTHY wipes out the failures before it. After FAILURES_MAX lives in a row that came to nothing,
the program is at fault, and there is no point in another.
"""

from __future__ import annotations

from typing import Final

from isthmus.runtime.clock import Duration, Instant, seconds
from isthmus.runtime.ids import Replica

BACKOFF_SECONDS: Final = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Before the n-th start in a row that did not come to anything; the first restart is at once."""
FAILURES_MAX: Final = 5
HEALTHY: Final = seconds(10)


class Restarts:
    """Counts, for each replica, the lives in a row that came to nothing."""

    def __init__(self) -> None:
        self._failures: dict[Replica, int] = {}

    def delay(self, replica: Replica, served_at: Instant | None, now: Instant) -> Duration | None:
        """How long to wait before the life after one which has ended, and which began to serve at `served_at`, if it
        did; None if there is no point in another."""
        is_healthy = served_at is not None and now - served_at >= HEALTHY
        failures = self._failures[replica] = 1 if is_healthy else self._failures.get(replica, 0) + 1
        if failures > FAILURES_MAX:
            return None
        return seconds(BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS)) - 1])

    def failures(self, replica: Replica) -> int:
        """Lives in a row of a replica that came to nothing."""
        return self._failures.get(replica, 0)
