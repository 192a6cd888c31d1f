"""The core of a home: lives that end again and again, hosts that are silent, stuck or mute, and what excuses them."""

from __future__ import annotations

from typing import Final

import msgspec
import pytest

from isthmus.runtime.clock import Instant, seconds
from isthmus.runtime.cores.membership_messages import Excused, HeardAgain, LongExcuse, Stall, Suspected
from isthmus.runtime.ids import Replica
from isthmus.runtime.supervision.home_events import (
    START_SECONDS,
    HomeTimerFired,
    Places,
    ReportCame,
    RunRoles,
    SetHomeTimer,
    WriteIncident,
)
from isthmus.runtime.supervision.incidents import (
    Condemned,
    DataSpent,
    Ended,
    Exited,
    GivenUp,
    Lingers,
    LoopLeft,
    LoopRefused,
    NoFirstHeartbeat,
    NotStarted,
    ProgramFailed,
    RestartsExhausted,
    SameData,
)
from isthmus.runtime.supervision.messages import Heartbeat, Report, Seen
from isthmus.runtime.supervision.station_events import NoteLives
from tests.runtime.supervision.supervision_stories import (
    BOOM,
    CAST,
    CRASHED,
    GONE,
    KILLED,
    SUSPECT,
    HomeStory,
    ended,
    gone,
    journal,
    life,
    lives,
    said,
    seen,
    silence,
    used,
    written,
)

LEARNER: Final = Replica("learner", 0)
ONE: Final = RunRoles(roles={"learner": 1})
HERE: Final = Places(home="alpha")
THERE: Final = Places(home="alpha", machines={LEARNER: "beta"})


def crash(story: HomeStory, name: str, times: int, machine: str = "alpha", begin: float = 0.0) -> None:
    """Let lives of a replica end, one after another, ten seconds apart."""
    for number in range(1, times + 1):
        story.hears(begin + 10 * number, machine, gone(f"{name}#{number}", CRASHED))
        story.fire(begin + 10 * number + 9)


# -- lives that end again and again ------------------------------------------------------------------------------------


def test_the_first_restart_is_at_once_and_later_ones_after_longer_and_longer() -> None:
    story, now, delays = HomeStory(), seconds(100), []
    for number in range(1, 6):
        story.hears(now / 1e9, "alpha", gone(f"learner/0#{number}", CRASHED))
        due = story.core._run.due.get(LEARNER, now)
        delays.append((due - now) / 1e9)
        if due > now:
            assert story.fire(due / 1e9 - 0.001) == []
            story.fire(due / 1e9)
        assert story.noted[-1] == life(f"learner/0#{number + 1}")
        now = due
    assert delays == [0.0, 0.5, 1.0, 2.0, 4.0]


def test_lives_that_are_killed_from_outside_begin_again_at_once_where_they_have_served() -> None:
    story, delays = HomeStory(), []
    for number in range(1, 7):
        story.hears(10 * number, "alpha", seen(f"learner/0#{number}", 10 * number, phase="stepping"))
        story.hears(10 * number + 3, "alpha", gone(f"learner/0#{number}", KILLED))
        delays.append(story.core._run.due.get(LEARNER))
        assert story.noted[-1] == life(f"learner/0#{number + 1}")
    assert delays == [None] * 6


def test_a_next_life_that_has_to_wait_sets_the_timer() -> None:
    story = HomeStory()
    story.hears(1, "alpha", gone("learner/0", CRASHED))
    assert story.at(2, ReportCame("alpha", Report((), (gone("learner/0#2", CRASHED),)))) == [
        journal(used=used(learner=0.0)),
        ended("learner/0#2", CRASHED),
        story.orders("recorder/0"),
        SetHomeTimer(Instant(seconds(2.5))),
    ]
    assert story.at(2.5, HomeTimerFired()) == [
        NoteLives(lives("learner/0#3")),
        story.orders("learner/0#3 recorder/0"),
    ]


def test_a_life_that_served_for_ten_seconds_wipes_out_the_failures_before_it() -> None:
    story = HomeStory()
    crash(story, "learner/0", 4)
    story.hears(100, "alpha", seen("learner/0#5", 1, "starting"))
    story.hears(101, "alpha", seen("learner/0#5", 2, "stepping"))
    story.hears(102, "alpha", seen("learner/0#5", 3, "final"))
    story.hears(111, "alpha", gone("learner/0#5", CRASHED))
    assert story.noted[-1] == life("learner/0#6")


@pytest.mark.parametrize("phase", ["starting", "compiling", "recovering"])
def test_a_life_that_did_not_serve_for_so_long_does_not(phase: str) -> None:
    story = HomeStory()
    crash(story, "learner/0", 4)
    story.hears(100, "alpha", seen("learner/0#5", 1, phase))
    story.hears(101, "alpha", seen("learner/0#5", 2, "stepping"))
    story.hears(110.999, "alpha", gone("learner/0#5", CRASHED))
    assert story.noted[-1] == life("learner/0#5")


def test_a_learner_is_given_up_while_the_run_has_enough_of_them() -> None:
    story = HomeStory()
    crash(story, "learner/0", 5)
    assert story.hears(100, "alpha", gone("learner/0#6", CRASHED)) == [
        journal(used=used(learner=0.0), retired=(("learner/0", "given up"),)),
        ended("learner/0#6", CRASHED),
        written("learner/0#6", GivenUp(6, Ended(CRASHED))),
        story.orders("recorder/0"),
    ]
    assert story.core.state(LEARNER) == "given up"
    assert story.core.reason(LEARNER) == GivenUp(6, Ended(CRASHED))
    assert story.fire(200) == []
    assert story.core.outcome == "running"


def test_a_learner_that_says_gone_and_ends_well_has_left_and_without_any_the_run_comes_to_its_end() -> None:
    story = HomeStory()
    story.hears(100, "alpha", seen("learner/0", 1, "stepping"))
    story.hears(101, "alpha", seen("learner/0", 2, "gone"))
    story.hears(400, "alpha", gone("learner/0", Exited(0)))  # What it does after it has left is its own affair.
    assert story.core.state(LEARNER) == "left"
    assert story.core.reason(LEARNER) == LoopLeft()
    assert story.core.outcome == "running"
    story.hears(401, "beta", seen("learner/1", 1, "stepping"))
    story.hears(402, "beta", seen("learner/1", 2, "gone"))
    story.hears(403, "beta", gone("learner/1", Exited(0)))
    assert (story.core.outcome, story.core.is_stopping) == ("running", True)


SPENT = DataSpent(1000, 500, 2.0)


def spends(name: str, beats: int, phase: str = "leaving") -> Seen:
    told = seen(name, beats, phase)
    return msgspec.structs.replace(told, heartbeat=msgspec.structs.replace(told.heartbeat, spent=SPENT))


def test_a_learner_whose_data_are_spent_has_left_and_without_any_the_run_comes_to_its_end() -> None:
    story = HomeStory()
    for name, machine in (("learner/0", "alpha"), ("learner/1", "beta")):
        story.hears(100, machine, seen(name, 1, "stepping"))
    story.hears(101, "alpha", spends("learner/0", 2))
    story.beat(102)
    assert not story.core.is_stopping
    told = story.hears(103, "alpha", gone("learner/0", Exited(0)))
    assert written("learner/0", SPENT) in told
    assert story.core.state(LEARNER) == "left"
    assert story.core.reason(LEARNER) == SPENT
    assert LEARNER not in [each.replica for each in story.noted[-1:]]  # No next life.
    assert (story.core.outcome, story.core.is_stopping) == ("running", False)
    story.hears(104, "beta", spends("learner/1", 2))
    told = story.beat(105)
    last = msgspec.structs.replace(SPENT, is_last=True)
    assert written("learner/1", last) in told
    assert (story.core.outcome, story.core.is_stopping) == ("running", True)
    assert not [each for each in story.beat(106) if isinstance(each, WriteIncident)]  # Once.


def test_one_that_is_killed_as_it_leaves_begins_again() -> None:
    story = HomeStory()
    story.hears(100, "alpha", seen("learner/0", 1, "stepping"))
    story.hears(101, "alpha", spends("learner/0", 2))
    story.hears(102, "alpha", gone("learner/0", CRASHED))
    assert story.noted[-1] == life("learner/0#2")


@pytest.mark.parametrize(("phase", "end"), [("gone", CRASHED), ("leaving", Exited(0)), ("stepping", Exited(0))])
def test_one_that_ends_in_any_other_way_begins_again(phase: str, end: Exited) -> None:
    story = HomeStory()
    story.hears(100, "alpha", seen("learner/0", 1, "stepping"))
    story.hears(101, "alpha", seen("learner/0", 2, phase))
    story.hears(102, "alpha", gone("learner/0", end))
    assert story.noted[-1] == life("learner/0#2")


def test_without_enough_learners_the_run_fails() -> None:
    story = HomeStory()
    crash(story, "learner/0", 6)
    crash(story, "learner/1", 5, "beta", 100)
    failure = RestartsExhausted("learner/1", 6, Ended(CRASHED))
    assert story.hears(200, "beta", gone("learner/1#6", CRASHED)) == [
        journal(used=used(learner=0.0), retired=(("learner/0", "given up"),), outcome="failed", failure=failure),
        ended("learner/1#6", CRASHED),
        story.orders("recorder/0!", "syncer/0!", is_ending=True),
    ]
    assert (story.core.outcome, story.core.failure) == ("failed", failure)


def test_the_same_error_in_every_learner_ends_the_run_at_its_second_time() -> None:
    story = HomeStory()
    story.hears(1, "alpha", gone("learner/0", CRASHED, BOOM))
    story.hears(2, "beta", gone("learner/1", CRASHED, BOOM))
    failure = ProgramFailed(BOOM, 2)
    assert story.hears(3, "alpha", gone("learner/0#2", CRASHED, BOOM)) == [
        journal(used=used(learner=0.0), outcome="failed", failure=failure),
        ended("learner/0#2", CRASHED, error=BOOM),
        story.orders("recorder/0!", "learner/1#2! syncer/0!", is_ending=True),
    ]
    assert (story.core.outcome, story.core.failure) == ("failed", failure)


REFUSED: Final = msgspec.structs.replace(BOOM, is_refusal=True)


def test_what_is_refused_of_a_loop_at_home_ends_the_run_at_its_first_time() -> None:
    story = HomeStory()
    story.hears(1, "alpha", seen("learner/0", 1, "stepping", error=REFUSED))
    assert story.core.outcome == "running"  # Its script has time for its own end.
    failure = LoopRefused("learner/0", REFUSED)
    assert story.hears(2, "alpha", gone("learner/0", CRASHED, REFUSED)) == [
        journal(used=used(learner=0.0), outcome="failed", failure=failure),
        ended("learner/0", CRASHED, error=REFUSED),
        story.orders("recorder/0!", "learner/1! syncer/0!", is_ending=True),
    ]
    assert (story.core.outcome, story.core.failure) == ("failed", failure)


def test_an_admitted_machine_ends_no_run_by_that() -> None:
    story = HomeStory()
    story.hears(1, "beta", gone("learner/1", CRASHED, REFUSED))
    assert story.core.outcome == "running"
    assert story.noted[-1] == life("learner/1#2")


def test_an_error_of_one_learner_alone_leaves_the_run_going() -> None:
    story = HomeStory()
    for number, at in enumerate((1, 2, 5), start=1):
        story.hears(at, "alpha", gone(f"learner/0#{number}", CRASHED, BOOM))
        story.fire(at + 2)
    assert story.core.outcome == "running"


def test_a_machine_without_room_is_asked_again_and_again() -> None:
    story = HomeStory()
    for number in range(1, 20):
        why = NotStarted("no memory")
        assert story.hears(10 * number, "alpha", gone(f"learner/0#{number}", why))[1:] == [
            ended(f"learner/0#{number}", why),
            story.orders("recorder/0"),
        ]
        assert story.fire(10 * number + 7.999) == []
        story.fire(10 * number + 8)
        assert story.noted[-1] == life(f"learner/0#{number + 1}")


@pytest.mark.parametrize("least", [{}, {"learner": 2}])
def test_where_all_are_needed_none_is_given_up(least: dict[str, int]) -> None:
    story = HomeStory(RunRoles(roles=CAST.roles, least=least))
    crash(story, "learner/0", 6)
    assert story.core.failure == RestartsExhausted("learner/0", 6, Ended(CRASHED))


# -- silence -----------------------------------------------------------------------------------------------------------


def test_a_silent_host_is_suspect_then_killed_and_its_end_says_why() -> None:
    story = HomeStory(ONE, HERE)
    story.hears(1, "alpha", seen("learner/0", 1))
    assert story.fire(1 + SUSPECT) == [written("learner/0", Suspected(silence(SUSPECT)))]
    assert story.core.state(LEARNER) == "suspect"
    assert story.fire(1 + GONE) == [
        written("learner/0", Condemned(silence(GONE))),
        story.orders("learner/0!"),
    ]
    assert story.core.state(LEARNER) == "gone"
    assert story.hears(20, "alpha", seen("learner/0", 2)) == []  # What it says now is not heard any more.
    assert story.hears(20, "alpha", gone("learner/0")) == [
        journal(machines=(), used=used(learner=0.0)),
        ended("learner/0", KILLED, silence(GONE)),
        NoteLives(lives("learner/0#2")),
        story.orders("", back=1),
        story.orders("learner/0#2"),
    ]


def test_a_timer_that_comes_late_blames_nobody_for_that() -> None:
    story = HomeStory(ONE, HERE)
    story.hears(1, "alpha", seen("learner/0", 1))
    assert story.fire(500) == [written("learner/0", Suspected(silence(SUSPECT)))]
    assert story.hears(500, "alpha", seen("learner/0", 2)) == [written("learner/0", HeardAgain(seconds(SUSPECT)))]
    assert story.core.state(LEARNER) == "alive"


def test_a_process_that_is_stopped_is_waited_for() -> None:
    story = HomeStory(ONE, HERE)
    story.hears(1, "alpha", seen("learner/0", 1))
    story.hears(2, "alpha", seen("learner/0", 1, is_stopped=True))
    excused = Excused("stopped", seconds(SUSPECT), 4711, "")
    assert story.fire(1 + SUSPECT) == [written("learner/0", excused)]
    assert story.core.state(LEARNER) == "stopped"
    story.hears(100, "alpha", seen("learner/0", 1, is_stopped=True))
    assert story.beat(100) == [story.orders("learner/0", roster="learner/0")]
    story.hears(101, "alpha", seen("learner/0", 1))
    assert story.beat(101) == [written("learner/0", Suspected()), story.orders("learner/0", roster="learner/0")]
    assert story.hears(102, "alpha", seen("learner/0", 2)) == [written("learner/0", HeardAgain(seconds(1)))]


def test_an_excuse_does_not_last_for_ever() -> None:
    story = HomeStory(ONE, HERE)
    story.hears(1, "alpha", seen("learner/0", 1, is_stopped=True))
    story.fire(1 + SUSPECT)
    why = LongExcuse(seconds(SUSPECT + 600), "stopped", seconds(600))
    assert story.fire(1 + SUSPECT + 600) == [written("learner/0", Condemned(why)), story.orders("learner/0!")]


def test_hosts_of_a_machine_that_is_not_heard_are_waited_for() -> None:
    story = HomeStory(ONE, THERE)
    story.hears(1, "beta", seen("learner/0", 1))
    story.beat(1)
    assert story.fire(1 + SUSPECT) == [written("learner/0", Suspected(silence(SUSPECT)))]
    story.beat(7)
    assert story.fire(1 + GONE) == [written("learner/0", Excused("unheard", seconds(GONE), 4711, "beta"))]
    assert story.core.state(LEARNER) == "unheard"
    assert story.hears(18, "beta", seen("learner/0", 1, is_stopped=True)) == []
    assert story.beat(18) == [
        written("learner/0", Excused("stopped", seconds(17), 4711, "beta")),
        story.orders("", "learner/0", roster="learner/0@beta"),
    ]


def test_the_home_is_never_unheard_of_itself() -> None:
    story = HomeStory(ONE, HERE)
    story.hears(1, "alpha", seen("learner/0", 1))
    story.beat(2, 5)
    assert story.fire(1 + SUSPECT) == [written("learner/0", Suspected(silence(SUSPECT)))]


def test_a_host_that_is_stuck_is_killed() -> None:
    story = HomeStory(ONE, HERE)
    firing = seconds(0)
    for number in range(1, 400):
        steps, firing = min(number, 40), seconds(max(0.0, (number - 40) * 0.25))
        told = Heartbeat("stepping", steps=steps, busy=seconds(number / 4), firing=firing, node="inner-step")
        commands = story.hears(number / 4, "alpha", Seen(life("learner/0"), 4711, number, heartbeat=told))
        if any(isinstance(getattr(command, "incident", None), Condemned) for command in commands):
            break
    verdict = commands[0].incident.verdict  # type: ignore[union-attr]
    assert isinstance(verdict, Stall)
    assert (verdict.node, verdict.stalled_ns) == ("inner-step", firing)
    assert commands == [written("learner/0", Condemned(verdict)), story.orders("learner/0!")]
    assert story.core.state(LEARNER) == "stuck"
    story.hears(200, "alpha", gone("learner/0"))
    assert story.core.state(LEARNER) == "stuck"  # Until the next life is there, that is why it is missing.


# -- a process that says nothing ---------------------------------------------------------------------------------------


def test_a_process_that_says_nothing_for_a_minute_is_told_at_half_of_it_and_killed() -> None:
    story = HomeStory(ONE, HERE)
    story.hears(1, "alpha", seen("learner/0", 0))
    half = int(START_SECONDS)  # Two beats a second.
    assert story.beat(2, half - 1) == [story.orders("learner/0")]
    told = written("learner/0", Lingers("run.first_beat_seconds", seconds(30), seconds(30)))
    assert story.beat(2) == [told, story.orders("learner/0")]
    assert story.beat(2, half - 1) == [story.orders("learner/0")]
    why = NoFirstHeartbeat(seconds(60))
    assert story.beat(2) == [written("learner/0", Condemned(why)), story.orders("learner/0!")]
    assert story.beat(3, 4 * half) == [story.orders("learner/0!")]
    assert story.hears(4, "alpha", gone("learner/0"))[1] == ended("learner/0", KILLED, why)


def test_loops_that_begin_with_the_same_losses_are_told_once() -> None:
    story = HomeStory()
    for beats, losses in ((1, 0), (2, 7), (3, 7)):
        others = [
            Seen(life(name), 4711, beats, heartbeat=said(name, "stepping", data_digest=losses))
            for name in ("learner/0", "learner/1")
        ]
        told = [*story.hears(beats, "alpha", others[0]), *story.hears(beats, "beta", others[1])]
        assert (written("learner/1", SameData("learner/0")) in told) == (beats == 2)
    other = Seen(life("learner/1"), 4711, 4, heartbeat=said("learner/1", "stepping", data_digest=8))
    assert not [each for each in story.hears(4, "beta", other) if "SameData" in str(each)]


def test_one_that_has_raised_has_not_left_though_it_ends_well() -> None:
    story = HomeStory()
    story.hears(100, "alpha", seen("learner/0", 1, "stepping"))
    story.hears(101, "alpha", seen("learner/0", 2, "gone", error=BOOM))
    story.hears(102, "alpha", gone("learner/0", Exited(0), BOOM))
    assert story.noted[-1] == life("learner/0#2")
