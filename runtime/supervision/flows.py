"""What the hosts of a run have moved and awaited, by edge and by node: as a host reports it, and summed over all lives.

Nodes and edges are named by their indices in the graph. Items and bytes of an edge are counted where they leave, once
they have arrived; bytes are those between hosts, so an edge within a host has none. A wait is the time between two
firings of a node, where longer than a millisecond; it counts for the edge whose item, or room, ended it. Nodes that
fire by a timer await nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from isthmus.runtime.ids import Count, Lasting, Replica

FLOWS_MAX: Final = 1 << 14
"""Edges, and nodes, of a graph: a hundred times those of the largest program that is shipped."""
_Index: TypeAlias = Annotated[int, Meta(ge=0, lt=FLOWS_MAX)]


class EdgeFlow(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """One edge, as far as one host has to do with it."""

    edge: _Index
    items: Count
    size_bytes: Count
    waited: Lasting


class NodeFlow(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """One node of one host."""

    node: _Index
    firings: Count
    waited: Lasting


class Flows(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """The edges and nodes of one life so far, sorted by index."""

    edges: Annotated[tuple[EdgeFlow, ...], Meta(max_length=FLOWS_MAX)] = ()
    nodes: Annotated[tuple[NodeFlow, ...], Meta(max_length=FLOWS_MAX)] = ()


class EdgeTotal(NamedTuple):
    """One edge over all hosts."""

    items: int = 0
    size_bytes: int = 0
    waited: int = 0


class NodeTotal(NamedTuple):
    """One node of one replica, over all its lives."""

    firings: int = 0
    waited: int = 0


_EDGE: Final = "edge"


@dataclass(slots=True)
class RunFlows:
    """The sums of a run: `edges` by index, `nodes` by (replica, index), `of_groups` the edges of those that lead
    groups, by (replica, index), as these count them."""

    edges: dict[int, EdgeTotal] = field(default_factory=dict)
    nodes: dict[tuple[str, int], NodeTotal] = field(default_factory=dict)
    of_groups: dict[tuple[str, int], EdgeTotal] = field(default_factory=dict)

    @classmethod
    def of(cls, lives: Iterable[tuple[Replica, Flows]], group_role: str = "") -> RunFlows:
        """The sums over these lives; `group_role` is the role of those that lead groups, if there are any."""
        flows = cls()
        for replica, each in lives:
            flows.add(replica, each, leads_group=replica.role == group_role)
        return flows

    @classmethod
    def of_used(cls, used: Mapping[str, float]) -> RunFlows:
        """The sums in what ended lives have used: the counterpart of `as_used`."""
        flows = cls()
        for key, value in used.items():
            name, *place = key.split(":")
            if name == _EDGE:
                index, part = int(place[0]), place[1]
                total = flows.edges.get(index, EdgeTotal())
                flows.edges[index] = total._replace(**{part: getattr(total, part) + round(value)})
            elif len(place) == 3:
                at, part = (name, int(place[0])), place[2]
                total = flows.of_groups.get(at, EdgeTotal())
                flows.of_groups[at] = total._replace(**{part: getattr(total, part) + round(value)})
            elif len(place) == 2:
                of, part = (name, int(place[0])), place[1]
                node = flows.nodes.get(of, NodeTotal())
                flows.nodes[of] = node._replace(**{part: getattr(node, part) + round(value)})
        return flows

    def add(self, replica: Replica, flows: Flows, *, leads_group: bool) -> None:
        """Add those of a life of a replica."""
        for edge in flows.edges:
            self.edges[edge.edge] = _sum(self.edges.get(edge.edge), edge)
            if leads_group:
                at = str(replica), edge.edge
                self.of_groups[at] = _sum(self.of_groups.get(at), edge)
        for node in flows.nodes:
            of = str(replica), node.node
            before = self.nodes.get(of, NodeTotal())
            self.nodes[of] = NodeTotal(before.firings + node.firings, before.waited + node.waited)


def renumbered(used: Mapping[str, float], edges: Mapping[int, int], nodes: Mapping[int, int]) -> dict[str, float]:
    """What ended lives have used, by the indices of another graph: those of now by those of then; what is of an edge or
    a node that is no more is left out."""
    found: dict[str, float] = {}
    for key, value in used.items():
        name, *place = key.split(":")
        if name == _EDGE:
            index = edges.get(int(place[0]))
            key = "" if index is None else f"{_EDGE}:{index}:{place[1]}"
        elif place:
            index = (edges if len(place) == 3 else nodes).get(int(place[0]))
            key = "" if index is None else ":".join([name, str(index), *place[1:]])
        if key:
            found[key] = found.get(key, 0.0) + value
    return found


def _sum(total: EdgeTotal | None, edge: EdgeFlow) -> EdgeTotal:
    items, size_bytes, waited = total or EdgeTotal()
    return EdgeTotal(items + edge.items, size_bytes + edge.size_bytes, waited + edge.waited)


def as_used(replica: Replica, flows: Flows, group_role: str = "") -> Iterator[tuple[str, float]]:
    """A life's flows as names and numbers, which are summed by name over lives and kept with what else they used."""
    totals = RunFlows.of([(replica, flows)], group_role)
    for index, edge in totals.edges.items():
        yield from ((f"{_EDGE}:{index}:{part}", float(value)) for part, value in edge._asdict().items())
    for (name, index), edge in totals.of_groups.items():
        yield from ((f"{name}:{index}:{_EDGE}:{part}", float(value)) for part, value in edge._asdict().items())
    for (name, index), node in totals.nodes.items():
        yield from ((f"{name}:{index}:{part}", float(value)) for part, value in node._asdict().items())
