"""Shards that die beside their neighbour, in virtual time: what the next life begins with, and how new it is."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.programs.wings.simulation.places import machine_of
from isthmus.runtime.ids import Replica
from isthmus.runtime.sim.faults import Cut, Fault, Kill
from tests.effort import long
from tests.programs.wings.simulation.scenarios import Witness, assert_exact, survive

AT = 2.5
RUN: dict[str, Any] = {"learners": 2, "shards": 2, "steps": 70, "step_ms": 50.0, "interval": 6, "outer_momentum": 0.9}


def machine(name: str) -> str:
    return machine_of(Replica.parse(name))


def struck(*faults: Fault, **settings: Any) -> Witness:
    witness = Witness()
    outcome = survive(*faults, witness=witness, **{**RUN, **settings})
    assert outcome.violation is None
    assert_exact(outcome)
    return witness


def lives(witness: Witness, shard: int) -> tuple[list[Any], list[Any]]:
    """What the first life of a shard merged, and what the next one did, in order."""
    merges = [item for (who, _), (_, item) in witness.merges.items() if who.startswith(f"syncer/{shard}#")]
    merges = [item for item in merges if item["kind"] == "merge" and item["version"]]
    return [each for each in merges if each["epoch"] == 1], [each for each in merges if each["epoch"] == 2]


def age(first: Any) -> int:
    """The outer steps between the momentum that a life goes on with and the version that it began with."""
    assert first["momentum"] is not None
    return int(first["version"][1] - 1 - first["momentum"][1])


@pytest.mark.slow
@pytest.mark.parametrize("update", ["float32", long("int8")])
def test_a_shard_goes_on_with_the_momentum_of_its_last_version(update: str) -> None:
    before, after = lives(struck(Kill("syncer/0", at=AT), update=update), 0)
    assert len(before) > 3
    assert age(after[0]) == 0
    assert after[0]["version"][1] == before[-1]["version"][1] + 1


@pytest.mark.long
@pytest.mark.slow
def test_where_all_who_had_the_newest_version_die_the_neighbour_has_it() -> None:
    """The home has what it took at the last snapshot, the first version here."""
    dying = ["syncer/0", "evaluator/0", *(f"learner/{slot}" for slot in range(2))]
    before, after = lives(struck(*(Kill(each, at=AT) for each in dying)), 0)
    assert after[0]["origin"] == before[-1]["version"]
    assert age(after[0]) == 0


@pytest.mark.long
@pytest.mark.slow
def test_where_both_die_each_goes_on_from_what_learners_and_the_home_have() -> None:
    witness = struck(Kill("syncer/0", at=AT), Kill("syncer/1", at=AT))
    for shard in (0, 1):
        before, after = lives(witness, shard)
        assert after[0]["origin"] == before[-1]["version"]


@pytest.mark.long
@pytest.mark.slow
def test_of_a_neighbour_that_was_cut_off_the_momentum_is_older_and_counts_as_what_is_left_of_it() -> None:
    cut = Cut(machine("syncer/0"), machine("syncer/1"), 1.0, at=AT - 0.9)
    before, after = lives(struck(cut, Kill("syncer/0", at=AT)), 0)
    assert after[0]["origin"] == before[-1]["version"], "learners have it"
    assert 0 < age(after[0]) < len(before)


@pytest.mark.long
@pytest.mark.slow
def test_a_neighbour_that_was_away_has_the_newest_state_again() -> None:
    before, after = lives(struck(Kill("syncer/1", at=AT - 1.5), Kill("syncer/0", at=AT)), 0)
    assert len(before) > 3
    assert age(after[0]) == 0
