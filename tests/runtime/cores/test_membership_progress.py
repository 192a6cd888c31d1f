"""Of steps: what is learned of them, from when on a host is slow, keeps up again, and is stuck, to the nanosecond."""

from __future__ import annotations

import math
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.runtime.clock import Duration, Instant, seconds
from isthmus.runtime.cores.membership_core import FIRING_MAX, STEPS_MAX, MembershipCore, MembershipOptions
from isthmus.runtime.cores.membership_messages import (
    HeartbeatArrived,
    HostAnnounced,
    MembershipCommand,
    Phase,
    RemoveMember,
    Stall,
)
from isthmus.runtime.cores.membership_suspicion import SLOW_AFTER, Paces, StepProgress, phi, quantile
from isthmus.runtime.ids import Member, Replica


def stepping(*times: int) -> StepProgress:
    """That of a life which took so long for its steps, after a first one, and tells of each."""
    progress, busy = StepProgress(Instant(0)), 1000
    assert progress.record(1, Duration(busy), Duration(0), Instant(busy), 1.0)
    for steps, time in enumerate(times, 2):
        busy += time
        assert progress.record(steps, Duration(busy), Duration(0), Instant(busy), 1.0)
    return progress


@pytest.mark.parametrize(("steps", "busy"), [(9, 100), (9, 200), (12, 99)])
def test_figures_that_go_back_teach_nothing_and_are_counted_from(steps: int, busy: int) -> None:
    progress = StepProgress(Instant(0))
    progress.begin(10, Duration(100), Instant(5))
    assert not progress.record(steps, Duration(busy), Duration(0), Instant(50), 1.0)
    assert (progress.steps, progress.since, progress.rhythm) == (steps, 50, None)
    assert progress.record(steps + 1, Duration(busy), Duration(0), Instant(80), 1.0)
    assert progress.rhythm is not None
    assert (progress.steps, progress.rhythm.mean) == (steps + 1, 30.0)


def test_a_pace_is_the_mean_of_the_first_steps_but_one_and_known_from_the_fifth_on() -> None:
    assert stepping(10, 20, 30).pace is None
    assert stepping(10, 20, 30, 40).pace == pytest.approx(25.0)


def test_it_is_slow_from_three_times_the_others_on_and_keeps_up_from_twice() -> None:
    progress, now = stepping(30, 30, 30, 30), 0
    for others, is_slow in ((10.0, True), (15.0, False)):
        assert not progress.compare(others, Instant(now))
        assert not progress.compare(others, Instant(now + SLOW_AFTER - 1))
        assert progress.compare(others, Instant(now + SLOW_AFTER))
        assert progress.is_slow == is_slow
        now += SLOW_AFTER


def test_who_begins_anew_has_to_be_slow_for_as_long_again() -> None:
    progress = stepping(30, 30, 30, 30)
    assert not progress.compare(10.0, Instant(0))
    progress.begin(6, Duration(2000), Instant(SLOW_AFTER))
    assert not progress.compare(10.0, Instant(SLOW_AFTER))
    assert progress.compare(10.0, Instant(2 * SLOW_AFTER))


def test_who_has_made_one_step_is_stuck_from_its_deadline_on() -> None:
    member = Member(Replica("learner", 0), 1)
    core = MembershipCore(MembershipOptions(slots_max={"learner": 1}))
    core.handle(HostAnnounced(member, "stepping"), Instant(0))
    step = seconds(1)
    core.handle(HeartbeatArrived(member, "stepping", 1, step), Instant(step))
    patience = math.ceil(1e9 + quantile(12.0) * 5e9)
    found = Stall("inner-step", patience, 1e9, 5e9, phi(patience, 1e9, 5e9))
    for lasting in (patience - 1, patience):
        firing = HeartbeatArrived(member, "stepping", 1, Duration(step + lasting), Duration(lasting), "inner-step")
        commands = core.handle(firing, Instant(step + lasting))
        assert commands == [RemoveMember(member, "stuck", found)] * (lasting == patience)


def test_who_has_made_none_is_stuck_by_the_rhythm_of_the_last_step_in_its_role() -> None:
    first, other = (Member(Replica("learner", slot), 1) for slot in (0, 1))
    core = MembershipCore(MembershipOptions(slots_max={"learner": 2}))
    for member in (first, other):
        core.handle(HostAnnounced(member, "stepping"), Instant(0))
    core.handle(HeartbeatArrived(other, "stepping", 1, seconds(2)), Instant(seconds(2)))
    patience = math.ceil(2e9 + quantile(12.0) * 5e9)
    found = Stall("inner-step", patience, 2e9, 5e9, phi(patience, 2e9, 5e9), is_of_role=True)
    for lasting in (patience - 1, patience):
        firing = HeartbeatArrived(first, "stepping", 0, Duration(lasting), Duration(lasting), "inner-step")
        commands = core.handle(firing, Instant(lasting))
        assert commands == [RemoveMember(first, "stuck", found)] * (lasting == patience)


# -- one that steps on while a firing of another node lasts ------------------------------------------------------------


class Stepping:
    """A learner that makes a step every `step` nanoseconds, and says so each time, while another node of it fires."""

    def __init__(self, step: int, *, node: str = "fragment-send") -> None:
        self.core = MembershipCore(MembershipOptions(slots_max={"learner": 1}))
        self.step, self.node, self.now, self.steps, self.life = step, node, 0, 0, 0
        self.begin()

    @property
    def member(self) -> Member:
        return Member(Replica("learner", 0), self.life)

    def begin(self) -> None:
        """Its next life steps."""
        self.life, self.steps = self.life + 1, 0
        self.core.handle(HostAnnounced(self.member, "stepping"), Instant(self.now))

    def beat(self, firing: int, *, phase: Phase = "stepping") -> list[MembershipCommand]:
        """What follows from its next heartbeat, with the oldest of its firings so long."""
        self.now, self.steps = self.now + self.step, self.steps + 1
        busy = Duration(self.steps * self.step)
        said = HeartbeatArrived(self.member, phase, self.steps, busy, Duration(firing), self.node)
        return self.core.handle(said, Instant(self.now))

    def lasts(self, until: int) -> RemoveMember | None:
        """How it is removed, if it is, in a firing that begins now and lasts until then."""
        for firing in range(self.step, until + 1, self.step):
            for command in self.beat(firing):
                if isinstance(command, RemoveMember):
                    assert firing == until
                    return command
        return None


def test_who_steps_on_while_another_firing_lasts_a_minute_is_stuck_in_that() -> None:
    learner, twin = Stepping(seconds(1)), StepProgress(Instant(0))
    assert learner.beat(0) == []
    removed = learner.lasts(FIRING_MAX)
    for steps in range(1, learner.steps + 1):
        twin.record(steps, seconds(steps), Duration(0), Instant(seconds(steps)), 5e9)
    assert twin.rhythm is not None
    mean, deviation = twin.rhythm.mean, twin.rhythm.deviation(2e9)
    found = Stall("fragment-send", FIRING_MAX, mean, deviation, phi(FIRING_MAX, mean, deviation))
    assert removed == RemoveMember(learner.member, "stuck", found)


@pytest.mark.parametrize("step", [0.1, 1.0, 3.0])
def test_a_firing_is_given_a_minute_and_the_time_of_many_steps(step: float) -> None:
    learner = Stepping(seconds(step))
    learner.beat(0)
    longest = max(FIRING_MAX, STEPS_MAX * seconds(step))
    assert learner.lasts(longest - seconds(step)) is None
    learner = Stepping(seconds(step))
    learner.beat(0)
    assert learner.lasts(longest) is not None


def test_its_next_life_is_given_twice_the_time() -> None:
    learner = Stepping(seconds(1))
    for times in (1, 2, 4):
        learner.beat(0)
        removed = learner.lasts(times * FIRING_MAX)
        assert removed is not None
        assert isinstance(removed.finding, Stall)
        assert removed.finding.patience_times == times
        learner.begin()


def test_firings_that_end_are_no_hang_however_many_there_are() -> None:
    learner = Stepping(seconds(1))
    for _ in range(9):
        assert learner.lasts(FIRING_MAX - seconds(1)) is None
        assert learner.beat(0) == []


def test_a_firing_lasts_no_longer_than_it_was_seen_to_whatever_the_clock_of_its_host_says() -> None:
    learner = Stepping(seconds(1))
    learner.beat(0)
    assert learner.beat(seconds(3600)) == []
    for count in range(2, 60):
        assert learner.beat(seconds(3600 + count)) == []
    assert [type(command) for command in learner.beat(seconds(3660))] == [RemoveMember]


def test_in_another_phase_a_firing_may_last() -> None:
    """Who recovers compiles, and waits for what others send."""
    learner = Stepping(seconds(1))
    for firing in range(1, 200):
        assert learner.beat(seconds(firing), phase="recovering") == []


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.sampled_from([1.0, 2.0, 2.5, 7.0])), max_size=40))
def test_the_median_of_the_others_is_that_of_a_list_of_them(changes: list[tuple[int, float | None]]) -> None:
    paces, kept = Paces(), dict[int, float]()
    for slot, pace in changes:
        paces.put(slot, pace)
        kept.pop(slot, None)
        if pace is not None:
            kept[slot] = pace
        for each in range(6):
            others = [other for at, other in kept.items() if at != each]
            assert paces.median_without(each) == (median(others) if others else None)
            assert paces.of(each) == kept.get(each)
    assert len(paces) == len(kept)
