"""When the next life of a replica begins: at once the first time, after a back-off where its lives end again and again.

A life that served for HEALTHY resets the count of failures. After FAILURES_MAX failed lives in a row, the program is at
fault, and another life is pointless. Where every learner ends by the same error, that is known sooner (`Repeats`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from isthmus.runtime.clock import Duration, Instant, seconds
from isthmus.runtime.ids import Replica
from isthmus.runtime.supervision.incidents import Raised

BACKOFF_SECONDS: Final = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Delay after the n-th failed life in a row; the first restart is at once."""
FAILURES_MAX: Final = 5
HEALTHY: Final = seconds(10)
REPEATS_MIN: Final = 2
"""Lives in a row of one learner that ended by the same error, for the error to be the program's: the first may have
been an accident that hit all at once, such as a full disk."""
LONG: Final = seconds(600)
"""After this long a service an error starts a new row: an equal one before it was another event."""


class Restarts:
    """Counts the failed lives in a row of each replica."""

    def __init__(self) -> None:
        self._failures: dict[Replica, int] = {}

    def delay(self, replica: Replica, served_at: Instant | None, now: Instant) -> Duration | None:
        """The delay before the next life of a replica; None if it should have none.

        The life that has just ended began to serve at `served_at`, if it did.
        """
        is_healthy = served_at is not None and now - served_at >= HEALTHY
        failures = self._failures[replica] = 1 if is_healthy else self._failures.get(replica, 0) + 1
        if failures > FAILURES_MAX:
            return None
        return seconds(BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS)) - 1])

    def failures(self, replica: Replica) -> int:
        """Failed lives in a row of a replica."""
        return self._failures.get(replica, 0)


class Repeated(NamedTuple):
    """An error that every learner met, one of them in `lives` lives in a row."""

    error: Raised
    lives: int


class Repeats:
    """Separates the program's own errors, which every learner meets again, from those of one learner alone."""

    def __init__(self) -> None:
        self._rows: dict[Replica, Repeated] = {}

    def ended(self, replica: Replica, error: Raised | None, served_at: Instant | None, now: Instant) -> None:
        """A life of a learner ended, by this error or by none."""
        before = self._rows.pop(replica, None)
        if error is None:
            return
        is_first = served_at is not None and now - served_at >= LONG
        lives = before.lives if before is not None and before.error.mistake == error.mistake and not is_first else 0
        self._rows[replica] = Repeated(error, lives + 1)

    def common(self, learners: Iterable[Replica]) -> Repeated | None:
        """The error by which the last life of each of these learners ended, if it is the same and was repeated."""
        rows = [self._rows.get(learner) for learner in learners]
        known = [row for row in rows if row is not None]
        if not known or len(known) < len(rows) or any(row.error.mistake != known[0].error.mistake for row in known):
            return None
        lives = max(row.lives for row in known)
        return Repeated(known[0].error, lives) if lives >= REPEATS_MIN else None
