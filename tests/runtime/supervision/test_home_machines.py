"""The core of a home: machines that join, are lost, come back and are taken away, and where replicas go then."""

from __future__ import annotations

from typing import Final

import pytest

from isthmus.runtime.clock import seconds
from isthmus.runtime.ids import Replica
from isthmus.runtime.supervision.fleet import LOST_BEATS
from isthmus.runtime.supervision.flows import RunFlows
from isthmus.runtime.supervision.home_events import (
    HomeBeat,
    MachineJoined,
    MachineTakenAway,
    NoteJournal,
    Places,
    RunRoles,
    StopAsked,
    Taken,
)
from isthmus.runtime.supervision.incidents import (
    Ended,
    Joined,
    MachineLost,
    MachineTaken,
    NoMachineLeft,
    Restarted,
    Unseen,
)
from isthmus.runtime.supervision.station_events import LivesNoted, LivesNotNoted, NoteLives
from tests.runtime.supervision.supervision_stories import (
    BOOM,
    CAST,
    CRASHED,
    HomeStory,
    ended,
    gone,
    journal,
    life,
    lives,
    moved,
    seen,
    used,
    written,
)

LOST: Final = MachineLost("beta", seconds(20))
SYNCER: Final = Replica("syncer", 0)
AT_HOME_ALONE: Final = Places(home="alpha", machines={SYNCER: "beta"})


def silent(story: HomeStory, now: float, *speaking: str) -> None:
    """Let a machine be silent until the next beat makes it lost, while others speak."""
    for _ in range(LOST_BEATS - 1):
        story.at(now, HomeBeat())
        for name in speaking:
            story.hears(now, name)


def placed(learner: str = "beta", syncer: str = "beta") -> tuple[tuple[str, str], ...]:
    """Where replicas are."""
    return ("learner/1", learner), ("syncer/0", syncer)


# -- lost --------------------------------------------------------------------------------------------------------------


def test_a_machine_that_is_silent_for_twenty_seconds_is_lost_with_its_lives() -> None:
    story = HomeStory()
    silent(story, 1, "gamma")
    assert story.does(2, HomeBeat()) == [
        journal(used=used(learner=0.0, syncer=0.0)),
        ended("learner/1", LOST),
        NoteLives(lives("learner/1#2")),
        ended("syncer/0", LOST),
        NoteLives(lives("syncer/0#2")),
        story.orders(beta="", back=2),
        story.orders(beta="learner/1#2", back=1),  # It belongs to the islands of its machine, and waits for it.
        journal(used=used(learner=0.0, syncer=0.0), machines=placed(syncer="gamma")),
        story.orders(beta="learner/1#2", gamma="syncer/0#2"),
    ]
    assert story.core.fleet.name(SYNCER) == "gamma"
    assert story.does(3, HomeBeat()) == [story.orders(beta="learner/1#2", gamma="syncer/0#2")]


def test_what_is_known_of_the_lives_of_a_lost_machine_is_kept() -> None:
    story = HomeStory()
    told = seen("learner/1").heartbeat
    spoken = type(told)("serving", cpu_seconds=3.0, flows=moved(7))
    story.hears(1, "beta", type(seen("learner/1"))(life("learner/1"), 4711, 1, error=BOOM, heartbeat=spoken))
    silent(story, 2, "gamma")
    commands = story.does(2, HomeBeat())
    assert commands[1] == ended("learner/1", LOST, error=BOOM)
    assert used(learner=3.0, syncer=0.0).items() <= story.core.used.items()
    assert RunFlows.of_used(story.core.used).edges == {3: (7, 70, 0)}


def test_a_word_from_it_begins_its_silence_anew() -> None:
    story = HomeStory()
    for _ in range(3):
        silent(story, 1)
        story.hears(1, "beta")
        story.hears(1, "gamma")
    assert story.does(2, HomeBeat()) == [story.orders()]


def test_a_machine_that_comes_back_is_asked_for_new_lives_and_not_believed_about_old_ones() -> None:
    story = HomeStory()
    silent(story, 1, "gamma")
    story.does(2, HomeBeat())
    assert story.hears(3, "beta", seen("learner/1"), seen("syncer/0"), gone("learner/1")) == []
    assert story.hears(3, "beta", seen("learner/1#2", 0)) == [written("learner/1#2", Restarted())]
    assert story.does(3, HomeBeat()) == [story.orders(beta="learner/1#2", gamma="syncer/0#2")]


def test_lives_that_a_lost_machine_takes_with_it_are_no_failures() -> None:
    story = HomeStory()
    for _ in range(10):
        silent(story, 1, "gamma")
        story.at(1, HomeBeat())
        story.hears(1, "beta")
    assert story.core.outcome == "running"
    assert story.noted[-1] == life("learner/1#11")


def test_the_home_itself_is_never_lost() -> None:
    story = HomeStory()
    silent(story, 1, "beta", "gamma")
    assert story.does(1, HomeBeat()) == [story.orders()]


@pytest.mark.parametrize("home_offers", [(), ("syncer",)])
def test_a_replica_is_moved_home_where_that_is_offered_and_else_waits(home_offers: tuple[str, ...]) -> None:
    places = Places(home="alpha", machines={SYNCER: "beta"}, home_offers=home_offers)
    story = HomeStory(RunRoles(roles={"syncer": 1}), places)
    silent(story, 1)
    story.at(1, HomeBeat())
    assert story.core.fleet.name(SYNCER) == ("alpha" if home_offers else "beta")
    at_home, beta = ("syncer/0#2", "") if home_offers else ("", "syncer/0#2")
    assert story.beat(2, 2 * LOST_BEATS) == [story.orders(at_home, beta)]


def test_a_next_life_that_was_due_on_a_machine_that_is_lost_meanwhile_is_moved() -> None:
    story = HomeStory()
    silent(story, 1, "gamma")
    story.hears(1, "beta", gone("syncer/0", CRASHED))
    story.hears(1, "beta", gone("syncer/0#2", CRASHED))
    silent(story, 1, "gamma")
    story.at(1, HomeBeat())
    assert story.fire(2) == [
        NoteLives(lives("syncer/0#3")),
        journal(used=used(syncer=0.0, learner=0.0), machines=placed(syncer="gamma")),
        story.orders(beta="learner/1#2", gamma="syncer/0#3"),
    ]


# -- taken away --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["left", "expelled"])
def test_a_machine_that_is_taken_away_takes_its_learners_slots_with_it(how: Taken) -> None:
    story = HomeStory()
    away = {"away": ("beta",), "retired": (("learner/1", how),), "used": used(learner=0.0, syncer=0.0)}
    over = {"over": ("beta",), "machines": ("alpha", "gamma"), "beta": ""}
    assert story.does(1, MachineTakenAway("beta", how)) == [
        journal(**away),
        ended("learner/1", MachineTaken("beta", how)),
        ended("syncer/0", MachineTaken("beta", how)),
        NoteLives(lives("syncer/0#2")),
        story.orders(back=1, **over),
        journal(**away, machines=placed(syncer="gamma")),
        story.orders(gamma="syncer/0#2", **over),
    ]
    assert story.core.state(Replica("learner", 1)) == how
    assert story.core.reason(Replica("learner", 1)) == Ended(MachineTaken("beta", how))
    assert story.does(2, MachineTakenAway("beta", how)) == []
    silent(story, 2, "beta", "gamma")
    assert story.hears(2, "beta", seen("learner/1")) == []
    assert story.beat(2) == [story.orders(gamma="syncer/0#2", **over)]


def test_a_machine_without_lives_is_taken_away_for_the_next_daemon_as_well() -> None:
    story = HomeStory()
    told = story.does(1, MachineTakenAway("gamma", "left"))
    assert told == [journal(away=("gamma",)), story.orders(over=("gamma",), machines=("alpha", "beta"))]


def test_a_machine_that_nobody_knows_is_not_taken_away() -> None:
    assert HomeStory().does(1, MachineTakenAway("delta", "left")) == []


def test_a_replica_without_any_machine_ends_the_run() -> None:
    story = HomeStory(CAST, AT_HOME_ALONE)
    assert story.hears(1, "beta", seen("syncer/0")) == [
        story.orders("learner/0 learner/1 recorder/0", "syncer/0", "syncer/0@beta")
    ]
    placing = {"machines": (("syncer/0", "beta"),), "away": ("beta",), "used": used(syncer=0.0)}
    over = {"over": ("beta",), "machines": ("alpha",)}
    taken = MachineTaken("beta", "left")
    failure = NoMachineLeft("syncer/0", Ended(taken))
    assert story.does(2, MachineTakenAway("beta", "left")) == [
        journal(**placing),
        ended("syncer/0", taken),
        NoteLives(lives("syncer/0#2")),
        story.orders("learner/0 learner/1 recorder/0", "", back=1, **over),
        journal(**placing, outcome="failed", failure=failure),
        story.orders("learner/0! learner/1! recorder/0!", "", is_ending=True, **over),
    ]
    assert story.core.failure == failure


@pytest.mark.parametrize("is_noting", [False, True])
def test_a_replica_that_has_no_life_just_then_is_moved_as_well(is_noting: bool) -> None:
    story = HomeStory()
    story.hears(1, "beta", gone("syncer/0", CRASHED))
    story.notes = False
    story.hears(1, "beta", gone("syncer/0#2", CRASHED))
    if is_noting:
        story.fire(1.5)
    told = story.does(1.6, MachineTakenAway("beta", "left"))
    assert (NoteLives(lives("syncer/0#3")) in told) != is_noting
    assert story.does(1.7, LivesNoted(lives("syncer/0#3")))[-1] == story.orders(
        beta="", gamma="syncer/0#3", over=("beta",), machines=("alpha", "gamma")
    )


def test_a_learner_that_is_being_numbered_when_its_machine_is_taken_away_is_not_begun() -> None:
    story = HomeStory(notes=False)
    story.at(1, MachineTakenAway("beta", "left"))
    told = story.does(2, LivesNoted(lives("learner/0 learner/1 syncer/0 recorder/0")))
    assert told[-1] == story.orders(beta="", gamma="syncer/0", over=("beta",), machines=("alpha", "gamma"))
    story.at(3, MachineTakenAway("gamma", "left"))
    assert story.does(4, LivesNotNoted(lives("learner/1#2"), "no space")) == []


def test_a_replica_of_which_nothing_is_known_is_homeless_too() -> None:
    story = HomeStory(RunRoles(roles={"syncer": 1}), AT_HOME_ALONE, notes=False)
    story.at(1, MachineTakenAway("beta", "left"))
    story.at(2, LivesNoted(lives("syncer/0")))
    assert story.core.failure == NoMachineLeft("syncer/0", Ended(Unseen()))


@pytest.mark.parametrize("how", ["left", "expelled"])
def test_a_run_stops_where_its_last_learner_is_expelled_and_waits_for_one_that_left(how: Taken) -> None:
    places = Places(home="alpha", machines={Replica("learner", 0): "beta", Replica("learner", 1): "gamma"})
    story = HomeStory(RunRoles(roles={"learner": 2}), places)
    story.at(1, MachineTakenAway("beta", "left"))
    assert not story.core.is_stopping
    told = story.does(1, MachineTakenAway("gamma", how))
    is_stopping = how == "expelled"
    assert story.core.is_stopping == is_stopping
    assert told[-1] == story.orders("", "", is_stopping=is_stopping, machines=("alpha",), over=("beta", "gamma"))


# -- joined ------------------------------------------------------------------------------------------------------------


def test_a_machine_that_joins_brings_learners_in_the_next_slots() -> None:
    story = HomeStory()
    four = {"machines": ("alpha", "beta", "gamma", "delta")}
    machines = (("learner/1", "beta"), ("learner/2", "delta"), ("learner/3", "delta"), ("syncer/0", "beta"))
    assert story.does(1, MachineJoined("delta", 2)) == [
        journal(machines=machines),
        written("learner/2", Joined("delta")),
        written("learner/3", Joined("delta")),
        NoteLives(lives("learner/2 learner/3")),
        story.orders(back=1, delta="", **four),
        story.orders(delta="learner/2 learner/3", **four),
    ]
    assert story.hears(2, "delta", seen("learner/3")) == [
        story.orders(delta="learner/2 learner/3", roster="learner/3@delta", **four)
    ]


def test_there_are_only_so_many_slots() -> None:
    story = HomeStory()
    story.at(1, MachineJoined("delta", 9))
    assert story.noted[-2:] == [life("learner/2"), life("learner/3")]
    before = len(story.noted)
    story.at(2, MachineJoined("epsilon", 1))
    assert len(story.noted) == before
    assert story.core.fleet.others == ["beta", "gamma", "delta", "epsilon"]


def test_a_machine_that_was_taken_away_may_join_again_with_its_slots() -> None:
    story = HomeStory()
    story.at(1, MachineTakenAway("beta", "left"))
    told = story.does(2, MachineJoined("beta", 1))
    assert told[-1] == story.orders(beta="learner/1#2", gamma="syncer/0#2", machines=("alpha", "beta", "gamma"))
    story.hears(3, "beta", seen("learner/1#2"))
    assert story.core.state(Replica("learner", 1)) == "alive"


def test_a_machine_that_was_lost_before_it_joined_again_may_be_lost_again() -> None:
    story = HomeStory()
    silent(story, 1, "gamma")
    story.at(1, HomeBeat())
    story.at(1, MachineTakenAway("beta", "left"))
    story.at(1, MachineJoined("beta", 1))
    silent(story, 2, "gamma")
    assert ended("learner/1#3", LOST) in story.does(3, HomeBeat())


def test_a_run_from_which_many_machines_left_admits_another_and_its_next_daemon_knows_the_order() -> None:
    story = HomeStory()
    for number, name in enumerate(("delta", "epsilon", "zeta", "eta")):
        story.at(2 * number, MachineJoined(name, 1))
        story.at(2 * number + 1, MachineTakenAway(name, "left"))
    lives_of = {str(each.replica): each.incarnation for each in story.noted}
    assert (lives_of["learner/2"], lives_of["learner/3"]) == (2, 2)
    last = [each.journal for each in story.at(9, MachineJoined("theta", 1)) if isinstance(each, NoteJournal)][-1]
    assert ("learner/2", "theta") in last.machines
    assert last.retired == (("learner/3", "left"),)
    story.at(10, MachineTakenAway("theta", "left"))
    noted = [each.journal for each in story.at(10, StopAsked()) if isinstance(each, NoteJournal)][-1]
    assert [name for name, _ in noted.retired] == ["learner/3", "learner/2"]
