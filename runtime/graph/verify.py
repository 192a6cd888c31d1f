"""Checks whether a graph is sound, before anything starts: `verify` reports all faults at once.

Decides every rule that one line of a program cannot show. It decides nothing about machines (placement does), and knows
of a body only its ports.

First come the rules that one role, node, port or edge must keep. Each yields a fault for everything that breaks it, and
assumes nothing but the types that `Graph` itself checks: every mistake a user can write yields a sentence, not a
traceback. The others are about the whole graph:

- every cycle of edges contains a Latest edge or a Queue with initial items;
- every node can fire from the start;
- no Queue can fill up for good;
- a node that is declared never_waits waits for no other host.

For those, `instances` expands the graph at the smallest and at the largest number of replicas of every role, at least 1
and at most 3. Replicas of a role are alike: what holds for one holds for all, and their number itself matters to one
rule only, that of a Quorum, which counts votes. (Between the two numbers it could differ only where voters of several
roles or edges are counted together. A role that may have no replica at all is taken to have one.) An edge that another
rule has refused counts as sound: each fault is reported once.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set, Sized
from typing import Any, Final, TypeAlias, TypeVar

from isthmus.runtime.clock import milliseconds, seconds
from isthmus.runtime.errors import Fault, GraphError, nearest, shortened
from isthmus.runtime.graph.proof import (
    Net,
    Proof,
    Verdict,
    Wait,
    describe,
    describe_policy,
    fewest,
    most,
    overflows,
    prove,
    stuck_at_start,
)
from isthmus.runtime.graph.template import (
    AllOf,
    AnyOf,
    Edge,
    Every,
    Latest,
    Node,
    Policy,
    Port,
    Queue,
    Quorum,
    Route,
    Template,
    group_count,
    replicas_of,
)

CAPACITY_MAX: Final = 65_536
"""Items: the scheduler numbers the initial items of an edge in 16 bits."""
PERIOD_MIN: Final = milliseconds(1)
"""A loop turn takes up to 0.5 ms; a timer with a shorter period would dominate the loop."""
PERIOD_MAX: Final = seconds(3600)
"""Longer than any wait of a run; a larger number is nearly always a mistaken unit."""
DECISION: Final = "decision"
"""The input port of a Quorum node that the runtime fills, with the voters of the round and why it closed."""

_WAITING: Final = {
    "AllOf": "name the port in AllOf, too",
    "AnyOf": "leave `fires` out to wait for every port",
    "Every": "leave `fires` out to wait for every port",
    "Quorum": "name the port as `port` or `opened_by`",
}
"""Instructions for making a node wait for a port, by its firing rule."""
_NAME: Final = re.compile(r"[a-z][a-z0-9-]*")


def local_faults(graph: Template) -> Iterator[Fault]:
    """Everything wrong with single roles, nodes, ports and edges."""
    yield from _roles(graph)
    yield from _nodes(graph)
    yield from _edges(graph)


def _roles(graph: Template) -> Iterator[Fault]:
    if not graph.roles:
        yield Fault("the graph", "a role with a node", "no role", "Add one: graph.role('learner', replicas=(1, 64)).")
    for role in graph.roles:
        where = f"role {role.name!r}"
        yield from _name(where, role.name)
        low, high = role.replicas_min, role.replicas_max
        if not (_is_int(low) and _is_int(high) and 0 <= low <= high and high >= 1):
            yield Fault(
                where,
                "whole numbers 0 <= smallest <= largest, with a largest of at least 1",
                f"replicas=({low!r}, {high!r})",
                "Write replicas=(smallest, largest).",
            )
        if not any(node.role == role.name for node in graph.nodes):
            yield Fault(where, "at least one node", "none", "Add a node to it, or remove the role.")


def _name(where: str, name: str) -> Iterator[Fault]:
    if not _NAME.fullmatch(name):
        better = re.sub(r"[^a-z0-9]+", "-", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()).strip("-0123456789")
        yield Fault(
            where,
            "a name of small letters, digits and hyphens that begins with a letter",
            repr(name),
            f"Call it {better!r}." if better else "Choose another name.",
        )


def _nodes(graph: Template) -> Iterator[Fault]:
    for node in graph.nodes:
        where = f"node {node.name!r}"
        yield from _name(where, node.name)
        fires: object = node.fires
        if not isinstance(fires, AllOf | AnyOf | Every | Quorum):
            yield Fault(
                where,
                "a firing rule, AllOf, AnyOf, Every or Quorum",
                f"fires={fires!r}",
                "Leave `fires` out to fire whenever all ports without default have an item.",
            )
            continue
        yield from _connected(graph, node)
        yield from _firing_rule(node)
        yield from _required_ports(graph, node)
        yield from _sampled_ports(node)
        if isinstance(node.fires, Quorum):
            yield from _quorum(graph, node, node.fires)


def _connected(graph: Template, node: Node) -> Iterator[Fault]:
    """A node without any edge is a forgotten edge, unless a timer fires it: it may then exist for its side effects."""
    touched = any(node in (edge.source.node, edge.target.node) for edge in graph.edges)
    if len(graph.nodes) > 1 and not touched and not isinstance(node.fires, Every):
        yield Fault(
            f"node {node.name!r}",
            "an edge to or from it",
            "none: no item ever reaches it or leaves it",
            "Connect it, fire it by Every(period) if it works for itself, or remove it.",
        )


def _firing_rule(node: Node) -> Iterator[Fault]:
    where = f"node {node.name!r}"
    if isinstance(node.fires, Every):
        period: Any = node.fires.period
        if not _is_int(period) or not PERIOD_MIN <= period <= PERIOD_MAX:
            actual = (
                repr(period)
                if not _is_int(period)
                else f"{period / 1e9:g} s"
                if period > 1e9
                else f"{period / 1e6:g} ms"
            )
            yield Fault(
                f"{where}, which fires by Every",
                "a period from 1 ms to 1 h, in whole nanoseconds",
                actual,
                "Write Every(milliseconds(100)) or Every(seconds(10)).",
            )
        return
    names = [item.name for item in node.inputs]
    ports: object = getattr(node.fires, "ports", ())
    if not isinstance(ports, tuple):
        yield Fault(where, "a tuple of port names in AllOf", repr(ports), f"Write AllOf(({ports!r},)).")
        return
    if node.fires == AnyOf():
        yield Fault(where, "at least one port in AnyOf", "none: it never fires", f"Name one of: {', '.join(names)}.")
    for port in dict.fromkeys(node.required):
        if port not in names:
            kind = type(node.fires).__name__
            yield Fault(f"{where}, which fires by {kind}", "input ports of its body", repr(port), nearest(port, names))


def _required_ports(graph: Template, node: Node) -> Iterator[Fault]:
    for port in dict.fromkeys(node.required):
        is_filled = isinstance(node.fires, Quorum) and port == DECISION
        if node.input(port) is not None and not is_filled and not graph.edges_into(node, port):
            yield Fault(
                f"port {port!r} of node {node.name!r}",
                "an edge into it, because the node fires only with an item there",
                "none",
                "Connect it, or give the parameter a default if the node can do without.",
            )


def _sampled_ports(node: Node) -> Iterator[Fault]:
    """A port that a firing may find empty needs a default: all but those of AllOf and Quorum, and a lone one of AnyOf.

    (`decision` of a Quorum node is filled by the runtime, at every firing.)
    """
    always = set(node.required) if isinstance(node.fires, AllOf | Quorum) else set()
    if isinstance(node.fires, AnyOf) and len(node.fires.ports) == 1:
        always.update(node.fires.ports)
    if isinstance(node.fires, Quorum):
        always.add(DECISION)
    for item in node.inputs:
        if not item.has_default and item.name not in always:
            named = item.name in node.required
            kind = type(node.fires).__name__
            rule = f"{'one of several in' if named else 'not named by'} {kind}"
            yield Fault(
                f"port {item.name!r} of node {node.name!r}",
                f"a default, because the port is {rule} and a firing may find nothing there",
                "none",
                f"Write {item.name}=None in the body, or {_WAITING[kind]}.",
            )


def _quorum(graph: Template, node: Node, fires: Quorum) -> Iterator[Fault]:
    where = f"node {node.name!r}, which fires by Quorum"
    if not isinstance(fires.key, str) or not fires.key:
        yield Fault(where, "the name of the field that names a round", f"key={fires.key!r}", "Write key='round'.")
    if fires.grace is not None and not (_is_int(fires.grace) and fires.grace >= 0):
        actual = f"grace={fires.grace!r}"
        yield Fault(
            where,
            "a grace of 0 ns or more, or None for no limit",
            actual,
            "Write grace=milliseconds(50), or leave it out.",
        )
    if DECISION in (fires.port, fires.opened_by):
        yield Fault(
            where,
            f"votes and openings on ports of their own, because the runtime fills {DECISION!r}",
            f"port={fires.port!r}, opened_by={fires.opened_by!r}",
            "Give the body a port for each.",
        )
        return
    for edge in graph.edges_into(node, DECISION):
        yield Fault(
            f"edge {edge}",
            f"no edge into {DECISION!r} of a Quorum node: the runtime fills it",
            "one",
            "Give the port another name.",
        )
    if fires.port == fires.opened_by:
        do = "Give the body a port for each."
        yield Fault(where, "two ports, one of votes and one that opens rounds", f"{fires.port!r} for both", do)
        return
    yield from _openers(graph, node, fires)
    yield from _voters(graph, node, fires)
    yield from _initial_items(graph, node, fires)


def _openers(graph: Template, node: Node, fires: Quorum) -> Iterator[Fault]:
    edges = graph.edges_into(node, fires.opened_by)
    for edge in edges:
        if not isinstance(edge.policy, Queue):
            yield Fault(
                f"edge {edge}",
                "a Queue, because every item opens a round and none may be superseded",
                describe_policy(edge),
                "Write Queue(capacity), with as many as rounds may be open.",
            )


def _initial_items(graph: Template, node: Node, fires: Quorum) -> Iterator[Fault]:
    """Rounds are opened and voted in by emitted items only: cores see no field of an initial item."""
    for port, who in ((fires.opened_by, "opener emit the first rounds"), (fires.port, "voters emit the first votes")):
        for edge in graph.edges_into(node, port):
            if isinstance(edge.policy, Queue) and is_well_formed(edge.policy) and edge.policy.initial:
                yield Fault(
                    f"edge {edge}",
                    f"no initial items on port {port!r} of a Quorum node: the {fires.key!r} in them is not seen, so "
                    "they would belong to no round",
                    describe_policy(edge),
                    f"Leave `initial` out, and let the {who}.",
                )


def _voters(graph: Template, node: Node, fires: Quorum) -> Iterator[Fault]:
    where = f"node {node.name!r}, which fires by Quorum"
    edges = graph.edges_into(node, fires.port)
    roles = [edge.source.node.role for edge in edges]
    for role in dict.fromkeys(roles):
        if roles.count(role) > 1:
            yield Fault(
                f"{where}, on port {fires.port!r}",
                f"one edge from role {role!r}, because a replica has one vote",
                f"{roles.count(role)}",
                "Let one node of the role vote.",
            )
    voters = _producers_max(graph, edges)
    if not _is_int(fires.count_min) or fires.count_min < 1:
        yield Fault(where, "a count_min of at least 1", f"count_min={fires.count_min!r}", "Write count_min=1.")
    elif 0 < voters < fires.count_min:
        yield Fault(
            f"{where}, on port {fires.port!r}",
            f"at least {fires.count_min} voters, for count_min={fires.count_min}",
            f"{voters} at most",
            "Allow more replicas of the voters' role, or lower count_min.",
        )


def _producers_max(graph: Template, edges: list[Edge]) -> int:
    """The most replicas that can send to one replica over `edges`."""
    replicas = {role.name: role.replicas_max if _is_int(role.replicas_max) else 0 for role in graph.roles}
    kinds = [(edge.source.node.role, edge.route.kind if edge.route else "local") for edge in edges]
    return sum(1 if kind in ("local", "next") else replicas[role] for role, kind in kinds)


def _edges(graph: Template) -> Iterator[Fault]:
    firsts: dict[Port, Edge] = {}
    seen: set[tuple[Port, Port]] = set()
    for edge in graph.edges:
        yield from _policy(edge)
        yield from _route(edge, graph)
        first = firsts.setdefault(edge.target, edge)
        port = f"port {edge.target.name!r} of node {edge.target.node.name!r}"
        if type(first.policy) is not type(edge.policy):
            yield Fault(
                port,
                "edges of one kind, all Queue or all Latest",
                f"{describe(first)} and {describe(edge)}",
                "Choose one kind, or give the body a port for each.",
            )
        if (edge.source, edge.target) in seen:
            yield Fault(
                port, f"one edge from {edge.source.node.name}.{edge.source.name}", "two", "Remove one of the two."
            )
        seen.add((edge.source, edge.target))


def _policy(edge: Edge) -> Iterator[Fault]:
    where, policy = f"edge {edge}", edge.policy
    if isinstance(policy, Latest):
        if policy.key is not None and (not isinstance(policy.key, str) or not policy.key):
            actual = f"key={policy.key!r}"
            yield Fault(where, "the name of a field of the item", actual, "Write Latest('fragment'), or Latest().")
        return
    initial: object = policy.initial
    if not isinstance(initial, tuple):
        actual = f"initial={initial!r}"
        yield Fault(where, "a tuple of initial values", actual, "Write initial=(value,): one entry per initial item.")
    elif not _is_int(policy.capacity) or not 1 <= policy.capacity <= CAPACITY_MAX:
        actual = f"Queue(capacity={policy.capacity!r})"
        yield Fault(where, f"a capacity from 1 to {CAPACITY_MAX} items", actual, "Write Queue(capacity=2).")
    elif len(policy.initial) > policy.capacity:
        yield Fault(
            where,
            f"at most {count(policy.initial[: policy.capacity], 'initial item')}, for a capacity of {policy.capacity}",
            str(len(policy.initial)),
            "Raise the capacity: initial items occupy it.",
        )


def is_well_formed(policy: Policy) -> bool:
    """Whether the figures of a policy make sense."""
    return isinstance(policy, Latest) or (
        _is_int(policy.capacity)
        and 1 <= policy.capacity <= CAPACITY_MAX
        and isinstance(policy.initial, tuple)
        and len(policy.initial) <= policy.capacity
    )


_ROUTES: Final = ("all", "next", "at", "group", "some")


def _route(edge: Edge, graph: Template) -> Iterator[Fault]:
    route, where = edge.route, f"edge {edge}"
    source, target = edge.source.node.role, edge.target.node.role
    if route is None:
        return
    if route.role != target:
        yield Fault(
            where,
            f"a route within the role of its target, {target!r}",
            f"to={route.role}.{route.kind}",
            f"Use a route of role {target!r}, such as to={target}.all.",
        )
    elif route.kind == "next" and source != target:
        yield Fault(
            where,
            f"both ends in one role, because `{target}.next` leads from replica i to i + 1",
            f"a source in role {source!r}",
            f"Use {target}.at(key), or {target}.all to reach every {target}.",
        )
    elif route.kind == "at" and (not isinstance(route.key, str) or not route.key):
        yield Fault(where, "the name of a field of the item", f"at({route.key!r})", f"Write {target}.at('fragment').")
    elif route.kind not in _ROUTES:
        yield Fault(where, "a route: all, next, at, group or some", repr(route.kind), nearest(route.kind, _ROUTES))
    elif route.kind == "some" and not _are_classes(route):
        expected = "a field, a period of at least 1, and for each value of the field numbers below it"
        found = f"some({route.key!r}, {route.period!r}, {route.classes!r})"
        yield Fault(where, expected, shortened(found, 80), f"Write {target}.some('fragment', 2, [[0], [1], [0, 1]]).")
    elif not _are_groups(route):
        expected = "a number of groups and divisors of at least 1"
        found = f"within({route.groups!r}, sender={route.divisors[0]!r}, receiver={route.divisors[1]!r})"
        yield Fault(where, expected, found, f"Write {target}.all.within(2).")
    elif route.kind == "group" and not group_count(replicas_of(graph, source, target)):
        expected = f"a fixed number of replicas of {source!r} or {target!r}: it is the number of groups"
        yield Fault(where, expected, "ranges", f"Give one of them replicas=(N, N), or use {target}.all.")


def _are_classes(route: Route) -> bool:
    numbers = [number for each in route.classes for number in each]
    is_keyed = isinstance(route.key, str) and bool(route.key) and bool(route.classes)
    return (
        is_keyed
        and _is_int(route.period)
        and route.period >= 1
        and all(_is_int(number) and 0 <= number < route.period for number in numbers)
    )


def _are_groups(route: Route) -> bool:
    """Whether the groups of a route make sense, where it has any: a replica leads to those of its own by `within`."""
    if route.kind in ("next", "group"):
        return not route.groups
    return route.groups == 0 or all(_is_int(each) and each >= 1 for each in (route.groups, *route.divisors))


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def count(things: Sized, noun: str) -> str:
    """'1 edge', '2 edges'."""
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


Label = TypeVar("Label")
Arcs: TypeAlias = Mapping[str, Sequence[tuple[str, Label]]]
"""Labelled arcs between nodes: enough to find a cycle and to name it."""


def verify(graph: Template) -> Proof:
    """The wait analysis of a sound graph. Raises one GraphError with all faults of an unsound one."""
    blamed = {edge for edge in graph.edges if not is_well_formed(edge.policy)}
    cycles = _empty_cycles(graph)
    blamed.update(*cycles)
    faults = [*local_faults(graph), *map(_empty, cycles), *_never_fire(graph, blamed), *_fill_up(graph)]
    proof = prove(graph, blamed)
    faults += [_held_up(proof[node.name]) for node in graph.nodes if node.never_waits and proof[node.name].holds]
    if faults:
        size = f"(graph {graph.name!r}, {count(graph.nodes, 'node')}, {count(graph.edges, 'edge')})"
        raise GraphError.of([*faults[:-1], faults[-1]._replace(remedy=f"{faults[-1].remedy} {size}")])
    return proof


def _empty_cycles(graph: Template) -> list[tuple[Edge, ...]]:
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


def _never_fire(graph: Template, blamed: Set[Edge]) -> Iterator[Fault]:
    """A fault for every knot of nodes that wait for each other from the start, with the nodes that wait for it."""
    reported: set[str] = set()
    for counts in (fewest(graph), most(graph)):
        net = Net(graph, counts)
        stuck = {instance.node: unmet for instance, unmet in stuck_at_start(net, blamed).items() if instance.slot == 0}
        waits = {node: [wait for condition in unmet for wait in condition] for node, unmet in stuck.items()}
        arcs = _arcs((node, wait.on.node, wait) for node in stuck for wait in waits[node])
        behind = {node: _reachable(arcs, node) for node in stuck}
        for node in stuck:
            knot = [other for other in stuck if other in behind[node]]
            if node in reported or any(node not in behind[other] for other in knot):
                continue
            cycle = _shortest_cycle({other: arcs[other] for other in knot})
            others = [other for other in stuck if other not in knot and node in behind[other]]
            reported.update(knot, others)
            yield _knot(net, knot, cycle, [waits[other][0] for other in others])


def _knot(net: Net, knot: list[str], cycle: Sequence[Wait], others: list[Wait]) -> Fault:
    waits = [wait for wait in cycle if wait.waiter.node in knot]
    actual = f"that {'each waits for the next' if len(waits) > 1 else 'it waits for itself'}: {_told(net, waits)}"
    if others:
        actual += f"; and behind {'them' if len(knot) > 1 else 'it'}, {_told(net, others)}"
    ways = []
    if any(not wait.is_for_credit for wait in waits):
        ways.append("give a Queue between them initial items, or the parameter of a port that waits a default")
    if any(wait.is_for_credit for wait in waits):
        ways.append("raise a capacity above the number of its initial items")
    do = "; or ".join(ways)
    return Fault(
        f"{'node' if len(knot) == 1 else 'nodes'} {', '.join(map(repr, knot))}",
        "that every node can fire once from the start",
        actual,
        f"{do[0].upper()}{do[1:]}.",
    )


def _fill_up(graph: Template) -> Iterator[Fault]:
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
    do = "Let what comes from elsewhere be sampled, and what goes there be Latest; or drop never_waits=True."
    if not first.is_elsewhere:
        do = f"Feed {first.node} by Latest edges, and only sample what it sends; or drop never_waits=True."
    return Fault(
        f"node {verdict.node!r}, declared never_waits=True",
        "that it never waits for another host, nor for a body that may wait",
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
