"""The core of a station: what hosts say and are told, and the end."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.runtime.supervision.incidents import NotStarted
from isthmus.runtime.supervision.messages import LONELY_BEATS, Over
from isthmus.runtime.supervision.rosters import Met, RosterDifference, Table
from isthmus.runtime.supervision.station_events import (
    CloseStation,
    DismissHost,
    KillProcess,
    LivesNoted,
    OrdersCame,
    ProcessEnded,
    ProcessNotStarted,
    ProcessStarted,
    SendReport,
    StationBeat,
    StationLeft,
)
from tests.runtime.supervision.station_stories import (
    BEAT,
    LEARNER,
    OVER,
    ROSTER,
    SYNCER,
    StationStory,
    begun,
    mark_of,
    orders,
    report,
    same,
    spoke,
    tell,
    there,
    whole,
)
from tests.runtime.supervision.supervision_stories import BOOM, KILLED, gone, life, rows

# -- hosts -------------------------------------------------------------------------------------------------------------


def test_the_first_word_of_a_host_is_answered_and_told_at_once() -> None:
    story = StationStory()
    flags, holds = {"is_stopping": True, "is_ending": True}, {"holds": ROSTER}
    story.tell(orders("learner/0", roster=ROSTER, **flags), LivesNoted((LEARNER,)), ProcessStarted(LEARNER, 4711))
    told = report(there("learner/0", 1), **holds)
    assert story.tell(spoke("learner/0")) == [tell("learner/0", ROSTER, **flags), told]
    assert story.tell(spoke("learner/0")) == []
    told = report(there("learner/0", 2), newest="learner/0", **holds)
    assert story.tell(BEAT) == [tell("learner/0", same(), **flags), told]


def test_at_home_every_word_is_told_at_once() -> None:
    story = begun(at_home=True)
    assert story.tell(spoke("learner/0")) == [report(there("learner/0", 2))]


@pytest.mark.parametrize("more", [{"error": BOOM}, {"over": Over()}, {"over": Over("no space")}])
def test_what_cannot_wait_is_told_at_once_and_once(more: dict[str, Any]) -> None:
    story = begun()
    assert story.tell(spoke("learner/0", **more)) == [tell("learner/0"), report(there("learner/0", 2, **more))]
    assert story.tell(spoke("learner/0", **more)) == []


def test_a_roster_that_orders_lack_stays_as_it_was() -> None:
    story = begun()
    assert story.tell(orders("learner/0", 2, roster=ROSTER))[0] == tell("learner/0", ROSTER)
    told = report(there("learner/0", 1), newest="learner/0", number=3, holds=ROSTER)
    assert story.tell(orders("learner/0", 3)) == [told]
    assert story.tell(BEAT)[0] == tell("learner/0", same())
    gone_by_now = RosterDifference(2, 1, (), ("learner/0", "syncer/0"))
    assert story.tell(orders("learner/0", 4, roster=()))[0] == tell("learner/0", gone_by_now)


LATER = rows("learner/0 learner/1 syncer/0#2")


def changed(*former: str, since: int | None = None) -> RosterDifference:
    """What has changed until LATER since the roster with these rows."""
    table = Table()
    table.follow(rows(" ".join(former)))
    held = table.mark
    table.follow(LATER)
    found = table.after(held)
    assert found is not None
    return RosterDifference(table.mark, *found)


def test_a_change_is_applied_to_the_roster_that_it_begins_at_and_passed_on() -> None:
    story = begun()
    story.tell(orders("learner/0", 2, roster=ROSTER))
    commands = story.tell(orders("learner/0", 3, roster=changed("learner/0 syncer/0")))
    assert commands == [
        tell("learner/0", RosterDifference(2, 1, rows("learner/1 syncer/0#2"))),
        report(there("learner/0", 1), newest="learner/0", number=3, holds=LATER),
    ]
    told = report(there("learner/0", 1), newest="learner/0", number=4, holds=LATER)
    assert story.tell(orders("learner/0", 4, roster=changed("learner/0"))) == [told]  # It begins elsewhere.
    assert story.tell(orders("learner/0", 5, roster=whole(LATER)))[0].report.rostered == mark_of(LATER)


def test_a_station_without_the_roster_that_a_change_begins_at_says_so_and_tells_hosts_nothing_of_it() -> None:
    story = begun()
    story.tell(orders("learner/0", 2, roster=changed("learner/0 syncer/0")))
    assert story.tell(BEAT) == [tell("learner/0"), report(there("learner/0", 1), newest="learner/0", number=2)]


def test_a_host_is_told_of_those_that_it_meets_alone_and_of_changes_once() -> None:
    story = begun()
    meets = (Met("learner", 0, 0), Met("syncer"))
    story.tell(orders("learner/0", 2, roster=ROSTER))
    assert story.tell(spoke("learner/0", meets=meets))[0] == tell("learner/0", ROSTER)
    (told,) = story.tell(orders("learner/0", 3, roster=whole(rows("learner/0 learner/1 learner/2 syncer/0"))))
    assert isinstance(told, SendReport)  # Nothing for this host: its next beat says which version there is.
    assert story.tell(BEAT)[0] == tell("learner/0", RosterDifference(2, 1))
    told = story.tell(orders("learner/0", 4, roster=whole(rows("learner/0 learner/2 syncer/0#2"))))
    assert told[0] == tell("learner/0", RosterDifference(3, 2, rows("syncer/0#2")))
    told = story.tell(orders("learner/0", 5, roster=whole(rows("learner/0 learner/2"))))
    assert told[0] == tell("learner/0", RosterDifference(4, 3, (), ("syncer/0",)))


def test_a_host_that_asks_is_told_the_whole_once() -> None:
    story = begun()
    story.tell(orders("learner/0", 2, roster=ROSTER))
    assert story.tell(spoke("learner/0", asks=1)) == [tell("learner/0", ROSTER)]
    assert story.tell(spoke("learner/0", asks=1)) == []
    assert story.tell(spoke("learner/0", asks=2)) == [tell("learner/0", ROSTER)]


def test_what_the_run_asks_of_hosts_is_told_at_once_and_once() -> None:
    story = begun()
    story.tell(orders("learner/0", 2, roster=ROSTER))
    assert story.tell(orders("learner/0", 3, is_stopping=True))[0] == tell("learner/0", same(), is_stopping=True)
    (told,) = story.tell(orders("learner/0", 4, is_stopping=True))
    assert isinstance(told, SendReport)


def test_hosts_that_have_not_spoken_are_not_told_anything() -> None:
    story = StationStory()
    story.tell(orders("learner/0 syncer/0"), LivesNoted((LEARNER, SYNCER)))
    story.tell(ProcessStarted(LEARNER, 4711), ProcessStarted(SYNCER, 4712), spoke("syncer/0", 4712))
    assert story.tell(BEAT)[0] == tell("syncer/0")


def test_a_host_that_speaks_before_its_process_is_known_is_heard_later() -> None:
    story = StationStory()
    story.tell(orders("learner/0"))
    assert story.tell(spoke("learner/0")) == []
    story.tell(LivesNoted((LEARNER,)))
    assert story.tell(spoke("learner/0"), spoke("learner/0#7")) == []
    assert story.core.refused == {"too early": 3}
    story.tell(ProcessStarted(LEARNER, 4711))
    assert story.tell(spoke("learner/0")) == [tell("learner/0"), report(there("learner/0", 1))]


@pytest.mark.parametrize("text", ["learner/0#2", "recorder/0"])
def test_a_host_that_speaks_for_another_life_is_dismissed(text: str) -> None:
    story = begun()
    assert story.tell(spoke(text), spoke(text)) == [DismissHost(life(text))] * 2
    assert story.core.refused["not the present life"] == 2


def test_processes_that_are_stopped_are_told_as_such() -> None:
    story = begun("learner/0 syncer/0")
    told = story.tell(StationBeat((LEARNER,)))[-1]
    assert told == report(there("learner/0", 1, is_stopped=True), there("syncer/0", 1), newest="learner/0 syncer/0")
    assert story.tell(BEAT)[-1] == report(there("learner/0", 1), there("syncer/0", 1), newest="learner/0 syncer/0")


# -- the end -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", [OrdersCame(OVER), StationLeft()])
def test_when_it_is_over_processes_are_killed_and_then_the_station_is_closed(event: Any) -> None:
    story = begun("learner/0 syncer/0")
    assert story.tell(event) == [KillProcess(LEARNER), KillProcess(SYNCER)]
    assert story.tell(event) == [KillProcess(LEARNER), KillProcess(SYNCER)]
    assert story.tell(ProcessEnded(LEARNER, KILLED)) == [report(gone("learner/0"))]
    assert story.tell(ProcessEnded(SYNCER, KILLED)) == [report(gone("learner/0"), gone("syncer/0")), CloseStation()]
    assert story.tell(event, BEAT) == [report(gone("learner/0"), gone("syncer/0"), newest="learner/0 syncer/0")]


def test_a_process_that_is_being_started_is_waited_for_and_killed() -> None:
    story = StationStory()
    story.tell(orders("learner/0"), LivesNoted((LEARNER,)))
    assert story.tell(StationLeft()) == []
    assert story.tell(ProcessStarted(LEARNER, 4711))[2] == KillProcess(LEARNER)
    assert story.tell(ProcessEnded(LEARNER, KILLED))[-1] == CloseStation()


def test_one_that_cannot_be_started_is_not_waited_for_any_longer() -> None:
    story = StationStory()
    story.tell(orders("learner/0"), LivesNoted((LEARNER,)), StationLeft())
    told = [report(gone("learner/0", NotStarted("no memory"))), CloseStation()]
    assert story.tell(ProcessNotStarted(LEARNER, "no memory")) == told


def test_one_whose_number_is_being_noted_is_not_started() -> None:
    story = StationStory()
    story.tell(orders("learner/0"))
    assert story.tell(StationLeft()) == [CloseStation()]
    assert story.tell(LivesNoted((LEARNER,))) == []


def test_a_station_that_has_left_begins_nothing_more() -> None:
    story = begun()
    story.tell(StationLeft())
    assert story.tell(orders("learner/0 syncer/0", 2)) == [KillProcess(LEARNER)]


def test_without_a_word_from_home_for_ten_minutes_the_run_is_lost() -> None:
    story = begun()
    story.tell(*[BEAT] * 600)
    story.tell(orders("learner/0", 2), *[BEAT] * (LONELY_BEATS - 1))
    assert story.tell(BEAT) == [tell("learner/0"), report(there("learner/0", 1), newest="learner/0", number=2)]
    assert story.tell(BEAT) == [
        tell("learner/0"),
        report(there("learner/0", 1), newest="learner/0", number=2),
        KillProcess(LEARNER),
    ]
    assert story.tell(ProcessEnded(LEARNER, KILLED))[-1] == CloseStation()


def test_orders_that_come_late_are_a_word_from_home_too() -> None:
    story = begun()
    story.tell(*[BEAT] * LONELY_BEATS, orders("learner/0", 1))
    assert KillProcess(LEARNER) not in story.tell(BEAT)


def test_at_home_nobody_is_lonely() -> None:
    story = begun(at_home=True)
    assert KillProcess(LEARNER) not in story.tell(*[BEAT] * (LONELY_BEATS + 1))
