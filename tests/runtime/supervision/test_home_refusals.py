"""The core of a home: hosts whose items others refuse are named, killed where they go on, and given up in the end."""

from __future__ import annotations

from typing import Final

import pytest

from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.home_events import HomeCommand, Places, RunRoles, WriteIncident
from isthmus.runtime.supervision.incidents import Condemned, GivenUp, Incident, ItemRefused, Misbehaved
from isthmus.runtime.supervision.messages import ItemRefusal, Seen
from isthmus.runtime.supervision.watch import REFUSALS_MAX
from tests.runtime.supervision.supervision_stories import HomeStory, gone, life, seen

EDGE: Final = "send.answer -> merge.answer"
EDGES: Final = {EDGE: ("learner", "syncer"), "step.progress -> pacer.progress": ("learner", "syncer")}
CAST: Final = RunRoles(roles={"learner": 2, "syncer": 1}, least={"learner": 1}, edges=EDGES)
HERE: Final = Places(home="alpha")
SYNCER: Final = "syncer/0"


def says(count: int, accused: str = "learner/1", *, edge: str = EDGE, is_vote: bool = False, beats: int = 2) -> Seen:
    """The syncer says that it has refused so many items."""
    told = ItemRefusal(life(accused), edge, "norms", "a list", "'x'", count, is_vote)
    syncer = seen(SYNCER, beats)
    return Seen(syncer.member, syncer.pid, beats, heartbeat=type(syncer.heartbeat)("serving", refusals=(told,)))


def verdict(count: int) -> Misbehaved:
    return Misbehaved(SYNCER, EDGE, "norms", "a list", "'x'", count)


def began() -> HomeStory:
    story = HomeStory(CAST, HERE)
    story.hears(1, "alpha", *(seen(name, 1) for name in ("learner/0", "learner/1", SYNCER)))
    return story


def told(commands: list[HomeCommand]) -> list[tuple[Member, Incident]]:
    return [(each.member, each.incident) for each in commands if isinstance(each, WriteIncident)]


def condemned(story: HomeStory) -> set[Replica]:
    return set(story.core.fleet.machines["alpha"].condemned)


def test_the_first_refusal_names_the_sender_and_one_that_goes_on_is_killed() -> None:
    story, liar = began(), life("learner/1")
    assert told(story.hears(2, "alpha", says(1))) == [(liar, ItemRefused(verdict(1)))]
    assert told(story.hears(3, "alpha", says(REFUSALS_MAX - 1))) == []
    assert condemned(story) == set()
    assert told(story.hears(4, "alpha", says(REFUSALS_MAX))) == [(liar, Condemned(verdict(REFUSALS_MAX)))]
    assert condemned(story) == {liar.replica}
    assert told(story.hears(5, "alpha", says(2 * REFUSALS_MAX))) == []


def test_what_was_said_already_is_no_news_and_edges_are_counted_apart() -> None:
    story = began()
    story.hears(2, "alpha", says(REFUSALS_MAX - 1))
    for at in range(3, 9):
        story.hears(at, "alpha", says(REFUSALS_MAX - 1), says(REFUSALS_MAX - 1, edge="step.progress -> pacer.progress"))
    assert condemned(story) == set()


def test_a_vote_that_is_refused_is_one_too_many_for_rounds_wait_for_it() -> None:
    story = began()
    assert told(story.hears(2, "alpha", says(1, is_vote=True)))[-1] == (life("learner/1"), Condemned(verdict(1)))


@pytest.mark.parametrize("accused", ["learner/1#2", "learner/7"])
def test_lives_that_there_are_not_are_not_judged(accused: str) -> None:
    story = began()
    assert told(story.hears(2, "alpha", says(9, accused))) == []
    assert condemned(story) == set()


def test_one_that_goes_on_through_its_lives_is_given_up_however_long_each_served() -> None:
    story = began()
    incidents: list[Incident] = []
    for number in range(1, 7):
        name, at = f"learner/1#{number}", 100.0 * number
        story.hears(at, "alpha", seen(name, 1))
        story.hears(at + 50, "alpha", says(REFUSALS_MAX, name, beats=2 + number))
        incidents += [each for _, each in told(story.hears(at + 51, "alpha", gone(name)))]
        story.fire(at + 60)
    assert [each.lives for each in incidents if isinstance(each, GivenUp)] == [6]
    assert story.core.outcome == "running", "the other learner goes on"
    assert story.core.state(Replica("learner", 1)) == "given up"
