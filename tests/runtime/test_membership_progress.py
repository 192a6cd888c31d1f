"""Of steps: what is learned of them, from when on a host is slow, keeps up again, and is stuck, to the nanosecond."""

from __future__ import annotations

import math

import pytest

from isthmus.runtime.clock import Duration, Instant, seconds
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.membership import MembershipCore
from isthmus.runtime.patience import MembershipOptions
from isthmus.runtime.presence import HeartbeatArrived, HostAnnounced, RemoveMember
from isthmus.runtime.progress import SLOW_AFTER, Progress
from isthmus.runtime.suspicion import quantile


def stepping(*times: int) -> Progress:
    """That of a life which took so long for its steps, after a first one, and tells of each."""
    progress, busy = Progress(Instant(0)), 1000
    assert progress.take(1, Duration(busy), Duration(0), Instant(busy), 1.0)
    for steps, time in enumerate(times, 2):
        busy += time
        assert progress.take(steps, Duration(busy), Duration(0), Instant(busy), 1.0)
    return progress


@pytest.mark.parametrize(("steps", "busy"), [(9, 100), (9, 200), (12, 99)])
def test_figures_that_go_back_teach_nothing_and_are_counted_from(steps: int, busy: int) -> None:
    progress = Progress(Instant(0))
    progress.begin(10, Duration(100), Instant(5))
    assert not progress.take(steps, Duration(busy), Duration(0), Instant(50), 1.0)
    assert (progress.steps, progress.since, progress.rhythm) == (steps, 50, None)
    assert progress.take(steps + 1, Duration(busy), Duration(0), Instant(80), 1.0)
    assert progress.rhythm is not None
    assert (progress.steps, progress.rhythm.mean) == (steps + 1, 30.0)


def test_a_pace_is_the_mean_of_the_first_steps_but_one_and_known_from_the_fifth_on() -> None:
    assert stepping(10, 20, 30).pace is None
    assert stepping(10, 20, 30, 40).pace == pytest.approx(25.0)


def test_it_is_slow_from_three_times_the_others_on_and_keeps_up_from_twice() -> None:
    progress, now = stepping(30, 30, 30, 30), 0
    for others, is_slow in ((10.0, True), (15.0, False)):
        assert progress.compare([others], Instant(now)) is None
        assert progress.compare([others], Instant(now + SLOW_AFTER - 1)) is None
        assert progress.compare([others], Instant(now + SLOW_AFTER)) == others
        assert progress.is_slow == is_slow
        now += SLOW_AFTER


def test_who_begins_anew_has_to_be_slow_for_as_long_again() -> None:
    progress = stepping(30, 30, 30, 30)
    assert progress.compare([10.0], Instant(0)) is None
    progress.begin(6, Duration(2000), Instant(SLOW_AFTER))
    assert progress.compare([10.0], Instant(SLOW_AFTER)) is None
    assert progress.compare([10.0], Instant(2 * SLOW_AFTER)) == 10.0


def test_who_has_made_one_step_is_stuck_from_its_deadline_on() -> None:
    member = Member(Replica("learner", 0), 1)
    core = MembershipCore(MembershipOptions(slots_max={"learner": 1}))
    core.handle(HostAnnounced(member, "stepping"), Instant(0))
    step = seconds(1)
    core.handle(HeartbeatArrived(member, "stepping", 1, step), Instant(step))
    patience = math.ceil(1e9 + quantile(12.0) * 5e9)
    for lasting in (patience - 1, patience):
        firing = HeartbeatArrived(member, "stepping", 1, Duration(step + lasting), Duration(lasting), "inner-step")
        commands = core.handle(firing, Instant(step + lasting))
        assert [type(command) for command in commands] == [RemoveMember] * (lasting == patience)
