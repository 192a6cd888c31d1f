"""How coded updates reach the hosts of a role: the nodes and edges beside those of a program whose updates are whole.

syncer:      outer-step --state--> key-frames
between:     outer-step ==update==> receive    key-frames ==its slot==> receive    receive ==need==> key-frames
each role:   receive --update--> whoever takes updates, and --pull--> inner-step
"""

from __future__ import annotations

from isthmus.ops.learner.receive import Receive
from isthmus.ops.syncer.outer_step import KeyFrames
from isthmus.runtime.graph.template import AnyOf, Graph, Latest, Node, Port, Role
from isthmus.runtime.ids import LEARNER


def updates_in(graph: Graph, role: Role, outer: Node, *, in_turns: bool = False) -> Port:
    """The port that gives the updates of an outer step, decoded, in a role: its own, or that of the role's `receive`.

    `in_turns`: turns, of programs in lock-step, pass through it to learners.
    """
    if outer.keywords.get("update", "float32") == "float32":
        return outer["update"]
    found = [node for node in graph.nodes if node.body is Receive and node.role == role.name]
    return (found[0] if found else _add_receive(graph, role, outer, in_turns))["update"]


def to_learner(graph: Graph, learner: Role, outer: Node, pull: Port, taker: Node, *, in_turns: bool = False) -> None:
    """The edges of updates and pulls (`in_turns`: turns) to the node of a learner that takes both. Pulls go behind the
    updates that were sent before them: an answer on a version that is about to be replaced would be refused."""
    updates = updates_in(graph, learner, outer, in_turns=in_turns)
    graph.edge(updates, taker["update"], Latest("fragment"))
    if updates.node is not outer:
        graph.edge(pull, updates.node["pull"], Latest("fragment"))
        pull = updates.node["pull"]
    graph.edge(pull, taker["pull"], Latest("fragment"))


def _add_receive(graph: Graph, role: Role, outer: Node, in_turns: bool) -> Node:
    frames = next((node for node in graph.nodes if node.body is KeyFrames), None)
    if frames is None:
        frames = graph.role_of(outer.role).node("key-frames", KeyFrames, fires=AnyOf("state", "need"))
        graph.edge(outer["state"], frames["state"], Latest("fragment"))
    fires = AnyOf("update", "pull") if role.name == LEARNER else AnyOf("update")
    receive = role.node(f"receive-{role.name}", Receive, *outer.arguments, in_turns=in_turns, fires=fires)
    graph.edge(outer["update"], receive["update"], Latest("place"))
    to = role.at("slot") if role.name == LEARNER else None
    graph.edge(frames[role.name], receive["update"], Latest("frame"), to=to)
    graph.edge(receive["need"], frames["need"], Latest("fragment"), to=graph.role_of(outer.role).at("fragment"))
    return receive
