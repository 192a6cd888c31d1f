"""Compiles a verified graph into one Plan per kind of host: what one replica of a role will run.

A plan is the graph seen from one role: its nodes, every edge that touches it, and for each output port the *fields* of
an item that cores must read (mailbox keys, routing keys, what opens a round). Payloads themselves never reach a core.
No replica, machine or address comes in: plans are the same for every replica of a role; the scheduler learns from
events which replicas are live.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from isthmus.runtime.graph.body import schemas_of, trait
from isthmus.runtime.graph.template import (
    AllOf,
    AnyOf,
    Edge,
    Every,
    Firing,
    Latest,
    Node,
    Queue,
    Quorum,
    Template,
    groups_of,
)

OPENING_FIELDS = ("attempt", "members", "count_min", "grace", "required", "deadline", "chain")
"""Optional fields of an item that opens a round, beside the key of the round."""


@dataclass(frozen=True, slots=True)
class EdgePlan:
    """An edge as a host sees it."""

    index: int
    name: str
    kind: Literal["queue", "latest"]
    """The policy."""
    capacity: int
    initial: tuple[Any, ...]
    key: str | None
    route: Literal["local", "all", "next", "at", "group", "some"]
    route_key: str | None
    source_role: str
    source: int
    """The index of the node in the graph."""
    source_port: str
    target_role: str
    target: int
    """Likewise."""
    target_port: str
    schema: Any = None
    """What an item on it must be, as the body at its end declares (`schemas`)."""
    is_kept: bool = False
    """The newest item of each key is kept for consumers that join later."""
    groups: int = 0
    """The number of groups of an edge that leads to the sender's alone; 0 where it leads to those of any."""
    period: int = 0
    """That of a route to some (`template.Route`)."""
    classes: tuple[tuple[int, ...], ...] = ()
    """Likewise."""
    divisors: tuple[int, int] = (1, 1)
    """Those of groups (`template.Route.within`)."""

    def group_of(self, slot: int, *, is_sender: bool) -> int:
        """The group of replica `slot` of the sender's role, or of the receiver's; of an edge that has groups."""
        return slot // self.divisors[0 if is_sender else 1] % self.groups


@dataclass(frozen=True, slots=True)
class InputPlan:
    """An input port: its edges, and whether a firing gets the bare item or a dict (replica, key) -> item."""

    name: str
    is_required: bool
    is_bare: bool
    kind: Literal["queue", "latest", "none"]
    edges: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """An output port: its edges, the fields that every item must have and those that it may have.

    Fields are integers or texts; those of `fields_integer`, by which items are routed or rounds named, are integers.
    """

    name: str
    edges: tuple[int, ...]
    fields: tuple[str, ...]
    fields_integer: tuple[str, ...]
    fields_optional: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodePlan:
    """A node of this host; `index` is its index in the graph.

    `ports_idle` are those that its body may leave without a default, because only an idle firing finds nothing there;
    `has_decision`: its body gets the decision of the round that it fires for.
    """

    index: int
    name: str
    body: Any
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    fires: AllOf | AnyOf | Every | Quorum
    inputs: tuple[InputPlan, ...]
    outputs: tuple[OutputPlan, ...]
    body_may_wait: bool = False
    never_waits: bool = False
    ports_idle: tuple[str, ...] = ()
    has_decision: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of every replica of `role`; `edges` by their index in the graph; `replicas` the range of each role."""

    graph: str
    role: str
    nodes: tuple[NodePlan, ...]
    edges: Mapping[int, EdgePlan]
    replicas: Mapping[str, tuple[int, int]]

    def node_named(self, name: str) -> NodePlan:
        """The node `name`; KeyError if this role has none of that name."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)


def roles_met(plan: Plan) -> set[str]:
    """The roles whose replicas a host of this plan meets."""
    crossing = [edge for edge in plan.edges.values() if edge.route != "local"]
    targets = {edge.target_role for edge in crossing if edge.source_role == plan.role}
    return targets | {edge.source_role for edge in crossing if edge.target_role == plan.role}


def peers_most(plan: Plan, most: Mapping[str, int]) -> int:
    """The most replicas that a host of this plan meets in a run with at most so many of some roles, and otherwise with
    as many as the graph has."""
    met = {role: group_met(plan, 0, role) for role in roles_met(plan)}
    counts = {role: most.get(role, plan.replicas[role][1]) for role in met}
    return sum(counts[role] if of is None else -(-counts[role] // of.groups) for role, of in met.items())


def edges_between(plan: Plan, role: str) -> list[EdgePlan]:
    """The edges between hosts of this plan and replicas of a role."""
    crossing = [edge for edge in plan.edges.values() if edge.route != "local"]
    return [edge for edge in crossing if role in (edge.source_role, edge.target_role)]


WIDTH_MAX: Final = 32
"""Ranges of replicas of a role that a host names as those that it meets; where there are more, it meets all."""


class GroupMet(NamedTuple):
    """Of a role the group that a host meets alone: replicas i with i // `width` modulo `groups` = `own`."""

    groups: int
    width: int
    own: int


def group_met(plan: Plan, slot: int, role: str) -> GroupMet | None:
    """The group of a role that replica `slot` of this plan meets alone; None where it meets all replicas."""
    found = set[GroupMet | None]()
    for edge in edges_between(plan, role):
        is_sender = edge.source_role == plan.role
        width = edge.divisors[1 if is_sender else 0]
        is_grouped = edge.groups and width <= WIDTH_MAX and role != plan.role
        found.add(GroupMet(edge.groups, width, edge.group_of(slot, is_sender=is_sender)) if is_grouped else None)
    return found.pop() if len(found) == 1 else None


def roles_of_edges(graph: Template) -> dict[str, tuple[str, str]]:
    """The roles of the source and the target of each edge that may cross between hosts, by its name."""
    edges = [edge for plan in lower(graph).values() for edge in plan.edges.values()]
    return {edge.name: (edge.source_role, edge.target_role) for edge in edges if edge.route != "local"}


def lower(graph: Template) -> dict[str, Plan]:
    """One plan per role of a graph that `verify` has accepted."""
    indices = {id(node): index for index, node in enumerate(graph.nodes)}
    schemas = [schemas_of(node.body, node.arguments, node.keywords) for node in graph.nodes]
    edges = {index: _edge(graph, index, edge, indices, schemas) for index, edge in enumerate(graph.edges)}
    replicas = {role.name: (role.replicas_min, role.replicas_max) for role in graph.roles}
    plans = {}
    for role in graph.roles:
        nodes = tuple(_node(graph, node, indices, edges) for node in graph.nodes if node.role == role.name)
        touching = {i: edge for i, edge in edges.items() if role.name in (edge.source_role, edge.target_role)}
        plans[role.name] = Plan(graph.name, role.name, nodes, touching, replicas)
    return plans


def _edge(
    graph: Template, index: int, edge: Edge, indices: Mapping[int, int], schemas: Sequence[Mapping[str, Any]]
) -> EdgePlan:
    policy = edge.policy
    return EdgePlan(
        index=index,
        name=str(edge),
        kind="queue" if isinstance(policy, Queue) else "latest",
        capacity=policy.capacity if isinstance(policy, Queue) else 0,
        initial=policy.initial if isinstance(policy, Queue) else (),
        key=policy.key if isinstance(policy, Latest) else None,
        route=edge.route.kind if edge.route else "local",
        route_key=edge.route.key if edge.route else None,
        source_role=edge.source.node.role,
        source=indices[id(edge.source.node)],
        source_port=edge.source.name,
        target_role=edge.target.node.role,
        target=indices[id(edge.target.node)],
        target_port=edge.target.name,
        schema=schemas[indices[id(edge.target.node)]].get(edge.target.name),
        is_kept=isinstance(policy, Latest) and edge.route is not None and not _is_for_one_life(graph, edge),
        groups=groups_of(graph, edge),
        period=edge.route.period if edge.route else 0,
        classes=edge.route.classes if edge.route else (),
        divisors=edge.route.divisors if edge.route else (1, 1),
    )


def _is_for_one_life(graph: Template, edge: Edge) -> bool:
    """Whether what travels on an edge is of no use to a later life of its consumer: votes for rounds that are opened in
    that host itself, which end with it."""
    node = edge.target.node
    if not isinstance(node.fires, Quorum) or edge.target.name != node.fires.port:
        return False
    opening = [each for each in graph.edges if each.target.node is node and each.target.name == node.fires.opened_by]
    return bool(opening) and all(each.route is None for each in opening)


def _node(graph: Template, node: Node, indices: Mapping[int, int], edges: Mapping[int, EdgePlan]) -> NodePlan:
    index = indices[id(node)]
    inputs = []
    for port in node.inputs:
        entering = tuple(i for i, edge in edges.items() if edge.target == index and edge.target_port == port.name)
        kind = edges[entering[0]].kind if entering else "none"
        inputs.append(InputPlan(port.name, port.name in node.required, not port.collects, kind, entering))
    outputs = []
    for name in node.outputs:
        leaving = [edge for edge in edges.values() if edge.source == index and edge.source_port == name]
        noted = trait(node.body, "noted").get(name, ())
        outputs.append(OutputPlan(name, tuple(edge.index for edge in leaving), *_fields(graph, leaving, noted)))
    return NodePlan(
        index,
        node.name,
        node.body,
        node.arguments,
        node.keywords,
        node.fires,
        tuple(inputs),
        tuple(outputs),
        node.body_may_wait,
        node.never_waits,
        _ports_idle(node.fires),
        isinstance(node.fires, Quorum) and any(port.name == "decision" for port in inputs),
    )


def _ports_idle(fires: Firing) -> tuple[str, ...]:
    if isinstance(fires, Quorum):
        return (fires.opened_by, fires.port)
    if isinstance(fires, AllOf) or (isinstance(fires, AnyOf) and len(fires.ports) == 1):
        return fires.ports
    return ()


def _fields(
    graph: Template, leaving: list[EdgePlan], noted: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The fields of an item that cores read on any of the edges that leave one port: all, integers, optional.

    Those that its body has `noted` on the tape are optional, too.
    """
    fields: dict[str, None] = {}
    integers: dict[str, None] = {}
    optional: dict[str, None] = dict.fromkeys(noted)
    for edge in leaving:
        if edge.key is not None:
            fields[edge.key] = None
        if edge.route_key is not None:
            fields[edge.route_key] = integers[edge.route_key] = None
        fires = graph.nodes[edge.target].fires
        if isinstance(fires, Quorum) and edge.target_port in (fires.port, fires.opened_by):
            fields[fires.key] = integers[fires.key] = None
            if edge.target_port == fires.opened_by:
                optional.update(dict.fromkeys(OPENING_FIELDS))
    return tuple(fields), tuple(integers), tuple(name for name in optional if name not in fields)
