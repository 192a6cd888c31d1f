"""A shard's view of the learners: the last report of the newest life of each slot.

Decides which learners count as live, stepping or finishing. Does not decide the consequences, nor read anything but
reports: the caller records the members without a trace in a round (`miss`), and their next report cancels that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from isthmus.ops.exchange.messages import Progress

MISSES_MAX: Final = 2
"""Rounds in a row that close without a trace of a member, and without a report of it between, before it counts as gone.
An answer without a single step leaves no trace either, but two of them in a row always have a report between."""

Phase: TypeAlias = Literal["ready", "stepping", "final"]


@dataclass(slots=True)
class Learner:
    """One learner's last report; `step_time` in nanoseconds, `delay_steps` in inner steps, 0 where not known yet.

    `epochs` are those of the versions that it holds, by fragment, 0 where it holds none; `links` the goodput of its
    links, as [role, slot, bytes a second in the mean, at best].
    """

    slot: int
    incarnation: int
    phase: Phase
    step_time: int
    delay_steps: int
    epochs: tuple[int, ...] = ()
    links: tuple[Sequence[Any], ...] = ()
    misses: int = 0

    def hear(self, report: Progress) -> None:
        """Store another report of the same life in the same phase."""
        self.step_time, self.delay_steps = report["step_time"], report["delay_steps"]
        self.epochs, self.links = tuple(report["epochs"]), tuple(report.get("links", ()))
        self.misses = 0

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


class Roster:
    """The learners of a run, by slot.

    Its lists are built anew when a life begins, changes its phase or is gone; until then each call returns the same
    object, so a caller that finds the list that it saw before has nothing to compare. Callers do not modify them.
    """

    def __init__(self) -> None:
        self._learners: dict[int, Learner] = {}
        self._lists: dict[str, list[Learner]] = {}

    def incarnation(self, slot: int) -> int:
        """The newest life of a slot; 0 if it never reported."""
        return self._learners[slot].incarnation if slot in self._learners else 0

    def hear(self, report: Progress) -> None:
        """Store a report; one of a former life is ignored."""
        slot, incarnation, phase = report["slot"], report["incarnation"], report["phase"]
        known = self._learners.get(slot)
        if known is not None and (known.incarnation, known.phase) == (incarnation, phase) and not known.is_gone:
            known.hear(report)
        elif known is None or incarnation >= known.incarnation:
            self._learners[slot] = learner = Learner(slot, incarnation, phase, 0, 0)
            learner.hear(report)
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

    def live(self) -> list[Learner]:
        """The learners that are not gone, by slot."""
        return self._those("live", lambda learner: not learner.is_gone)

    def live_slots(self) -> set[int]:
        """The slots of the learners that are not gone."""
        return {slot for slot, learner in self._learners.items() if not learner.is_gone}

    def holding(self, fragment: int) -> list[Learner]:
        """The live ones that hold a version of a fragment, by slot."""
        return [learner for learner in self.live() if any(learner.epochs[fragment : fragment + 1])]

    def stepping(self) -> list[Learner]:
        """The live ones in phase 'stepping', by slot: the members of an ordinary round."""
        return self._those("stepping", lambda learner: learner.phase == "stepping" and not learner.is_gone)

    def finishing(self) -> list[Learner]:
        """The learners that hold work, by slot: the members of a final round.

        Those gone are listed too, for the quorum to drop, so that a run whose learners are all gone comes to its end.
        """
        return self._those("finishing", lambda learner: learner.phase != "ready")

    def _those(self, name: str, holds: Callable[[Learner], bool]) -> list[Learner]:
        if name not in self._lists:
            self._lists[name] = [learner for _, learner in sorted(self._learners.items()) if holds(learner)]
        return self._lists[name]

    def _has_changed(self) -> None:
        self._lists.clear()
