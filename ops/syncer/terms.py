"""The terms on which a round opens: its number of votes, its grace, its required learners; and the present H and tau.

Decides them from the durations of earlier rounds. Does not decide when a round opens or with whom (`pacer`). At the
start of a run a round waits for all its members, until each learner has reported a step time; from then on `grace` has
the rules, and the durations of rounds change H and tau (`schedule.Adaptation`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

from isthmus.ops.exchange.messages import Merging
from isthmus.ops.syncer.grace import Delays, Fairness, grace, slack, slowest_step
from isthmus.ops.syncer.learners import Learner
from isthmus.ops.syncer.schedule import Adaptation


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
    """The terms of one shard's ordinary rounds. `stepping` are always the live learners in phase 'stepping'."""

    def __init__(
        self, interval: int, overlap: int, quorum: int, gamma: float | None, auto: Collection[str] = ()
    ) -> None:
        """H, tau, K, and the safety margin of the grace, None for no grace; which of H and tau follow the links."""
        self.adaptation = Adaptation(interval, overlap, auto)
        self._quorum, self._gamma = quorum, gamma
        self._delays, self._fairness = Delays(), Fairness()
        self._has_step_times = False

    def of(self, fragment: int, stepping: Sequence[Learner]) -> Conditions:
        """The conditions of a round that opens now."""
        self._has_step_times |= all(learner.step_time > 0 for learner in stepping)
        if not self._has_step_times:
            return everybody(len(stepping))
        required = self._fairness.required(fragment, [learner.slot for learner in stepping])
        step, overlap, interval = _slowest(stepping), self.adaptation.overlap, self.adaptation.interval
        deadline = self._fairness.deadline(required, step, overlap, interval)
        return Conditions(min(self._quorum, len(stepping)), self._grace(stepping), required, deadline)

    def final(self, fragments: int, stepping: Sequence[Learner]) -> Conditions:
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
        stepping: Sequence[Learner],
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
            return
        self._delays.observe_answered((learner.delay_steps, learner.step_time) for learner in stepping)
        took = merging["closed_at"] - merging["opened_at"]
        self._fairness.observe(merging["fragment"], answered, merging["left_out"], required, took)
        is_tight = self._gamma is not None and self._slack(stepping) < _slowest(stepping)
        self.adaptation.observe(self.round_trip_steps(stepping), is_tight or is_late, sweep)

    def forget(self, slot: int) -> None:
        """Drop the observations of a slot's earlier life."""
        self._fairness.forget(slot)

    def statistics(self, stepping: Sequence[Learner]) -> dict[str, Any]:
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

    def _slack(self, stepping: Sequence[Learner]) -> float:
        return slack(self.adaptation.overlap, _slowest(stepping), self._delays.quorum.value, self._delays.sync)

    def _grace(self, stepping: Sequence[Learner]) -> int:
        return 0 if self._gamma is None else grace(self._gamma, self._slack(stepping))

    def round_steps(self, stepping: Sequence[Learner]) -> float:
        """The part of a round that must fit into tau, in steps of the slowest learner that counts; 0 if unknown."""
        slowest = _slowest(stepping)
        return (self._delays.quorum.value + self._delays.sync) / slowest if slowest else 0.0

    def round_trip_steps(self, stepping: Sequence[Learner]) -> float:
        """A round trip in steps of the fastest learner; 0 where no step time is known."""
        times = [learner.step_time for learner in stepping if learner.step_time > 0]
        return self._delays.round_trip / min(times) if times else 0.0


def _slowest(stepping: Sequence[Learner]) -> int:
    return slowest_step(learner.step_time for learner in stepping)
