"""The core of a home: an elastic island goes on without a process that is gone, and takes its next life back."""

from __future__ import annotations

from typing import Final

import msgspec

from isthmus.runtime.ids import Replica
from isthmus.runtime.supervision.home import Home
from isthmus.runtime.supervision.home_events import HomeBegan, HomeCommand, NoteJournal, SendOrders, WriteIncident
from isthmus.runtime.supervision.incidents import (
    Condemned,
    Ended,
    GangMemberLost,
    ProcessBack,
    ProcessLost,
    ProcessMissing,
    Reformed,
    Restarted,
    TooFewProcesses,
)
from isthmus.runtime.supervision.lives import NUMBERS_SKIPPED
from isthmus.runtime.supervision.messages import Form, Formed, Seen
from isthmus.runtime.supervision.station_events import NoteLives
from tests.runtime.supervision.supervision_stories import CAST, KILLED, PLACES, HomeStory, gone, life, lives, said, seen

LEADER: Final = Replica("learner", 0)
ALL: Final = "learner/0 learner.1/0 learner.2/0"
ELASTIC: Final = msgspec.structs.replace(CAST, processes=(3,), elastic=((2, 3),))


def began() -> HomeStory:
    """Learner 0 has three processes, of which two may train without the third."""
    story = HomeStory(ELASTIC, PLACES)
    story.hears(1, "alpha", *(seen(name) for name in ("recorder/0", *ALL.split())))
    story.hears(1, "beta", *(seen(name) for name in ("learner/1", "syncer/0")))
    return story


def form(number: int, members: str) -> Form:
    return Form(LEADER, number, lives(members))


def forms(commands: list[HomeCommand]) -> tuple[Form, ...]:
    """Those of the last orders."""
    orders = [each for each in commands if isinstance(each, SendOrders)]
    return orders[-1].forms


def told(commands: list[HomeCommand]) -> list[object]:
    return [(each.member, each.incident) for each in commands if isinstance(each, WriteIncident)]


def formed(number: int, stall_ns: int = 0, broken: int = 0, beats: int = 2) -> Seen:
    """Learner 0 speaks of its form."""
    return Seen(
        life("learner/0"), 4711, beats, heartbeat=said("learner/0", formed=Formed(number, 2, stall_ns, 0, broken))
    )


def test_the_first_form_waits_for_all_and_is_noted_before_it_is_told() -> None:
    story = HomeStory(ELASTIC, PLACES)
    commands = story.hears(1, "alpha", seen("learner/0"), seen("learner.1/0"))
    assert forms(commands) == ()
    commands = story.hears(2, "alpha", seen("learner.2/0"))
    assert forms(commands) == (form(1, ALL),)
    kinds = [type(each) for each in commands]
    assert kinds.index(NoteJournal) < kinds.index(SendOrders)
    assert next(each for each in commands if isinstance(each, NoteJournal)).journal.forms == (form(1, ALL),)


def test_one_that_does_not_come_within_a_minute_is_named_and_gone_without() -> None:
    story = HomeStory(ELASTIC, PLACES)
    story.hears(1, "alpha", seen("learner/0"), seen("learner.2/0"))
    assert forms(story.beat(60.9)) == ()
    commands = story.beat(61)
    assert forms(commands) == (form(1, "learner/0 learner.2/0"),)
    assert told(commands)[0] == (life("learner/0"), ProcessMissing("learner.1/0", 60_000_000_000, 2, 3))


def test_one_that_ends_costs_its_leader_nothing_but_a_form_and_comes_back_alone() -> None:
    story = began()
    commands = story.hears(10, "alpha", gone("learner.1/0"))
    assert forms(commands) == (form(2, "learner/0 learner.2/0"),)
    assert told(commands) == [
        (life("learner.1/0"), Ended(KILLED)),
        (life("learner/0"), ProcessLost("learner.1/0", 2, 3)),
    ]
    assert [each for each in commands if isinstance(each, NoteLives)] == [NoteLives(lives("learner.1/0#2"))]
    commands = story.hears(11, "alpha", formed(2, 1_500_000_000))
    assert told(commands) == [(life("learner/0"), Reformed(2, 3, 1_500_000_000, 0))]
    assert told(story.hears(11, "alpha", formed(2, 1_500_000_000, beats=3))) == []
    commands = story.hears(12, "alpha", seen("learner.1/0#2"))
    assert forms(commands) == (form(3, "learner/0 learner.1/0#2 learner.2/0"),)
    back = life("learner/0"), ProcessBack("learner.1/0", 3, 3)
    assert told(commands) == [(life("learner.1/0#2"), Restarted()), back]


def test_the_others_outlive_their_leader_and_wait_for_its_next_life() -> None:
    story = began()
    commands = story.hears(10, "alpha", gone("learner/0"))
    assert told(commands) == [(life("learner/0"), Ended(KILLED))]
    assert forms(commands) == (form(1, ALL),)
    commands = story.hears(11, "alpha", seen("learner/0#2"))
    assert forms(commands) == (form(2, "learner/0#2 learner.1/0 learner.2/0"),)
    assert told(commands) == [(life("learner/0#2"), Restarted())]


def test_too_few_end_and_begin_again_whole() -> None:
    story = began()
    story.hears(10, "alpha", gone("learner.1/0"))
    commands = story.hears(10, "alpha", gone("learner.2/0"))
    assert (life("learner/0"), Condemned(TooFewProcesses(1, 2))) in told(commands)
    story.hears(11, "alpha", gone("learner/0"))
    commands = story.hears(12, "alpha", seen("learner/0#2"), seen("learner.1/0#2"))
    assert forms(commands) == (form(2, "learner/0 learner.2/0"),)  # Nobody hears anything new of it.
    commands = story.hears(13, "alpha", seen("learner.2/0#2"))
    assert forms(commands) == (form(3, "learner/0#2 learner.1/0#2 learner.2/0#2"),)


def test_a_form_of_which_nothing_comes_is_followed_by_another_after_a_second() -> None:
    story = began()
    story.hears(10, "alpha", formed(0, broken=1))
    assert story.core._run.forms == (form(1, ALL),)
    assert forms(story.beat(11)) == (form(2, ALL),)
    story.beat(15)
    assert story.core._run.forms == (form(2, ALL),)


def test_one_that_is_back_waits_for_another_that_is_about_to_come_but_not_for_long() -> None:
    story = HomeStory(msgspec.structs.replace(ELASTIC, elastic=((1, 2, 3),)), PLACES)
    story.hears(1, "alpha", *(seen(name) for name in ALL.split()))
    story.hears(10, "alpha", gone("learner.1/0"), gone("learner.2/0"))
    story.hears(11, "alpha", seen("learner.1/0#2"))
    assert story.core._run.forms == (form(2, "learner/0"),)
    assert forms(story.beat(14)) == (form(3, "learner/0 learner.1/0#2"),)
    assert forms(story.hears(15, "alpha", seen("learner.2/0#2")))[0].number == 4


def test_one_that_is_too_many_stands_by() -> None:
    story = HomeStory(msgspec.structs.replace(ELASTIC, elastic=((1, 2),)), PLACES)
    commands = story.hears(1, "alpha", *(seen(name) for name in ALL.split()))
    assert forms(commands) == (form(1, "learner/0 learner.1/0"),)
    commands = story.hears(10, "alpha", gone("learner.1/0"))
    assert forms(commands) == (form(2, "learner/0 learner.2/0"),)


def test_the_others_end_with_an_island_that_is_given_up() -> None:
    story = began()
    commands: list[HomeCommand] = []
    for number in range(1, 7):
        for moment in range(10):
            story.hears(
                10 * number + moment, "alpha", *(seen(f"learner.{each}/0", 10 * number + moment) for each in (1, 2))
            )
            story.fire(10 * number + moment)
        commands = story.hears(10 * number + 9, "alpha", gone(f"learner/0#{number}"))
    bereft = [member for member, what in told(commands) if what == Condemned(GangMemberLost("learner/0"))]  # type: ignore[misc]
    assert bereft == [*lives("learner.1/0 learner.2/0")]


def test_after_a_lost_ledger_forms_are_numbered_beyond_those_that_hosts_have_learned() -> None:
    story = HomeStory(ELASTIC, PLACES, began=HomeBegan(is_lost=True))
    for beats in range(1, 6):
        story.hears(2 * beats, "alpha", *(seen(name, beats) for name in ("recorder/0", *ALL.split())))
        story.hears(2 * beats, "beta", *(seen(name, beats) for name in ("learner/1", "syncer/0")))
    assert forms(story.fire(11)) == (form(NUMBERS_SKIPPED + 2, ALL),)


def test_the_next_daemon_goes_on_with_the_forms_that_were_noted() -> None:
    story = began()
    noted = [each for each in story.hears(10, "alpha", gone("learner.1/0")) if isinstance(each, NoteJournal)]
    newest = lives("learner/0 learner.1/0#2 learner.2/0 learner/1 recorder/0 syncer/0")
    after = HomeStory(ELASTIC, PLACES, began=HomeBegan(newest, noted[-1].journal))
    assert isinstance(after.core, Home)
    after.hears(1, "alpha", *(seen(str(each)) for each in newest[:3]), seen("recorder/0"))
    commands = after.hears(1, "beta", seen("learner/1"), seen("syncer/0"))
    assert forms(commands) == (form(3, "learner/0 learner.1/0#2 learner.2/0"),)
