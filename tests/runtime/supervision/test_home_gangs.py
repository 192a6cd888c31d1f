"""The core of a home: an island of several processes has one life, which ends when one of them does."""

from __future__ import annotations

from typing import Final

import msgspec
import pytest

from isthmus.runtime.supervision.home_events import HomeBegan, HomeCommand, SendOrders, WriteIncident
from isthmus.runtime.supervision.incidents import Condemned, DataSpent, Ended, Exited, GangMemberLost, GivenUp, Parted
from isthmus.runtime.supervision.station_events import NoteLives
from tests.runtime.supervision.supervision_stories import (
    CAST,
    CRASHED,
    KILLED,
    PLACES,
    HomeStory,
    gone,
    life,
    lives,
    seen,
)

FOLLOWER: Final = "learner.1/0"
ON_BETA: Final = f"learner/1 syncer/0 {FOLLOWER}"


CAST_OF_TWO: Final = msgspec.structs.replace(CAST, processes=(2,))
PLACES_OF_TWO: Final = msgspec.structs.replace(PLACES, machines={**PLACES.machines, life(FOLLOWER).replica: "beta"})


def began() -> HomeStory:
    """Learner 0 has a process on either machine."""
    story = HomeStory(CAST_OF_TWO, PLACES_OF_TWO)
    story.hears(1, "alpha", *(seen(name) for name in ("learner/0", "recorder/0")))
    story.hears(1, "beta", *(seen(name) for name in ON_BETA.split()))
    return story


def told(commands: list[HomeCommand]) -> list[object]:
    return [(each.member, each.incident) for each in commands if isinstance(each, WriteIncident)]


def numbered(commands: list[HomeCommand]) -> list[object]:
    return [member for each in commands if isinstance(each, NoteLives) for member in each.members]


def test_both_processes_get_one_number_and_nobody_hears_of_a_follower() -> None:
    story = began()
    assert story.core.incarnation(life(FOLLOWER).replica) == story.core.incarnation(life("learner/0").replica) == 1
    orders = [each for each in story.beat(2) if isinstance(each, SendOrders)]
    names = [row[0] for change in orders[-1].changes for row in change.rows]
    assert "learner/0" in names
    assert FOLLOWER not in names


def test_the_end_of_a_follower_ends_its_leader_and_both_begin_again() -> None:
    story = began()
    commands = story.hears(3, "beta", gone(FOLLOWER))
    lead = life("learner/0")
    assert told(commands) == [
        (life(FOLLOWER), Ended(KILLED)),
        (lead, Condemned(GangMemberLost(FOLLOWER))),
    ]
    assert numbered(commands) == []
    commands = story.hears(4, "alpha", gone("learner/0"))
    assert numbered(commands) == [*lives(f"learner/0#2 {FOLLOWER}#2")]


def test_the_end_of_a_leader_ends_its_follower() -> None:
    story = began()
    commands = story.hears(3, "alpha", gone("learner/0"))
    assert (life(FOLLOWER), Condemned(GangMemberLost("learner/0"))) in told(commands)
    assert numbered(story.hears(4, "beta", gone(FOLLOWER))) == [*lives(f"learner/0#2 {FOLLOWER}#2")]


def test_an_island_whose_data_are_spent_has_left_as_a_whole() -> None:
    story, spent = began(), DataSpent(1000, 500, 2.0)
    last = seen("learner/0", 3, "leaving")
    heartbeat = msgspec.structs.replace(last.heartbeat, spent=spent)
    story.hears(2, "alpha", msgspec.structs.replace(last, heartbeat=heartbeat))
    assert told(story.hears(3, "alpha", gone("learner/0", Exited(0)))) == [
        (life("learner/0"), Ended(Parted(Exited(0))))
    ]
    commands = story.hears(4, "beta", gone(FOLLOWER))  # Whose leader has gone; it is killed.
    assert told(commands) == [(life(FOLLOWER), Ended(KILLED)), (life("learner/0"), spent)]
    assert numbered(commands) == []
    assert story.core.state(life("learner/0").replica) == "left"
    assert numbered(story.fire(200)) == []


def test_lives_that_come_to_nothing_are_counted_once_for_the_island() -> None:
    story = began()
    for number in range(1, 7):
        commands = story.hears(10 * number, "beta", gone(f"{FOLLOWER}#{number}", CRASHED))
        commands = story.hears(10 * number + 1, "alpha", gone(f"learner/0#{number}"))
        story.fire(10 * number + 6)
    given_up = [(member, incident) for member, incident in told(commands) if isinstance(incident, GivenUp)]  # type: ignore[misc]
    assert given_up == [(life("learner/0#6"), GivenUp(6, Ended(CRASHED)))]
    assert story.core.fleet.is_retired(life(FOLLOWER).replica)


# -- after a ledger was lost -------------------------------------------------------------------------------------------


def found(*on_beta: str) -> list[object]:
    """What is told of the island once the lives have been found that are there: on alpha that of number 3."""
    story = HomeStory(CAST_OF_TWO, PLACES_OF_TWO, began=HomeBegan(is_lost=True))
    story.hears(1, "alpha", seen("learner/0#3", 9), seen("recorder/0", 9))
    story.hears(1, "beta", seen("learner/1", 9), seen("syncer/0", 9), *(seen(name, 9) for name in on_beta))
    return [each for each in told(story.fire(11)) if isinstance(each, tuple) and isinstance(each[1], Condemned)]


def test_an_island_whose_processes_are_all_of_one_life_goes_on() -> None:
    assert found(f"{FOLLOWER}#3") == []


@pytest.mark.parametrize("other", [f"{FOLLOWER}#2", f"{FOLLOWER}#4"])
def test_an_island_whose_processes_are_of_two_lives_is_ended(other: str) -> None:
    why = Condemned(GangMemberLost("learner/0"))
    assert found(other) == [(life("learner/0#3"), why), (life(other), why)]


def test_an_island_that_lacks_a_process_is_ended() -> None:
    assert found() == [(life("learner/0#3"), Condemned(GangMemberLost(FOLLOWER)))]
