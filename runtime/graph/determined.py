"""Which firings of a host can be recomputed: those of bodies whose outputs are a function of their inputs.

A body names such output ports as `determined`: an item there depends on the body's inputs and its earlier firings, and
on nothing else: no clock, no other thread. An input item that comes by a local Queue from such a port is recomputed
with the firing that made it; all others must be stored.
"""

from __future__ import annotations

from typing import Any

from isthmus.runtime.graph.plans import EdgePlan, NodePlan, Plan


def ports(body: Any) -> tuple[str, ...]:
    """The output ports of a body whose items are a function of its inputs."""
    return tuple(getattr(body, "determined", ()))


def made_here(plan: Plan, node: NodePlan) -> dict[str, tuple[str, str]]:
    """The input ports of a node whose items can be recomputed, each with the node and port that they come from."""
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
