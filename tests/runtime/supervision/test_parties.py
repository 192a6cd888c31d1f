"""Parties: whose word counts against whom, and how many slots each may have."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import pytest

from isthmus.runtime.ids import Party, Replica, owner_party
from isthmus.runtime.supervision.fleet import Fleet
from isthmus.runtime.supervision.home_events import HomeBegan, Journal, MachineJoined, NoteJournal, Places, RunRoles
from isthmus.runtime.supervision.parties import Parties
from tests.runtime.supervision.supervision_stories import CAST, HomeStory

LIARS: Final = Party("invitation 1", 2)
OF: Final = {"b1": LIARS, "b2": LIARS, "c1": Party(owner_party("lab-c")), "c2": Party(owner_party("lab-c"))}


def parties(of: Mapping[str, Party] = MappingProxyType(OF)) -> Parties:
    known = Parties("home")
    known.know(of)
    return known


@pytest.mark.parametrize(
    ("accusers", "machine", "others", "is_condemned"),
    [
        ("home", "d", "d", True),
        ("b1 b2", "home", "b1 b2 d", False),  # However many: the home's own hosts alone.
        ("b1 c1 d e", "home", "b1 c1 d e", False),
        ("home", "home", "b1", True),
        ("b2", "b1", "b1 b2 d", True),  # Its own.
        ("b1 b2", "d", "b1 b2 d", False),  # One party, and one other.
        ("b1 b2 c1 c2", "d", "b1 b2 c1 c2 d", True),  # Two of two.
        ("b1 c1", "d", "b1 c1 d e", True),  # Two of three.
        ("b1 c1", "d", "b1 c1 d e f", False),  # Two of four: not more than half.
        ("b1", "d", "b1 d", False),  # All of the others, and one alone.
        ("x y z", "d", "b1 c1 d", False),  # They take no part.
    ],
)
def test_who_may_condemn_a_host(accusers: str, machine: str, others: str, *, is_condemned: bool) -> None:
    known = parties()
    names = known.named(accusers.split())
    assert known.may_condemn(names, machine, known.named(others.split())) == is_condemned


@pytest.mark.parametrize(
    ("witnesses", "learners", "is_so"),
    [
        ("b1 b2", "b1 b2 d", False),
        ("b1 d", "b1 b2 d", True),
        ("b1 b2", "b1 b2", True),  # Nobody else has learners.
        ("b1 c1", "b1 c1 d e", False),  # Half.
        ("b1 c1 d", "b1 c1 d e", True),
        ("b1 c1 d e", "b1 c1 d e home", False),  # The home has a learner, and it is not among them.
        ("home", "b1 c1 d e home", True),
        ("", "b1", False),
    ],
)
def test_who_speaks_for_the_run(witnesses: str, learners: str, *, is_so: bool) -> None:
    assert parties().speak_for(witnesses.split(), learners.split()) == is_so


def test_the_home_is_a_party_of_its_own_whoever_is_said_to_have_brought_it() -> None:
    known = parties({"home": LIARS, "b1": LIARS})
    assert known.of("home") == Party("home")
    assert known.noted() == (("b1", "invitation 1", 2),)


CAST_OF_TEN: Final = RunRoles(roles={"learner": 1, "syncer": 1, "recorder": 1}, slots_max={"learner": 10})


def test_a_party_has_no_more_slots_than_its_invitation_says() -> None:
    fleet = Fleet(CAST_OF_TEN, Places(home="home"))
    fleet.parties.know({f"b{number}": Party("invitation 1", 4) for number in range(1, 6)})
    assert len(fleet.join("b1", 3)) == 3
    assert len(fleet.join("b2", 3)) == 1
    assert fleet.join("b3", 3) == []
    assert fleet.join_island(["b4", "b5"]) == []
    assert len(fleet.join("d", 2)) == 2
    fleet.take_away("b1", "left")
    assert len(fleet.join("b3", 9)) == 3
    assert len(fleet.join("b1", 3)) == 0, "its party has all that it may have"


def test_all_learners_may_be_of_one_party() -> None:
    alone = Fleet(RunRoles(roles={"learner": 2}), Places(home="home"))
    assert not alone.is_of_one_party, "a run of one machine"
    apart = {Replica("learner", 0): "b1", Replica("learner", 1): "b2"}
    fleet = Fleet(RunRoles(roles={"learner": 2}, slots_max={"learner": 4}), Places(home="home", machines=apart))
    assert not fleet.is_of_one_party
    fleet.parties.know({"b1": LIARS, "b2": LIARS})
    assert fleet.is_of_one_party
    fleet.join("d", 1)
    assert not fleet.is_of_one_party


def test_the_next_daemon_knows_who_brought_a_machine() -> None:
    story = HomeStory(CAST, Places(home="alpha"))
    story.serve(1)
    noted = [
        each.journal for each in story.at(2, MachineJoined("b1", 1, {"b1": LIARS})) if isinstance(each, NoteJournal)
    ][-1]
    assert noted.parties == (("b1", "invitation 1", 2),)
    assert of_b1(HomeBegan(journal=noted)) == LIARS
    renewed = Party("invitation 1", 9)
    assert of_b1(HomeBegan(journal=noted, parties={"b1": renewed})) == renewed, "the register is newer"
    assert of_b1(HomeBegan(journal=Journal())) == Party("b1")


def of_b1(began: HomeBegan) -> Party:
    """Who has brought a machine, as a home knows that begins so."""
    return HomeStory(CAST, Places(home="alpha"), began=began).core.fleet.parties.of("b1")
