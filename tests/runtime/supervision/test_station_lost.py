"""The core of a station whose ledger was lost: hosts that speak are adopted, and no life is begun twice."""

from __future__ import annotations

from typing import Final

import pytest

from isthmus.runtime.supervision.incidents import Unseen
from isthmus.runtime.supervision.messages import Orders
from isthmus.runtime.supervision.station import UNSURE_BEATS
from isthmus.runtime.supervision.station_events import (
    CloseStation,
    DismissHost,
    KillProcess,
    LivesNoted,
    LivesNotNoted,
    NoteFound,
    NoteLives,
    NoteProcess,
    OrdersCame,
    ProcessEnded,
    Remembered,
    StartProcess,
    StationBeat,
    StationBegan,
    WatchProcess,
)
from tests.runtime.supervision.station_stories import BEAT, LEARNER, StationStory, orders, report, spoke, tell, there
from tests.runtime.supervision.supervision_stories import KILLED, gone, life, lives

LATER: Final = life("learner/0#2")


def lost(*known: Remembered) -> StationStory:
    """A station whose ledger was lost."""
    return StationStory(began=StationBegan(known, is_lost=True))


def test_a_host_that_speaks_is_adopted_by_what_it_says() -> None:
    story = lost()
    assert story.tell(spoke("learner/0#2", 4713)) == [
        NoteProcess(LATER, 4713),
        WatchProcess(LATER, 4713),
        tell("learner/0#2"),
        report(there("learner/0#2", 1, 4713), number=0),
    ]
    assert story.tell(spoke("learner/0#1")) == [DismissHost(life("learner/0#1"))]
    assert story.tell(orders("learner/0#2"))[-1] == report(there("learner/0#2", 1, 4713), newest="learner/0#2")


def test_of_two_lives_of_one_replica_the_newer_is_adopted_whichever_speaks_first() -> None:
    """Hosts that met the newer one do not meet the older again."""
    story, newer = lost(), life("learner/0#3")
    story.tell(spoke("learner/0#2", 4713))
    assert story.tell(spoke("learner/0#3", 4714)) == [
        DismissHost(LATER),
        NoteProcess(newer, 4714),
        WatchProcess(newer, 4714),
        tell("learner/0#3"),
        report(there("learner/0#3", 1, 4714), number=0),
    ]
    assert story.tell(spoke("learner/0#2", 4713)) == [DismissHost(LATER)]


def test_a_host_that_is_adopted_and_not_wanted_is_killed() -> None:
    story = lost()
    story.tell(spoke("learner/0"))
    assert story.tell(orders("learner/0#2"))[0] == KillProcess(LEARNER)


def test_nothing_is_begun_before_hosts_had_time_to_speak() -> None:
    story = lost()
    assert story.tell(orders("learner/0#2")) == [report(newest="learner/0#2")]
    for _ in range(UNSURE_BEATS - 1):
        assert story.tell(BEAT) == [report(newest="learner/0#2")]
    assert story.tell(BEAT) == [NoteLives((LATER,)), report(newest="learner/0#2")]


def test_what_was_wanted_so_far_counts_as_begun_and_later_lives_are_begun() -> None:
    story = lost()
    story.tell(orders("learner/0#2"), *[BEAT] * UNSURE_BEATS)
    assert story.tell(LivesNoted((LATER,))) == [NoteFound()]
    assert story.tell(orders("learner/0#2", 2)) == [
        report(gone("learner/0#2", Unseen()), newest="learner/0#2", number=2)
    ]
    assert story.tell(orders("learner/0#3", 3))[0] == NoteLives(lives("learner/0#3"))
    assert story.tell(LivesNoted(lives("learner/0#3"))) == [StartProcess(life("learner/0#3"))]


def test_the_ledger_is_not_relied_upon_before_it_has_taken_what_may_have_been_begun() -> None:
    story = lost()
    story.tell(orders("learner/0#2"), *[BEAT] * UNSURE_BEATS)
    assert story.tell(LivesNotNoted((LATER,), "no space")) == []
    assert story.tell(orders("learner/0#3", 2)) == [report(newest="learner/0#3", number=2)]
    assert story.tell(BEAT) == [NoteLives(lives("learner/0#3")), report(newest="learner/0#3", number=2)]


def test_without_orders_nobody_knows_what_may_have_been_begun() -> None:
    story = lost()
    assert story.tell(*[BEAT] * (2 * UNSURE_BEATS)) == [report(number=0)] * (2 * UNSURE_BEATS)
    story.tell(spoke("learner/0"))  # It is adopted as late as that.
    assert story.tell(orders("learner/0 syncer/0"))[-1] == report(there("learner/0", 1), newest="learner/0 syncer/0")
    assert story.tell(BEAT)[0] == NoteLives(lives("learner/0 syncer/0"))


def test_the_number_of_a_life_that_may_have_been_begun_never_falls() -> None:
    story = lost(Remembered(life("learner/0#5"), None, False))
    story.tell(orders("learner/0#2"), spoke("learner/0#3"))
    assert story.tell(BEAT)[-1] == report(there("learner/0#3", 1), newest="learner/0#5")


def test_what_the_new_ledger_knows_already_is_adopted_as_ever() -> None:
    assert lost(Remembered(LEARNER, 4711, True)).begun == [WatchProcess(LEARNER, 4711)]


def test_afterwards_hosts_that_nobody_knows_are_dismissed() -> None:
    story = lost()
    story.tell(orders("learner/0"), *[BEAT] * UNSURE_BEATS, LivesNoted((LEARNER,)))
    assert story.tell(spoke("learner/0")) == [DismissHost(LEARNER)]


def test_when_it_is_over_hosts_are_given_the_time_to_speak_and_are_dismissed() -> None:
    story = lost()
    story.tell(spoke("syncer/0", 4712))
    assert story.tell(OrdersCame(Orders(is_over=True))) == [KillProcess(life("syncer/0"))]
    assert story.tell(ProcessEnded(life("syncer/0"), KILLED)) == [report(gone("syncer/0"), number=0)]
    assert story.tell(spoke("learner/0")) == [DismissHost(LEARNER)]
    story.tell(*[BEAT] * (UNSURE_BEATS - 1))
    assert story.tell(BEAT) == [report(gone("syncer/0"), newest="syncer/0", number=0), CloseStation()]


@pytest.mark.parametrize("count", [1, UNSURE_BEATS - 1])
def test_a_daemon_that_takes_over_while_the_ledger_is_lost_waits_again(count: int) -> None:
    story = lost()
    story.tell(orders("learner/0"), *[StationBeat()] * count)
    again = lost()
    assert again.tell(orders("learner/0", 2)) == [report(newest="learner/0", number=2)]
