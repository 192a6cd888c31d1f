"""Which learners are slow: those whose steps take twice the median of all, or longer.

A slow learner is asked ahead of its rounds, by its step (`pacer`), and keeps what it trains between its answer and the
adoption (`Round.carry`). A run has no setting for who is slow: it follows from the step times that learners report. The
median is the lower one of an even number, so that of two learners the slow one is slow. Where one learner is faster
than all others, the median is one of theirs, and nobody is slow.

Nobody is slow for one long step, or at the limit again and again: a verdict needs TURNS in a row, one for each ordinary
round that opens, and a slow learner stays slow until its steps take less than USUAL medians. Reads no clock, and opens
no rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Final, Literal, NamedTuple, TypeAlias, final

from isthmus.ops.syncer.schedule import LearnerReport

SLOW: Final = 1.9
"""Medians: twice, less what the averages of steps are off whose times differ by a twentieth."""
USUAL: Final = 1.5
TURNS: Final = 4
"""Half a sweep of 8 fragments. A long step counts for a tenth in a learner's average, and less with each step after it;
and a learner ten times slower than others makes a step or two in this time, which few runs miss."""

Extent: TypeAlias = bool | Literal["auto"]
"""For all learners, for none, or, 'auto', for slow ones."""


@final
@dataclass(frozen=True, slots=True)
class SpeedTerms:
    """What a program does by the speeds of its learners.

    Attributes:
        ahead: who is asked ahead of rounds, of the learners with steps of at least twice the fastest one's.
        carry: whose work survives adoptions; True changes nothing here, as learners know.
    """

    ahead: Extent = False
    carry: Extent = False

    @property
    def by_speed(self) -> bool:
        """Whether anything depends on who is slow."""
        return "auto" in (self.ahead, self.carry)

    @property
    def special(self) -> str:
        """What is done about slow learners, for those who are told."""
        done = [(self.ahead, "asked ahead"), (self.carry, "keeps its work")]
        return ", ".join(text for extent, text in done if extent == "auto")


NO_SPEEDS: Final = SpeedTerms()
"""Learners are treated alike, however fast they are."""


class PaceVerdict(NamedTuple):
    """A learner is slow from now on, or no longer; its step, and the median one, take so many nanoseconds."""

    slot: int
    is_slow: bool
    step_time: int
    median: int


@final
class SlowLearners:
    """The slots of the slow learners of one shard."""

    def __init__(self) -> None:
        self.slots: frozenset[int] = frozenset()
        self._turns: dict[int, int] = {}
        """Turns in a row that speak against the present verdict, by slot."""

    def observe(self, stepping: Sequence[LearnerReport]) -> list[PaceVerdict]:
        """The verdicts that change with one more turn; `stepping` are all learners that step."""
        times = {learner.slot: learner.step_time for learner in stepping if learner.step_time > 0}
        if not times:
            return []
        middle, verdicts = median_low(times.values()), []
        for slot, time in times.items():
            is_slow = slot in self.slots
            is_against = time < USUAL * middle if is_slow else time >= SLOW * middle
            self._turns[slot] = self._turns.get(slot, 0) + 1 if is_against else 0
            if self._turns[slot] >= TURNS:
                self._turns[slot] = 0
                verdicts.append(PaceVerdict(slot, not is_slow, time, middle))
        self.slots ^= {verdict.slot for verdict in verdicts}
        return verdicts

    def forget(self, slot: int) -> None:
        """Drop what is known of a slot's former life."""
        self._turns.pop(slot, None)
        self.slots -= {slot}
