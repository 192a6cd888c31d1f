"""The start of a run, as one shard sees it: when, and from which learner, it requests its fragments' first versions.

Decides the learner that gives the first version; does not open its rounds (`pacer`). Learners that are ready wait until
as many as the run was configured for have compiled, at most START_WAIT: the only wait of a run. All shards ask the live
learner of the lowest slot, so that the first versions of all fragments are of one model; where it fails, the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

START_WAIT: Final = 60_000_000_000
"""Nanoseconds from the first report after which a run starts with the learners that there are."""
TRIES_MAX: Final = 16
"""Rounds in which the first version of a fragment may fail to come before the run fails."""


class Start:
    """Chooses the learners that give the first versions. Members are [slot, incarnation]."""

    def __init__(self, learners: int) -> None:
        """`learners` is the number that a start waits for."""
        self._learners = learners
        self._waits_until: int | None = None
        self._tried: list[list[int]] = []
        self._failures: dict[int, int] = {}
        self.has_waited = False
        """Whether it began with fewer learners than the run was configured for, after the wait."""

    def giver(self, live: Sequence[list[int]], now: int) -> list[int] | None:
        """The member to ask now, of those `live` (by slot); None as long as the start must wait.

        Once all that are live have failed, they are asked again from the lowest slot on.
        """
        if not live:
            return None
        if self._waits_until is None:
            self._waits_until = now + START_WAIT
        if len(live) < self._learners and now < self._waits_until:
            return None
        self.has_waited |= len(live) < self._learners
        self._waits_until = now  # It has started: a learner that dies now is not waited for again.
        if all(member in self._tried for member in live):
            self._tried = []
        return next(member for member in live if member not in self._tried)

    def failed(self, fragment: int, member: list[int], reason: str) -> None:
        """Record that a member did not give the first version of a fragment.

        Raises RuntimeError after TRIES_MAX failures of one fragment: then the fault is not with the learner.
        """
        if member not in self._tried:
            self._tried.append(member)
        self._failures[fragment] = self._failures.get(fragment, 0) + 1
        if self._failures[fragment] >= TRIES_MAX:
            raise RuntimeError(
                f"starting fragment {fragment}: expected its first version from one of the learners, found none in "
                f"{TRIES_MAX} rounds (the last: {reason}). Look at the logs of the learners."
            )
