"""The instances of a graph: every node in every replica, and what each waits for before it fires.

It lists the waits, and computes which instances a set of stopped ones stops; `proof` draws the conclusions.

Theory of operation. The graph is expanded into a *net*: every node once in each replica of its role (an *instance*),
for given numbers of replicas. An instance may fire when all its *conditions* hold. A condition is a tuple of waits, of
which one has to end:

- credit, from the consumer of each pair of each Queue output: a condition of its own;
- AllOf: an item of each pair of a Queue port, each a condition of its own; of any pair of a Latest port, one condition;
- AnyOf: an item of any pair of any named port, one condition;
- Quorum: an item of any pair of `opened_by`, one condition; a vote of each pair of `port`, each a condition of its own,
  because the item that opens a round may ask for every vote;
- Every: none but credit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from isthmus.runtime.graph.template import AllOf, AnyOf, Edge, Graph, Latest, Node, Queue, Quorum

REPLICAS_MAX: Final = 3
"""Replicas of a role in a net. Replicas of one role are alike: one, its neighbour, and one that is neither cover every
kind of pair."""


class Instance(NamedTuple):
    """A node in one replica of its role."""

    node: str
    slot: int


class Wait(NamedTuple):
    """`waiter` waits for an action of `on`: taking an item of `edge` (which returns credit), or sending one on it.

    `is_certain`: what `on` sends reaches `waiter`. A producer that routes by key may never have an item for it.
    """

    waiter: Instance
    on: Instance
    edge: Edge
    is_for_credit: bool
    is_certain: bool = True


Condition: TypeAlias = tuple[Wait, ...]


class Net:
    """A graph at one number of replicas per role; `conditions` of every instance, in the order of nodes and edges."""

    def __init__(self, graph: Graph, counts: Mapping[str, int]) -> None:
        self.graph = graph
        self.counts = counts
        self.nodes = {node.name: node for node in graph.nodes}
        self.conditions: dict[Instance, tuple[Condition, ...]] = {}
        leaving: dict[Instance, list[Wait]] = {}
        entering: dict[tuple[Instance, str], list[Wait]] = {}
        for edge in graph.edges:
            for source, target in self._pairs(edge):
                if isinstance(edge.policy, Queue):
                    leaving.setdefault(source, []).append(Wait(source, target, edge, True))
                is_certain = edge.route is None or edge.route.kind != "at" or counts[edge.target.node.role] == 1
                entering.setdefault((target, edge.target.name), []).append(
                    Wait(target, source, edge, False, is_certain)
                )
        for node in graph.nodes:
            for slot in range(counts[node.role]):
                instance = Instance(node.name, slot)
                ports = {port: entering.get((instance, port), []) for port in dict.fromkeys(node.required)}
                credit = [(wait,) for wait in leaving.get(instance, [])]
                self.conditions[instance] = (*credit, *(item for item in _items(node, ports) if item))

    def _pairs(self, edge: Edge) -> Iterator[tuple[Instance, Instance]]:
        source, target = edge.source.node, edge.target.node
        for slot in range(self.counts[source.role]):
            if edge.is_local:
                targets = range(slot, slot + 1)
            elif edge.route is not None and edge.route.kind == "next" and source.role == target.role:
                following = (slot + 1) % self.counts[target.role]
                targets = range(following, following + 1)
            else:
                targets = range(self.counts[target.role])
            for other in targets:
                yield Instance(source.name, slot), Instance(target.name, other)

    def stopped(
        self, seeds: set[Instance], instead: Mapping[Instance, tuple[Condition, ...]] = MappingProxyType({})
    ) -> set[Instance]:
        """The least superset of `seeds` that holds every instance it stops; `instead` replaces conditions."""
        result = set(seeds)
        grows = True
        while grows:
            grows = False
            for instance, conditions in self.conditions.items():
                if instance not in result:
                    conditions = instead.get(instance, conditions)
                    if any(is_stopped(condition, result) for condition in conditions):
                        result.add(instance)
                        grows = True
        return result

    def chains(
        self,
        start: Instance,
        stopped: set[Instance],
        instead: Mapping[Instance, tuple[Condition, ...]] = MappingProxyType({}),
    ) -> dict[Instance, tuple[Wait, ...]]:
        """Instances that `start` waits for once `stopped` have stopped, with a shortest chain each, nearest first."""
        found: dict[Instance, tuple[Wait, ...]] = {start: ()}
        ahead = deque([start])
        while ahead:
            instance = ahead.popleft()
            for condition in instead.get(instance, self.conditions[instance]):
                if is_stopped(condition, stopped):
                    for wait in condition:
                        if wait.on in stopped and wait.on not in found:
                            found[wait.on] = (*found[instance], wait)
                            ahead.append(wait.on)
        return found

    def place(self, instance: Instance, viewer: Instance) -> str:
        """The name of `instance` as seen from the host of `viewer`: with its role where it is on another host."""
        role = self.nodes[instance.node].role
        if role != self.nodes[viewer.node].role:
            return f"{instance.node} ({role})"
        return instance.node if instance.slot == viewer.slot else f"{instance.node} (another {role})"

    def tell(self, wait: Wait, viewer: Instance) -> str:
        """`wait` as a sentence without its full stop."""
        waiter, on = self.place(wait.waiter, viewer), self.place(wait.on, viewer)
        condition = next(condition for condition in self.conditions[wait.waiter] if wait in condition)
        what = "credit" if wait.is_for_credit else "an item"
        if any(other.edge is not wait.edge for other in condition):
            what = "any item, such as one"
        return f"{waiter} waits for {what} from {on} on {describe(wait.edge)}"


def _items(node: Node, ports: Mapping[str, list[Wait]]) -> list[Condition]:
    if isinstance(node.fires, AnyOf):
        return [tuple(wait for waits in ports.values() for wait in waits)]
    if isinstance(node.fires, Quorum):
        votes = [(wait,) for wait in ports[node.fires.port]] if node.fires.port != node.fires.opened_by else []
        return [tuple(ports[node.fires.opened_by]), *votes]
    conditions: list[Condition] = []
    if isinstance(node.fires, AllOf):
        for waits in ports.values():
            conditions += [(wait,) for wait in waits if isinstance(wait.edge.policy, Queue)]
            conditions.append(tuple(wait for wait in waits if isinstance(wait.edge.policy, Latest)))
    return conditions


def is_stopped(condition: Condition, stopped: set[Instance]) -> bool:
    """Whether no certain wait of a condition can still end, and at least one of its waits is for something stopped."""
    return all(wait.on in stopped for wait in condition if wait.is_certain) and any(
        wait.on in stopped for wait in condition
    )


def fewest(graph: Graph) -> dict[str, int]:
    """The smallest number of replicas of each role, at least 1 and at most REPLICAS_MAX."""
    return {role.name: _within(role.replicas_min) for role in graph.roles}


def most(graph: Graph) -> dict[str, int]:
    """The largest number of replicas of each role, at most REPLICAS_MAX."""
    return {role.name: _within(role.replicas_max) for role in graph.roles}


def _within(count: int) -> int:
    return min(max(1, count), REPLICAS_MAX) if isinstance(count, int) else 1


def describe(edge: Edge) -> str:
    """An edge as text, with its policy and where its items go."""
    route = "" if edge.route is None else f", {describe_route(edge)}"
    return f"{edge} [{describe_policy(edge)}{route}]"


def describe_policy(edge: Edge) -> str:
    """'Queue(2)', 'Queue(2, 1 initial)', 'Latest' or 'Latest(fragment)'."""
    policy = edge.policy
    if isinstance(policy, Latest):
        return "Latest" if policy.key is None else f"Latest({policy.key})"
    initial = f", {len(policy.initial)} initial" if policy.initial and isinstance(policy.initial, tuple) else ""
    return f"Queue({policy.capacity}{initial})"


def describe_route(edge: Edge) -> str:
    """Destination of an edge's items: 'same learner', 'every learner', 'next learner' or 'learner at fragment'."""
    role = edge.target.node.role
    if edge.route is None:
        return f"same {role}"
    return {"all": f"every {role}", "next": f"next {role}"}.get(edge.route.kind, f"{role} at {edge.route.key}")
