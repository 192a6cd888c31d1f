"""The terms on which a round opens: its number of votes, its grace, its required learners, their deadline; and the
present H and tau.

Decides them from the durations of earlier rounds. Does not decide when a round opens or with whom (`pacer`,
`schedule`), nor does it wait: the quorum of the merge node does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, NamedTuple

from isthmus.ops.exchange.messages import Merging
from isthmus.ops.syncer.schedule import Adaptation, LearnerReport

OBSERVATIONS: Final = 15
"""The number of observations of which a typical delay is the median: about two sweeps of 8 fragments."""
WEIGHT: Final = 1 / 8
"""The weight of the newest observation in a moving average: that of TCP's round-trip estimate (RFC 6298), as are the
next two."""
DEVIATION_WEIGHT: Final = 1 / 4
DEVIATIONS: Final = 4
"""A deadline is the mean and this many deviations."""
OUTLIER: Final = 2
"""A learner slower than this many median step times does not set the pace for all: fairness takes care of it."""
ROUNDS_LEFT_OUT: Final = 4
"""A live learner left out of this many rounds in a row of a fragment is waited for in the next."""
DEADLINES_MISSED_MAX: Final = 6
"""Missed deadlines after which the rounds between two of them (4 << 6 = 256 of a fragment) grow no more."""
FRESH_STEPS: Final = 3
"""A learner's delay is of a round that waited for nobody once it has made so many steps since one was published: it
adopts within two, and reports of that."""
DEADLINE_SLACKS: Final = 4
"""A deadline without observations: this many times tau steps of the slowest learner."""


class Typical:
    """The median of the last OBSERVATIONS; 0 before the first.

    Not a moving average: one round of the start, when everything is cold, or one in which a process did not get a core,
    takes 50 times as long as the others, and would distort H and tau for dozens of rounds.
    """

    def __init__(self) -> None:
        self.value = 0.0
        self._last: deque[float] = deque(maxlen=OBSERVATIONS)

    @property
    def is_known(self) -> bool:
        """Whether there is an observation."""
        return bool(self._last)

    def observe(self, value: float) -> None:
        """Add one observation."""
        self._last.append(value)
        self.value = median(self._last)


@dataclass(slots=True)
class Spread:
    """Moving averages of a time and of its absolute deviation, as in RFC 6298."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, first: float) -> Spread:
        """The estimate after one observation."""
        return cls(first, first / 2)

    def observe(self, value: float) -> None:
        """Add one observation."""
        self.deviation += (abs(value - self.mean) - self.deviation) * DEVIATION_WEIGHT
        self.mean += (value - self.mean) * WEIGHT

    def deadline(self) -> float:
        """The latest time at which the next observation is expected."""
        return self.mean + DEVIATIONS * self.deviation


def slowest_step(step_times: Iterable[int]) -> int:
    """xi_step: the largest of the known (> 0) step times that is within twice their median; 0 if none is known."""
    measured = [time for time in step_times if time > 0]
    return max((time for time in measured if time <= OUTLIER * median(measured)), default=0)


def has_outlier(stepping: Iterable[LearnerReport]) -> bool:
    """Whether one of these learners is too slow to set the pace for all."""
    times = [learner.step_time for learner in stepping if learner.step_time > 0]
    return max(times, default=0) > slowest_step(times)


def slack(overlap: int, step: float, quorum: float, sync: float) -> float:
    """The rest of tau steps of the slowest learner: tau xi_step - (xi_quorum + xi_sync), all in nanoseconds.

    An update that is adopted tau steps after its round opened costs nothing, so a round may wait for the rest of tau
    steps of the slowest learner, shortened for safety (arXiv 2604.21428, adaptive grace window): grace = max(0, gamma
    slack). xi_quorum (opening to quorum) includes the transfer of the pull, the wait for a boundary and the transfer of
    the answer. xi_sync is the time after the close: merge, outer step, and the transfer of the update to the learners.
    A shard cannot measure the last part; it is derived from the learners' own delay between answer and adoption
    (`Delays.transfer`).
    """
    return overlap * step - (quorum + sync)


def grace(gamma: float, slack: float) -> int:
    """The grace window in nanoseconds: gamma slack, never negative, rounded down."""
    return max(0, int(gamma * slack))


class Delays:
    """The typical durations of a round's parts, in nanoseconds.

    quorum: opening to quorum, except where the quorum was all members because the run had just begun.
    waited: quorum to close, that is the grace.
    publishing: close to publication.
    answered: a learner's answer to its adoption of the resulting update, the median over learners.
    """

    def __init__(self) -> None:
        self.quorum = Typical()
        self.waited = Typical()
        self.publishing = Typical()
        self.answered = Typical()

    def observe(self, opened_at: int, quorum_at: int, closed_at: int, published_at: int, *, is_usual: bool) -> None:
        """Add the times of one round. One that is not usual waited for all members: its quorum does not count."""
        if is_usual:
            self.quorum.observe(quorum_at - opened_at)
        self.waited.observe(closed_at - quorum_at)
        self.publishing.observe(max(0, published_at - closed_at))

    def observe_answered(self, learners: Iterable[tuple[int, int]]) -> None:
        """Add the (delay in steps, step time in ns) of the learners, where both are known (> 0).

        An update that came at any moment of a step is adopted at its end: half a step of each delay is that rounding.
        """
        durations = [(steps - 0.5) * time for steps, time in learners if steps > 0 and time > 0]
        if durations:
            self.answered.observe(median(durations))

    @property
    def transfer(self) -> float:
        """The transfer times of an answer to the shard and of an update back, together.

        It is the delay from answer to adoption, less publication and the wait for the close. The votes arrive between
        quorum and close, so the median learner's waits for half of that. With a quorum of several the first of them
        wait for the last, which counts as transfer here: the grace is then on the short side.
        """
        if not self.answered.is_known:
            return 0.0
        return max(0.0, self.answered.value - self.publishing.value - self.waited.value / 2)

    @property
    def sync(self) -> float:
        """xi_sync: close to publication, and the transfer of the update.

        Both transfers carry the same fragment, so the update's is half of them; the answer's is in xi_quorum already.
        """
        return self.publishing.value + self.transfer / 2

    @property
    def round_trip(self) -> float:
        """The duration of a round without deliberate waits; the grace is not in it, because tau bounds that.

        From opening to adoption or, where that is longer, the learners' delay from answer to adoption.
        """
        return max(self.quorum.value + self.sync, self.answered.value - self.waited.value / 2)


@dataclass(slots=True)
class Fairness:
    """The slots that a round must wait for, and the deadline.

    A required learner that misses its deadline is required again after twice as many rounds, until it answers, so that
    one that is live but stuck soon costs nothing; and the miss is booked as an answer after twice the wait, so that the
    next deadline of one that is only slow is long enough.
    """

    _left_out: dict[tuple[int, int], int] = field(default_factory=dict)  # (Fragment, slot) -> rounds in a row.
    _misses: dict[int, int] = field(default_factory=dict)  # Slot -> deadlines missed since its last answer.
    _answers: dict[int, Spread] = field(default_factory=dict)  # Slot -> opening to close of rounds that it voted in.

    def observe(
        self, fragment: int, answered: Sequence[int], left_out: Sequence[int], required: Sequence[int], took: int
    ) -> None:
        """Add the slots that answered a round and those left out; it `took` so many ns from opening to close."""
        for slot in answered:
            self._left_out.pop((fragment, slot), None)
            self._misses.pop(slot, None)
            self._learn(slot, took)
        for slot in left_out:
            if slot in required:
                self._left_out.pop((fragment, slot), None)
                self._misses[slot] = min(self._misses.get(slot, 0) + 1, DEADLINES_MISSED_MAX)
                self._learn(slot, 2 * took)
            else:
                self._left_out[fragment, slot] = self._left_out.get((fragment, slot), 0) + 1

    def _learn(self, slot: int, took: int) -> None:
        if slot in self._answers:
            self._answers[slot].observe(took)
        else:
            self._answers[slot] = Spread.of(took)

    def forget(self, slot: int) -> None:
        """Drop the observations of a slot's earlier life."""
        self._answers.pop(slot, None)
        self._misses.pop(slot, None)
        self._left_out = {key: count for key, count in self._left_out.items() if key[1] != slot}

    def required(self, fragment: int, slots: Iterable[int]) -> list[int]:
        """Those of `slots` that the next round of a fragment waits for."""
        return [slot for slot in slots if self._left_out.get((fragment, slot), 0) >= self._patience(slot)]

    def _patience(self, slot: int) -> int:
        return ROUNDS_LEFT_OUT << self._misses.get(slot, 0)

    def deadline(self, slots: Sequence[int], step: int, overlap: int, interval: int) -> int | None:
        """The time for which a round waits, from its opening, for the required `slots`, in ns; None if there are none.

        The latest of their own: learned, or else 4 tau xi_step; never more than an interval of xi_step = `step` ns, at
        which the next round of the fragment is due.
        """
        if not slots:
            return None
        unknown = DEADLINE_SLACKS * max(1, overlap) * step
        own = [self._answers[slot].deadline() if slot in self._answers else unknown for slot in slots]
        return min(int(max(own)), interval * step)


EDGE_WAIT: Final = 1_000_000_000
"""Nanoseconds for which the first round of a fragment in a life of its shard, and the last ones of a run, wait for
every live learner: of an answer that comes too late for the first the work is stale by then, because learners have
stepped since before that life began, and after the last there is no next round in which it could count."""


class Conditions(NamedTuple):
    """The fields of a round that its quorum reads, as in `messages.Round`."""

    count_min: int
    grace: int | None
    required: list[int]
    deadline: int | None


def everybody(count: int) -> Conditions:
    """The conditions of a round that waits for all its `count` members, without a limit."""
    return Conditions(count, None, [], None)


FINAL_MIN: Final = 20_000_000_000
"""Nanoseconds for which a final round waits at least, once one has answered, for live learners that have not: a process
may be busy, or wait for a core, for some seconds, and its work since the last merge is lost otherwise."""
FINAL_ROUND_TRIPS: Final = 8
"""All fragments are asked for at once: this many usual round trips for each."""
FINAL_STEPS: Final = 2
"""An answer leaves at the end of a step, also of a learner that is too slow to set the pace: this many of its steps."""


def last(round_longest: int, slowest: int, steps: int) -> Conditions:
    """The conditions of a final round in lock-step, which learners answer after so many more steps.

    It waits for all that are live, within a bound. `round_longest` is the longest duration of a round, `slowest` a step
    of the slowest learner, both in nanoseconds.
    """
    longest = FINAL_STEPS * (steps + 1) * slowest
    return Conditions(1, max(FINAL_MIN, FINAL_ROUND_TRIPS * round_longest, longest), [], None)


class Terms:
    """The terms of one shard's ordinary rounds. `stepping` are always the live learners in phase 'stepping'.

    At the start of a run a round waits for all its members, until each learner has reported a step time.
    """

    def __init__(
        self, interval: int, overlap: int, quorum: int, gamma: float | None, auto: Collection[str] = ()
    ) -> None:
        """H, tau, K, and the safety margin of the grace, None for no grace; which of H and tau follow the links."""
        self.adaptation = Adaptation(interval, overlap, auto)
        self._quorum, self._gamma = quorum, gamma
        self._delays, self._fairness = Delays(), Fairness()
        self._has_step_times = False
        self._stale: dict[int, int | None] = {}
        """Learners whose last delay is of a round that waited for an outlier -> their step at the first usual round
        since, None before it."""

    def of(self, fragment: int, stepping: Sequence[LearnerReport]) -> Conditions:
        """The conditions of a round that opens now."""
        self._has_step_times |= all(learner.step_time > 0 for learner in stepping)
        if not self._has_step_times:
            return everybody(len(stepping))
        required = self._fairness.required(fragment, [learner.slot for learner in stepping])
        step, overlap, interval = _slowest(stepping), self.adaptation.overlap, self.adaptation.interval
        deadline = self._fairness.deadline(required, step, overlap, interval)
        return Conditions(min(self._quorum, len(stepping)), self._grace(stepping), required, deadline)

    def parting(self, fragment: int, stepping: Sequence[LearnerReport], leaving: Sequence[LearnerReport]) -> Conditions:
        """The conditions of a round that opens for learners that leave: it waits for these, within a bound."""
        conditions = self.of(fragment, stepping) if stepping else Conditions(1, 0, [], None)
        if conditions.grace is None:
            return conditions
        required = sorted({*conditions.required, *(learner.slot for learner in leaving)})
        return conditions._replace(required=required, deadline=EDGE_WAIT)

    def final(self, fragments: int, stepping: Sequence[LearnerReport]) -> Conditions:
        """The conditions of a final round, of `fragments` that are asked for together.

        It waits for all that are live, within a bound.
        """
        usual = FINAL_ROUND_TRIPS * fragments * (self._delays.round_trip + _slowest(stepping))
        longest = FINAL_STEPS * max((learner.step_time for learner in stepping), default=0)
        return Conditions(1, max(FINAL_MIN, longest, round(usual)), [], None)

    def observe(
        self,
        merging: Merging,
        answered: Sequence[int],
        required: Sequence[int],
        stepping: Sequence[LearnerReport],
        *,
        is_usual: bool,
        is_late: bool,
        sweep: int,
    ) -> None:
        """Learn from a round that some learner answered.

        Arguments:
            merging: the result of the round.
            answered: the slots whose answer came in time, whether it was merged or refused.
            required: the slots that it waited for.
            is_usual: whether it had a grace window: one that waited for all members is not representative.
            is_late: whether another fragment waits too long for its turn.
            sweep: how many rounds a sweep of this shard has.
        """
        instants = merging["opened_at"], merging["quorum_at"], merging["closed_at"], merging["published_at"]
        self._delays.observe(*instants, is_usual=is_usual)
        if not is_usual:
            # All others' delays are then the outlier's step: taken for a round trip they would lengthen H.
            if has_outlier(stepping):
                self._stale = dict.fromkeys(learner.slot for learner in stepping)
            return
        fresh = [learner for learner in stepping if self._has_fresh_delay(learner)]
        self._delays.observe_answered((learner.delay_steps, learner.step_time) for learner in fresh)
        took = merging["closed_at"] - merging["opened_at"]
        self._fairness.observe(merging["fragment"], answered, merging["left_out"], required, took)
        is_tight = self._gamma is not None and self._slack(stepping) < _slowest(stepping)
        self.adaptation.observe(self.round_trip_steps(stepping), is_tight or is_late, sweep)

    def _has_fresh_delay(self, learner: LearnerReport) -> bool:
        """Whether a learner's delay is of a usual round; called once for each such round."""
        if learner.slot not in self._stale:
            return True
        step = self._stale[learner.slot]
        if step is None:
            self._stale[learner.slot] = learner.step
        elif learner.step >= step + FRESH_STEPS:
            del self._stale[learner.slot]
            return True
        return False

    def forget(self, slot: int) -> None:
        """Drop the observations of a slot's earlier life."""
        self._fairness.forget(slot)
        self._stale.pop(slot, None)

    def statistics(self, stepping: Sequence[LearnerReport]) -> dict[str, Any]:
        """The figures for the status: H and tau in inner steps, durations in nanoseconds."""
        return {
            "interval": self.adaptation.interval,
            "overlap": self.adaptation.overlap,
            "xi_step": _slowest(stepping),
            "xi_quorum": round(self._delays.quorum.value),
            "xi_sync": round(self._delays.sync),
            "slack": round(self._slack(stepping)),
            "grace": self._grace(stepping),
            "round_trip_steps": round(self.round_trip_steps(stepping), 2),
        }

    def _slack(self, stepping: Sequence[LearnerReport]) -> float:
        return slack(self.adaptation.overlap, _slowest(stepping), self._delays.quorum.value, self._delays.sync)

    def _grace(self, stepping: Sequence[LearnerReport]) -> int:
        return 0 if self._gamma is None else grace(self._gamma, self._slack(stepping))

    def round_steps(self, stepping: Sequence[LearnerReport]) -> float:
        """The part of a round that must fit into tau, in steps of the slowest learner that counts; 0 if unknown."""
        slowest = _slowest(stepping)
        return (self._delays.quorum.value + self._delays.sync) / slowest if slowest else 0.0

    def round_trip_steps(self, stepping: Sequence[LearnerReport]) -> float:
        """A round trip in steps of the fastest learner; 0 where no step time is known."""
        times = [learner.step_time for learner in stepping if learner.step_time > 0]
        return self._delays.round_trip / min(times) if times else 0.0


def _slowest(stepping: Sequence[LearnerReport]) -> int:
    return slowest_step(learner.step_time for learner in stepping)
