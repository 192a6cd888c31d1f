"""The core of a home whose ledger was lost: it believes what stations say, and numbers go on far beyond that."""

from __future__ import annotations

from typing import Any, Final

import pytest

from isthmus.runtime.clock import Instant, seconds
from isthmus.runtime.ids import Replica
from isthmus.runtime.supervision.home_events import (
    DAEMON,
    EndAsked,
    FinishRun,
    HomeBeat,
    HomeBegan,
    Journal,
    MachineJoined,
    MachineTakenAway,
    NoteJournal,
    Recorded,
    ReportCame,
    SetHomeTimer,
    StopAsked,
    WriteIncident,
)
from isthmus.runtime.supervision.incidents import (
    Adopted,
    Ended,
    Happened,
    Joined,
    MachineTaken,
    NumbersLost,
    Ordered,
    Unseen,
)
from isthmus.runtime.supervision.lives import NUMBERS_REACH, NUMBERS_SKIPPED
from isthmus.runtime.supervision.messages import Report
from isthmus.runtime.supervision.station_events import LivesNotNoted, NoteFound, NoteLives
from tests.runtime.supervision.supervision_stories import (
    HomeStory,
    ended,
    gone,
    journal,
    life,
    lives,
    over,
    seen,
    used,
    written,
)

PLACED: Final = (("learner/1", "beta"), ("syncer/0", "beta"))
WHY: Final = Ordered("enough")


def lost(**more: Any) -> HomeStory:
    """A run whose ledger was lost."""
    return HomeStory(began=HomeBegan(is_lost=True, **more))


def test_nothing_is_begun_nor_said_before_all_had_time_to_speak() -> None:
    story = lost()
    assert story.begun == [journal(), SetHomeTimer(Instant(seconds(11)))]
    assert story.does(1, HomeBeat(), StopAsked()) == [journal(is_stopping=True)]
    assert story.fire(10.999) == []


def test_what_stations_say_is_believed_and_noted_and_numbers_go_on_far_beyond() -> None:
    story = lost()
    report = Report((seen("learner/0#3"),), (), lives("learner/0#3 recorder/0#9"))
    assert story.does(9, ReportCame("alpha", report)) == [
        NoteLives(lives("learner/0#3")),
        written("learner/0#3", Adopted()),
    ]
    assert story.hears(10, "beta", seen("learner/1#4")) == [
        NoteLives(lives("learner/1#4")),
        written("learner/1#4", Adopted()),
    ]
    floor, roster = NUMBERS_SKIPPED + 9, "learner/0#3 learner/1#4@beta"
    next_two = f"syncer/0#{floor + 1}", f"recorder/0#{floor + 1}"
    assert story.fire(11) == [
        journal(number_least=floor),
        WriteIncident(DAEMON, NumbersLost(floor + 1)),
        NoteFound(),
        NoteLives(lives(" ".join(next_two))),
        story.orders("learner/0#3~", "learner/1#4~", roster, back=1),
        story.orders(f"learner/0#3~ {next_two[1]}", f"learner/1#4~ {next_two[0]}", roster),
    ]


def test_the_next_life_of_one_that_was_adopted_is_numbered_far_beyond_too() -> None:
    story = lost()
    story.hears(1, "alpha", seen("learner/0#3"))
    assert story.hears(2, "alpha", gone("learner/0#3")) == [journal(used=used(learner=0.0)), ended("learner/0#3")]
    story.fire(11)
    assert story.noted[-4:] == list(lives("learner/0#1004 learner/1#1004 syncer/0#1004 recorder/0#1004"))


def test_numbers_stay_above_that_for_every_daemon_after_it() -> None:
    story = HomeStory(began=HomeBegan(lives("learner/0#5"), Journal(machines=PLACED, number_least=1003)))
    assert story.noted == list(lives("learner/1#1004 syncer/0#1004 recorder/0#1004"))
    story.hears(1, "alpha", gone("learner/0#5"))
    assert story.noted[-1] == life("learner/0#1004")


def test_a_life_that_is_elsewhere_than_it_was_placed_is_there() -> None:
    story = lost()
    moved = (("learner/1", "beta"), ("syncer/0", "gamma"))
    assert story.hears(1, "gamma", seen("syncer/0#2")) == [
        journal(machines=moved),
        NoteLives(lives("syncer/0#2")),
        written("syncer/0#2", Adopted()),
    ]
    at_home = lost()
    at_home.hears(1, "alpha", seen("syncer/0#2"))
    assert at_home.core.fleet.placed() == (("learner/1", "beta"), ("syncer/0", "alpha"))


def test_a_machine_that_had_joined_and_its_learner_are_known_again() -> None:
    happened = [Happened(Instant(1), life("learner/2"), Joined("delta"))]
    story = lost(recorded=Recorded.of(happened))
    assert story.hears(1, "delta", seen("learner/2#2")) == [
        NoteLives(lives("learner/2#2")),
        written("learner/2#2", Adopted()),
    ]
    assert story.core.fleet.others == ["beta", "gamma", "delta"]


@pytest.mark.parametrize("is_newer_first", [False, True])
def test_of_two_lives_of_a_replica_the_newer_one_is_believed(is_newer_first: bool) -> None:
    story = lost()
    reports = [("beta", "syncer/0#2"), ("gamma", "syncer/0#3")]
    for name, text in reversed(reports) if is_newer_first else reports:
        story.hears(1, name, seen(text))
    assert story.core.fleet.name(Replica("syncer", 0)) == "gamma"
    assert story.core.lives[Replica("syncer", 0)].member == life("syncer/0#3")


def test_a_newer_life_that_has_ended_makes_an_older_one_not_believed() -> None:
    story = lost()
    story.hears(1, "beta", seen("syncer/0#2"))
    told = story.does(2, ReportCame("gamma", Report(newest=lives("syncer/0#3"))))
    assert told == [journal(used=used(syncer=0.0)), ended("syncer/0#2", Unseen())]
    assert story.core.lives == {}
    assert story.hears(3, "beta", seen("syncer/0#2", 2)) == []


def test_a_report_that_comes_again_does_not_bring_a_life_back() -> None:
    story = lost()
    report = ReportCame("beta", Report((seen("syncer/0#2"),), (), lives("syncer/0#2")))
    story.does(1, report)
    assert story.hears(2, "beta", gone("syncer/0#2")) == [journal(used=used(syncer=0.0)), ended("syncer/0#2")]
    assert story.does(3, report) == []
    assert story.core.lives == {}


def test_what_it_learns_may_be_told_again_and_in_any_order() -> None:
    story = lost()
    for _ in range(2):
        story.does(1, ReportCame("beta", Report((seen("syncer/0#2"),), (), lives("syncer/0#2"))))
        story.does(1, ReportCame("beta", Report((), (), lives("syncer/0#1"))))
    assert story.noted == [life("syncer/0#2")]


def test_a_run_that_is_ended_meanwhile_is_ended_once_it_knows_which_lives_there_are() -> None:
    story = lost()
    assert story.does(1, EndAsked(WHY)) == [journal(outcome="failed", failure=WHY)]
    story.fire(6)
    assert story.hears(7, "beta", seen("syncer/0#2")) == [
        NoteLives(lives("syncer/0#2")),
        written("syncer/0#2", Adopted()),
    ]
    assert not story.core.is_finished
    assert story.fire(11)[-1] == story.orders("", "syncer/0#2!~", is_ending=True)
    assert FinishRun() in story.hears(12, "beta", gone("syncer/0#2"))


def test_a_run_that_is_over_meanwhile_ends_by_itself() -> None:
    story = lost()
    story.hears(1, "alpha", over("recorder/0"))
    assert story.core.outcome == "done"
    story.fire(11)
    assert story.core.fleet.machines["alpha"].condemned == {Replica("recorder", 0)}
    assert FinishRun() in story.hears(12, "alpha", gone("recorder/0"))


def test_a_daemon_that_dies_while_it_does_not_know_is_followed_by_one_that_does_not_know() -> None:
    moved = (("learner/1", "beta"), ("syncer/0", "gamma"))
    story = lost(newest=lives("syncer/0#2"), journal=Journal(machines=moved, epoch=1))
    assert story.begun == [journal(machines=moved, epoch=2), SetHomeTimer(Instant(seconds(11)))]
    assert story.core.fleet.is_idle
    story.hears(1, "gamma", seen("syncer/0#2"))
    assert story.core.lives[Replica("syncer", 0)].member == life("syncer/0#2")


def test_a_machine_may_join_and_be_taken_away_meanwhile() -> None:
    story = lost()
    story.at(1, MachineJoined("delta", 1))
    story.at(1, MachineTakenAway("beta", "left"))
    assert story.noted == []
    story.fire(11)
    assert story.noted == list(lives("learner/0#1001 syncer/0#1001 recorder/0#1001 learner/2#1001"))
    assert story.core.fleet.name(Replica("syncer", 0)) == "gamma"


def test_where_several_begin_and_one_is_moved_the_journal_says_so() -> None:
    story = lost()
    story.at(1, MachineTakenAway("beta", "left"))
    journals = [command.journal for command in story.fire(11) if isinstance(command, NoteJournal)]
    assert [each.machines[-1] for each in journals] == [("syncer/0", "beta"), ("syncer/0", "gamma")]


def test_a_life_that_is_believed_and_not_noted_is_there_nevertheless() -> None:
    story = lost()
    story.notes = False
    story.hears(1, "beta", seen("syncer/0#2"))
    assert story.does(1, LivesNotNoted(lives("syncer/0#2"), "no space")) == []
    assert story.core.lives[Replica("syncer", 0)].member == life("syncer/0#2")


# -- machines that lie -------------------------------------------------------------------------------------------------

EVERYTHING: Final = "learner/0#9 learner/1#9 learner/2#9 learner/3#9 syncer/0#9 recorder/0#9"


@pytest.mark.parametrize("name", ["delta", "gamma", "beta"])
def test_a_life_counts_only_on_a_machine_that_may_have_it(name: str) -> None:
    """delta never took part, gamma offers the syncer's role, beta has the syncer and a learner."""
    story = lost()
    claims = Report(tuple(seen(text) for text in EVERYTHING.split()), (), lives(EVERYTHING))
    story.does(1, ReportCame(name, claims))
    believed = {"delta": "", "gamma": "syncer/0#9", "beta": "learner/1#9 syncer/0#9"}[name]
    assert {each.member for each in story.core.lives.values()} == set(lives(believed))
    story.fire(11)
    assert story.core.fleet.name(Replica("recorder", 0)) == "alpha"
    assert {str(each.replica): each.incarnation for each in story.noted}["recorder/0"] == NUMBERS_SKIPPED + (
        10 if believed else 1
    )


def test_a_number_that_the_home_cannot_have_given_counts_for_nothing() -> None:
    for number, floor in ((7 + NUMBERS_REACH, 7 + NUMBERS_REACH), (8 + NUMBERS_REACH, 7)):
        story = lost(recorded=Recorded(number=7))
        story.does(1, ReportCame("beta", Report((seen(f"learner/1#{number}"),), (), lives(f"learner/1#{number}"))))
        story.fire(11)
        assert life(f"recorder/0#{floor + NUMBERS_SKIPPED + 1}") in story.noted


def test_incidents_tell_who_joined_and_is_still_there_and_how_far_numbers_were_given() -> None:
    away = Ended(MachineTaken("gamma", "left"))
    happened = [
        Happened(Instant(1), life("learner/2"), Joined("delta")),
        Happened(Instant(2), life("learner/3"), Joined("gamma")),
        Happened(Instant(3), life("learner/3#5"), away),
        Happened(Instant(4), life("daemon/0"), NumbersLost(1001)),
    ]
    assert Recorded.of(happened) == Recorded(joined=(("learner/2", "delta"),), number=1001)
    assert Recorded.of(happened[:3]).number == 5
