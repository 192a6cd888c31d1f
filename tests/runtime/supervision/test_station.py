"""The core of a station: processes that orders ask for, how their ends are told, and the next daemon."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest

from isthmus.runtime.errors import InvariantError
from isthmus.runtime.ids import Replica
from isthmus.runtime.supervision.incidents import Exited, NotStarted, Unseen
from isthmus.runtime.supervision.messages import Gone, Heartbeat, Orders, Seen, Stamp
from isthmus.runtime.supervision.station import STARTING_BEATS, STARTING_MAX, Process
from isthmus.runtime.supervision.station_events import (
    CloseStation,
    DismissHost,
    HostSpoke,
    KillProcess,
    LeaveAsked,
    LivesNoted,
    LivesNotNoted,
    NoteLives,
    NoteProcess,
    OrdersCame,
    ProcessEnded,
    ProcessNotStarted,
    ProcessStarted,
    Remembered,
    SendReport,
    StartProcess,
    StationBegan,
    StationCommand,
    StationLeft,
    TellHosts,
    WatchProcess,
)
from tests.runtime.supervision.station_stories import (
    BEAT,
    LEARNER,
    ROSTER,
    SYNCER,
    StationStory,
    begun,
    orders,
    report,
    spoke,
    tell,
    there,
)
from tests.runtime.supervision.supervision_stories import BOOM, CRASHED, KILLED, gone, life, lives, moved

# -- orders ------------------------------------------------------------------------------------------------------------


def test_a_life_is_noted_then_started_then_noted_with_its_process_and_watched() -> None:
    story = StationStory()
    assert story.begun == []
    assert story.tell(orders("learner/0 syncer/0")) == [NoteLives((LEARNER, SYNCER)), report()]
    assert story.tell(LivesNoted((SYNCER, LEARNER))) == [StartProcess(SYNCER), StartProcess(LEARNER)]
    assert story.tell(ProcessStarted(LEARNER, 4711)) == [
        NoteProcess(LEARNER, 4711),
        WatchProcess(LEARNER, 4711),
        report(there("learner/0")),
    ]
    assert story.tell(BEAT) == [report(there("learner/0"), newest="syncer/0 learner/0")]


def test_the_same_orders_change_nothing_whatever_is_under_way() -> None:
    story, asked = StationStory(), "learner/0"
    story.tell(orders(asked, 1))
    assert story.tell(orders(asked, 2)) == [report(number=2)]
    story.tell(LivesNoted((LEARNER,)))
    assert story.tell(orders(asked, 3)) == [report(newest="learner/0", number=3)]
    story.tell(ProcessStarted(LEARNER, 4711))
    assert story.tell(orders(asked, 4)) == [report(there("learner/0"), newest="learner/0", number=4)]
    story.tell(ProcessEnded(LEARNER, KILLED))
    assert story.tell(orders(asked, 5)) == [report(gone("learner/0"), newest="learner/0", number=5)]


def test_orders_that_come_late_are_not_obeyed() -> None:
    story = begun()
    assert story.tell(orders("", 1), orders("", 0)) == []
    assert story.core.refused["orders that came late"] == 2
    assert story.tell(OrdersCame(Orders(stamp=Stamp(1, 2, 1))))[0] == KillProcess(LEARNER)
    assert story.tell(orders("learner/0", 999)) == []


def test_what_lives_and_is_not_wanted_is_killed_each_time() -> None:
    story = begun("learner/0 syncer/0")
    for number, asked in ((2, "syncer/0"), (3, "learner/0! syncer/0"), (4, "learner/0#2 syncer/0")):
        told = story.tell(orders(asked, number, roster=ROSTER))
        assert told[:-1] == [KillProcess(LEARNER), *([tell("learner/0 syncer/0", ROSTER)] if number == 2 else [])]


def test_a_number_that_the_ledger_does_not_take_is_asked_for_again_with_the_next_orders() -> None:
    story = StationStory()
    story.tell(orders("learner/0"))
    assert story.tell(LivesNotNoted((LEARNER,), "no space")) == []
    assert story.tell(orders("learner/0", 2)) == [NoteLives((LEARNER,)), report(number=2)]


def test_what_is_not_wanted_any_more_when_it_is_noted_is_not_started() -> None:
    story = StationStory()
    story.tell(orders("learner/0"), orders("", 2))
    assert story.tell(LivesNoted((LEARNER,))) == []
    assert story.tell(orders("learner/0#2", 3)) == [
        NoteLives(lives("learner/0#2")),
        report(newest="learner/0", number=3),
    ]


def test_what_is_not_wanted_any_more_when_it_is_there_is_killed() -> None:
    story = StationStory()
    story.tell(orders("learner/0"), LivesNoted((LEARNER,)), orders("learner/0!", 2))
    assert story.tell(ProcessStarted(LEARNER, 4711)) == [
        NoteProcess(LEARNER, 4711),
        WatchProcess(LEARNER, 4711),
        KillProcess(LEARNER),
        report(there("learner/0"), number=2),
    ]


def test_the_next_life_waits_until_the_one_before_is_there_and_gone() -> None:
    story = StationStory()
    story.tell(orders("learner/0"), LivesNoted((LEARNER,)))
    assert story.tell(orders("learner/0#2", 2)) == [report(newest="learner/0", number=2)]
    story.tell(ProcessStarted(LEARNER, 4711))
    assert story.tell(orders("learner/0#2", 3))[0] == KillProcess(LEARNER)
    story.tell(ProcessEnded(LEARNER, KILLED))
    assert story.tell(orders("learner/0#2", 4)) == [
        NoteLives(lives("learner/0#2")),
        report(newest="learner/0", number=4),
    ]


def test_a_life_that_was_to_be_killed_before_it_began_has_ended() -> None:
    story = StationStory()
    assert story.tell(orders("learner/0!")) == [report(gone("learner/0", Unseen()))]
    assert story.tell(orders("learner/0", 2)) == [report(gone("learner/0", Unseen()), number=2)]


def test_a_life_that_has_its_number_from_another_daemon_is_not_begun() -> None:
    story = StationStory()
    assert story.tell(orders("learner/0~")) == [report(gone("learner/0", Unseen()))]
    story.tell(orders("learner/0#2", 2), LivesNoted(lives("learner/0#2")))
    assert story.tell(orders("learner/0#2~", 3)) == [report(newest="learner/0#2", number=3)]
    assert story.tell(ProcessStarted(life("learner/0#2"), 4711))[-1] == report(there("learner/0#2"), number=3)


def test_at_home_orders_are_not_answered_unless_there_is_something_to_tell() -> None:
    story = StationStory(at_home=True)
    assert story.tell(orders("learner/0")) == [NoteLives((LEARNER,))]
    assert story.tell(orders("learner/0", 2)) == []
    assert story.tell(orders("learner/0 syncer/0!", 3)) == [report(gone("syncer/0", Unseen()), number=3)]


# -- ends --------------------------------------------------------------------------------------------------------------


def test_an_end_is_told_again_until_it_is_asked_for_no_more() -> None:
    story = begun()
    end = gone("learner/0", CRASHED)
    assert story.tell(ProcessEnded(LEARNER, CRASHED)) == [report(end)]
    assert story.tell(BEAT) == [report(end, newest="learner/0")]
    assert story.tell(orders("learner/0", 2)) == [report(end, newest="learner/0", number=2)]
    assert story.tell(BEAT) == [report(end, newest="learner/0", number=2)]
    assert story.tell(orders("learner/0#2", 3)) == [
        NoteLives(lives("learner/0#2")),
        report(newest="learner/0", number=3),
    ]
    assert story.tell(BEAT) == [report(newest="learner/0", number=3)]


def test_an_end_that_nobody_asks_for_is_forgotten() -> None:
    story = begun()
    story.tell(ProcessEnded(LEARNER, CRASHED))
    assert story.tell(orders("", 2)) == [report(newest="learner/0", number=2)]


def test_an_end_has_what_the_life_had_used_and_the_error_that_it_told_of() -> None:
    story = begun()
    told = Heartbeat("final", cpu_seconds=3.0, flows=moved(7))
    story.tell(HostSpoke(LEARNER, 4711, told, error=BOOM), HostSpoke(LEARNER, 4711, told))
    assert story.tell(ProcessEnded(LEARNER, Exited(1), 4.5)) == [
        report(gone("learner/0", Exited(1), BOOM, 4.5, moved(7)))
    ]
    adopted = begun()
    adopted.tell(HostSpoke(LEARNER, 4711, told))
    assert adopted.tell(ProcessEnded(LEARNER, Exited())) == [report(gone("learner/0", Exited(), None, 3.0, moved(7)))]


def test_a_process_that_cannot_be_started_is_told_like_an_end() -> None:
    story = StationStory()
    story.tell(orders("learner/0"), LivesNoted((LEARNER,)))
    end = gone("learner/0", NotStarted("no memory"))
    assert story.tell(ProcessNotStarted(LEARNER, "no memory")) == [report(end)]
    assert story.tell(orders("learner/0", 2)) == [report(end, newest="learner/0", number=2)]
    assert story.tell(orders("learner/0#2", 3))[0] == NoteLives(lives("learner/0#2"))


def test_the_end_of_another_life_is_nobodys() -> None:
    story = begun()
    assert story.tell(ProcessEnded(life("learner/0#2"), KILLED), ProcessEnded(SYNCER, KILLED)) == []
    assert story.tell(ProcessEnded(LEARNER, KILLED), ProcessEnded(LEARNER, CRASHED)) == [report(gone("learner/0"))]


def test_a_partial_report_has_all_ends() -> None:
    story = begun("learner/0 syncer/0")
    story.tell(ProcessEnded(LEARNER, KILLED))
    failed = spoke("syncer/0", error=BOOM)
    assert story.tell(failed)[-1] == report(there("syncer/0", 2, error=BOOM), gone("learner/0"))


# -- a daemon that takes over ------------------------------------------------------------------------------------------


def test_the_next_daemon_adopts_what_lives_and_has_the_rest_ended() -> None:
    known = (
        Remembered(LEARNER, 4711, True),
        Remembered(SYNCER, 4712, False),
        Remembered(life("recorder/0#3"), None, False),
    )
    story = StationStory(began=StationBegan(known))
    assert story.begun == [WatchProcess(LEARNER, 4711)]
    both = StationStory(began=StationBegan((Remembered(LEARNER, 4711, True), Remembered(SYNCER, 4712, True))))
    assert both.begun == [WatchProcess(LEARNER, 4711), WatchProcess(SYNCER, 4712)]
    newest = "learner/0 syncer/0 recorder/0#3"
    assert story.tell(BEAT) == [report(there("learner/0"), newest=newest, number=0)]
    assert story.tell(orders("learner/0 syncer/0 recorder/0#3")) == [
        report(there("learner/0"), gone("syncer/0", Unseen()), gone("recorder/0#3", Unseen()), newest=newest)
    ]


def test_before_the_first_orders_all_that_lives_is_wanted() -> None:
    story = StationStory(began=StationBegan((Remembered(LEARNER, 4711, True),)))
    assert story.tell(spoke("learner/0")) == [tell("learner/0"), report(there("learner/0", 1), number=0)]


NOTED_AND: Final = {
    "nothing more": ([], False),
    "asked for": ([LivesNoted((LEARNER,))], False),
    "there": ([LivesNoted((LEARNER,)), ProcessStarted(LEARNER, 4711)], True),
}


@pytest.mark.parametrize("how_far", NOTED_AND)
def test_a_number_that_was_noted_is_never_begun_by_the_next_daemon(how_far: str) -> None:
    events, is_alive = NOTED_AND[how_far]
    before = StationStory()
    before.tell(orders("learner/0"), *events)
    again = StationStory(began=StationBegan((Remembered(LEARNER, 4711 if is_alive else None, is_alive),)))
    told = again.tell(orders("learner/0", 2))
    assert not [command for command in told if isinstance(command, NoteLives | StartProcess)]
    assert (gone("learner/0", Unseen()) in told[-1].report.ended) != is_alive  # type: ignore[union-attr]


def test_a_process_that_was_not_noted_is_dismissed_when_it_speaks() -> None:
    again = StationStory(began=StationBegan((Remembered(LEARNER, None, False),)))
    again.tell(orders("learner/0"))
    assert again.tell(spoke("learner/0")) == [DismissHost(LEARNER)]
    assert again.core.refused["not the present life"] == 1


# -- invariants --------------------------------------------------------------------------------------------------------


def broken(name: str, value: Any) -> StationStory:
    """A station of one life, and of what cannot be."""
    story = begun()
    setattr(story.core, name, value)
    return story


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("lives", {Replica("syncer", 0): Process(LEARNER, 1)}, "learner/0#1 is kept as syncer/0"),
        ("_starting", {LEARNER.replica: LEARNER}, "learner/0#1 lives, and another life of it begins"),
        ("_noting", {life("learner/0#2")}, "learner/0#1 lives, and another life of it begins"),
        ("_newest", {}, "learner/0#1 lives, and 0 is the newest number"),
        ("_starting", {SYNCER.replica: SYNCER}, "syncer/0#1 is started and was not noted"),
        ("_is_closed", True, "it is closed, and processes are there"),
    ],
)
def test_what_cannot_be_is_found(name: str, value: Any, told: str) -> None:
    with pytest.raises(InvariantError, match=told):
        broken(name, value).core.check()


def test_a_closed_station_that_starts_something_is_found() -> None:
    story = StationStory()
    story.tell(orders("learner/0"), LivesNoted((LEARNER,)))
    story.core._is_closed = True
    with pytest.raises(InvariantError, match="it is closed"):
        story.core.check()


# -- leaving -----------------------------------------------------------------------------------------------------------


def leaving(text: str, *asked: str, **more: Any) -> TellHosts:
    """What the hosts are told while this machine leaves, those that are `asked` to leave among them."""
    return tell(text, leaving=tuple(member for each in asked for member in lives(each)), **more)


def left(*told: Seen | Gone, **more: Any) -> SendReport:
    """The report of a station that leaves."""
    return SendReport(msgspec.structs.replace(report(*told, **more).report, is_leaving=True))


def test_learners_leave_first_then_the_recorder_and_the_rest_is_ended() -> None:
    all_of_them = "learner/0 recorder/0 syncer/0"
    story = begun(all_of_them, at_home=True)
    asked, told = story.tell(LeaveAsked(20))
    assert asked == leaving(all_of_them, "learner/0")
    assert isinstance(told, SendReport)
    assert told.report.is_leaving
    commands = story.tell(ProcessEnded(life("learner/0"), Exited(0)))
    assert leaving("recorder/0 syncer/0", "recorder/0") in commands
    commands = story.tell(ProcessEnded(life("recorder/0"), Exited(0)))
    assert KillProcess(life("syncer/0")) in commands
    assert CloseStation() in story.tell(ProcessEnded(life("syncer/0"), Exited(None, "SIGKILL")))


def test_a_learner_that_does_not_leave_has_half_of_the_time_alone_and_all_of_it_with_the_recorder() -> None:
    story = begun("learner/0 recorder/0")
    story.tell(LeaveAsked(4))
    assert leaving("learner/0 recorder/0", "learner/0") in story.tell(BEAT)
    assert leaving("learner/0 recorder/0", "learner/0", "recorder/0") in story.tell(BEAT)
    story.tell(BEAT)
    assert {KillProcess(life("learner/0")), KillProcess(life("recorder/0"))} <= {*story.tell(BEAT)}


def test_no_life_begins_on_a_machine_that_leaves_and_a_second_request_changes_nothing() -> None:
    story = begun()
    story.tell(LeaveAsked(20))
    assert story.tell(LeaveAsked(1)) == []
    commands = story.tell(orders("learner/0 syncer/0", 2))
    assert not any(isinstance(each, NoteLives) for each in commands)
    assert left(there("learner/0", 1), Gone(life("syncer/0"), Unseen()), newest="learner/0", number=2) in commands


def test_where_nobody_is_to_leave_it_ends_at_once() -> None:
    story = begun("syncer/0")
    assert KillProcess(life("syncer/0")) in story.tell(LeaveAsked(20))


# -- waves -------------------------------------------------------------------------------------------------------------


MANY = [f"learner/{slot}" for slot in range(STARTING_MAX + 8)]


def asked(commands: list[StationCommand]) -> list[str]:
    """The replicas whose processes are asked for."""
    return [str(each.member.replica) for each in commands if isinstance(each, StartProcess)]


def crowd() -> StationStory:
    """A station that is to have many lives, of which the first ones are asked for."""
    story = StationStory()
    names = " ".join([*MANY, "syncer/0"])
    story.tell(orders(names))
    assert asked(story.tell(LivesNoted(lives(names)))) == ["syncer/0", *MANY[: STARTING_MAX - 1]]
    return story


def test_no_more_processes_start_at_once_than_may_and_the_next_when_one_has_spoken() -> None:
    story = crowd()
    assert asked(story.tell(ProcessStarted(life("syncer/0"), 9))) == []
    assert asked(story.tell(spoke("syncer/0", 9))) == [MANY[STARTING_MAX - 1]]
    assert asked(story.tell(spoke("syncer/0", 9))) == []
    assert asked(story.tell(ProcessNotStarted(life(MANY[0]), "no memory"))) == [MANY[STARTING_MAX]]
    story.tell(ProcessStarted(life(MANY[1]), 10))
    assert asked(story.tell(ProcessEnded(life(MANY[1]), KILLED))) == [MANY[STARTING_MAX + 1]]


def test_one_that_does_not_speak_for_a_minute_keeps_the_others_no_longer() -> None:
    story = crowd()
    story.tell(ProcessStarted(life("syncer/0"), 9))
    assert asked(story.tell(*[BEAT] * (STARTING_BEATS - 1))) == []
    assert asked(story.tell(BEAT)) == [MANY[STARTING_MAX - 1]]


def test_what_waits_for_its_process_and_is_not_wanted_any_more_has_ended() -> None:
    story, last = crowd(), MANY[-1]
    commands = story.tell(orders(" ".join([*MANY[:-1], f"{last}!"]), 2))
    (told,) = [each.report for each in commands if isinstance(each, SendReport)]
    assert told.ended == (Gone(life(last), Unseen()),)
    story.tell(LeaveAsked(20))
    (told,) = [each.report for each in story.tell(BEAT) if isinstance(each, SendReport)]
    assert {each.member for each in told.ended} == {life(each) for each in MANY[STARTING_MAX - 1 :]}


def test_a_station_that_is_over_starts_nothing_that_waits() -> None:
    story = crowd()
    assert asked(story.tell(StationLeft())) == []
    for number, name in enumerate(["syncer/0", *MANY[: STARTING_MAX - 1]]):
        commands = story.tell(ProcessStarted(life(name), number), ProcessEnded(life(name), KILLED))
        assert asked(commands) == []
    assert CloseStation() in commands
