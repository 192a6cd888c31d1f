"""The ports by which a run and the graph of a program know of each other, and the faults of such ports.

Decides nothing but that: `roles` connects these ports, `node` acts on them. A run finds them by name in any
graph, so that a body of the user's own takes part in it like those that are shipped:

    progress    out, of one node: what its replica has trained, by which the token budget is counted
    report      out, beside it: the same for observers, where pacing needs it more often, or less
    control     in: the recorder's word on the budget, and that the run is to end
    stop        out: the program requests the end of the run
    parameters  out, beside `progress`: a whole tree, for an evaluator, where no other node evaluates
    merged, evaluation, final, changed    out: for the recorder, which writes them down
    held        out: the merges that a body has heard of, for the recorder, which reports whether the model is lost
    moments     out, with `loan` in: local leaves that a learner lends to another through the recorder
    state       out: a state that all learners have; the recorder keeps the newest, and sends it to their port `kept`
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from isthmus.ops.island.evaluate import EvaluateMean
from isthmus.ops.recovery.hold import HOLDERS
from isthmus.ops.syncer.outer_step import OuterStep
from isthmus.runtime.errors import Fault
from isthmus.runtime.graph.template import Graph, Node

RECORDER: Final = "recorder"
EVALUATOR: Final = "evaluator"
RECORD: Final = "record"
EVALUATE: Final = "evaluate"
KEEP: Final = "keep"
LEND: Final = "lend"


def emitting(nodes: Sequence[Node], port: str) -> list[Node]:
    """The nodes that have this output port, the recorder's own apart."""
    return [node for node in nodes if port in node.outputs and node.name != RECORD]


def reporting(graph: Graph) -> Node | None:
    """The node whose reports count the tokens; None in a graph that cannot train."""
    return next(iter(emitting(graph.nodes, "progress")), None)


def learning(nodes: Sequence[Node]) -> list[Node]:
    """The nodes whose trees an evaluator can average, because they report how much each has trained."""
    return [node for node in emitting(nodes, "parameters") if "progress" in node.outputs]


def keeping(nodes: Sequence[Node]) -> list[Node]:
    """The nodes that send states which all learners have."""
    return [node for node in emitting(nodes, "state") if node.body is not OuterStep]


def lending(nodes: Sequence[Node]) -> list[Node]:
    """The nodes whose replicas lend each other their moments."""
    return [node for node in emitting(nodes, "moments") if node.input("loan") is not None]


def needs_evaluator(nodes: Sequence[Node]) -> bool:
    """Whether nothing evaluates that could be evaluated."""
    return bool(learning(nodes)) and not emitting(nodes, "evaluation")


def told_by_recorder(graph: Graph, node: Node) -> bool:
    """Whether a node learns of the end on its `control`: a pulled node learns of it from the node that pulls."""
    return node.input("control") is not None and not (node.input("pull") and graph.edges_into(node, "pull"))


def faults(graph: Graph) -> Iterator[Fault]:
    """Faults that make a graph, before the recorder is added, unusable for a run."""
    yield from _names(graph)
    counted = emitting(graph.nodes, "progress")
    if len(counted) > 1:
        yield Fault(
            "port 'progress', by which tokens are counted",
            "one node that has it, because a token counts once",
            f"{len(counted)}: {', '.join(repr(node.name) for node in counted)}",
            "Leave it to the node that says what is trained, and give the others' outputs another name.",
        )
    for edge in graph.edges:
        if edge.target.name == "control":
            yield Fault(
                f"edge {edge}",
                "no edge of the program's own into a port named 'control', because the recorder tells it of the end",
                "one",
                "Give that input of the body another name, and leave `control` to the recorder.",
            )


def _names(graph: Graph) -> Iterator[Fault]:
    """A fault for each name that the run needs for itself."""
    own = {RECORDER} | ({EVALUATOR} if needs_evaluator(graph.nodes) else set())
    holds = {f"hold-{name}" for name in HOLDERS} if any(node.body is OuterStep for node in graph.nodes) else set()
    keeps = {KEEP} if keeping(graph.nodes) else set()
    keeps |= {LEND} if lending(graph.nodes) else set()
    for role in graph.roles:
        if role.name in own:
            do = "Choose another name."
            if role.name == EVALUATOR:
                do = f"Have a node of it emit on `evaluation`, as {EvaluateMean.__name__} does, or choose another name."
            yield Fault(f"role {role.name!r}", f"another name: every run adds a role {role.name!r}", "this one", do)
    for node in graph.nodes:
        if node.name in {RECORD} | holds | keeps or (node.name == EVALUATE and EVALUATOR in own):
            yield Fault(
                f"node {node.name!r}", f"another name: every run adds a node {node.name!r}", "this one", "Choose one."
            )
