"""Where replicas are: machines that come and go, and on which of them the next life of a replica is begun."""

from __future__ import annotations

from typing import Final

import pytest
from msgspec.structs import replace

from isthmus.runtime.errors import InvariantError
from isthmus.runtime.ids import Replica, follower
from isthmus.runtime.supervision.fleet import FAR_TIMES, LOST_BEATS, Fleet, MachineLives
from isthmus.runtime.supervision.home_events import Places, RunRoles, Taken, UserTerms
from isthmus.runtime.supervision.messages import Wanted
from tests.runtime.supervision.supervision_stories import life

CAST: Final = RunRoles(roles={"learner": 2, "syncer": 2}, slots_max={"learner": 4}, least={"learner": 1})
FIRST, SECOND, THIRD = (Replica("learner", slot) for slot in range(3))
SYNCER, OTHER = Replica("syncer", 0), Replica("syncer", 1)


def fleet(cast: RunRoles = CAST, home_offers: tuple[str, ...] = ()) -> Fleet:
    """Learner 1 and a syncer are on beta; gamma and delta take syncers, and epsilon nothing."""
    return Fleet(
        cast,
        Places(
            home="alpha",
            machines={SECOND: "beta", SYNCER: "beta"},
            offers={"gamma": ("syncer",), "delta": ("syncer", "evaluator"), "epsilon": ()},
            home_offers=home_offers,
        ),
    )


def lose(here: Fleet, name: str) -> None:
    """Let a machine be silent for too long."""
    for _ in range(LOST_BEATS):
        here.machines[name].beat()


# -- what there is -----------------------------------------------------------------------------------------------------


def test_whoever_was_not_placed_elsewhere_is_at_home() -> None:
    here = fleet()
    assert here.replicas == [FIRST, SECOND, SYNCER, OTHER]
    assert [here.name(each) for each in here.replicas] == ["alpha", "beta", "beta", "alpha"]
    assert here.of(SECOND) is here.machines["beta"]
    assert list(here.machines) == ["alpha", "gamma", "delta", "epsilon", "beta"]
    assert here.others == ["gamma", "delta", "epsilon", "beta"]
    assert here.slots_max == {"learner": 4, "syncer": 2}
    assert here.learners_on("beta") == [SECOND]
    assert here.learners_on("gamma") == []
    assert here.placed() == (("learner/1", "beta"), ("syncer/0", "beta"))
    assert here.is_idle


def test_lives_are_tracked_where_they_are() -> None:
    here = fleet()
    here.of(SECOND).track(life("learner/1#3"))
    here.of(SECOND).condemned.add(SECOND)
    here.of(FIRST).track(life("learner/0"))
    assert here.is_tracked(SECOND)
    assert not here.is_tracked(SYNCER)
    assert not here.is_idle
    assert here.wanted() == {
        "alpha": (Wanted(life("learner/0")),),
        "gamma": (),
        "delta": (),
        "epsilon": (),
        "beta": (Wanted(life("learner/1#3"), is_condemned=True),),
    }


def test_a_replica_is_spare_while_enough_others_of_its_role_are_left() -> None:
    here = fleet()
    assert here.is_spare(FIRST)
    assert not here.is_spare(SYNCER)  # All of them are needed, where nothing is said.
    here.retired[SECOND] = "left"
    assert not here.is_spare(FIRST)  # A loop came to its end.
    assert fleet(RunRoles(roles={"learner": 2}, least={"learner": 0})).is_spare(FIRST)


def test_one_whose_machine_left_may_return_unless_it_is_a_loop_of_a_users() -> None:
    cases: tuple[tuple[Taken, UserTerms, bool], ...] = (
        ("left", UserTerms(), True),
        ("expelled", UserTerms(), False),
        ("left", UserTerms(has_guests=True), False),
        ("left", UserTerms(scripts=("learner",)), False),
    )
    for how, user, is_awaited in cases:
        here = fleet(replace(CAST, user=user))
        here.take_away("beta", how)
        assert here.is_spare(FIRST) == is_awaited
        assert here.returning(["beta", "gamma"]) == ([SECOND] if is_awaited else [])
        assert here.returning(["gamma"]) == []


def test_a_role_that_came_later_needs_one() -> None:
    here = fleet()
    here.know([Replica("evaluator", 0)])
    assert not here.is_spare(Replica("evaluator", 0))
    here.know([Replica("evaluator", 1)])
    assert here.is_spare(Replica("evaluator", 0))


# -- machines join and go ----------------------------------------------------------------------------------------------


def test_a_run_that_began_with_no_learner_has_learners_for_as_long_as_one_may_join() -> None:
    here = Fleet(RunRoles(roles={"learner": 0, "syncer": 1}, slots_max={"learner": 2}), Places(home="alpha"))
    assert here.has_learners
    assert here.join("zeta", 1) == [FIRST]
    assert here.has_learners
    here.take_away("zeta", "left")
    assert not here.has_learners


def test_a_machine_that_joins_has_learners_in_the_next_slots() -> None:
    here = fleet()
    assert here.join("zeta", 1) == [THIRD]
    assert here.join("eta", 5) == [Replica("learner", 3)]
    assert here.join("theta", 1) == []
    assert here.replicas == [FIRST, SECOND, SYNCER, OTHER, THIRD, Replica("learner", 3)]
    assert [here.name(each) for each in (THIRD, Replica("learner", 3))] == ["zeta", "eta"]
    assert here.others[-3:] == ["zeta", "eta", "theta"]
    assert [machine.name for machine in here.machines.values()] == list(here.machines)


def test_slots_are_counted_from_the_highest_one_and_from_nothing() -> None:
    here = fleet(RunRoles(roles={"syncer": 2}, slots_max={"learner": 2}))
    assert here.join("gamma", 1) == [FIRST]
    assert fleet(RunRoles(roles={"syncer": 2})).join("gamma", 1) == []


def test_a_machine_that_is_taken_away_takes_its_learners_with_it() -> None:
    here = fleet()
    here.retired[SECOND] = "given up"
    assert here.has_learners
    here.join("beta", 1)
    here.take_away("beta", "expelled")
    assert here.retired == {SECOND: "given up", THIRD: "expelled"}
    assert here.away == ("beta",)
    assert "beta" not in here.others
    assert here.is_expected(FIRST)
    assert not here.is_expected(SYNCER)
    assert not here.is_expected(SECOND)
    here.take_away("alpha", "left")
    assert not here.has_learners


def test_slots_of_machines_that_left_are_taken_again_once_there_is_no_other_the_longest_free_first() -> None:
    here, last = fleet(), Replica("learner", 3)
    here.join("zeta", 1)
    here.join("eta", 1)
    for name, how in (("eta", "left"), ("zeta", "expelled")):
        here.take_away(name, how)
    here.retired[SECOND] = "given up"
    assert here.join("theta", 1) == [last]
    assert (here.name(last), here.retired) == ("theta", {THIRD: "expelled", SECOND: "given up"})
    assert here.join("iota", 9) == [THIRD]
    assert here.join("kappa", 1) == []
    here.check()


def test_slots_that_a_machine_left_are_its_own_no_more_until_it_is_back() -> None:
    here = fleet(RunRoles(roles={"syncer": 2}, slots_max={"learner": 2}))
    here.join("zeta", 1)
    assert here.taken_on("zeta") == [FIRST]
    here.take_away("zeta", "left")
    assert (here.taken_on("zeta"), here.learners_on("zeta")) == ([], [FIRST])
    assert here.join("zeta", 1) == here.taken_on("zeta") == [FIRST]


def test_the_slot_of_an_island_of_several_processes_waits_for_one_of_these() -> None:
    here = fleet(RunRoles(roles={"learner": 2}, slots_max={"learner": 2}, processes=(1, 2)))
    here.take_away("beta", "left")
    assert here.join("theta", 1) == []


def test_a_machine_that_comes_again_has_its_slots_again_and_the_next_if_it_brings_more() -> None:
    here = fleet()
    lose(here, "beta")
    here.take_away("beta", "left")
    assert here.left_by("beta") == [SECOND]
    assert here.join("beta", 2) == [SECOND, THIRD]
    assert here.left_by("beta") == []
    assert not here.retired
    assert here.machines["beta"].is_reached
    assert here.machines["beta"].silent_beats == 0


def test_time_passes_for_the_other_machines_that_take_part() -> None:
    here = fleet()
    here.take_away("gamma", "left")
    for _ in range(LOST_BEATS - 1):
        assert here.beat() == []
    here.machines["delta"].heard()
    assert here.beat() == [here.machines["epsilon"], here.machines["beta"]]
    assert here.beat() == []
    assert (here.machines["alpha"].silent_beats, here.machines["gamma"].silent_beats) == (0, 0)


# -- where the next life is --------------------------------------------------------------------------------------------


def test_a_replica_stays_where_it_is_while_its_machine_is_there() -> None:
    here = fleet()
    assert here.relocate(SYNCER)
    assert here.name(SYNCER) == "beta"


def test_a_replica_of_a_lost_machine_goes_to_one_that_offers_its_role_and_has_least() -> None:
    here = fleet(home_offers=("syncer",))
    lose(here, "beta")
    assert here.relocate(SYNCER)
    assert here.name(SYNCER) == "gamma"
    here.place(OTHER, "beta")
    assert here.relocate(OTHER)
    assert here.name(OTHER) == "delta"
    here.place(SYNCER, "beta")
    lose(here, "gamma")
    lose(here, "delta")
    assert here.relocate(SYNCER)
    assert here.name(SYNCER) == "alpha"
    assert here.placed() == (("learner/1", "beta"), ("syncer/0", "alpha"), ("syncer/1", "delta"))


def test_a_replica_goes_to_a_machine_that_offers_it_alone() -> None:
    first, second = Replica("region", 0), Replica("region", 1)
    here = Fleet(
        RunRoles(roles={"learner": 2, "region": 2}),
        Places(
            home="alpha",
            machines={first: "beta", second: "gamma"},
            offers={"beta": ("region/0",), "gamma": ("region/1",), "delta": ("region/1",)},
            home_offers=("region/0",),
        ),
    )
    lose(here, "beta")
    lose(here, "gamma")
    assert (here.may_have("alpha", second), here.may_have("delta", second)) == (False, True)
    assert here.relocate(second)
    assert here.name(second) == "delta"
    assert here.relocate(first)
    assert here.name(first) == "alpha"
    here.place(second, "gamma")
    lose(here, "delta")
    here.relocate(second)
    assert here.name(second) == "gamma"  # It waits: no machine of its region is left.


def test_home_is_taken_where_it_has_less() -> None:
    here = fleet(RunRoles(roles={"syncer": 1}), home_offers=("syncer",))
    here.join("gamma", 0)
    for replica in (FIRST, SECOND, THIRD):
        here.know([replica])
        here.place(replica, "gamma" if replica == FIRST else "delta")
    lose(here, "beta")
    assert here.relocate(SYNCER)
    assert here.name(SYNCER) == "alpha"


@pytest.mark.parametrize("how", ["lost", "left"])
def test_without_any_other_a_replica_waits_for_a_lost_machine_and_not_for_one_that_has_left(how: str) -> None:
    here = Fleet(CAST, Places(home="alpha", machines={SYNCER: "beta"}, home_offers=("evaluator",)))
    if how == "lost":
        lose(here, "beta")
    else:
        here.take_away("beta", "left")
    assert here.relocate(SYNCER) == (how == "lost")
    assert here.name(SYNCER) == "beta"


def test_a_machine_that_has_left_is_no_place_to_go_to() -> None:
    here = fleet()
    here.take_away("beta", "left")
    here.take_away("gamma", "left")
    assert here.relocate(SYNCER)
    assert here.name(SYNCER) == "delta"


def test_a_learner_waits_for_the_islands_of_its_machine() -> None:
    here = fleet(home_offers=("learner",))
    lose(here, "beta")
    assert here.relocate(SECOND)
    assert here.name(SECOND) == "beta"
    here.take_away("beta", "left")
    assert not here.relocate(SECOND)


# -- the journal -------------------------------------------------------------------------------------------------------


def test_what_was_noted_is_recalled() -> None:
    here = fleet()
    here.recall(
        (("learner/2", "zeta"), ("syncer/0", "alpha")),
        ("zeta", "eta"),
        (("learner/2", "left"), ("learner/0", "given up")),
    )
    here.know([Replica("evaluator", 0), FIRST])
    assert here.replicas == [FIRST, SECOND, SYNCER, OTHER, Replica("evaluator", 0), THIRD]
    assert here.placed() == (("learner/1", "beta"), ("learner/2", "zeta"), ("syncer/0", "alpha"))
    assert here.away == ("zeta", "eta")
    assert here.retired == {THIRD: "left", FIRST: "given up"}
    here.place(SYNCER, "theta")
    assert [machine.name for machine in here.machines.values()] == list(here.machines)


# -- invariants --------------------------------------------------------------------------------------------------------


def test_one_life_on_two_machines_is_found() -> None:
    here = fleet()
    here.machines["alpha"].track(life("syncer/0"))
    here.check()
    here.machines["gamma"].track(life("syncer/0#2"))
    with pytest.raises(InvariantError, match="supervision: syncer/0 is on gamma and on alpha"):
        here.check()


def test_a_life_that_is_condemned_and_not_tracked_is_found() -> None:
    here = fleet()
    here.machines["alpha"].condemned.add(SYNCER)
    with pytest.raises(InvariantError, match="alpha: condemned, and not tracked"):
        here.check()


def test_a_life_that_is_fresh_and_not_tracked_is_found() -> None:
    here = fleet()
    here.machines["alpha"].fresh.add(SYNCER)
    with pytest.raises(InvariantError, match="alpha: fresh, and not tracked"):
        here.check()


def test_a_life_on_a_machine_that_takes_no_part_is_found() -> None:
    here = fleet()
    here.machines["beta"].track(life("syncer/0"))
    here.take_away("beta", "left")
    with pytest.raises(InvariantError, match="beta takes no part, and has lives"):
        here.check()


def test_machines_that_are_one_island_join_in_one_slot_and_their_processes_live_together() -> None:
    here = Fleet(RunRoles(roles={"learner": 1, "syncer": 1}, slots_max={"learner": 3}), Places(home="alpha"))
    second = Replica("learner", 1)
    gang = [second, follower(second, 1), follower(second, 2)]
    assert here.join_island(("zeta", "eta", "theta")) == gang
    assert here.gang(second) == here.together(second) == gang
    assert here.gangs == [gang]
    assert here.processes == (1, 3)
    assert [here.name(each) for each in gang] == ["zeta", "eta", "theta"]
    assert here.may_have("eta", gang[1])
    for name in ("zeta", "eta", "theta"):
        here.take_away(name, "left")
    assert here.join_island(("zeta", "eta", "theta")) == gang  # The slot that they left, though another is free.
    assert here.join("iota", 5) == [THIRD]
    assert here.join_island(("kappa", "lambda")) == []  # No slot is left, and no machine admitted.
    assert "kappa" not in here.machines
    for name in ("zeta", "eta", "theta"):
        here.take_away(name, "left")
    assert here.join_island(("kappa", "lambda")) == []  # That slot is for islands of three.
    assert here.join_island(("eta", "theta", "zeta")) == gang
    assert [here.name(each) for each in gang] == ["eta", "theta", "zeta"]
    here.check()


def test_the_next_daemon_knows_an_island_that_joined_by_its_journal() -> None:
    cast = RunRoles(roles={"learner": 0, "syncer": 1}, slots_max={"learner": 3})
    before = Fleet(cast, Places(home="alpha"))
    gang = before.join_island(("zeta", "eta"))
    after = Fleet(cast, Places(home="alpha"))
    after.recall(before.placed(), (), ())
    after.know(())
    assert after.gang(gang[0]) == gang
    assert after.processes == (2,)
    lost = Fleet(cast, Places(home="alpha"))  # And, where its ledger is lost, by the incidents.
    for replica, name in zip(gang, ("zeta", "eta"), strict=True):
        lost.place_joined(replica, name)
    assert lost.gang(gang[0]) == gang


def test_a_region_that_is_silent_as_a_whole_is_awaited_and_a_machine_of_one_that_is_heard_is_lost() -> None:
    cast = RunRoles(roles={"learner": 4, "region": 2, "syncer": 1}, group_role="region")
    region, one, three = Replica("region", 1), Replica("learner", 1), Replica("learner", 3)
    here = Fleet(cast, Places(home="alpha", machines={region: "beta", one: "beta", three: "gamma"}))
    for _ in range(2 * LOST_BEATS):
        assert here.beat() == [], "gamma has the other learner of the region, and is as silent"
    here.machines["gamma"].heard()
    assert here.beat() == [here.machines["beta"]]
    assert here.beat() == []


def test_a_machine_whose_way_leads_through_a_bucket_is_lost_after_three_minutes() -> None:
    far, near = MachineLives("beta", is_far=True), MachineLives("gamma")
    lost = [(far.beat(), near.beat()) for _ in range(2 * FAR_TIMES * LOST_BEATS)]
    assert [beat for beat, (is_lost, _) in enumerate(lost, 1) if is_lost] == [FAR_TIMES * LOST_BEATS]
    assert [beat for beat, (_, is_lost) in enumerate(lost, 1) if is_lost] == [LOST_BEATS]


def test_a_machine_that_joins_gets_a_slot_of_those_that_train_alike_and_are_fewest() -> None:
    cast = RunRoles(roles={"learner": 4, "syncer": 1}, slots_max={"learner": 11}, least={"learner": 1}, period=4)
    here = fleet(cast)
    here.take_away("beta", "left")
    assert here.join("gamma", 1) == [Replica("learner", 5)]
    assert here.join("delta", 5) == [Replica("learner", slot) for slot in (4, 6, 7, 9, 8)]
    here.take_away("gamma", "expelled")
    assert here.join("eta", 1) == [SECOND]
    assert here.join("theta", 1) == [Replica("learner", 10)]
    assert here.join("iota", 2) == [Replica("learner", 5)]
