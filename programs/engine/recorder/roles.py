"""What a run adds to the graph of a program: a recorder, an evaluator where nothing evaluates, and holders of the
model.

Decides the ports by which a run and a graph know of each other, and the faults of such ports. A run finds them by name
in any graph, so that a body of the user's own takes part in it like those that are shipped:

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

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from isthmus.ops.island.evaluate import EvaluateMean
from isthmus.ops.recovery.hold import HOLDERS, Hold
from isthmus.ops.recovery.lend import Lend
from isthmus.ops.syncer.conductor import Conductor
from isthmus.ops.syncer.outer_step import OuterStep
from isthmus.programs.engine.recorder.node import Recorder
from isthmus.programs.engine.recorder.summary import fragment_sizes
from isthmus.programs.engine.snapshots.holds import KeptHold, KeptState, WholeHold
from isthmus.programs.engine.snapshots.stored import StorePlace
from isthmus.programs.update_settings import connect, updates_in
from isthmus.runtime.clock import Duration, milliseconds
from isthmus.runtime.errors import Fault, GraphError
from isthmus.runtime.graph.template import AnyOf, Every, Graph, Job, Latest, Node, Reference, Role
from isthmus.runtime.ids import LEARNER

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


RUN_FOLDER: Final[Any] = Reference("isthmus:run-folder")
SNAPSHOT_SECONDS: Final[Any] = Reference("isthmus:snapshot-seconds")
SNAPSHOT_PLACE: Final[Any] = Reference("isthmus:snapshot-place")
OF_RUN: Final = (RUN_FOLDER, SNAPSHOT_SECONDS, SNAPSHOT_PLACE)
"""Resolved by the process that runs the recorder; not part of the program."""
PERIOD: Final = milliseconds(100)


def resolving(
    folder: Path,
    resolve: Callable[[Reference], Any],
    snapshot_seconds: float,
    snapshot_place: StorePlace | None = None,
) -> Callable[[Reference], Any]:
    """`resolve`, extended by the references OF_RUN, for a run in `folder`."""
    of_run = {RUN_FOLDER: folder, SNAPSHOT_SECONDS: snapshot_seconds, SNAPSHOT_PLACE: snapshot_place}
    return lambda reference: of_run[reference] if reference in of_run else resolve(reference)


def with_recorder(graph: Graph, job: Job) -> None:
    """Add the roles `recorder` and, where nothing evaluates, `evaluator` to a program's graph.

    GraphError, with all faults, for a graph that a run cannot use.

    The recorder is a host of its own that no other waits for: it receives by Latest edges, and reports the end to every
    body with a port `control`. Where shards publish a model, recorder and evaluator also hold it, in case shards and
    learners die together.
    """
    if unusable := list(faults(graph)):
        raise GraphError.of(unusable)
    authored = list(graph.nodes)
    if needs_evaluator(authored):
        _add_evaluator(graph, job, authored)
    evaluators = emitting(graph.nodes, "evaluation")
    role = graph.role(RECORDER, replicas=(1, 1))
    record = role.node(
        RECORD,
        partial(
            Recorder,
            RUN_FOLDER,
            tokens=job.tokens,
            learners=_slots(graph, job),
            sizes=tuple(fragment_sizes(graph)),
            has_model=bool(emitting(graph.nodes, "final")),
            has_evaluator=bool(evaluators),
            keeps_budget=not keeping(authored) and not any(node.body is Conductor for node in authored),
        ),
        fires=Every(PERIOD),
    )
    for node in emitting(authored, "progress"):
        connect(graph, node["report" if "report" in node.outputs else "progress"], record["progress"], Latest())
    for node in emitting(authored, "merged"):
        connect(graph, node["merged"], record["merged"], Latest("fragment"))
    for node in emitting(authored, "held"):
        connect(graph, node["held"], record["held"], Latest("holder"))
    for node in emitting(authored, "changed"):
        connect(graph, node["changed"], record["changed"], Latest("place"))
    for node in emitting(authored, "stop"):
        connect(graph, node["stop"], record["stop"], Latest())
    for node in evaluators:
        connect(graph, node["evaluation"], record["evaluation"], Latest("tokens"))
    for outer in [node for node in authored if node.body is OuterStep]:
        for holder in [each for each in graph.roles if each.name in HOLDERS]:
            _add_hold(graph, holder, outer, record)
    _add_keep(graph, role, authored, record)
    for node in lending(authored):
        _add_lend(graph, role, node)
    for node in emitting(graph.nodes, "final"):
        connect(graph, node["final"], record["final"], Latest("fragment"))
    for node in list(graph.nodes):
        if told_by_recorder(graph, node):
            connect(graph, record["control"], node["control"], Latest())


def _slots(graph: Graph, job: Job) -> int:
    """The number of replicas, at the start of a run, whose tokens count."""
    node = reporting(graph)
    if node is None or node.role == LEARNER:
        return job.learners
    least: Any = graph.role_of(node.role).replicas_min
    return max(1, least) if isinstance(least, int) else 1  # `verify` reports any other value.


def least_replicas(graph: Graph) -> dict[str, int]:
    """The number of replicas of each role with which a run can continue: the minimum of the graph, and none of a role
    that only evaluates."""
    least = {role.name: role.replicas_min for role in graph.roles}
    needed = {node.role for node in emitting(graph.nodes, "final")}
    spare = {node.role for node in emitting(graph.nodes, "evaluation")} - needed
    return {**least, **dict.fromkeys(spare, 0)}


def _add_hold(graph: Graph, role: Role, outer: Node, record: Node) -> None:
    """Add a node that holds what an outer step publishes, in the recorder also on disk.

    It gives copies to learners when no other host has them.
    """
    every, shards = Every(Duration(2 * PERIOD)), graph.role_of(outer.role).replicas_max
    name, sizes = f"hold-{role.name}", tuple(fragment_sizes(graph))
    whole = [node for node in graph.nodes if node.role == LEARNER and node.input("restored") is not None]
    if role.name == RECORDER:
        body = WholeHold if whole else KeptHold
        hold = role.node(name, partial(body, *OF_RUN, role=outer.role, shards=shards, sizes=sizes), fires=every)
    else:
        hold = role.node(name, partial(Hold, role=outer.role, shards=shards), fires=every)
    adopting = [edge.target for edge in graph.edges_out_of(outer) if edge.target.node.role == LEARNER]
    held = outer["state"] if role.name == RECORDER else updates_in(graph, role, outer)
    connect(graph, held, hold["update"], Latest("fragment"))
    if role.name == RECORDER:
        graph.edge(hold["kept"], outer["kept"], Latest("fragment"), to=graph.role_of(outer.role).at("fragment"))
        for node in whole:
            connect(graph, outer["cut"], hold["cut"], Latest("fragment"))
            connect(graph, node["own"], hold["own"], Latest())
            connect(graph, hold["wanted"], outer["wanted"], Latest())
            connect(graph, hold["wanted"], node["wanted"], Latest())
            graph.edge(hold["restored"], node["restored"], Latest("slot"), to=graph.role_of(node.role).at("slot"))
    for port in adopting:
        connect(graph, hold["copy"], port, Latest("fragment"))
    for node in graph.nodes:
        if node.role == outer.role and node.input("held") is not None:
            connect(graph, hold["held"], node["held"], Latest("holder"))
    connect(graph, hold["held"], record["held"], Latest("holder"))


def _add_keep(graph: Graph, role: Role, authored: list[Node], record: Node) -> None:
    """Have the recorder keep the states that learners send, and give the newest to nodes that continue from it."""
    sending = keeping(authored)
    if not sending:
        return
    keep = role.node(KEEP, partial(KeptState, *OF_RUN), fires=Every(Duration(2 * PERIOD)))
    for node in sending:
        connect(graph, node["state"], keep["state"], Latest())
    for node in authored:
        if node.body is not OuterStep and node.input("kept") is not None:
            connect(graph, keep["kept"], node["kept"], Latest())
    connect(graph, keep["held"], record["held"], Latest("holder"))


def _add_lend(graph: Graph, role: Role, node: Node) -> None:
    """Have the replicas of a node lend their moments to one that has none."""
    lend = role.node(LEND, partial(Lend, role=node.role), fires=AnyOf("moments"))
    connect(graph, node["moments"], lend["moments"], Latest())
    graph.edge(lend["loan"], node["loan"], Latest("slot"), to=graph.role_of(node.role).at("slot"))


def _add_evaluator(graph: Graph, job: Job, authored: list[Node]) -> None:
    """Evaluation of the token-weighted mean of the learners' parameters, for programs without a global model."""
    trained = learning(authored)
    role = graph.role(EVALUATOR, replicas=(1, 1))
    evaluate = role.node(
        EVALUATE,
        partial(EvaluateMean, job.task, roles=tuple(sorted({node.role for node in trained})), tokens=job.tokens),
        fires=Every(Duration(2 * PERIOD)),
    )
    for node in trained:
        connect(graph, node["parameters"], evaluate["parameters"], Latest())
        connect(graph, node["progress"], evaluate["progress"], Latest())
