"""What hosts have moved, as it is kept of lives that are over."""

from __future__ import annotations

from collections import Counter

from isthmus.runtime.ids import Replica
from isthmus.runtime.supervision.flows import EdgeFlow, EdgeTotal, Flows, NodeFlow, RunFlows, as_used, renumbered

REGION = "region"


def test_what_lives_have_used_gives_the_sums_that_the_lives_give() -> None:
    lives = [
        (Replica("learner", 0), Flows((EdgeFlow(3, 5, 50, 7),), (NodeFlow(1, 9, 2),))),
        (Replica(REGION, 1), Flows((EdgeFlow(3, 0, 0, 4), EdgeFlow(6, 2, 900, 0)), (NodeFlow(4, 3, 1),))),
        (Replica(REGION, 1), Flows((EdgeFlow(6, 1, 450, 0),), ())),
        (Replica(REGION, 0), Flows((EdgeFlow(6, 4, 100, 8),), ())),
    ]
    used = Counter[str]()
    for replica, flows in lives:
        used.update(dict(as_used(replica, flows, REGION)))
    kept = RunFlows.of_used(used)
    assert kept == RunFlows.of(lives, REGION)
    assert kept.edges == {3: EdgeTotal(5, 50, 11), 6: EdgeTotal(7, 1450, 8)}
    assert kept.of_groups["region/1", 6] == EdgeTotal(3, 1350, 0)
    assert kept.of_groups["region/0", 6] == EdgeTotal(4, 100, 8)


def test_what_was_moved_is_counted_by_the_graph_that_a_run_goes_on_with() -> None:
    """Whose first edge is new, and which has no edge 1 and no node 2 any more."""
    used = {"learner.cpu_seconds": 2.5}
    used |= {"edge:0:items": 3.0, "edge:0:waited": 1.0, "edge:1:items": 7.0}
    used |= {"learner/1:0:firings": 4.0, "learner/1:2:firings": 9.0, "region/0:0:edge:items": 5.0}
    found = renumbered(used, edges={0: 1}, nodes={0: 0, 1: 3})
    assert found == {
        "learner.cpu_seconds": 2.5,
        "edge:1:items": 3.0,
        "edge:1:waited": 1.0,
        "learner/1:0:firings": 4.0,
        "region/0:1:edge:items": 5.0,
    }
    assert RunFlows.of_used(found).edges[1].items == 3
