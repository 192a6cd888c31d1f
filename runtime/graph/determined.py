"""Which firings of a host can be computed again: those of bodies whose outputs follow from what they are given.

A body names such output ports as `determined`: what it emits there depends on its inputs and on its firings before, and
on nothing else, no clock, and no other thread. Of what it is given, the items that come by local Queues from such a
port are made again with the firing that made them; all others have to be kept.
"""

from __future__ import annotations

from typing import Any

from isthmus.runtime.graph.plans import EdgePlan, NodePlan, Plan


def ports(body: Any) -> tuple[str, ...]:
    """The output ports of a body whose items follow from what it is given."""
    return tuple(getattr(body, "determined", ()))


def made_here(plan: Plan, node: NodePlan) -> dict[str, tuple[str, str]]:
    """The input ports of a node whose items are made again, each with the node and the port that they come from."""
    found = {}
    for port in node.inputs:
        sources = [_source(plan, plan.edges[index]) for index in port.edges]
        if len(sources) == 1 and sources[0] is not None:
            found[port.name] = sources[0]
    return found


def _source(plan: Plan, edge: EdgePlan) -> tuple[str, str] | None:
    if edge.kind != "queue" or edge.route != "local" or edge.initial:
        return None
    source = next((node for node in plan.nodes if node.index == edge.source), None)
    return (source.name, edge.source_port) if source and edge.source_port in ports(source.body) else None
