"""The core of a home at the end of a run: asked for, said by the recorder, or forced; and everything is over once."""

from __future__ import annotations

from typing import Any, Final

import pytest
from msgspec.structs import replace

from isthmus.runtime.clock import Duration, Instant, seconds
from isthmus.runtime.cores.membership_messages import Phase, Suspected
from isthmus.runtime.ids import Replica
from isthmus.runtime.supervision.home_events import (
    EndAsked,
    FinishRun,
    HomeCommand,
    HomeTimerFired,
    MachineJoined,
    MachineTakenAway,
    Places,
    ReportCame,
    RunRoles,
    SendOrders,
    SetAside,
    SetHomeTimer,
    StopAsked,
    Taken,
    WriteIncident,
)
from isthmus.runtime.supervision.incidents import (
    Condemned,
    Delayed,
    Departed,
    Ended,
    Exited,
    HomeSetAside,
    Hurried,
    Lingers,
    MachineLost,
    ModelsDiffer,
    NeverHealthy,
    Ordered,
    RecorderFailed,
    Unserved,
)
from isthmus.runtime.supervision.liveness import UNSERVED_BEATS
from isthmus.runtime.supervision.messages import Missing, Over, Report, Seen
from isthmus.runtime.supervision.station_events import LivesNoted, LivesNotNoted, NoteLives
from tests.runtime.supervision.supervision_stories import (
    AT_HOME,
    BOOM,
    CRASHED,
    KILLED,
    ON_BETA,
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

ALL: Final = "learner/0 learner/1@beta recorder/0 syncer/0@beta"
AT_HOME_KILLED: Final = "learner/0! recorder/0!"
ON_BETA_KILLED: Final = "learner/1! syncer/0!"
HERE_CAST: Final = RunRoles(roles={"learner": 1, "recorder": 1})
HERE: Final = Places(home="alpha")
HERE_MORE: Final = RunRoles(roles={"learner": 4, "syncer": 1, "watcher": 1, "recorder": 1}, least={"learner": 1})
WHY: Final = Ordered("enough")
OVER: Final = seen("recorder/0", 9, "final", over=Over())


def serving() -> HomeStory:
    """A run in which all hosts serve."""
    story = HomeStory()
    story.serve(1)
    return story


WATCHER: Final = RunRoles(roles={"learner": 1, "recorder": 1, "watcher": 1}, least={"watcher": 1})


def over_after(*incidents: Any) -> HomeStory:
    """A run that comes to its end after these lives of a watcher: whether each computed, or raised."""
    story = HomeStory(WATCHER, HERE)
    story.hears(1, "alpha", seen("learner/0"), seen("recorder/0"), seen("watcher/0"))
    for number, is_serving in enumerate(incidents, 1):
        name = "watcher/0" if number == 1 else f"watcher/0#{number}"
        if number > 1:
            story.beat(1 + 3 * number)
            computed = replace(seen(name).heartbeat, busy=Duration(int(is_serving)))
            story.hears(1 + 3 * number, "alpha", replace(seen(name), heartbeat=computed))
        if not is_serving:
            story.hears(2 + 3 * number, "alpha", gone(name, error=BOOM))
    story.hears(3 + 3 * len(incidents), "alpha", OVER)
    return story


@pytest.mark.parametrize(
    ("incidents", "lives"),
    [((False,), 1), ((False, False), 2), ((False, True), 0), ((True,), 0)],
)
def test_a_role_that_raised_in_each_of_its_lives_fails_the_run_at_its_end(incidents: Any, lives: int) -> None:
    story = over_after(*incidents)
    assert story.core.outcome == ("failed" if lives else "done")
    failure = story.core.failure
    if lives:
        assert isinstance(failure, NeverHealthy)
        assert (failure.host, failure.lives, failure.last.error) == ("watcher/0", lives, BOOM)


# -- stop --------------------------------------------------------------------------------------------------------------


def test_a_run_that_is_to_stop_says_so_to_all_and_to_the_next_daemon() -> None:
    story = serving()
    assert story.does(2, StopAsked()) == [journal(is_stopping=True), story.orders(roster=ALL, is_stopping=True)]
    assert story.does(2, StopAsked()) == [story.orders(roster=ALL, is_stopping=True)]
    assert story.core.outcome == "running"


def test_while_it_stops_a_learner_is_missed_only_if_it_was_the_last_that_serves() -> None:
    story = serving()
    story.at(2, StopAsked())
    assert story.hears(3, "beta", gone("learner/1")) == [
        journal(is_stopping=True, used=used(learner=0.0)),
        ended("learner/1"),
        story.orders(beta="syncer/0", roster="learner/0 recorder/0 syncer/0@beta", is_stopping=True),
    ]
    assert story.hears(4, "alpha", gone("learner/0")) == [
        journal(is_stopping=True, used=used(learner=0.0)),
        ended("learner/0"),
        NoteLives(lives("learner/0#2")),
        story.orders("recorder/0", "syncer/0", "recorder/0 syncer/0@beta", is_stopping=True, back=1),
        story.orders("learner/0#2 recorder/0", "syncer/0", "recorder/0 syncer/0@beta", is_stopping=True),
    ]


def test_another_that_does_not_serve_yet_cannot_take_its_place() -> None:
    story = HomeStory()
    story.hears(1, "beta", seen("learner/1", 1, "compiling"))
    story.at(2, StopAsked())
    story.hears(3, "alpha", gone("learner/0"))
    assert story.noted[-1] == life("learner/0#2")


def test_all_other_roles_are_restarted_while_it_stops() -> None:
    story = serving()
    story.at(2, StopAsked())
    story.hears(3, "beta", gone("syncer/0"))
    story.hears(3, "alpha", gone("recorder/0"))
    assert story.noted[-2:] == [life("syncer/0#2"), life("recorder/0#2")]


def unwarned(commands: list[HomeCommand]) -> list[HomeCommand]:
    """Commands without what names an end in advance."""
    return [each for each in commands if not isinstance(getattr(each, "incident", None), Lingers)]


@pytest.mark.parametrize("phase", ["serving", "final"])
def test_silent_learners_do_not_hold_up_the_end(phase: Phase) -> None:
    story, is_asked = HomeStory(HERE_CAST, HERE), phase == "serving"
    story.hears(1, "alpha", seen("learner/0"), seen("recorder/0", 1, phase))
    if is_asked:
        story.at(1, StopAsked())
    story.hears(6, "alpha", seen("recorder/0", 2, phase), seen("learner/0", is_stopped=True))
    # Nothing excuses it: the run is to end.
    assert story.fire(1 + SUSPECT) == [written("learner/0", Suspected(silence(SUSPECT)))]
    roster, flags = "learner/0 recorder/0", {"is_stopping": is_asked}
    assert unwarned(story.beat(8)) == [story.orders(roster=roster, **flags)]
    assert unwarned(story.beat(12.999)) == [story.orders(roster=roster, **flags)]
    assert unwarned(story.beat(13)) == [
        written("learner/0", Condemned(Hurried())),
        story.orders("learner/0! recorder/0", roster=roster, **flags),
    ]
    assert unwarned(story.beat(13.5)) == [story.orders("learner/0! recorder/0", roster=roster, **flags)]


def test_nobody_else_is_hurried_and_nor_is_a_learner_that_speaks_again() -> None:
    story = HomeStory(HERE_CAST, HERE)
    story.hears(1, "alpha", seen("learner/0"), seen("recorder/0"))
    story.at(1, StopAsked())
    story.fire(1 + SUSPECT)
    story.beat(8)
    story.hears(12, "alpha", seen("learner/0", 2))
    assert unwarned(story.beat(13.5)) == [story.orders(roster="learner/0 recorder/0", is_stopping=True)]
    assert story.core.state(Replica("recorder", 0)) == "suspect"


def test_before_the_end_nobody_is_hurried() -> None:
    story = HomeStory(HERE_CAST, HERE)
    story.hears(1, "alpha", seen("learner/0"), seen("recorder/0"))
    story.fire(1 + SUSPECT)
    story.beat(8)
    assert unwarned(story.beat(14)) == [story.orders(roster="learner/0 recorder/0")]


def test_no_machine_joins_a_run_that_is_to_stop() -> None:
    story = serving()
    story.at(2, StopAsked())
    assert story.does(2, MachineJoined("delta", 1)) == []


@pytest.mark.parametrize("how", ["left", "expelled"])
def test_a_run_that_is_to_stop_takes_back_a_machine_that_left_where_no_learner_serves(how: Taken) -> None:
    story = serving()
    story.at(1.5, MachineTakenAway("beta", how))
    story.at(2, StopAsked())
    assert story.does(2, MachineJoined("beta", 1)) == []  # Learner 0 gives the last answers.
    story.hears(3, "alpha", gone("learner/0"))
    told = story.does(3, MachineJoined("delta", 1), MachineJoined("beta", 9))
    joined = [each.member for each in told if isinstance(each, WriteIncident)]
    assert joined == ([life("learner/1")] if how == "left" else [])


def test_a_run_that_only_machines_can_go_on_that_left_waits_for_them() -> None:
    story = serving()
    story.at(1, MachineTakenAway("beta", "left"))
    for number in range(1, 7):
        story.hears(10 * number, "alpha", gone(f"learner/0#{number}", CRASHED))
        story.fire(10 * number + 6)
    assert (story.core.outcome, story.core.state(Replica("learner", 0))) == ("running", "given up")
    story.at(90, MachineJoined("beta", 1))
    assert story.noted[-1] == life("learner/1#2")


# -- the recorder says so ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_run_is_over_when_the_recorder_has_everything(is_stopped: bool) -> None:
    story = serving()
    if is_stopped:
        story.at(2, StopAsked())
    outcome = "stopped" if is_stopped else "done"
    assert story.hears(3, "alpha", OVER) == [
        journal(outcome=outcome, is_stopping=is_stopped),
        story.orders(roster=ALL, is_stopping=is_stopped, is_ending=True),
    ]
    assert (story.core.outcome, story.core.failure) == (outcome, None)
    assert story.hears(3, "alpha", OVER) == []


def test_a_recorder_may_fail() -> None:
    story = serving()
    failure = RecorderFailed("no space")
    assert story.hears(3, "alpha", seen("recorder/0", 9, "final", over=Over("no space"))) == [
        journal(outcome="failed", failure=failure),
        story.orders(roster=ALL, is_ending=True),
    ]
    assert (story.core.outcome, story.core.failure) == ("failed", failure)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_loop_at_home_whose_leaves_are_not_the_last_model_fails_the_run(*, is_stopped: bool) -> None:
    story = serving()
    unlike = ((0, "head"), (1, "body"))
    story.hears(3, "alpha", seen("recorder/0", 9, "final", over=Over(is_stopped=is_stopped, unlike=unlike)))
    assert (story.core.outcome, story.core.failure) == ("failed", ModelsDiffer("learner/0", "head"))


def test_an_admitted_machine_fails_no_run_by_what_its_own_learner_says_of_its_leaves() -> None:
    story = serving()
    story.hears(3, "alpha", seen("recorder/0", 9, "final", over=Over(unlike=((1, "body"),))))
    assert (story.core.outcome, story.core.failure) == ("done", None)


def test_a_program_may_stop_its_own_run() -> None:
    story = serving()
    story.hears(3, "alpha", seen("recorder/0", 9, "final", over=Over(is_stopped=True)))
    assert (story.core.outcome, story.core.failure) == ("stopped", None)


def test_hosts_end_by_themselves_and_the_run_is_finished_once() -> None:
    story = serving()
    story.hears(3, "alpha", OVER)
    assert story.hears(4, "alpha", gone("learner/0", cpu_seconds=1.0)) == [
        journal(outcome="done", used=used(learner=1.0)),
        story.orders("recorder/0", roster="learner/1@beta recorder/0 syncer/0@beta", is_ending=True),
    ]
    story.hears(4, "alpha", gone("recorder/0"))
    story.hears(4, "beta", gone("learner/1"))
    assert story.hears(5, "beta", gone("syncer/0")) == [
        journal(outcome="done", used=used(learner=1.0, recorder=0.0, syncer=0.0)),
        FinishRun(),
        story.orders("", "", is_ending=True),
    ]
    assert story.core.is_finished
    assert story.at(6, HomeTimerFired()) == []
    assert story.beat(7) == [story.orders("", "", is_ending=True)]
    assert story.does(8, EndAsked(WHY)) == [story.orders("", "", is_ending=True)]


def test_what_does_not_end_in_ten_seconds_is_killed() -> None:
    story = HomeStory(HERE_CAST, HERE)
    story.hears(1, "alpha", seen("learner/0", 0))
    assert story.at(3, ReportCame("alpha", Report((seen("recorder/0", 0, over=Over()),)))) == [
        journal(machines=(), outcome="done"),
        story.orders(is_ending=True),
        SetHomeTimer(Instant(seconds(13))),
    ]
    assert story.at(12.999, HomeTimerFired()) == [SetHomeTimer(Instant(seconds(13)))]
    assert story.at(13, HomeTimerFired()) == [
        story.orders(AT_HOME_KILLED, is_ending=True),
        SetHomeTimer(Instant(seconds(18))),
    ]
    assert story.at(18, HomeTimerFired()) == []


def test_what_other_machines_do_not_tell_five_seconds_later_is_waited_for_no_longer() -> None:
    story = serving()
    story.hears(3, "alpha", OVER, gone("learner/0"), gone("recorder/0"))
    story.fire(13)
    assert story.fire(17.999) == []
    assert story.fire(18) == [
        journal(outcome="done", used=used(learner=0.0, recorder=0.0, syncer=0.0)),
        FinishRun(),
        story.orders("", "", is_ending=True),
    ]
    assert story.core.reason(Replica("syncer", 0)) == Ended(MachineLost("beta", 0))


def test_the_processes_of_the_home_itself_are_waited_for() -> None:
    story = serving()
    story.at(2, EndAsked(WHY))
    story.fire(7)
    story.fire(100)
    assert not story.core.is_finished
    assert story.hears(200, "alpha", gone("learner/0"), gone("recorder/0"))[-2] == FinishRun()


def test_lives_that_end_with_the_run_are_neither_written_down_nor_followed_nor_blamed() -> None:
    story = serving()
    story.hears(3, "alpha", OVER)
    assert story.hears(4, "beta", seen("learner/1", 2, error=BOOM)) == []
    assert story.hears(4, "beta", gone("learner/1")) == [
        journal(outcome="done", used=used(learner=0.0)),
        story.orders(beta="syncer/0", roster="learner/0 recorder/0 syncer/0@beta", is_ending=True),
    ]
    story.fire(9)
    assert story.core.fleet.machines["alpha"].condemned == set()
    story.beat(9, 200)  # Nor does anybody have to say hello.
    assert story.core.fleet.machines["alpha"].condemned == set()


def test_a_host_that_was_silent_for_too_long_while_it_ended_is_not_let_in_again() -> None:
    story = HomeStory(HERE_CAST, HERE, patience=seconds(4))
    story.hears(1, "alpha", seen("learner/0"), seen("recorder/0", over=Over()))
    assert story.fire(5) == [story.orders(roster="", is_ending=True)]
    assert story.hears(10, "alpha", seen("learner/0", 2)) == []


# -- it is ended -------------------------------------------------------------------------------------------------------


def test_a_run_that_is_ended_has_every_process_killed() -> None:
    story = serving()
    assert story.does(2, EndAsked(WHY)) == [
        journal(outcome="failed", failure=WHY),
        story.orders(AT_HOME_KILLED, ON_BETA_KILLED, ALL, is_ending=True),
    ]
    assert story.does(3, EndAsked(Ordered("again"))) == [
        story.orders(AT_HOME_KILLED, ON_BETA_KILLED, ALL, is_ending=True)
    ]
    assert story.core.failure == WHY


def test_a_run_that_is_over_may_be_ended_and_keeps_its_outcome() -> None:
    story = serving()
    story.hears(3, "alpha", OVER)
    assert story.does(4, EndAsked(WHY)) == [story.orders(AT_HOME_KILLED, ON_BETA_KILLED, ALL, is_ending=True)]
    assert (story.core.outcome, story.core.failure) == ("done", None)


def test_a_run_that_is_ended_does_not_become_done() -> None:
    story = serving()
    story.at(2, EndAsked(WHY))
    assert story.hears(3, "alpha", OVER) == []
    assert story.core.outcome == "failed"


def test_a_number_that_is_being_noted_is_waited_for_and_becomes_no_life() -> None:
    story = HomeStory(notes=False)
    assert story.at(1, EndAsked(WHY)) == [
        journal(outcome="failed", failure=WHY),
        story.orders("", "", is_ending=True),
        SetHomeTimer(Instant(seconds(6))),
    ]
    told = lives("learner/0 learner/1 syncer/0 recorder/0")
    assert story.at(2, LivesNoted(told)) == [FinishRun(), story.orders("", "", is_ending=True)]


def test_a_next_life_that_was_due_is_not_begun() -> None:
    story = serving()
    story.hears(2, "alpha", gone("learner/0"))
    story.hears(2, "alpha", gone("learner/0#2"))
    story.at(2, EndAsked(WHY))
    story.fire(3)
    assert story.noted[-1] == life("learner/0#2")


def test_hosts_are_told_to_end_again_at_each_beat() -> None:
    story = serving()
    story.at(2, EndAsked(WHY))
    assert story.beat(2) == [story.orders(AT_HOME_KILLED, ON_BETA_KILLED, ALL, is_ending=True)]
    assert story.hears(3, "alpha", gone("learner/0", KILLED), gone("recorder/0", KILLED))[-1] == story.orders(
        "", ON_BETA_KILLED, "learner/1@beta syncer/0@beta", is_ending=True
    )
    assert (AT_HOME, ON_BETA) == ("learner/0 recorder/0", "learner/1 syncer/0")


# -- what the run cannot do without ------------------------------------------------------------------------------------


def test_a_recorder_that_lacks_the_syncer_for_ten_minutes_ends_the_run_and_it_is_said_of_whom() -> None:
    story = serving()
    lacking = said("recorder/0", peers=4, unreached=1, missing=(Missing(life("syncer/0")),))
    story.hears(1, "alpha", Seen(life("recorder/0"), 4711, 2, heartbeat=lacking))
    for _ in range(UNSERVED_BEATS - 1):
        story.beat(1)
        story.hears(1, "beta")
    assert (story.core.outcome, story.core.failure) == ("running", None)
    story.beat(1)
    assert (story.core.outcome, story.core.failure) == ("failed", Unserved("recorder/0", seconds(600), None))


def test_why_the_next_life_of_a_recorder_does_not_come_is_said_when_it_ends_the_run() -> None:
    story = HomeStory(notes=False)
    story.at(0, LivesNoted(lives("learner/0 learner/1 recorder/0 syncer/0")))
    story.serve(1)
    story.hears(2, "alpha", gone("recorder/0"))
    story.at(2, LivesNotNoted(lives("recorder/0#2"), "no space"))
    for _ in range(UNSERVED_BEATS):
        story.beat(2)
        story.hears(2, "beta")
    assert story.core.failure == Unserved("recorder/0", seconds(600), Delayed("no space"))


# -- set aside ---------------------------------------------------------------------------------------------------------


def test_a_home_that_is_set_aside_is_over_once_its_own_lives_are_and_the_run_is_not() -> None:
    story = serving()
    commands = story.does(2, SetAside())
    assert written("daemon/0", HomeSetAside()) in commands
    (sent,) = [each for each in commands if isinstance(each, SendOrders)]
    assert list(sent.wanted) == ["alpha"]  # Those elsewhere hear nothing: they go on as if it had died.
    assert story.does(2, SetAside()) == []
    story.hears(3, "alpha", gone("learner/0"))
    assert not story.core.is_finished
    assert FinishRun() in story.hears(3, "alpha", gone("recorder/0"))
    assert (story.core.outcome, story.core.is_set_aside) == ("running", True)
    assert story.noted[-1].incarnation == 1


def departed(text: str, machine: str, end: Exited) -> WriteIncident:
    """A life that left in order is written down."""
    return written(text, Ended(Departed(machine, end)))


def test_hosts_that_end_because_their_home_is_set_aside_leave_in_order_and_no_other_does() -> None:
    story = HomeStory(HERE_MORE, HERE)
    story.serve(1)
    assert ended("learner/1", CRASHED) in story.hears(2, "alpha", gone("learner/1", CRASHED))
    story.at(2, SetAside())
    assert departed("learner/0", "", Exited(0)) in story.hears(3, "alpha", gone("learner/0", Exited(0)))
    assert ended("learner/2") in story.hears(3, "alpha", gone("learner/2", KILLED))  # It was asked, and did not leave.
    assert ended("learner/3", Exited(0), error=BOOM) in story.hears(3, "alpha", gone("learner/3", Exited(0), BOOM))
    assert departed("recorder/0", "", Exited(0)) in story.hears(4, "alpha", gone("recorder/0", Exited(0)))
    assert departed("syncer/0", "", KILLED) in story.hears(4, "alpha", gone("syncer/0", KILLED))
    assert ended("watcher/0", CRASHED) in story.hears(4, "alpha", gone("watcher/0", CRASHED))


def test_hosts_of_a_machine_that_leaves_do_so_in_order_and_those_elsewhere_do_not() -> None:
    story = serving()
    report = Report((), (gone("learner/1", Exited(0)), gone("syncer/0", KILLED)), is_leaving=True)
    commands = story.at(2, ReportCame("beta", report))
    assert [departed("learner/1", "beta", Exited(0)), departed("syncer/0", "beta", KILLED)] == [
        each for each in commands if isinstance(each, WriteIncident)
    ]
    assert ended("learner/0", Exited(0)) in story.hears(3, "alpha", gone("learner/0", Exited(0)))


def test_one_that_is_set_aside_fails_for_nobody_and_admits_nobody() -> None:
    story = serving()
    story.at(2, SetAside())
    for beats in range(200):
        story.beat(3 + beats)
    assert story.core.outcome == "running"
    story.at(300, MachineJoined("delta", 1))
    assert "delta" not in story.core.fleet.machines


def test_a_run_that_is_over_is_not_set_aside() -> None:
    story = serving()
    story.at(2, EndAsked(Ordered("boom")))
    assert not any(isinstance(each, WriteIncident) for each in story.does(3, SetAside()))
    assert not story.core.is_set_aside


def test_no_life_follows_on_a_machine_that_leaves_and_all_do_where_its_next_daemon_stays() -> None:
    story = serving()
    report = Report((), (gone("learner/1"),), is_leaving=True)
    story.at(2, ReportCame("beta", report))
    assert story.noted[-1] != life("learner/1#2")
    story.at(3, ReportCame("beta", Report()))
    assert story.noted[-1] == life("learner/1#2")
