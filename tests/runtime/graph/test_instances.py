"""What follows from the numbers of replicas, and what is told of waits and what is not."""

from __future__ import annotations

import pytest

from isthmus.runtime.errors import GraphError
from isthmus.runtime.graph.proof import Net, fewest, most, overflows
from isthmus.runtime.graph.template import AnyOf, Graph, Latest, Queue, Quorum
from isthmus.runtime.graph.verify import verify
from tests.runtime.graph.example_bodies import decide, merge, sample, source, through


def voters(replicas: tuple[int, int]) -> Graph:
    """So many replicas whose votes are there at the start, and one that answers what two votes have decided."""
    graph = Graph("example")
    fast, slow, syncer = (
        graph.role("fast", replicas=replicas),
        graph.role("slow", replicas=(1, 1)),
        graph.role("syncer", replicas=(1, 1)),
    )
    ready, waiting, pacer = fast.node("ready", source), slow.node("waiting", through), syncer.node("pacer", source)
    merging = syncer.node("merge", merge, fires=Quorum("vote", "round", "opening", count_min=2))
    graph.edge(ready["result"], merging["vote"], Latest(), to=syncer.all)
    graph.edge(waiting["result"], merging["vote"], Latest(), to=syncer.all)
    graph.edge(pacer["result"], merging["opening"], Queue(1))
    graph.edge(merging["result"], waiting["item"], Latest(), to=slow.all)
    return graph


def test_a_role_has_as_few_replicas_as_it_may_and_no_fewer() -> None:
    assert fewest(voters((2, 3)).freeze()) == {"fast": 2, "slow": 1, "syncer": 1}
    assert most(voters((2, 64)).freeze()) == {"fast": 3, "slow": 1, "syncer": 1}
    assert fewest(voters((0, 3)).freeze()) == fewest(voters((1, 3)).freeze()) == {"fast": 1, "slow": 1, "syncer": 1}


def test_a_number_of_replicas_that_is_none_is_a_fault_like_others() -> None:
    with pytest.raises(GraphError, match="role 'fast'"):
        verify(voters((1, "two")).freeze())  # type: ignore[arg-type]


def test_the_votes_of_two_are_enough_where_there_are_never_fewer() -> None:
    verify(voters((2, 3)).freeze())
    with pytest.raises(GraphError, match="nodes 'waiting', 'merge': expected that every node can fire once"):
        verify(voters((1, 3)).freeze())


@pytest.mark.parametrize(("count", "blocked_by"), [(1, ()), (2, ("far", "near")), (3, ("far", "near"))])
def test_what_is_sent_by_key_is_sure_to_come_to_one_replica_alone(count: int, blocked_by: tuple[str, ...]) -> None:
    graph = Graph("example")
    peer, syncer = graph.role("peer", replicas=(count, count)), graph.role("syncer", replicas=(1, 1))
    near, far = peer.node("near", source), syncer.node("far", source)
    any_of = peer.node("any", sample, fires=AnyOf("item"))
    graph.edge(near["result"], any_of["item"], Latest(), to=peer.at("key"))
    graph.edge(far["result"], any_of["item"], Latest(), to=peer.all)
    assert verify(graph.freeze())["any"].blocked_by == blocked_by


def test_a_full_queue_is_told_with_the_waits_that_keep_it_full() -> None:
    """Not with the wait for an item of its own: many of those are under way."""
    graph = Graph("example")
    peer, syncer = graph.role("peer", replicas=(1, 4)), graph.role("syncer", replicas=(1, 1))
    answer, merging = peer.node("answer", source), syncer.node("merge", merge, fires=Quorum("vote", "round", "opening"))
    graph.edge(answer["result"], merging["vote"], Latest(), to=syncer.all)
    graph.edge(answer["result"], merging["opening"], Queue(2), to=syncer.all)
    net = Net(graph.freeze(), most(graph.freeze()))
    [(edge, waits)] = overflows(net).items()
    assert edge.target.name == "opening"
    assert [net.tell(wait, wait.waiter) for wait in waits] == [
        "answer waits for credit from merge (syncer) on answer.result -> merge.opening [Queue(2), every syncer]",
        "merge waits for an item from answer (peer) on answer.result -> merge.vote [Latest, every syncer]",
    ]


def test_one_port_for_votes_and_openings_is_one_fault_and_no_wait_for_every_vote() -> None:
    graph = Graph("example")
    peer, syncer = graph.role("peer", replicas=(1, 1)), graph.role("syncer", replicas=(1, 1))
    merging = peer.node("merge", decide, never_waits=True, fires=Quorum("item", "round", "item"))
    graph.edge(peer.node("near", source)["result"], merging["item"], Latest())
    graph.edge(syncer.node("far", source)["result"], merging["item"], Latest(), to=peer.all)
    with pytest.raises(GraphError) as caught:
        verify(graph.freeze())
    assert [fault.expected for fault in caught.value.faults] == ["two ports, one of votes and one that opens rounds"]
