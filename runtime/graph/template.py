"""Graphs: what a program's author writes, and the template that is left of it.

A `Graph` is under construction: roles with replica ranges, nodes that name a body and its arguments, edges with a
policy, and what else is declared of the whole. `freeze` gives the `Template`, which is what `verify`, plans, placement
and views see, and which nobody changes: to add to one, make a graph of it and freeze that.
Nothing is instantiated here: no array, host or address comes in. A mistake that is plain on one line (a port that
does not exist, arguments that a body does not take, an edge that could bring several items to a port that takes one)
raises `GraphError` on that line; everything that needs the whole graph is found by `verify`. What a body declares of
itself is in `body`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, Self, TypeAlias, final

from isthmus.runtime.clock import Duration
from isthmus.runtime.errors import GraphError, nearest
from isthmus.runtime.graph.body import Input, check_arguments, ports_of


@dataclass(frozen=True, slots=True)
class Reference:
    """An object that is imported only where it runs: 'package.module:name' or 'file.py:name'.

    A host resolves every Reference among a body's arguments when it opens the body.
    """

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Queue:
    """Lossless and ordered within one pair of incarnations; without credit, the producer's firing waits.

    `capacity` counts the items that may be under way or waiting, per pair of replicas; `initial` are the values that
    every new pair starts with (delays, as in synchronous dataflow).
    """

    capacity: int
    initial: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Latest:
    """A mailbox with the newest item per (producer replica, key); `key` names a field of the item, or None."""

    key: str | None = None


Policy: TypeAlias = Queue | Latest


@dataclass(frozen=True, slots=True)
class Route:
    """The replicas that get the items of an edge: `all` live replicas of the target role, the `next` live slot
    (cyclic), `at` the replica whose number is the item's field `key` modulo the number of replicas, those in the
    `group` of the sender (`Role.group`), or `some`: those whose number modulo `period` is in entry `key` of `classes`.

    With `groups`, of these only the ones in the sender's group (`within`).
    """

    role: str
    kind: Literal["all", "next", "at", "group", "some"]
    key: str | None = None
    period: int = 0
    classes: tuple[tuple[int, ...], ...] = ()
    groups: int = 0
    divisors: tuple[int, int] = (1, 1)
    """What the numbers of the sender and of the receiver are divided by before they are taken modulo `groups`."""

    def within(self, groups: int, *, sender: int = 1, receiver: int = 1) -> Route:
        """This route, to those in the sender's group alone, of so many: replica i of the sender's role is in group
        i // `sender` modulo `groups`, of the receiver's in i // `receiver` modulo that. With 0 to those of any.

        Hosts of different groups are no peers by this route: they have no connection for it.
        """
        return replace(self, groups=groups, divisors=(sender, receiver))


def group_count(ranges: Iterable[tuple[Any, Any]]) -> int:
    """The number of groups of two roles with these ranges of replicas (`Role.group`); 0 where neither is fixed."""
    return min((low for low, high in ranges if low == high), default=0)


def groups_of(graph: Template, edge: Edge) -> int:
    """The number of groups of an edge that leads to the sender's alone; 0 where it leads to those of any."""
    if edge.route is None or edge.route.kind != "group":
        return 0 if edge.route is None else edge.route.groups
    return group_count(replicas_of(graph, edge.source.node.role, edge.target.node.role))


def replicas_of(graph: Template, *roles: str) -> list[tuple[Any, Any]]:
    """The ranges of replicas of these roles."""
    return [(role.replicas_min, role.replicas_max) for role in map(graph.role_of, roles)]


@dataclass(frozen=True, slots=True)
class AllOf:
    """Fires when every named port has an item of each of its live Queue producers, or a mailbox with something new."""

    ports: tuple[str, ...]


@dataclass(frozen=True, slots=True, init=False)
class AnyOf:
    """Fires when any of the named ports has something new."""

    ports: tuple[str, ...]

    def __init__(self, *ports: str) -> None:
        object.__setattr__(self, "ports", ports)


@dataclass(frozen=True, slots=True)
class Every:
    """Fires once a `period`, if the firing before has ended; all its ports are sampled."""

    period: Duration


@dataclass(frozen=True, slots=True)
class Quorum:
    """Fires when a round that an item on `opened_by` opened has enough votes on `port`; one state per open `key`.

    `key` is the field that names the round, in the opening item and in the votes. The opening item may carry `members`
    ([slot, incarnation] pairs; every live replica of the voters' role if absent), `attempt`, `count_min`, `grace`
    (nanoseconds to wait for the others once there are enough votes, None for no limit), `required` (slots whose vote is
    awaited until `deadline` nanoseconds after the opening). `count_min` and `grace` here are the defaults.
    """

    port: str
    key: str
    opened_by: str
    count_min: int = 1
    grace: Duration | None = None


Firing: TypeAlias = AllOf | AnyOf | Every | Quorum


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A vertex of the graph. `fires` names the required ports; all others are sampled.

    `never_waits`: its author claims that it waits for no other host, which `verify` proves or refuses;
    `body_may_wait`: its body may wait for anything inside a firing, so that nothing is claimed of who waits for it.
    """

    role: str
    name: str
    body: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    fires: Firing
    never_waits: bool = False
    body_may_wait: bool = False

    def __getitem__(self, port: str) -> Port:
        names = {item.name for item in self.inputs} | set(self.outputs)
        if port not in names:
            raise GraphError(
                f"port {port!r} of node {self.name!r} (body {self.body_name})",
                f"one of its ports: {self._ports()}",
                repr(port),
                nearest(port, names),
            )
        return Port(self, port)

    def _ports(self) -> str:
        inputs = ", ".join(item.name for item in self.inputs) or "none"
        return f"inputs {inputs}; outputs {', '.join(self.outputs) or 'none'}"

    @property
    def body_name(self) -> str:
        """'module:name' of the body."""
        return f"{self.body.__module__}:{self.body.__qualname__}"

    @property
    def required(self) -> tuple[str, ...]:
        """The ports that the firing rule names."""
        if isinstance(self.fires, AllOf | AnyOf):
            return self.fires.ports
        if isinstance(self.fires, Quorum):
            return (self.fires.opened_by, self.fires.port)
        return ()

    def input(self, name: str) -> Input | None:
        """The input port `name`, or None."""
        return next((item for item in self.inputs if item.name == name), None)


@dataclass(frozen=True, slots=True)
class Port:
    """A port of a node, as returned by `node["name"]`."""

    node: Node
    name: str

    def __str__(self) -> str:
        return f"{self.node.name}.{self.name}"


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """A channel from an output port to an input port. `route` is None inside one replica of a role.

    Edges are equal only to themselves: initial values may be arrays, whose `==` is elementwise.
    """

    source: Port
    target: Port
    policy: Policy
    route: Route | None

    @property
    def is_local(self) -> bool:
        """Whether both ends are in the same replica, always."""
        return self.route is None

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}"


@dataclass(frozen=True, slots=True, eq=False)
class Role:
    """A co-located group of nodes with a range of replicas."""

    graph: Graph
    name: str
    replicas_min: int
    replicas_max: int

    @property
    def all(self) -> Route:
        """Every live replica."""
        return Route(self.name, "all")

    @property
    def next(self) -> Route:
        """The next live slot, cyclic."""
        return Route(self.name, "next")

    def at(self, key: str) -> Route:
        """The replica whose number is the item's field `key` modulo the number of replicas."""
        return Route(self.name, "at", key)

    def some(self, key: str, period: int, classes: Sequence[Sequence[int]]) -> Route:
        """Every live replica whose number modulo `period` is in `classes[n]`, where n is the item's field `key`."""
        return Route(self.name, "some", key, period, tuple(map(tuple, classes)))

    @property
    def group(self) -> Route:
        """Every live replica in the sender's group.

        Of two roles, one of which has a fixed number N of replicas, replica i of either is in group i modulo N; where
        both numbers are fixed, N is the smaller one.
        """
        return Route(self.name, "group")

    def node(
        self,
        name: str,
        body: Callable[..., Any],
        *,
        fires: Firing | None = None,
        never_waits: bool = False,
        body_may_wait: bool = False,
    ) -> Node:
        """Add a node to this role, whose body is a function, a class, or a `partial` of a class with its arguments.

        A host makes the instance, when it opens the body. `fires` says when the body is called, by default whenever
        each of its ports without default has an item. `never_waits` claims that the node waits for no other host: it is
        proved, or the graph refused. `body_may_wait` allows the body to wait for anything inside a firing.

        Raises GraphError if the name is taken, if the body has `*args` or no ports, or does not take the arguments.
        """
        where = f"node {name!r} of role {self.name!r}"
        if any(node.name == name for node in self.graph.nodes):
            raise GraphError(where, "a name that no other node has", repr(name), "Choose another name.")
        arguments: tuple[Any, ...] = ()
        keywords: dict[str, Any] = {}
        called: Callable[..., Any] = body
        if isinstance(body, partial):
            called, arguments, keywords = body.func, body.args, body.keywords
        inputs, outputs = ports_of(where, called)
        check_arguments(where, called, arguments, keywords)
        if isinstance(fires, Quorum):
            _check_votes(where, fires, inputs)
        required = AllOf(tuple(item.name for item in inputs if not item.has_default))
        node = Node(
            self.name,
            name,
            called,
            arguments,
            MappingProxyType(dict(keywords)),
            inputs,
            outputs,
            fires or required,
            never_waits,
            body_may_wait,
        )
        self.graph.nodes.append(node)
        return node


@final
@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """A graph that nobody changes any more. `declared`: what `Graph.declared` had."""

    name: str
    roles: tuple[Role, ...]
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    declared: Mapping[str, Any]

    def role_of(self, name: str) -> Role:
        """The role `name`; KeyError if there is none."""
        return _role_of(self.roles, name)

    def edges_into(self, node: Node, port: str) -> list[Edge]:
        """The edges that end at an input port, in the order in which they were added."""
        return [edge for edge in self.edges if edge.target.node is node and edge.target.name == port]


class Graph:
    """A graph under construction: `role`, then `role.node`, then `edge`.

    `declared` is what is said of the whole graph, by name, such as the ports by which it is known. Whoever declares
    something reads it again; nothing of the runtime knows what it is. A value there is replaced, never changed.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.roles: list[Role] = []
        self.nodes: list[Node] = []
        self.edges: list[Edge] = []
        self.declared: dict[str, Any] = {}

    @classmethod
    def of(cls, template: Template) -> Self:
        """A graph to which more can be added; the template stays as it is."""
        graph = cls(template.name)
        graph.roles = [Role(graph, role.name, role.replicas_min, role.replicas_max) for role in template.roles]
        graph.nodes, graph.edges = list(template.nodes), list(template.edges)
        graph.declared = dict(template.declared)
        return graph

    def freeze(self) -> Template:
        """The graph as it is now; what is added later is not in it."""
        return Template(
            self.name,
            tuple(self.roles),
            tuple(self.nodes),
            tuple(self.edges),
            MappingProxyType(dict(self.declared)),
        )

    def role(self, name: str, *, replicas: tuple[int, int]) -> Role:
        """Add a role with between replicas[0] and replicas[1] replicas; GraphError if the name is taken."""
        where = f"role {name!r}"
        if any(role.name == name for role in self.roles):
            raise GraphError(where, "a name that no other role has", repr(name), "Choose another name.")
        if not isinstance(replicas, tuple) or len(replicas) != 2:
            raise GraphError(where, "a pair (smallest, largest)", f"replicas={replicas!r}", "Write replicas=(1, 64).")
        role = Role(self, name, *replicas)
        self.roles.append(role)
        return role

    def edge(self, source: Port, target: Port, policy: Policy, *, to: Route | None = None) -> Edge:
        """Connect an output port to an input port.

        Without `to`, items stay within the replica. `to=role.all` sends them to every live replica of the target's
        role, `role.next` to the next live slot, `role.at("field")` to the replica with that number, `role.group` to
        those in the group of the sender, `role.some("field", ...)` to those that the field stands for. Raises
        GraphError for a port of the wrong direction or another graph, and where `to` is missing between two roles.
        """
        for port in (source, target):
            if not isinstance(port, Port):
                raise GraphError(
                    f"an edge of graph {self.name!r}",
                    "ports at both ends",
                    f"a {type(port).__name__}",
                    "Name them, as in graph.edge(data['batch'], step['batch'], Queue(capacity=2)).",
                )
        where = f"edge {source.node.name}.{source.name} -> {target.node.name}.{target.name}"
        for port in (source, target):
            if port.node not in self.nodes:
                raise GraphError(
                    where,
                    f"nodes of graph {self.name!r}",
                    f"node {port.node.name!r} of another graph",
                    "Connect nodes of one graph.",
                )
        if source.name not in source.node.outputs:
            raise GraphError(
                where,
                f"an output port of {source.node.name!r}",
                f"the input port {source.name!r}",
                nearest(source.name, source.node.outputs),
            )
        inputs = [item.name for item in target.node.inputs]
        if target.name not in inputs:
            raise GraphError(
                where,
                f"an input port of {target.node.name!r}",
                f"the output port {target.name!r}",
                nearest(target.name, inputs),
            )
        if not isinstance(policy, Queue | Latest):
            raise GraphError(
                where, "a policy, Queue(capacity) or Latest()", repr(policy), "Choose one: it has no default."
            )
        if to is None and source.node.role != target.node.role:
            role = target.node.role
            raise GraphError(
                where,
                f"`to`, because role {source.node.role!r} and role {role!r} are on different hosts",
                "none",
                f"Write to={_variable(role)}.all for every live replica, or to={_variable(role)}.at('field') for one.",
            )
        self._check_one(where, source, target, policy, to)
        edge = Edge(source, target, policy, to)
        self.edges.append(edge)
        return edge

    def _check_one(self, where: str, source: Port, target: Port, policy: Policy, to: Route | None) -> None:
        """GraphError for an edge that could bring several items at once to a port that takes one."""
        port = target.node.input(target.name)
        if port is None or port.collects:
            return
        replicas: Any = self.role_of(source.node.role).replicas_max
        several = ""
        if isinstance(policy, Latest) and policy.key is not None:
            several = f"one of each {policy.key!r}"
        elif to is not None and to.kind != "next" and replicas != 1:
            several = f"one of every {source.node.role}"
        elif others := [edge.source for edge in self.edges if edge.target == target]:
            several = f"one of {others[0].node.name}.{others[0].name}, too"
        if several:
            raise GraphError(
                where,
                f"one item at a time, which is what {target.node.body.__qualname__} takes at {target.name!r}",
                several,
                f"Have the body take {{(replica, key): item}} there, and say so: collects = ({target.name!r},).",
            )

    def declared_port(self, name: str, port: Port, *, is_input: bool = False) -> Port:
        """A port that is declared as `name`; GraphError for one of the wrong direction or another graph."""
        where = f"{name}= of graph {self.name!r}"
        kind = "an input port" if is_input else "an output port"
        if not isinstance(port, Port):
            raise GraphError(where, kind, f"a {type(port).__name__}", "Name it, as in reports=step['progress'].")
        if port.node not in self.nodes:
            do = "Name a port of this graph."
            raise GraphError(where, f"{kind} of its nodes", f"one of node {port.node.name!r} of another graph", do)
        names = [each.name for each in port.node.inputs] if is_input else list(port.node.outputs)
        if port.name not in names:
            raise GraphError(where, f"{kind} of {port.node.name!r}", repr(port.name), nearest(port.name, names))
        return port

    def role_of(self, name: str) -> Role:
        """The role `name`; KeyError if there is none."""
        return _role_of(self.roles, name)


def _role_of(roles: Iterable[Role], name: str) -> Role:
    for role in roles:
        if role.name == name:
            return role
    raise KeyError(name)


def _variable(role: str) -> str:
    """A name that the role may have in a program."""
    return role.replace("-", "_")


def _check_votes(where: str, fires: Quorum, inputs: tuple[Input, ...]) -> None:
    """GraphError for votes at a port that takes one item; `verify` reports a port that there is not."""
    port = next((each for each in inputs if each.name == fires.port), None)
    if port is not None and not port.collects:
        raise GraphError(
            f"{where}, which fires by Quorum",
            f"a body that takes {{(replica, key): vote}} at {fires.port!r}",
            "one that takes one item there",
            f"Say so in its class: collects = ({fires.port!r},).",
        )
