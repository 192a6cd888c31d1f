"""The times at which fragments are due, and the adaptation of interval and overlap to slow round trips.

Decides the order in which fragments are due, how many rounds may be in flight, and the present H and tau. Does not know
learners, rounds or members, and reads no clock: `pacer` supplies the counts.

Theory of operation. Time is counted in inner steps of the fastest learner (`StepClock`), so that pacing needs no leader
and stands still when no learner steps. Each fragment has a due point on a grid of H steps (`Schedule`); a round that
opens late does not move the grid, hence the mean interval is H and not H plus the latency. H and tau grow by
observation (`Adaptation`), after the same verdict in PATIENCE rounds in a row, so that one slow round changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Final

PATIENCE: Final = 8
"""Rounds with the same verdict before it changes anything: one sweep at the default of 8 fragments, and the span over
which the moving averages forget."""
INTERVAL_PER_ROUND_TRIP: Final = 4
"""A round trip may take a quarter of the interval: beyond that, more than a quarter of the work is overwritten unseen.
"""
FIT_SHARE: Final = 0.75
"""The interval shrinks again only where the round trip needs this share of it; the rest is hysteresis."""
SHRINK_DIVISOR: Final = 8
"""The interval shrinks by an eighth at a time, so that coming back takes several sweeps."""
ROUNDING_STEPS: Final = 1e-6
"""The tolerance of due points, which are floats, so that rounding delays none."""


def rounds_in_flight_max(overlap: int, fragments: int, interval: int, shards: int) -> int:
    """The number of rounds that one shard may have open: ceil(tau P / (H S)), and one where tau is 0.

    With P = H = 24, tau = 2 and one shard these are the two fragments in flight of arXiv 2604.21428.
    """
    return max(1, -(-overlap * fragments // (interval * shards)))


class StepClock:
    """The steps of the fastest learner since the first report, as one count that only grows.

    Every learner has a position on the count: `count` at its first report, then moved by its own steps. The count is
    the foremost position. A learner's last report is stale by up to a period of its reports and their transfer, so no
    learner counts as further behind than a `lag_max` of twice that. Where the fastest one slows down or stops
    reporting, the next is in front after so many steps of its own; and a slower one never pushes the count.
    """

    def __init__(self) -> None:
        self.count = 0
        self._floor = 0  # Of all positions, as they were closed up last.
        self._positions: dict[int, tuple[int, int]] = {}  # Slot -> its own last step, its position.

    def report(self, slot: int, step: int) -> None:
        """Store a learner's own count of steps, which only grows within one of its lives."""
        last, position = self._positions.get(slot, (step, self.count))
        position = max(position, self._floor) + max(0, step - last)
        self._positions[slot] = max(step, last), position
        self.count = max(self.count, position)

    def close_up(self, lag_max: int) -> None:
        """Move up the learners further behind than `lag_max`, after all reports of one moment, in any order."""
        self._floor = max(self._floor, self.count - lag_max)

    def forget(self, slot: int) -> None:
        """Drop a learner's life; the foremost of the others is in front at once."""
        if self._positions.pop(slot, None) is None or not self._positions:
            return
        closed_up = {each: (step, max(position, self._floor)) for each, (step, position) in self._positions.items()}
        shift = self.count - max(position for _, position in closed_up.values())
        self._positions = {each: (step, position + shift) for each, (step, position) in closed_up.items()}


class Schedule:
    """The due points of one shard's fragments, in steps of a StepClock: p H / P, and then every H.

    The stagger is kept when H changes (`stretch`) and when a fragment is skipped (`serve`).
    """

    def __init__(self, own: Iterable[int], fragments: int, interval: int) -> None:
        self.interval = interval
        self._due = {fragment: fragment * interval / fragments for fragment in sorted(own)}

    def due(self, count: int) -> list[int]:
        """The fragments that are due at `count`, the longest overdue first, ties by number."""
        found = [(due, fragment) for fragment, due in self._due.items() if due <= count + ROUNDING_STEPS]
        return [fragment for _, fragment in sorted(found)]

    def late_steps(self, fragment: int, count: int) -> float:
        """The number of steps for which a fragment has been due; negative where it is not yet."""
        return count - self._due[fragment]

    def serve(self, fragment: int, count: int) -> None:
        """Move a fragment's due point on by H from its former value, even if its round opens late at `count`.

        A fragment that is more than H behind is not served twice in a row: it takes the first of its own points that
        lies at least H / 2 ahead.
        """
        due = self._due[fragment] + self.interval
        if due < count:
            due += self.interval * math.ceil((count + self.interval / 2 - due) / self.interval)
        self._due[fragment] = due

    def stretch(self, interval: int, count: int) -> None:
        """Change H: each fragment's remaining wait (or lateness) at `count` grows or shrinks in proportion."""
        ratio = interval / self.interval
        self._due = {fragment: count + (due - count) * ratio for fragment, due in self._due.items()}
        self.interval = interval


class Adaptation:
    """The present H and tau, never below their configured values; one that follows the links is set by `ops.adaptive`.

    - H: where a round trip takes more than H / 4 steps, H becomes four times its whole steps and one more, so that a
      tau of H / 4 leaves a step of slack; it comes back by eighths, once a whole sweep has shown that a shorter one
      fits.
    - tau: raised by one at a time, at most to H / 4.
    """

    def __init__(self, interval: int, overlap: int, auto: Collection[str] = ()) -> None:
        """Set the initial H and tau, and which of 'interval' and 'overlap' follow the links."""
        self.interval = interval
        self.overlap = overlap
        self._auto = auto
        self._interval_min = interval
        self._overlap_min = overlap
        self._long = self._fitting = self._tight = 0

    def observe(self, round_trip_steps: float, is_tight: bool, sweep: int) -> None:
        """Judge one more round.

        Arguments:
            round_trip_steps: the present duration of a round, without grace, in steps of the fastest learner; 0 if
                unknown.
            is_tight: whether tau is too small for this round: for its slack, or for the rounds in flight.
            sweep: how many rounds a sweep of this shard has.
        """
        if "interval" not in self._auto:
            self._judge_interval(round_trip_steps, max(sweep, PATIENCE))
        if "overlap" not in self._auto:
            self._judge_overlap(is_tight)

    def _judge_interval(self, round_trip_steps: float, sweep: int) -> None:
        needed = INTERVAL_PER_ROUND_TRIP * round_trip_steps
        self._long = self._long + 1 if needed > self.interval else 0
        can_shrink = self.interval > self._interval_min and needed <= FIT_SHARE * self.interval
        self._fitting = self._fitting + 1 if can_shrink else 0
        if self._long >= PATIENCE:
            self.interval = INTERVAL_PER_ROUND_TRIP * (math.ceil(round_trip_steps) + 1)
            self._long = 0
        elif self._fitting >= sweep:
            self.interval = max(self._interval_min, self.interval - math.ceil(self.interval / SHRINK_DIVISOR))
            self._fitting = 0

    def _judge_overlap(self, is_tight: bool) -> None:
        overlap_max = max(self._overlap_min, self.interval // INTERVAL_PER_ROUND_TRIP)
        self._tight = self._tight + 1 if is_tight else 0
        if self._tight >= PATIENCE:
            self.overlap += 1
            self._tight = 0
        self.overlap = min(self.overlap, overlap_max)
