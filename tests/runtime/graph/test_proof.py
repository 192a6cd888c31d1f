"""What `verify` proves, against a naive simulator of all hosts, on random small graphs.

Two quantifiers make rule and simulation agree. A node that is proved free-running must go on whatever happened before,
whenever the other hosts freeze, whatever part of what was under way still arrives, and whichever bodies that may wait
never return: tried with random histories. A node that is not must be stopped by some schedule: frozen from the start is
the worst for it, with keys and slow deliveries at the adversary's choice. Both only say something about graphs that
`verify` accepts, since the others may stop by themselves.
"""

from __future__ import annotations

from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from isthmus.runtime.errors import GraphError
from isthmus.runtime.graph.proof import Net, Proof, fewest, most, overflows, stuck_at_start
from isthmus.runtime.graph.template import AllOf, AnyOf, Every, Queue, Quorum, Template
from isthmus.runtime.graph.verify import local_faults, verify
from tests.effort import examples
from tests.runtime.graph.brute_force import World, fires_at_start, freeze, stops
from tests.runtime.graph.random_graphs import BYTES, random_graph

FIRINGS = 50

graphs = st.binary(min_size=BYTES, max_size=BYTES).map(lambda data: random_graph(data).freeze())


def accepted(graph: Template) -> Proof | None:
    try:
        return verify(graph)
    except GraphError:
        return None


def can_ask_for_every_vote(graph: Template) -> bool:
    """A round that asks for the vote of the node that is to close it never closes: that is its opener's choice."""
    counts = most(graph)
    return fires_at_start(graph, counts, is_strict=True) == set(World(graph, counts, is_strict=True).nodes)


@settings(max_examples=examples(2000))
@given(graphs)
def test_who_can_fire_at_the_start(graph: Template) -> None:
    if not any(local_faults(graph)):
        for counts in (fewest(graph), most(graph)):
            net = Net(graph, counts)
            proved = {tuple(instance) for instance in net.conditions.keys() - stuck_at_start(net).keys()}
            assert proved == fires_at_start(graph, counts)


@pytest.mark.slow
@settings(max_examples=examples(2500))
@given(graphs, st.integers(0, 2**32))
def test_who_runs_free(graph: Template, seed: int) -> None:
    proof = accepted(graph)
    if proof is None:
        return
    random = Random(seed)
    blocked = [node.name for node in graph.nodes if node.body_may_wait]
    for role in graph.roles:
        own = {(node.name, 0) for node in graph.nodes if node.role == role.name}
        free = {place for place in own if proof[place[0]].free_running}
        if free:
            world = World(graph, most(graph), is_strict=True)
            world.wander(random, steps=random.randint(0, 60), slow=random.choice([0, 0.3, 0.6]))
            places = freeze(world, (role.name, 0), blocked, random)
            assert world.laggards(sorted(free), FIRINGS, places, random) == []
        if own - free:
            assert own - free <= stops(graph, most(graph), (role.name, 0), blocked)


@settings(max_examples=examples(1500))
@given(graphs, st.integers(0, 2**32))
def test_every_node_of_an_accepted_graph_goes_on_for_ever(graph: Template, seed: int) -> None:
    if accepted(graph) is None or not can_ask_for_every_vote(graph):
        return
    random = Random(seed)
    world = World(graph, most(graph), is_strict=True)
    world.wander(random, steps=random.randint(0, 100), slow=random.choice([0, 0.3, 0.6]))
    assert world.laggards(list(world.nodes), 20, list(world.nodes), random) == []


@pytest.mark.slow
def test_nearly_every_queue_that_is_said_to_fill_up_does() -> None:
    """The rule is safe, not exact: it takes no account of producers of one port that limit each other."""
    random = Random(2)
    said, seen = 0, 0
    while said < 60:
        graph = random_graph(random.randbytes(BYTES)).freeze()
        net = Net(graph, most(graph))
        full = overflows(net)
        is_routed = any(edge.route is not None and edge.route.kind == "at" for edge in graph.edges)
        if full and not is_routed and not any(local_faults(graph)) and can_ask_for_every_vote(graph):
            stopped = stops(graph, most(graph), None)
            for edge in full:
                said += 1
                seen += {(edge.source.node.name, 0), (edge.target.node.name, 0)} <= stopped
    assert seen >= 0.9 * said


@pytest.mark.long
def test_the_random_graphs_have_everything() -> None:
    """Thousands of graphs prove nothing if they are all alike: counts of what 1,000 of them contain."""
    random = Random(1)
    drawn = [random_graph(random.randbytes(BYTES)).freeze() for _ in range(1000)]
    proofs = [proof for proof in map(accepted, drawn) if proof is not None]
    assert len(proofs) >= 400
    verdicts = [verdict.free_running for proof in proofs for verdict in proof.verdicts.values()]
    assert min(verdicts.count(True), verdicts.count(False)) >= 400
    for rule in (AllOf, AnyOf, Every, Quorum):
        assert sum(isinstance(node.fires, rule) for graph in drawn for node in graph.nodes) >= 50
    assert {len(graph.nodes) for graph in drawn} == {2, 3, 4, 5}
    assert {len(graph.roles) for graph in drawn} == {1, 2, 3}
    kinds = {edge.route.kind if edge.route else None for graph in drawn for edge in graph.edges}
    assert kinds == {None, "all", "next", "at"}
    queues = [edge.policy for graph in drawn for edge in graph.edges if isinstance(edge.policy, Queue)]
    assert sum(bool(queue.initial) for queue in queues) >= 200
    assert sum(node.body_may_wait for graph in drawn for node in graph.nodes) >= 100
