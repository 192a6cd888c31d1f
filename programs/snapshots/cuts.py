"""Cuts of a program whose learners step in lock-step.

Decides after which turn a cut is made, and when it is complete; takes no snapshot. A cut is the model that results from
the turns up to one, with its momentum, and from every live learner the state that it had when it had answered that
turn, before its next step. The turn is announced some turns before: `AHEAD` at first. A learner that receives the
announcement too late has made its next step by then, and does not send; so a cut that is not complete a while after the
version of its turn, or a later one, has arrived, is given up, and the next is announced twice as far ahead. No step and
no merge waits for any of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, final

from isthmus.ops.exchange.messages import Own, ShardState, Wanted, after

AHEAD: Final = 2
AHEAD_MAX: Final = 64
"""Turns. A word takes some milliseconds, and the quickest turns are not shorter."""
PATIENCE_NS: Final = 5_000_000_000
"""Counts from the version on: learners of large models need time to send their parts."""

Life = tuple[int, int]
"""Slot and incarnation."""


@final
class Cuts:
    """Requests and assembles one cut at a time. Times are nanoseconds."""

    def __init__(self) -> None:
        self._ahead = AHEAD
        self._wanted: Wanted | None = None
        self._passed_at: int | None = None
        self._states: dict[int, ShardState] = {}
        self._own: dict[Life, Own] = {}

    @property
    def is_under_way(self) -> bool:
        """Whether a cut is wanted, and neither whole nor given up."""
        return self._wanted is not None

    def want(self, counts: Sequence[int], last: int) -> Wanted:
        """The next cut to request, given the counts of held versions, and `last`, the fragment merged last."""
        fragment, then = after(counts, last, self._ahead)
        self._wanted, self._passed_at = Wanted(fragment=fragment, counts=then), None
        self._states.clear()
        self._own.clear()
        return self._wanted

    def hear(self, states: Collection[ShardState], own: Collection[Own]) -> None:
        """Take parts of a cut."""
        if self._wanted is None:
            return
        counts = self._wanted["counts"]
        for state in states:
            p = state["fragment"]
            if counts[p : p + 1] == [state["version"][1]]:
                self._states.setdefault(p, state)
        for item in own:
            if [count for _, count, _, _ in item["standings"]] == counts:
                self._own[item["slot"], item["incarnation"]] = item

    def whole(self, living: Collection[Life]) -> tuple[Mapping[int, ShardState], Mapping[int, Own]] | None:
        """The cut, by fragment and by slot, once it has all of these lives; then it is over."""
        if self._wanted is None or not living or len(self._states) < len(self._wanted["counts"]):
            return None
        versions = [list(state["version"]) for _, state in sorted(self._states.items())]
        fitting = {
            life: own for life, own in self._own.items() if [list(row[:2]) for row in own["standings"]] == versions
        }
        if not fitting.keys() >= set(living):
            return None
        self._wanted, self._ahead = None, AHEAD
        return dict(self._states), {slot: fitting[slot, life] for slot, life in sorted(living)}

    def is_given_up(self, counts: Sequence[int], now: int) -> bool:
        """Whether the cut cannot be completed, given the counts of held versions; the next is then further ahead."""
        if self._wanted is None or counts[self._wanted["fragment"]] < self._wanted["counts"][self._wanted["fragment"]]:
            return False
        self._passed_at = now if self._passed_at is None else self._passed_at
        if now - self._passed_at < PATIENCE_NS:
            return False
        self._wanted, self._ahead = None, min(2 * self._ahead, AHEAD_MAX)
        return True
