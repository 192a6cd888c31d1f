"""A host and the daemon of its machine: when it looks for another daemon, and when it ends because there is none.

It decides just that. What a beat is late by, this process slept itself (somebody stopped it): what was said meanwhile
may lie unread. A daemon that is silent but lives is no reason to end.
"""

from __future__ import annotations

from typing import Final

SEARCH_SECONDS: Final = 2.0
"""Without a word from the daemon for so long, look whether another has taken over."""
ORPHAN_SECONDS: Final = 60.0
"""Without any daemon that lives for so long, end: nobody would ever end this process."""


class Silence:
    """For how long a daemon has said nothing that this process could have heard; all in seconds of one clock."""

    def __init__(self, now: float, period: float) -> None:
        self._period, self._heard_at, self._due = period, now, now + period

    def heard(self, now: float) -> None:
        """The daemon spoke."""
        self._heard_at = now

    def beat(self, now: float) -> float:
        """The silence at a beat, which comes a period after the one before, or late."""
        self._heard_at = min(now, self._heard_at + max(0.0, now - self._due))
        self._due = now + self._period
        return now - self._heard_at


def is_searching(silence: float) -> bool:
    """Whether a host that has heard nothing for so long looks for another daemon."""
    return silence > SEARCH_SECONDS


def is_orphan(silence: float, *, has_daemon: bool) -> bool:
    """Whether a host that has heard nothing for so long ends, where the process of a daemon is there, or none."""
    return silence > ORPHAN_SECONDS and not has_daemon
