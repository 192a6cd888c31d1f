"""Cuts of a program whose learners are alike at the end of each round, but for what only each of them has.

Decides at which version a cut is made, and when it is whole; takes no snapshot. A cut is of one version: the model and
its momentum, as the outer step had them, and of every live learner what it had when it had adopted that version, before
its next step. Which one that is to be is said some rounds before: `AHEAD` at first. Whoever hears of it too late has
made its next step by then, and does not send; so a cut that is not whole a while after its model has come, or after a
later version has, is given up, and the next is said twice as far ahead. No step and no merge waits for any of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, final

from isthmus.ops.exchange.kept_state import Own
from isthmus.ops.exchange.messages import State

AHEAD: Final = 2
AHEAD_MAX: Final = 64
"""Rounds. A word takes some milliseconds, and the quickest rounds are not shorter."""
PATIENCE_NS: Final = 5_000_000_000
"""From the version on: what learners send of large models takes its time."""

Life = tuple[int, int]
"""Slot and incarnation."""


@final
class Cuts:
    """One cut at a time. Nanoseconds."""

    def __init__(self) -> None:
        self._ahead = AHEAD
        self._wanted: int | None = None
        self._passed_at: int | None = None
        self._state: State | None = None
        self._own: dict[Life, Own] = {}

    @property
    def is_under_way(self) -> bool:
        """Whether a version is wanted, and neither whole nor given up."""
        return self._wanted is not None

    def want(self, newest: int) -> int:
        """The count of the version that is wanted, where `newest` is the one that is held."""
        self._wanted, self._passed_at, self._state = newest + self._ahead, None, None
        self._own.clear()
        return self._wanted

    def hear(self, states: Collection[State], own: Collection[Own]) -> None:
        """Take what was sent of a cut."""
        for state in states:
            if state["version"][1] == self._wanted:
                self._state = self._state or state
        for item in own:
            if item["count"] == self._wanted:
                self._own[item["slot"], item["incarnation"]] = item

    def whole(self, living: Collection[Life]) -> tuple[State, Mapping[int, Own]] | None:
        """The cut, once it has all of these lives; then it is over."""
        if self._state is None or not living or not self._own.keys() >= set(living):
            return None
        self._wanted, self._ahead = None, AHEAD
        return self._state, {slot: self._own[slot, life] for slot, life in sorted(living)}

    def is_given_up(self, newest: int, now: int) -> bool:
        """Whether it will not be whole any more; then it is over, and the next is further ahead."""
        if self._wanted is None or newest < self._wanted:
            return False
        self._passed_at = now if self._passed_at is None else self._passed_at
        if now - self._passed_at < PATIENCE_NS:
            return False
        self._wanted, self._ahead = None, min(2 * self._ahead, AHEAD_MAX)
        return True
