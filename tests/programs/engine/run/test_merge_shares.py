"""When a home bounds what participants have of a merge, and what it writes of that."""

from __future__ import annotations

from isthmus.programs.engine.run.merge_shares import MergeShares
from isthmus.runtime.daemon.home_daemon import DirectoryTerms
from isthmus.runtime.ids import MachineOwner, Replica
from isthmus.runtime.supervision.fleet import Fleet
from isthmus.runtime.supervision.home_events import Places, RunRoles
from isthmus.runtime.supervision.incidents import SharesBounded, SharesUnbounded
from isthmus.runtime.supervision.messages import Directory

ANN = MachineOwner("ann", 0.4)
KNOWN = Directory({"home": "key"}, {"beta": ANN, "home": ANN})


def fleet() -> Fleet:
    """One learner, at home, and another machine, which has a party of its own."""
    return Fleet(
        RunRoles(roles={"learner": 1, "syncer": 1}, slots_max={"learner": 2}),
        Places(home="home", machines={Replica("syncer", 0): "beta"}),
    )


def test_who_is_alone_may_have_all_of_a_merge_until_another_comes() -> None:
    here, shares = fleet(), MergeShares(1.0)
    directory, incident = shares.told(KNOWN, here)
    assert incident == SharesUnbounded(1)
    assert directory == Directory(KNOWN.keys, {"beta": ANN, "home": MachineOwner("ann", 1.0)})
    assert shares.told(KNOWN, here) == (directory, None), "it is written once"
    here.join("gamma", 1)
    assert shares.told(KNOWN, here) == (KNOWN, SharesBounded(2))
    assert shares.told(KNOWN, here) == (KNOWN, None)


def test_a_machine_without_an_owner_is_bounded_by_the_program_alone() -> None:
    here, nobody = fleet(), Directory({"home": "key"})
    assert MergeShares(1.0).told(nobody, here) == (nobody, None), "nothing is bounded"
    directory, incident = MergeShares(0.5).told(nobody, here)
    assert (directory.owners, incident) == ({"home": MachineOwner("home", 1.0)}, SharesUnbounded(1))


def test_without_terms_of_a_program_a_directory_is_given_as_it_is() -> None:
    assert DirectoryTerms().told(KNOWN, fleet()) == (KNOWN, None)
