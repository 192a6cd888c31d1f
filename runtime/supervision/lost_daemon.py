"""A host and the daemon of its machine: when it looks for another daemon, and when it ends because there is none.

It decides just that. If a beat is late, this process was suspended for that long, and messages of the daemon may lie
unread: that time does not count as silence. A daemon that is silent but alive is no reason to end.
"""

from __future__ import annotations

from typing import Final

SEARCH_SECONDS: Final = 2.0
"""After this long without a message from the daemon, look whether another has taken over."""
ORPHAN_SECONDS: Final = 60.0
"""After this long without a live daemon, end: no other process would ever end this one."""


class Silence:
    """The time for which a daemon has sent nothing that could have been received; all in seconds of one clock."""

    def __init__(self, now: float, period: float) -> None:
        self._period, self._heard_at, self._due = period, now, now + period

    def heard(self, now: float) -> None:
        """A message of the daemon arrived."""
        self._heard_at = now

    def beat(self, now: float) -> float:
        """The silence at a beat, which comes a period after the one before, or late."""
        self._heard_at = min(now, self._heard_at + max(0.0, now - self._due))
        self._due = now + self._period
        return now - self._heard_at


def is_searching(silence: float) -> bool:
    """Whether a host looks for another daemon after this much silence."""
    return silence > SEARCH_SECONDS


def is_orphan(silence: float, *, has_daemon: bool) -> bool:
    """Whether a host ends after this much silence, given whether the process of a daemon exists."""
    return silence > ORPHAN_SECONDS and not has_daemon
