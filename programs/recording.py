"""Adds to every graph what a run needs besides training: a recorder, and evaluation where a program has none.

The recorder listens, by Latest edges, to every body that reports `progress` (where it has a port `report` for those who
only watch, there), `merged` or `final`, and to evaluations. It is a host of its own that nobody waits for. Where shards
publish a model, recorder and evaluator also hold it, for the case that shards and learners die together.
"""

from __future__ import annotations

from typing import Final

from isthmus.ops.evaluate import EvaluateMean
from isthmus.ops.hold import HOLDERS, Hold
from isthmus.ops.outer_step import OuterStep
from isthmus.programs.recorder import Recorder
from isthmus.programs.summary import fragment_sizes
from isthmus.runtime.clock import Duration, milliseconds
from isthmus.runtime.graph import Every, Graph, Job, Latest, Node, Reference, Role
from isthmus.runtime.topology import LEARNER

RUN_FOLDER: Final = Reference("isthmus:run-folder")
"""Resolved by whoever runs the recorder to the path of the run folder; not part of what a program is."""
PERIOD: Final = milliseconds(100)


def with_recorder(graph: Graph, job: Job) -> None:
    """Add the roles `recorder` and, where nothing evaluates, `evaluator` to a program's graph."""
    authored = list(graph.nodes)
    has_syncer = bool(_emitting(authored, "final"))
    if not _emitting(authored, "evaluation") and _emitting(authored, "parameters"):
        _add_evaluator(graph, job, authored)
    evaluators = _emitting(graph.nodes, "evaluation")
    role = graph.role("recorder", replicas=(1, 1))
    record = role.node(
        "record",
        Recorder,
        RUN_FOLDER,
        tokens=job.tokens,
        learners=job.learners,
        sizes=tuple(fragment_sizes(graph)),
        has_syncer=has_syncer,
        has_evaluator=bool(evaluators),
        fires=Every(PERIOD),
    )
    for node in _emitting(authored, "progress"):
        graph.edge(node["report" if "report" in node.outputs else "progress"], record["progress"], Latest())
    for node in _emitting(authored, "merged"):
        graph.edge(node["merged"], record["merged"], Latest("fragment"))
    for node in evaluators:
        graph.edge(node["evaluation"], record["evaluation"], Latest("tokens"))
    for outer in [node for node in authored if node.body is OuterStep]:
        for holder in [each for each in graph.roles if each.name in HOLDERS]:
            _add_hold(graph, holder, outer, record)
    for node in _emitting(graph.nodes, "final"):
        graph.edge(node["final"], record["final"], Latest("fragment"))
    for node in authored:
        port = "control" if has_syncer else "progress"
        if node.input(port) is not None and not graph.edges_into(node, port):
            graph.edge(record["control"], node[port], Latest())


def least_replicas(graph: Graph) -> dict[str, int]:
    """With how many replicas of each role a run can go on: the fewest that the graph allows, and none of a role that
    only evaluates."""
    least = {role.name: role.replicas_min for role in graph.roles}
    needed = {node.role for node in _emitting(graph.nodes, "final")}
    spare = {node.role for node in _emitting(graph.nodes, "evaluation")} - needed
    return {**least, **dict.fromkeys(spare, 0)}


def _add_hold(graph: Graph, role: Role, outer: Node, record: Node) -> None:
    """Have a role hold what an outer step publishes, and give copies to learners when nobody else has it any more."""
    shards = graph.role_of(outer.role).replicas_max
    hold = role.node(f"hold-{role.name}", Hold, role=outer.role, shards=shards, fires=Every(Duration(2 * PERIOD)))
    learning = [edge.target for edge in graph.edges_out_of(outer) if edge.target.node.role == LEARNER]
    graph.edge(outer["update"], hold["update"], Latest("fragment"))
    for port in learning:
        graph.edge(hold["copy"], port, Latest("fragment"))
    for node in graph.nodes:
        if node.role == outer.role and node.input("held") is not None:
            graph.edge(hold["held"], node["held"], Latest("holder"))
    graph.edge(hold["held"], record["held"], Latest("holder"))


def _add_evaluator(graph: Graph, job: Job, authored: list[Node]) -> None:
    """Evaluation of the token-weighted mean of the learners' parameters, for programs without a global model."""
    learning = _emitting(authored, "parameters")
    role = graph.role("evaluator", replicas=(1, 1))
    evaluate = role.node(
        "evaluate",
        EvaluateMean,
        job.task,
        roles=tuple(sorted({node.role for node in learning})),
        tokens=job.tokens,
        fires=Every(Duration(2 * PERIOD)),
    )
    for node in learning:
        graph.edge(node["parameters"], evaluate["parameters"], Latest())
        graph.edge(node["progress"], evaluate["progress"], Latest())


def _emitting(nodes: list[Node], port: str) -> list[Node]:
    return [node for node in nodes if port in node.outputs and node.name != "record"]
