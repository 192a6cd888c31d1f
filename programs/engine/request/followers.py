"""The processes that follow the leader of an island: which node of a learner they repeat, and their plan."""

from __future__ import annotations

from dataclasses import replace

from isthmus.ops.data.batches_node import Batches
from isthmus.runtime.graph.body import trait
from isthmus.runtime.graph.plans import NodePlan, Plan
from isthmus.runtime.graph.template import AllOf


def follower_plan(plan: Plan, role: str, learners: int, slots: int) -> Plan:
    """The plan, in this role, of a process that follows the leader of an island; `plan` is the leader's."""
    step = followed(plan)
    assert step is not None
    keywords = {**step.keywords, "learners": learners, "slots": slots}
    node = NodePlan(step.index, "follow", step.body.follower, step.arguments, keywords, AllOf(()), (), ())
    replicas = {**plan.replicas, role: plan.replicas[plan.role]}
    return replace(plan, role=role, nodes=(node,), edges={}, replicas=replicas)


def followed(plan: Plan | None) -> NodePlan | None:
    """The node of a learner whose calls followers may repeat; None if there is none."""
    for node in () if plan is None else plan.nodes:
        if trait(node.body, "follower") and node.keywords.get("fragments"):
            assert plan is not None
            if any(edge.source == node.index and edge.source_port == "parameters" for edge in plan.edges.values()):
                continue
            sources = [
                edge.source for edge in plan.edges.values() if (edge.target, edge.target_port) == (node.index, "batch")
            ]
            if [each.body for each in plan.nodes if each.index in sources] == [Batches]:
                return node
    return None
