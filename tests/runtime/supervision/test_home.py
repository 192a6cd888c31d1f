"""The core of a home: how lives are numbered, noted, wanted, seen, heard and followed by the next."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from isthmus.runtime.clock import Instant, seconds
from isthmus.runtime.cores.membership_suspicion import quantile
from isthmus.runtime.errors import InvariantError
from isthmus.runtime.ids import ONE_RECORDER, Member, Replica
from isthmus.runtime.supervision.flows import RunFlows
from isthmus.runtime.supervision.home import AT_ONCE_MAX, ORDER_TIME, Home
from isthmus.runtime.supervision.home_events import (
    HomeBeat,
    HomeBegan,
    HomeTimerFired,
    Places,
    ReportCame,
    RunRoles,
    SendOrders,
    SetHomeTimer,
)
from isthmus.runtime.supervision.home_state import TrackedLife
from isthmus.runtime.supervision.incidents import BodyRaised, Delayed, Ended, Exited, Restarted
from isthmus.runtime.supervision.messages import Report, Seen, Stamp
from isthmus.runtime.supervision.station_events import LivesNoted, LivesNotNoted, NoteLives
from tests.runtime.supervision.supervision_stories import (
    BOOM,
    CRASHED,
    KILLED,
    HomeStory,
    ended,
    gone,
    journal,
    life,
    lives,
    moved,
    seen,
    used,
    written,
)

ALL = lives("learner/0 learner/1 syncer/0 recorder/0")
LEARNER = Replica("learner", 0)
REST = "learner/1@beta recorder/0 syncer/0@beta"


# -- lives begin -------------------------------------------------------------------------------------------------------


def test_a_run_begins_numbers_are_noted_and_then_the_lives_are_wanted() -> None:
    story = HomeStory(notes=False)
    assert story.begun == [journal(), NoteLives(ALL), story.orders("", "")]
    assert story.at(1, LivesNoted(ALL)) == [story.orders()]
    assert (story.core.state(LEARNER), story.core.phase(LEARNER)) == ("starting", "starting")
    assert story.core.reason(LEARNER) is None
    assert [story.core.incarnation(each.replica) for each in ALL] == [1, 1, 1, 1]


def test_no_life_is_wanted_before_its_number_is_noted() -> None:
    story = HomeStory(notes=False)
    assert story.core.incarnation(LEARNER) == 0
    assert story.at(1, HomeBeat()) == [story.orders("", "")]
    assert story.at(1, LivesNoted(lives("learner/1"))) == [story.orders("", "learner/1")]
    assert story.at(2, HomeBeat(), HomeTimerFired()) == [story.orders("", "learner/1")]


def test_a_number_that_the_disk_does_not_take_is_tried_again_after_eight_seconds() -> None:
    story = HomeStory(notes=False)
    story.at(0, LivesNoted(lives("learner/1 syncer/0 recorder/0")))
    assert story.at(1, LivesNotNoted(lives("learner/0"), "no space")) == [SetHomeTimer(Instant(seconds(9)))]
    assert story.core.reason(LEARNER) == Delayed("no space")
    assert story.core.state(LEARNER) == "starting"
    assert story.at(8.9, HomeTimerFired()) == [SetHomeTimer(Instant(seconds(9)))]
    assert story.at(9, HomeTimerFired()) == [NoteLives(lives("learner/0"))]
    assert story.at(9, LivesNoted(lives("learner/0"))) == [story.orders()]


def test_the_same_number_is_asked_for_until_it_is_noted() -> None:
    story = HomeStory(notes=False)
    for tried in range(3):
        story.at(10 * tried, LivesNotNoted(ALL, "no space"))
        assert story.at(10 * tried + 8, HomeTimerFired()) == [NoteLives(tuple(sorted(ALL)))]
    assert story.at(30, HomeTimerFired()) == []  # The disk has not answered yet.


# -- lives are seen ----------------------------------------------------------------------------------------------------


def test_a_host_that_speaks_is_let_in_and_everybody_is_told() -> None:
    story = HomeStory()
    assert story.hears(1, "alpha", seen("learner/0", 0)) == []  # It is there, and has not spoken.
    assert story.core.state(LEARNER) == "starting"
    assert story.hears(2, "alpha", seen("learner/0", 1)) == [story.orders(roster="learner/0")]
    assert story.core.state(LEARNER) == "alive"
    assert story.hears(2, "alpha", seen("learner/0", 1)) == []  # It says nothing new.
    assert story.hears(2, "beta", seen("learner/1", 1)) == [story.orders(roster="learner/0 learner/1@beta")]
    assert story.hears(2.25, "alpha", seen("learner/0", 2)) == []
    assert story.core.lives[LEARNER].seen == seen("learner/0", 2)


def test_one_report_may_let_one_host_in_and_have_another_speak() -> None:
    story = HomeStory()
    story.hears(1, "alpha", seen("recorder/0"))
    told = seen("learner/0"), seen("recorder/0", 2)
    assert story.hears(2, "alpha", *told) == [story.orders(roster="learner/0 recorder/0")]


def test_the_timer_is_set_for_the_silence_of_a_host_and_again_where_it_fires_too_early() -> None:
    story = HomeStory()
    patience = math.ceil(0.25e9 + quantile(3.0) * 2e9)
    first = SetHomeTimer(Instant(seconds(1) + patience))
    assert story.at(1, ReportCame("alpha", Report((seen("learner/0"),)))) == [story.orders(roster="learner/0"), first]
    assert story.at(1, ReportCame("alpha", Report((seen("recorder/0"),)))) == [
        story.orders(roster="learner/0 recorder/0")
    ]
    assert story.at(1.5, HomeTimerFired()) == [first]


def test_everything_is_said_again_at_each_beat() -> None:
    story = HomeStory()
    story.serve(1)
    roster = f"learner/0 {REST}"
    assert story.does(1.5, HomeBeat()) == [story.orders(roster=roster)]
    before = story.stamp
    assert story.does(2, HomeBeat()) == [story.orders(roster=roster)]
    assert story.stamp == Stamp(1, before.epoch, before.number + 1)


def test_orders_to_many_machines_go_once_in_a_while_however_many_of_them_have_news() -> None:
    many = 2 * AT_ONCE_MAX
    learners = [Replica("learner", slot) for slot in range(many)]
    places = Places(home="alpha", machines={each: f"m{each.slot}" for each in learners})
    core = Home(RunRoles(roles={"learner": many, "recorder": 1}), places)

    def sent(commands: Sequence[object]) -> int:
        return sum(isinstance(command, SendOrders) for command in commands)

    assert sent(core.handle(HomeBegan(), Instant(0))) == 1
    now, pause = Instant(seconds(1)), (many + 1) * ORDER_TIME
    noted = LivesNoted((*(Member(each, 1) for each in learners), Member(ONE_RECORDER, 1)))
    assert sent(core.handle(noted, now)) == 1
    reports = [ReportCame(f"m{slot}", Report((seen(f"learner/{slot}"),))) for slot in range(many)]
    commands = [command for report in reports for command in core.handle(report, now)]
    assert commands[0] == SetHomeTimer(Instant(now + pause))
    assert sent(commands) == 0
    (orders,) = [each for each in core.handle(HomeTimerFired(), Instant(now + pause)) if isinstance(each, SendOrders)]
    assert len(orders.changes[0].rows) == many
    assert sent(core.handle(HomeTimerFired(), Instant(now + 2 * pause))) == 0


def test_lives_that_are_not_wanted_are_not_believed() -> None:
    story = HomeStory()
    assert (
        story.hears(1, "alpha", seen("learner/0#2"), seen("evaluator/0"), gone("learner/0#2"), gone("syncer/0")) == []
    )
    assert story.hears(1, "beta", seen("learner/0"), gone("learner/0")) == []
    assert story.core.lives == {}


def test_a_machine_that_takes_no_part_is_told_that_all_is_over() -> None:
    story = HomeStory()
    assert story.hears(1, "delta", seen("learner/0")) == [story.orders(over=("delta",), delta="")]
    assert story.hears(1, "delta", seen("learner/0")) == []
    assert story.does(1, HomeBeat()) == [story.orders(over=("delta",), delta="")]


def test_a_body_that_failed_is_written_down_once() -> None:
    story = HomeStory()
    story.serve(1)
    failed = written("learner/0", BodyRaised(BOOM))
    assert story.hears(2, "alpha", seen("learner/0", 2, error=BOOM)) == [failed]
    assert story.hears(2, "alpha", seen("learner/0", 3, error=BOOM)) == []
    assert story.core.reason(LEARNER) == BodyRaised(BOOM)


def test_a_station_that_is_new_has_not_heard_its_hosts_and_they_are_known_as_before() -> None:
    story = HomeStory()
    story.serve(1, beats=7)
    found = Seen(life("learner/1"), 4712, 0, is_stopped=True)
    assert story.hears(2, "beta", found) == []
    known = story.core.lives[Replica("learner", 1)].seen
    assert (known.pid, known.beats, known.is_stopped) == (4712, 0, True)
    assert known.heartbeat == seen("learner/1").heartbeat
    assert story.does(2, HomeBeat()) == [story.orders(roster=f"learner/0 {REST}")]
    assert story.hears(3, "beta", seen("learner/1", 1, "stepping")) == []
    assert story.core.lives[Replica("learner", 1)].seen == seen("learner/1", 1, "stepping")


def test_what_went_wrong_before_a_station_was_new_is_not_written_down_again() -> None:
    story = HomeStory()
    story.hears(1, "beta", seen("learner/1", 7, error=BOOM))
    assert story.hears(2, "beta", Seen(life("learner/1"), 4711)) == []
    assert story.hears(3, "beta", seen("learner/1", 1, error=BOOM)) == []


# -- lives are followed ------------------------------------------------------------------------------------------------


def test_an_end_is_followed_by_the_next_life_once() -> None:
    story = HomeStory()
    story.serve(1)
    told = gone("learner/0", KILLED, BOOM, 3.0)
    assert story.hears(2, "alpha", told) == [
        journal(used={"learner.cpu_seconds": 3.0}),
        ended("learner/0", KILLED, error=BOOM),
        NoteLives(lives("learner/0#2")),
        story.orders("recorder/0", roster=REST, back=1),
        story.orders("learner/0#2 recorder/0", roster=REST),
    ]
    assert (story.core.state(LEARNER), story.core.phase(LEARNER)) == ("gone", "gone")
    assert story.core.reason(LEARNER) == Ended(KILLED, None, BOOM)
    assert story.hears(2, "alpha", told) == []  # The station says so until it is asked no more.
    assert story.core.used == {"learner.cpu_seconds": 3.0}


def test_a_next_life_is_written_down_when_its_process_is_there() -> None:
    story = HomeStory()
    story.serve(1)
    story.hears(2, "alpha", gone("learner/0"))
    assert story.hears(3, "alpha", seen("learner/0#2", 0)) == [written("learner/0#2", Restarted())]
    assert story.hears(3, "alpha", seen("learner/0#2", 0)) == []
    assert story.hears(4, "alpha", seen("learner/0#2")) == [
        story.orders("learner/0#2 recorder/0", roster=f"learner/0#2 {REST}")
    ]
    assert (story.core.state(LEARNER), story.core.reason(LEARNER)) == ("alive", None)


def test_what_ended_lives_had_used_is_summed_by_role_edge_and_replica() -> None:
    story = HomeStory()
    story.hears(1, "alpha", gone("learner/0", cpu_seconds=1.0, flows=moved(2, 70)))
    others = gone("learner/1", cpu_seconds=2.0, flows=moved(5, 30)), gone("syncer/0", cpu_seconds=4.0)
    story.hears(1, "beta", *others)
    assert used(learner=3.0, syncer=4.0).items() <= story.core.used.items()
    flows = RunFlows.of_used(story.core.used)
    assert flows.edges == {3: (7, 70, 100)}
    assert flows.nodes == {("learner/0", 1): (2, 70), ("learner/1", 1): (5, 30)}


def test_a_life_that_ended_before_anything_was_seen_of_it_is_followed_as_well() -> None:
    story = HomeStory()
    assert story.hears(1, "beta", gone("learner/1", CRASHED)) == [
        journal(used=used(learner=0.0)),
        ended("learner/1", CRASHED),
        NoteLives(lives("learner/1#2")),
        story.orders(beta="syncer/0", back=1),
        story.orders(beta="learner/1#2 syncer/0"),
    ]


def test_ends_and_lives_in_one_report() -> None:
    story = HomeStory()
    story.serve(1)
    assert story.hears(2, "alpha", seen("learner/0", 2), gone("learner/0", Exited(0)), gone("recorder/0")) == [
        journal(used=used(learner=0.0, recorder=0.0)),
        ended("learner/0", Exited(0)),
        NoteLives(lives("learner/0#2")),
        ended("recorder/0"),
        NoteLives(lives("recorder/0#2")),
        story.orders("", roster="learner/1@beta syncer/0@beta", back=2),
        story.orders("learner/0#2", roster="learner/1@beta syncer/0@beta", back=1),
        story.orders("learner/0#2 recorder/0#2", roster="learner/1@beta syncer/0@beta"),
    ]


# -- invariants --------------------------------------------------------------------------------------------------------


def test_time_that_runs_backwards_stands_still() -> None:
    story = HomeStory()
    story.serve(5)
    assert story.hears(2, "alpha", seen("learner/0", 2)) == []
    story.core.check()


def test_a_life_that_is_not_the_newest_is_found() -> None:
    story = HomeStory()
    story.core.fleet.machines["alpha"].tracked[LEARNER] = 2
    with pytest.raises(InvariantError, match="learner/0#2 is tracked, and 1 is its newest number"):
        story.core.check()


def test_a_life_that_is_known_and_not_tracked_is_found() -> None:
    story = HomeStory()
    story.core.lives[LEARNER] = TrackedLife(life("learner/0#3"), "alpha", seen("learner/0#3"))
    with pytest.raises(InvariantError, match="learner/0#3 is known, and not tracked"):
        story.core.check()
    story.core.lives[LEARNER] = TrackedLife(life("recorder/0"), "alpha", seen("recorder/0"))
    with pytest.raises(InvariantError, match="recorder/0#1 is kept as learner/0"):
        story.core.check()


def test_a_next_life_that_is_due_while_there_is_one_is_found() -> None:
    story = HomeStory()
    story.core._run.due[LEARNER] = Instant(1)
    with pytest.raises(InvariantError, match="learner/0 lives, and its next life is due"):
        story.core.check()
