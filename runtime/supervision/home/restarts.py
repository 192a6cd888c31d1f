"""When the next life of a replica begins: at once the first time, later where lives of it end again and again.

A life that served for HEALTHY wipes out the failures before it. After FAILURES_MAX lives in a row that came to nothing,
the program is at fault, and there is no point in another. Where every learner ends by the same error, that is known
sooner (`Repeats`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from isthmus.runtime.clock import Duration, Instant, seconds
from isthmus.runtime.ids import Replica
from isthmus.runtime.supervision.incidents import Raised

BACKOFF_SECONDS: Final = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Before the n-th start in a row that did not come to anything; the first restart is at once."""
FAILURES_MAX: Final = 5
HEALTHY: Final = seconds(10)
REPEATS_MIN: Final = 2
"""Lives in a row of one learner that ended by the same error, for it to be the program's: the first may have been an
accident that met all at once, a disk that was full, say."""
LONG: Final = seconds(600)
"""After so long a service an error is the first of its row: its like before it was another event."""


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


class Repeated(NamedTuple):
    """An error that every learner met, one of them in `lives` lives in a row."""

    error: Raised
    lives: int


class Repeats:
    """Tells the program's own errors, which every learner meets again, from those of one learner alone."""

    def __init__(self) -> None:
        self._rows: dict[Replica, Repeated] = {}

    def ended(self, replica: Replica, error: Raised | None, served_at: Instant | None, now: Instant) -> None:
        """A life of a learner has ended, by this error or by none."""
        before = self._rows.pop(replica, None)
        if error is None:
            return
        is_first = served_at is not None and now - served_at >= LONG
        lives = before.lives if before is not None and before.error.mistake == error.mistake and not is_first else 0
        self._rows[replica] = Repeated(error, lives + 1)

    def common(self, learners: Iterable[Replica]) -> Repeated | None:
        """The error by which the last life of each of these ended, if it is one, and was met again."""
        rows = [self._rows.get(learner) for learner in learners]
        known = [row for row in rows if row is not None]
        if not known or len(known) < len(rows) or any(row.error.mistake != known[0].error.mistake for row in known):
            return None
        lives = max(row.lives for row in known)
        return Repeated(known[0].error, lives) if lives >= REPEATS_MIN else None
