"""The core of a home: what the next daemon knows, and whom it waits for."""

from __future__ import annotations

from typing import Any, Final

import pytest

from isthmus.runtime.clock import Instant, seconds
from isthmus.runtime.cores.membership_messages import Excused, Suspected
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.home import Home
from isthmus.runtime.supervision.home_events import (
    EndAsked,
    FinishRun,
    HomeBeat,
    HomeBegan,
    HomeEvent,
    Journal,
    MachineJoined,
    MachineTakenAway,
    NotBegun,
    NoteJournal,
    ReportCame,
    SendOrders,
    SetHomeTimer,
    StopAsked,
    WriteIncident,
)
from isthmus.runtime.supervision.incidents import Adopted, Ordered, Unseen
from isthmus.runtime.supervision.messages import Report, Stamp
from isthmus.runtime.supervision.station_events import LivesNoted, NoteLives
from tests.runtime.supervision.supervision_stories import (
    CAST,
    GONE,
    PLACES,
    SUSPECT,
    HomeStory,
    endpoints,
    gone,
    journal,
    life,
    lives,
    over,
    seen,
    silence,
    used,
    wanted,
    written,
)

NUMBERS: Final = lives("learner/0#3 learner/1#4 recorder/0#1 syncer/0#2")
AT_HOME_NOW: Final = "learner/0#3~ recorder/0~"
ON_BETA_NOW: Final = "learner/1#4~ syncer/0#2~"
PLACED: Final = (("learner/1", "beta"), ("syncer/0", "beta"))
WHY: Final = Ordered("enough")


def taken_over(notes: bool = True, **more: Any) -> HomeStory:
    """A run that has a daemon again, as far as the journal says `more`."""
    noted = Journal(**{"machines": PLACED, "epoch": 7, **more})
    return HomeStory(began=HomeBegan(NUMBERS, noted), notes=notes)


def test_what_comes_before_it_has_begun_orders_nothing_and_what_was_asked_is_done_then() -> None:
    """A station that is linked already reports at once; a home that knows of no life would have all of its killed."""
    home = Home(CAST, PLACES)
    early: list[HomeEvent] = [ReportCame("beta", Report(newest=NUMBERS)), MachineJoined("gamma", 1), StopAsked()]
    assert [home.handle(event, Instant(number)) for number, event in enumerate(early)] == [[], [], []]
    begun = home.handle(HomeBegan(NUMBERS, Journal(machines=PLACED, epoch=7)), Instant(5))
    [noted] = [each.journal for each in begun if isinstance(each, NoteJournal)]
    assert (noted.epoch, noted.is_stopping, dict(noted.machines)["learner/1"]) == (8, True, "beta")
    [orders] = [each for each in begun if isinstance(each, SendOrders)]
    assert {each.member for each in orders.wanted["beta"]} == {life("learner/1#4"), life("syncer/0#2")}
    assert "gamma" in orders.wanted


def test_a_run_that_is_ended_before_it_has_begun_ends_with_the_lives_that_there_are() -> None:
    home = Home(CAST, PLACES)
    assert home.handle(EndAsked(WHY), Instant(1)) == []
    begun = home.handle(HomeBegan(NUMBERS, Journal(machines=PLACED, epoch=7)), Instant(5))
    assert (home.outcome, home.failure, home.is_finished) == ("failed", WHY, False)
    [orders] = [each for each in begun if isinstance(each, SendOrders)]
    assert all(each.is_condemned for each in orders.wanted["beta"])


def test_a_run_that_cannot_be_begun_ends() -> None:
    home = Home(CAST, PLACES)
    home.handle(NotBegun(WHY), Instant(1))
    assert (home.outcome, home.failure) == ("failed", WHY)


# -- the next daemon ---------------------------------------------------------------------------------------------------


def test_the_newest_lives_are_taken_for_granted_and_nobody_is_told_of_any() -> None:
    story = taken_over(used=used(learner=3.0))
    assert story.begun == [
        journal(epoch=8, used=used(learner=3.0)),
        story.orders(AT_HOME_NOW, ON_BETA_NOW, None),
        SetHomeTimer(Instant(seconds(11))),
    ]
    assert story.stamp == Stamp(1, 8, 1)


def test_hosts_that_speak_are_adopted_and_the_roster_waits_for_the_last() -> None:
    story = taken_over()
    assert story.hears(1, "alpha", seen("learner/0#3", 9), seen("recorder/0", 9)) == [
        written("learner/0#3", Adopted()),
        written("recorder/0", Adopted()),
        story.orders(AT_HOME_NOW, ON_BETA_NOW, None),
    ]
    story.hears(2, "beta", seen("learner/1#4", 9))
    roster = "learner/0#3 learner/1#4@beta recorder/0 syncer/0#2@beta"
    assert story.hears(3, "beta", seen("syncer/0#2", 9)) == [
        written("syncer/0#2", Adopted()),
        story.orders(AT_HOME_NOW, ON_BETA_NOW, roster),
    ]


def test_a_life_that_has_ended_meanwhile_is_waited_for_no_longer() -> None:
    story = taken_over()
    story.hears(1, "beta", seen("learner/1#4", 9), seen("syncer/0#2", 9))
    story.hears(1, "alpha", seen("recorder/0", 9))
    rest = "learner/1#4@beta recorder/0 syncer/0#2@beta"
    assert story.hears(2, "alpha", gone("learner/0#3", Unseen()))[-2:] == [
        story.orders("recorder/0~", ON_BETA_NOW, rest, back=1),
        story.orders("learner/0#4 recorder/0~", ON_BETA_NOW, rest),
    ]


def test_those_that_have_not_spoken_by_then_are_members_until_they_are_found_to_be_gone() -> None:
    story = taken_over()
    story.hears(1, "alpha", seen("learner/0#3", 9), seen("recorder/0", 9))
    story.hears(1, "beta", seen("learner/1#4", 0, pid=4713))
    story.fire(10.999)
    rows = (
        ("learner/0", 3, endpoints("learner/0#3"), "alpha"),
        ("learner/1", 4, (), "beta"),
        ("recorder/0", 1, endpoints("recorder/0#1"), "alpha"),
        ("syncer/0", 2, (), "beta"),
    )
    (told,) = [command for command in story.fire(11) if isinstance(command, SendOrders)]
    assert [change.rows for change in told.changes] == [rows]
    assert story.core.state(Replica("syncer", 0)) == "alive"
    assert written("syncer/0#2", Adopted()) in story.hears(12, "beta", seen("syncer/0#2", 1))


def test_one_that_nobody_has_seen_is_excused_by_its_machine_and_else_killed() -> None:
    story = taken_over()
    story.fire(11)
    story.beat(12, 2)
    story.hears(17, "alpha")
    told = [command for command in story.fire(11 + SUSPECT) if isinstance(command, WriteIncident)]
    silences = {command.member: command.incident for command in told}
    assert silences[life("syncer/0#2")] == Excused("unheard", seconds(SUSPECT), 0, "beta")
    assert silences[life("learner/0#3")] == Suspected(silence(SUSPECT))
    (last,) = story.fire(11 + GONE)
    assert isinstance(last, SendOrders)
    assert last.wanted["alpha"] == wanted("learner/0#3!~ recorder/0!~")


def test_replicas_that_have_had_no_life_are_begun() -> None:
    story = HomeStory(began=HomeBegan(NUMBERS[:2], Journal(epoch=1)))
    assert story.begun[1] == NoteLives(lives("syncer/0 recorder/0"))


def test_the_journal_says_where_everybody_is_and_who_has_gone() -> None:
    machines = (("learner/1", "beta"), ("learner/2", "delta"), ("syncer/0", "gamma"))
    story = taken_over(machines=machines, away=("delta",), retired=(("learner/2", "left"),))
    assert story.begun[:2] == [
        journal(epoch=8, machines=machines, away=("delta",), retired=(("learner/2", "left"),)),
        story.orders(AT_HOME_NOW, "learner/1#4~", None, gamma="syncer/0#2~", delta="", over=("delta",)),
    ]
    assert story.core.state(Replica("learner", 2)) == "left"


def test_a_replica_whose_machine_was_taken_away_before_its_next_number_was_noted_is_moved() -> None:
    story = taken_over(away=("beta",), retired=(("learner/1", "left"),))
    assert story.begun[1] == NoteLives(lives("syncer/0#3"))
    assert story.orders(AT_HOME_NOW, "", None, gamma="syncer/0#3", over=("beta",), machines=("alpha", "gamma")) in (
        story.begun
    )


def test_a_run_that_was_to_stop_is_to_stop() -> None:
    story = taken_over(is_stopping=True)
    assert story.orders(AT_HOME_NOW, ON_BETA_NOW, None, is_stopping=True) in story.begun
    story.hears(1, "alpha", over("recorder/0"))
    assert story.core.outcome == "stopped"


def test_a_run_that_was_over_is_brought_to_its_end() -> None:
    story = taken_over(outcome="failed", failure=WHY)
    assert story.begun == [
        journal(epoch=8, outcome="failed", failure=WHY),
        story.orders("learner/0#3!~ recorder/0!~", "learner/1#4!~ syncer/0#2!~", None, is_ending=True),
        SetHomeTimer(Instant(seconds(5))),
    ]
    story.hears(1, "beta", gone("learner/1#4"), gone("syncer/0#2"))
    assert FinishRun() in story.hears(1, "alpha", gone("learner/0#3"), gone("recorder/0"))
    assert (story.core.outcome, story.core.failure) == ("failed", WHY)


def test_orders_of_a_daemon_whose_journal_is_not_the_newest_are_obeyed_nevertheless() -> None:
    story = taken_over()
    obeyed = ReportCame("beta", Report(obeyed=Stamp(1, 9, 500)))
    assert story.does(1, obeyed) == [story.orders(AT_HOME_NOW, ON_BETA_NOW, None, epochs={"beta": 10})]
    assert {name: orders.stamp for name, orders in story.at(2, HomeBeat())[0].by_machine()} == {
        "alpha": Stamp(1, 8, 3),
        "beta": Stamp(1, 10, 3),
        "gamma": Stamp(1, 8, 3),
    }
    assert story.does(2, obeyed) == []


# -- a daemon that is killed between two commands ----------------------------------------------------------------------


class Memory:
    """What is noted of what a home says; `left` commands are performed before its daemon is killed."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.numbers: dict[Replica, int] = {}
        self.journal: Journal | None = None
        self.asked: dict[Member, str] = {}

    def perform(self, home: Home, event: HomeEvent) -> None:
        """Do what an event leads to, and what follows at once from that."""
        waiting = [event]
        while waiting:
            commands = home.handle(waiting.pop(0), Instant(0))
            home.check()
            for command in commands:
                if not self.left:
                    return
                self.left -= 1
                if isinstance(command, NoteLives):
                    self.numbers |= {member.replica: member.incarnation for member in command.members}
                    waiting.append(LivesNoted(command.members))
                elif isinstance(command, NoteJournal):
                    self.journal = command.journal
                elif isinstance(command, SendOrders):
                    self.ask(command)

    def ask(self, told: SendOrders) -> None:
        """No life is ever asked for on two machines, nor below a number that was asked for before."""
        for name, members in told.wanted.items():
            for each in members:
                assert not each.is_new or self.asked.setdefault(each.member, name) == name
                assert self.numbers[each.member.replica] == each.member.incarnation


STORY: Final = (
    HomeBegan(),
    ReportCame("alpha", Report((seen("learner/0"), seen("recorder/0")))),
    ReportCame("beta", Report((seen("learner/1"), seen("syncer/0")))),
    ReportCame("alpha", Report((), (gone("learner/0"),))),
    MachineJoined("delta", 1),
    MachineTakenAway("beta", "left"),
    ReportCame("alpha", Report((), (gone("learner/0#2"), gone("recorder/0")))),
    ReportCame("gamma", Report((), (gone("syncer/0#2"),))),
    StopAsked(),
    ReportCame("gamma", Report((seen("syncer/0#3"),))),
    EndAsked(WHY),
)


@pytest.mark.parametrize("left", range(50))
def test_wherever_a_daemon_is_killed_the_next_one_gives_no_life_twice_or_to_another_machine(left: int) -> None:
    memory = Memory(left)
    home = Home(CAST, PLACES)
    for event in STORY:
        memory.perform(home, event)
    memory.left = 1000
    again = Home(CAST, PLACES)
    memory.perform(again, HomeBegan(tuple(Member(*each) for each in sorted(memory.numbers.items())), memory.journal))
    for event in STORY[1:]:
        memory.perform(again, event)
    assert again.outcome == "failed"
