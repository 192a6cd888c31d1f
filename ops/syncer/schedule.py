"""What a pacer knows and counts: the learners by their reports, the places at which new lives begin, and the times at
which fragments are due.

Decides which learners count as live, stepping or finishing; when a life may be told how far its slot is merged; in
which order fragments are due, how many rounds may be in flight, and the present H and tau. It opens no rounds and reads
no clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from isthmus.ops.data.positions import Place, by_slot
from isthmus.ops.exchange.away import seems_away
from isthmus.ops.exchange.messages import Progress, ReachedPositions

MISSES_MAX: Final = 2
"""Rounds in a row that close without a trace of a member, and without a report of it between, before it counts as gone.
An answer without a single step leaves no trace either, but two of them in a row always have a report between."""

Phase: TypeAlias = Literal["ready", "stepping", "leaving", "final"]


@dataclass(slots=True)
class LearnerReport:
    """One learner's last report."""

    slot: int
    incarnation: int
    phase: Phase
    step_time: int
    """In nanoseconds, 0 where not known yet."""
    delay_steps: int
    """In inner steps, 0 where not known yet."""
    epochs: tuple[int, ...] = ()
    """Those of the versions that it holds, by fragment, 0 where it holds none."""
    links: tuple[Sequence[Any], ...] = ()
    """The goodput of its links, as [role, slot, bytes a second in the mean, at best]."""
    unmerged: tuple[int, ...] = ()
    """Of one that leaves, the fragments in which it has work that is in no version."""
    misses: int = 0
    step: int = 0
    stepped_at: int = 0
    """When a report first had its last `step`, in nanoseconds."""

    def update(self, report: Progress, now: int = 0) -> None:
        """Store another report of the same life in the same phase."""
        if report["step"] != self.step:
            self.step, self.stepped_at = report["step"], now
        self.step_time, self.delay_steps = report["step_time"], report["delay_steps"]
        self.epochs, self.links = tuple(report["epochs"]), tuple(report.get("links", ()))
        self.unmerged = tuple(report.get("unmerged", ()))
        self.misses = 0

    def is_away(self, now: int) -> bool:
        """Whether its steps wait for the user's own code: no round waits for it meanwhile."""
        return self.phase == "stepping" and seems_away(now - self.stepped_at, self.step_time)

    @property
    def is_gone(self) -> bool:
        """Whether it counts as dead; its next report shows that it is not."""
        return self.misses >= MISSES_MAX

    @property
    def member(self) -> list[int]:
        """[slot, incarnation], as a round lists it."""
        return [self.slot, self.incarnation]


def learners_live(progress: Mapping[Any, Progress] | None, members: Iterable[Any]) -> list[list[int]]:
    """The live members [slot, incarnation] in the roles of those that report, by (replica, key); empty without any."""
    roles = {replica.role for replica, _ in progress or ()}
    return [[member.replica.slot, member.incarnation] for member in members if member.replica.role in roles]


class LearnerRoster:
    """The learners of a run, by slot.

    Its lists are built again when a life begins, changes its phase or is gone; until then each call returns the same
    object, so a caller that finds the list that it saw before has nothing to compare. Callers do not modify them.
    """

    def __init__(self) -> None:
        self._learners: dict[int, LearnerReport] = {}
        self._lists: dict[str, list[LearnerReport]] = {}

    def incarnation(self, slot: int) -> int:
        """The newest life of a slot; 0 if it never reported."""
        return self._learners[slot].incarnation if slot in self._learners else 0

    def record(self, report: Progress, now: int = 0) -> None:
        """Store a report that came by `now`; one of a former life is ignored."""
        slot, incarnation, phase = report["slot"], report["incarnation"], report["phase"]
        last = self._learners.get(slot)
        if last is not None and (last.incarnation, last.phase) == (incarnation, phase) and not last.is_gone:
            last.update(report, now)
        elif last is None or incarnation >= last.incarnation:
            self._learners[slot] = learner = LearnerReport(slot, incarnation, phase, 0, 0, stepped_at=now)
            learner.update(report, now)
            self._has_changed()

    def miss(self, slot: int, incarnation: int) -> bool:
        """Record that a round closed without a trace of a life; returns whether that life has thereby become gone."""
        learner = self._learners.get(slot)
        if learner is None or learner.incarnation != incarnation or learner.is_gone:
            return False
        learner.misses += 1
        if learner.misses < MISSES_MAX:
            return False
        self._has_changed()
        return True

    def live(self) -> list[LearnerReport]:
        """The learners that are not gone, by slot."""
        return self._those("live", lambda learner: not learner.is_gone)

    def live_slots(self) -> set[int]:
        """The slots of the learners that are not gone."""
        return {slot for slot, learner in self._learners.items() if not learner.is_gone}

    def holding(self, fragment: int) -> list[LearnerReport]:
        """The live ones that hold a version of a fragment, by slot."""
        return [learner for learner in self.live() if any(learner.epochs[fragment : fragment + 1])]

    def stepping(self) -> list[LearnerReport]:
        """The live ones in phase 'stepping', by slot."""
        return self._those("stepping", lambda learner: learner.phase == "stepping" and not learner.is_gone)

    def leaving(self) -> list[LearnerReport]:
        """The live ones that leave, by slot."""
        return self._those("leaving", lambda learner: learner.phase == "leaving" and not learner.is_gone)

    def answering(self) -> list[LearnerReport]:
        """The live ones that step or leave, by slot: the members of an ordinary round."""
        return self._those(
            "answering", lambda learner: learner.phase in ("stepping", "leaving") and not learner.is_gone
        )

    def finishing(self) -> list[LearnerReport]:
        """The learners that hold work, by slot: the members of a final round.

        Those gone are listed too, for the quorum to drop, so that a run whose learners are all gone ends.
        """
        return self._those("finishing", lambda learner: learner.phase != "ready")

    def _those(self, name: str, holds: Callable[[LearnerReport], bool]) -> list[LearnerReport]:
        if name not in self._lists:
            self._lists[name] = [learner for _, learner in sorted(self._learners.items()) if holds(learner)]
        return self._lists[name]

    def _has_changed(self) -> None:
        self._lists.clear()


@dataclass(slots=True)
class _WaitingLife:
    """A life that is to be placed once these rounds are over."""

    incarnation: int
    rounds: frozenset[int]
    reached: int


class Placing:
    """The lives of learners known to a shard, and the positions up to which it has merged the batches of each slot.

    No batch may be trained twice among those merged, by two lives of a slot. A life that begins after everything that
    was merged of the lives before it satisfies that, as long as nothing more of them is merged later. Such merges are
    possible in rounds that are open when the shard first receives a report of the new life, because a vote that counted
    stays when its voter dies: rounds that open later do not list the former life, and no learner answers them for it.
    So a life is *placed* once the rounds that were open at its first report are over. All of them end without it,
    because it is no member before it steps; and it steps once it is placed. A life that goes on with work of the one
    before it begins after that, too, as it says. Other batches that former lives had trained and no shard has merged
    are trained again; a batch that one fragment has merged and another has not is booked as
    lost for the other.
    """

    def __init__(self) -> None:
        self._lives: dict[int, int] = {}
        self._waiting: dict[int, _WaitingLife] = {}
        self._positions: dict[int, dict[int, int]] = {}
        self._states: dict[int, tuple[int, Any]] = {}

    def add_learner(self, slot: int, incarnation: int, rounds: Collection[int], reached: int = 0) -> None:
        """Record a life that reports while these rounds are open; it goes on with work of the life before it, which had
        `reached` that position. A slot's first has no former ones to follow."""
        if incarnation > self._lives.get(slot, 1):
            self._lives[slot] = incarnation
            self._waiting[slot] = _WaitingLife(incarnation, frozenset(rounds), reached)

    def add_merges(self, reached: Mapping[Any, ReachedPositions] | None) -> None:
        """Record the progress of fragments: each item describes all of its newest version."""
        for item in (reached or {}).values():
            self._positions[item["fragment"]] = by_slot(item["positions"])
            for slot, position, state in item["states"]:
                if position >= self._states.get(slot, (0, None))[0]:
                    self._states[slot] = position, state

    def due(self, rounds: Collection[int], *, shard: int = 0, shards: int = 1) -> list[Place]:
        """The lives that can be placed while these rounds are open, each once, by slot."""
        ready = [slot for slot, each in sorted(self._waiting.items()) if each.rounds.isdisjoint(rounds)]
        return [self._place(slot, self._waiting.pop(slot), shard, shards) for slot in ready]

    def _place(self, slot: int, life: _WaitingLife, shard: int, shards: int) -> Place:
        merged = (positions.get(slot, 0) for positions in self._positions.values())
        position = max(life.reached, *merged) if self._positions else life.reached
        state_position, state = self._states.get(slot, (0, None))
        return Place(
            slot=slot,
            incarnation=life.incarnation,
            shard=shard,
            shards=shards,
            position=position,
            state_position=state_position,
            state=state,
        )


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

    Time is counted in inner steps of the fastest learner (`StepClock`), so that pacing needs no leader and stands still
    when no learner steps. A round that opens late does not move the grid: the mean interval is H, not H plus the
    latency.
    """

    def __init__(self, own: Iterable[int], fragments: int, interval: int) -> None:
        self.interval = interval
        self._due = {fragment: fragment * interval / fragments for fragment in sorted(own)}

    def due(self, count: int) -> list[int]:
        """The fragments that are due at `count`, the longest overdue first, ties by number."""
        overdue = [(due, fragment) for fragment, due in self._due.items() if due <= count + ROUNDING_STEPS]
        return [fragment for _, fragment in sorted(overdue)]

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
    """The present H and tau, never below their configured values; one that follows the links is set by `ops.exchange`.

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
