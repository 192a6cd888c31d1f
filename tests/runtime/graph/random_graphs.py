"""Small random graphs, decoded from bytes so that Hypothesis shrinks them: zeros are the simplest choice."""

from __future__ import annotations

from functools import cache
from inspect import Parameter, Signature
from typing import Any

from isthmus.runtime.clock import milliseconds
from isthmus.runtime.graph.template import (
    AllOf,
    AnyOf,
    Every,
    Firing,
    Graph,
    Latest,
    Node,
    Policy,
    Queue,
    Quorum,
    Role,
    Route,
)

BYTES = 64
RANGES = ((1, 1), (1, 2), (2, 2), (1, 64), (3, 5))
PORTS = ("left", "right")


@cache
def body(sampled: tuple[str, ...]) -> type:
    """A body with both ports, those of `sampled` with a default, and one output."""

    def call(self: Any) -> None:
        raise NotImplementedError

    parameters = [
        Parameter(port, Parameter.KEYWORD_ONLY, default=None if port in sampled else Parameter.empty) for port in PORTS
    ]
    call.__signature__ = Signature([Parameter("self", Parameter.POSITIONAL_OR_KEYWORD), *parameters])  # type: ignore[attr-defined]
    return type("Body", (), {"__call__": call, "outputs": ("out",), "collects": PORTS})


class Choices:
    """A stream of small choices."""

    def __init__(self, data: bytes) -> None:
        self._data = iter(data)

    def below(self, limit: int) -> int:
        return next(self._data, 0) % limit


def random_graph(data: bytes) -> Graph:
    """A graph of 2 to 5 nodes in 1 to 3 roles; ports without an edge are sampled."""
    choose = Choices(data)
    graph = Graph("random")
    nodes_count = 2 + choose.below(4)
    roles_count = 1 + choose.below(min(3, nodes_count))
    roles = [graph.role(f"role-{i}", replicas=RANGES[choose.below(len(RANGES))]) for i in range(roles_count)]
    homes = [roles[i] if i < roles_count else roles[choose.below(roles_count)] for i in range(nodes_count)]
    is_quorum = [choose.below(4) == 3 for _ in homes]
    kinds: dict[tuple[int, int], int] = {}
    entering: dict[tuple[int, int], dict[int, tuple[Policy, Route | None]]] = {}
    for number in range(nodes_count - 1 + choose.below(4)):
        source, target, port = choose.below(nodes_count), choose.below(nodes_count), choose.below(2)
        if number + 1 < nodes_count:  # The first edges leave no node alone.
            source, target = source % (number + 1), number + 1
            if choose.below(3) == 2:
                source, target = target, source
        if is_quorum[target]:  # Both of its ports have an edge before any has two.
            port = next((free for free in range(2) if (target, free) not in entering), port)
        is_opening = is_quorum[target] and port == 1
        is_latest = kinds.setdefault((target, port), 0 if is_opening else choose.below(8)) >= 5
        policy: Policy = Latest() if is_latest else _queue(choose, is_opening, is_likely_cycle=source >= target)
        route = _route(choose, homes[source], homes[target])
        entering.setdefault((target, port), {}).setdefault(source, (policy, route))
    nodes: list[Node] = []
    for index, role in enumerate(homes):
        ports = [name for port, name in enumerate(PORTS) if (index, port) in entering]
        fires = _firing(choose, ports, is_quorum[index])
        always = fires.ports if isinstance(fires, AllOf) else PORTS if isinstance(fires, Quorum) else ()
        sampled = tuple(port for port in PORTS if port not in always)
        nodes.append(role.node(f"node-{index}", body(sampled), fires=fires, body_may_wait=choose.below(8) == 7))
    for (target, port), sources in entering.items():
        for source, (policy, route) in sources.items():
            graph.edge(nodes[source]["out"], nodes[target][PORTS[port]], policy, to=route)
    return graph


def _queue(choose: Choices, is_opening: bool, *, is_likely_cycle: bool) -> Queue:
    capacity, pick = 1 + choose.below(2), choose.below(8)
    initial = (pick + 3) // 4 if is_likely_cycle else pick // 6
    return Queue(capacity, initial=() if is_opening else ("item",) * min(capacity, initial))


def _route(choose: Choices, source: Role, target: Role) -> Route | None:
    pick = choose.below(6)
    if source is not target:
        return target.at("key") if pick == 5 else target.all
    return {3: target.next, 4: Route(target.name, "all"), 5: target.at("key")}.get(pick)


def _firing(choose: Choices, ports: list[str], is_quorum: bool) -> Firing:
    pick = choose.below(8)
    if is_quorum and len(ports) == 2:
        return Quorum(ports[0], key="key", opened_by=ports[1], count_min=1 + choose.below(2))
    if pick == 7:
        return Every(milliseconds(10))
    if pick >= 5 and ports:
        return AnyOf(*ports[: 1 + choose.below(2)])
    return AllOf(tuple(ports[: len(ports) - (choose.below(4) == 3)]))
