"""Checks whether a graph is sound, before anything starts.

`verify` checks every rule that one line of a program cannot show, and reports all faults at once. It decides nothing
about machines (placement does), and knows of a body only its ports.

The rules of single roles, nodes, ports and edges are in `local_rules`. The others are about the whole graph:

- every cycle of edges contains a Latest edge or a Queue with initial items;
- every node can fire from the start;
- no Queue can fill up for good;
- a node that is declared free_running waits for no other host.

For those, `instances` expands the graph at the smallest and at the largest number of replicas of every role, at least 1
and at most 3. Replicas of a role are alike: what holds for one holds for all, and their number itself matters to one
rule only, that of a Quorum, which counts votes. (Between the two numbers it could differ only where voters of several
roles or edges are counted together. A role that may have no replica at all is taken to have one.) An edge that another
rule has refused counts as sound: each fault is reported once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import TypeAlias, TypeVar

from isthmus.runtime.errors import Fault, GraphError
from isthmus.runtime.graph.instances import Net, Wait, describe, describe_policy, fewest, most
from isthmus.runtime.graph.local_rules import count, is_well_formed, local_faults
from isthmus.runtime.graph.proof import Proof, Verdict, overflows, prove, stuck_at_start
from isthmus.runtime.graph.template import AllOf, Edge, Graph, Queue, Quorum

Label = TypeVar("Label")
Arcs: TypeAlias = Mapping[str, Sequence[tuple[str, Label]]]
"""Labelled arcs between nodes: enough to find a cycle and to name it."""


def verify(graph: Graph) -> Proof:
    """The wait analysis of a sound graph. Raises one GraphError with all faults of an unsound one."""
    blamed = {edge for edge in graph.edges if not is_well_formed(edge.policy)}
    cycles = _empty_cycles(graph)
    blamed.update(*cycles)
    faults = [*local_faults(graph), *map(_empty, cycles), *_never_fire(graph, blamed), *_fill_up(graph)]
    proof = prove(graph, blamed)
    faults += [_held_up(proof[node.name]) for node in graph.nodes if node.free_running and proof[node.name].holds]
    if faults:
        size = f"(graph {graph.name!r}, {count(graph.nodes, 'node')}, {count(graph.edges, 'edge')})"
        raise GraphError.of([*faults[:-1], faults[-1]._replace(do=f"{faults[-1].do} {size}")])
    return proof


def _empty_cycles(graph: Graph) -> list[tuple[Edge, ...]]:
    """Cycles of Queue edges without initial items, shortest first, no edge in two of them."""
    edges = [edge for edge in graph.edges if isinstance(edge.policy, Queue) and not edge.policy.initial]
    cycles = []
    while cycle := _shortest_cycle(_arcs((e.source.node.name, e.target.node.name, e) for e in edges)):
        cycles.append(cycle)
        edges = [edge for edge in edges if edge not in cycle]
    return cycles


def _empty(cycle: tuple[Edge, ...]) -> Fault:
    return Fault(
        f"the cycle {' -> '.join([*(edge.source.node.name for edge in cycle), cycle[-1].target.node.name])}",
        "a Latest edge or a Queue with initial items in it, because each of its nodes waits for the one before",
        ", ".join(map(describe, cycle)),
        "Give one of these Queues initial items, as in Queue(capacity=2, initial=(value,)), or make one edge Latest.",
    )


def _never_fire(graph: Graph, blamed: Set[Edge]) -> Iterator[Fault]:
    """A fault for every knot of nodes that wait for each other from the start, with the nodes that wait for it."""
    told: set[str] = set()
    for counts in (fewest(graph), most(graph)):
        net = Net(graph, counts)
        stuck = {instance.node: unmet for instance, unmet in stuck_at_start(net, blamed).items() if instance.slot == 0}
        waits = {node: [wait for condition in unmet for wait in condition] for node, unmet in stuck.items()}
        arcs = _arcs((node, wait.on.node, wait) for node in stuck for wait in waits[node])
        behind = {node: _reachable(arcs, node) for node in stuck}
        for node in stuck:
            knot = [other for other in stuck if other in behind[node]]
            if node in told or any(node not in behind[other] for other in knot):
                continue
            cycle = _shortest_cycle({other: arcs[other] for other in knot})
            others = [other for other in stuck if other not in knot and node in behind[other]]
            told.update(knot, others)
            yield _knot(net, knot, cycle, [waits[other][0] for other in others])


def _knot(net: Net, knot: list[str], cycle: Sequence[Wait], others: list[Wait]) -> Fault:
    waits = [wait for wait in cycle if wait.waiter.node in knot]
    found = f"that {'each waits for the next' if len(waits) > 1 else 'it waits for itself'}: {_told(net, waits)}"
    if others:
        found += f"; and behind {'them' if len(knot) > 1 else 'it'}, {_told(net, others)}"
    ways = []
    if any(not wait.is_for_credit for wait in waits):
        ways.append("give a Queue between them initial items, or the parameter of a port that waits a default")
    if any(wait.is_for_credit for wait in waits):
        ways.append("raise a capacity above the number of its initial items")
    do = "; or ".join(ways)
    return Fault(
        f"{'node' if len(knot) == 1 else 'nodes'} {', '.join(map(repr, knot))}",
        "that every node can fire once from the start",
        found,
        f"{do[0].upper()}{do[1:]}.",
    )


def _fill_up(graph: Graph) -> Iterator[Fault]:
    net = Net(graph, most(graph))
    for edge, waits in overflows(net).items():
        consumer, port = edge.target.node, edge.target.name
        fires = edge.target.node.fires
        if isinstance(fires, Quorum):
            do = "Let a single replica open the rounds."
        elif isinstance(fires, AllOf):
            do = f"Make the edge Latest, or let {consumer.name} wait for it: name {port!r} in AllOf, without a default."
        else:
            do = "Make the edge Latest, or leave `fires` out to wait for every port."
        yield Fault(
            f"edge {edge}",
            f"an edge that holds nobody up, because {consumer.name} can fire without an item of it",
            f"{describe_policy(edge)}: when an item is late it fills up, and then for good: {_told(net, waits)}",
            do,
        )


def _held_up(verdict: Verdict) -> Fault:
    first, *others = sorted(verdict.holds, key=lambda hold: not hold.is_near)
    near = [hold.place for hold in others if hold.is_near]
    more = f" (and others, to {', '.join(near)})" if near else ""
    do = "Let what comes from elsewhere be sampled, and what goes there be Latest; or drop free_running=True."
    if not first.is_elsewhere:
        do = f"Feed {first.node} by Latest edges, and only sample what it sends; or drop free_running=True."
    return Fault(
        f"node {verdict.node!r}, declared free_running=True",
        "that it never waits for another host, nor for a body that may block",
        f"this chain: {first.chain}{more}",
        do,
    )


def _told(net: Net, waits: Sequence[Wait]) -> str:
    return "; ".join(net.tell(wait, wait.waiter) for wait in waits)


# -- cycles ------------------------------------------------------------------------------------------------------------


def _arcs(triples: Iterable[tuple[str, str, Label]]) -> Arcs[Label]:
    arcs: dict[str, list[tuple[str, Label]]] = {}
    for source, target, label in triples:
        arcs.setdefault(source, []).append((target, label))
    return arcs


def _reachable(arcs: Arcs[Label], start: str) -> set[str]:
    """Every node that `start` reaches by one or more arcs."""
    return set(_paths(arcs, start))


def _shortest_cycle(arcs: Arcs[Label]) -> tuple[Label, ...]:
    """A shortest cycle, the first in the order of the arcs; empty if there is none."""
    cycles = [paths[start] for start in arcs if start in (paths := _paths(arcs, start))]
    return min(cycles, key=len, default=())


def _paths(arcs: Arcs[Label], start: str) -> dict[str, tuple[Label, ...]]:
    """A shortest path of one or more arcs from `start` to every node that it reaches."""
    paths: dict[str, tuple[Label, ...]] = {}
    ahead: deque[tuple[str, tuple[Label, ...]]] = deque([(start, ())])
    while ahead:
        node, path = ahead.popleft()
        for target, label in arcs.get(node, ()):
            if target not in paths:
                paths[target] = (*path, label)
                ahead.append((target, paths[target]))
    return paths
