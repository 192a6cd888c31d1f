"""What a run adds to a graph: a recorder, evaluation where a program has none, and who holds and keeps its model.

A program declares the ports by which a run knows it (`program_graph`), with bodies of the user's own as with those that
are shipped. Decides to which of its own nodes each of these ports is connected; `node` acts on what comes there.

The recorder receives, by Latest edges, reports, merges, changes, evaluations, the final model and requests to stop, and
reports the end to every input that is declared as `control`. It is a host of its own that no other waits for. Where
shards publish a model, recorder and evaluator also hold it, in case shards and learners die together, and of several
shards each has what the one before it goes on from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from isthmus.ops.island.evaluate import EvaluateMean
from isthmus.ops.learner.copy_sender import CopySender
from isthmus.ops.recovery.hold import HOLDERS, Hold
from isthmus.ops.recovery.lend import Lend
from isthmus.ops.recovery.second_hold import SecondHold
from isthmus.ops.syncer.neighbour import NeighbourHold, StateCoder
from isthmus.ops.syncer.state_sender import StateSender
from isthmus.programs.engine.recorder.graph_parts import fragment_sizes, fragments_in, paths_in
from isthmus.programs.engine.recorder.node import Recorder
from isthmus.programs.engine.recorder.run_references import OF_RUN, RUN_FOLDER
from isthmus.programs.engine.snapshots.holds import KeptHold, KeptState
from isthmus.programs.engine.snapshots.taken_hold import TakenHold, tick
from isthmus.programs.job import Job
from isthmus.programs.program_graph import (
    EVALUATOR,
    REGION,
    HeldModelPorts,
    KeptStatePorts,
    ProgramGraph,
    Training,
    held_model_of,
    kept_state_of,
    training_of,
)
from isthmus.programs.update_settings import connect, updates_in
from isthmus.runtime.clock import Duration, milliseconds
from isthmus.runtime.errors import Fault, GraphError
from isthmus.runtime.graph.template import (
    AnyOf,
    Every,
    Graph,
    Latest,
    Node,
    Port,
    Role,
    Template,
)
from isthmus.runtime.ids import LEARNER, RECORDER

RECORD: Final = "record"
EVALUATE: Final = "evaluate"
KEEP: Final = "keep"
LEND: Final = "lend"
SEND_COPY: Final = "copy-sender"
SEND_STATE: Final = "state-sender"
CODE_STATE: Final = "state-coder"
HOLD_NEIGHBOUR: Final = "hold-neighbour"
TICK_NEIGHBOUR: Final = "hold-neighbour-tick"
TICK: Final = "hold-tick"


def faults(graph: Template) -> Iterator[Fault]:
    """Faults that make a graph, before the recorder is added, unusable for a run."""
    yield from _names(graph)
    training = training_of(graph)
    if training.mean_of is not None and training.reports is None:
        yield Fault(f"mean_of={training.mean_of}", "reports, by whose tokens the mean is weighted", "none", _REPORT)
    elif training.mean_of is not None and training.mean_of.node.role != training.reports.node.role:  # type: ignore[union-attr]
        expected = f"a port of the role that reports, {training.reports.node.role!r}"  # type: ignore[union-attr]
        yield Fault(f"mean_of={training.mean_of}", expected, f"role {training.mean_of.node.role!r}", _REPORT)
    for edge in graph.edges:
        if edge.target in training.control:
            yield Fault(
                f"edge {edge}",
                "no edge of the program's own into a port of control=, because the recorder tells it of the end",
                "one",
                "Give the body another input for it, or leave the port out of control=.",
            )


_REPORT: Final = "Write graph.train(reports=step['progress'], mean_of=step['parameters'])."


def _names(graph: Template) -> Iterator[Fault]:
    """A fault for each name that the run needs for itself."""
    own = {RECORDER} | ({EVALUATOR} if _lacks_evaluation(training_of(graph)) else set())
    nodes = {RECORD} | ({EVALUATE} if EVALUATOR in own else set())
    nodes |= {*(f"hold-{name}" for name in HOLDERS), SEND_STATE, TICK} if held_model_of(graph) is not None else set()
    nodes |= {CODE_STATE, HOLD_NEIGHBOUR, TICK_NEIGHBOUR} if has_neighbours(graph) else set()
    nodes |= {KEEP} if kept_state_of(graph) is not None else set()
    nodes |= {LEND, SEND_COPY} if training_of(graph).loans is not None else set()
    for role in graph.roles:
        if role.name in own:
            do = "Choose another name."
            if role.name == EVALUATOR:
                do = "Declare its losses, as in graph.train(evaluation=judge['loss']), or choose another name."
            yield Fault(f"role {role.name!r}", f"another name: every run adds a role {role.name!r}", "this one", do)
    for node in graph.nodes:
        if node.name in nodes:
            yield Fault(
                f"node {node.name!r}", f"another name: every run adds a node {node.name!r}", "this one", "Choose one."
            )


def _lacks_evaluation(training: Training) -> bool:
    """Whether nothing evaluates that could be evaluated."""
    return training.mean_of is not None and training.evaluation is None


PERIOD: Final = milliseconds(100)


def with_recorder(program: Template, job: Job) -> Template:
    """A program's graph with what a run adds: the roles `recorder` and, where nothing evaluates, `evaluator`.

    GraphError, with all faults, for a graph that a run cannot use.
    """
    if unusable := list(faults(program)):
        raise GraphError.of(unusable)
    graph = ProgramGraph.of(program)
    if _lacks_evaluation(training_of(program)):
        _add_evaluator(graph, job)
    training = training_of(graph)
    role = graph.role(RECORDER, replicas=(1, 1))
    recorder = partial(
        Recorder,
        RUN_FOLDER,
        tokens=job.tokens,
        learners=_slots(program, job),
        sizes=tuple(fragment_sizes(program)),
        has_model=training.model is not None,
        has_evaluator=training.evaluation is not None,
        keeps_budget=not training.counts_budget,
        has_regions=any(role.name == REGION for role in program.roles),
        paths=paths_in(program),
    )
    record = role.node(RECORD, recorder, fires=Every(PERIOD))
    listed = [
        (training.reports, "progress", Latest()),
        (training.merges, "merged", Latest("place")),
        (training.held, "held", Latest("holder")),
        *((port, "changed", Latest("place")) for port in training.changes),
        *((port, "stop", Latest()) for port in training.stop),
        (training.evaluation, "evaluation", Latest("tokens")),
    ]
    for source, name, policy in listed:
        if source is not None:
            connect(graph, source, record[name], policy)
    held, kept = held_model_of(program), kept_state_of(program)
    if held is not None:
        for holder in [each for each in graph.roles if each.name in HOLDERS]:
            _add_hold(graph, holder, held, record, job.moments_every)
        if has_neighbours(program):
            _add_neighbours(graph, held, record)
    if kept is not None:
        _add_keep(graph, role, kept, record)
    if training.loans is not None:
        _add_lend(graph, role, *training.loans)
    if training.model is not None and (held is None or held.restored is not None):  # Else it is taken.
        connect(graph, training.model, record["final"], Latest("fragment"))
    for port in training.control:
        connect(graph, record["control"], port, Latest())
    return graph.freeze()


def _slots(graph: Template, job: Job) -> int:
    """The number of replicas, at the start of a run, whose tokens count."""
    reports = training_of(graph).reports
    if reports is None or reports.node.role == LEARNER:
        return job.learners
    least: Any = graph.role_of(reports.node.role).replicas_min
    return max(1, least) if isinstance(least, int) else 1  # `verify` reports any other value.


def least_replicas(graph: Template) -> dict[str, int]:
    """The number of replicas of each role with which a run can go on: the minimum of the graph, and none of a role that
    only evaluates."""
    least = {role.name: role.replicas_min for role in graph.roles}
    model, evaluation = training_of(graph).model, training_of(graph).evaluation
    if evaluation is not None and (model is None or model.node.role != evaluation.node.role):
        least[evaluation.node.role] = 0
    return least


def _add_hold(graph: Graph, role: Role, holding: HeldModelPorts, record: Node, moments_seconds: float) -> None:
    """Add a node that holds what an outer step publishes, in the recorder on disk, with the moments of learners every
    so many seconds.

    It gives copies to learners when no other host has them.
    """
    shard, template, is_home = graph.role_of(holding.state.node.role), graph.freeze(), role.name == RECORDER
    of_shards: dict[str, Any] = {"role": shard.name, "shards": shard.replicas_max}
    if is_home and holding.restored is None:
        hold = _add_taken_hold(graph, role, holding, record, of_shards, moments_seconds)
    elif not is_home and holding.told is not None:
        hold = _add_second_hold(graph, role, holding.told, holding, of_shards)
    else:
        body: Any = partial(Hold, **of_shards)
        if is_home:
            body = partial(KeptHold, *OF_RUN, **of_shards, sizes=tuple(fragment_sizes(template)))
        hold = role.node(f"hold-{role.name}", body, fires=Every(Duration(2 * PERIOD)))
        connect(graph, holding.state if is_home else holding.published, hold["update"], Latest("fragment"))
    if is_home:
        graph.edge(hold["kept"], holding.kept, Latest("fragment"), to=shard.at("fragment"))
    if is_home and holding.restored is not None:
        _connect_cuts(graph, hold, holding)
    for port in holding.copies:  # To whom the updates go.
        routes = [edge.route for edge in graph.edges if edge.target == port and edge.route is not None]
        some = next((route for route in routes if route.kind == "some"), None)
        own = shard.at("fragment") if port.node.role == shard.name else some and some.within(0)
        connect(graph, hold["copy"], port, Latest("fragment"), to=own)
    others = [node["elsewhere"] for node in graph.nodes if node.body is SecondHold] if is_home else []
    for port in (*holding.held, record["held"], *others):
        connect(graph, hold["held"], port, Latest("holder"))


def _add_taken_hold(
    graph: Graph,
    role: Role,
    holding: HeldModelPorts,
    record: Node,
    of_shards: Mapping[str, Any],
    moments_seconds: float,
) -> Node:
    """Add the node of the recorder's host that takes states from shards, and in these the one that sends them."""
    template = graph.freeze()
    has_moments = bool(moments_seconds) and training_of(template).loans is not None
    taking = partial(TakenHold, *OF_RUN, **of_shards, fragments=fragments_in(template))
    body = partial(taking, moments_seconds=moments_seconds if has_moments else 0.0)
    hold = role.node(f"hold-{role.name}", body, fires=AnyOf("published", "state", "tick"))
    graph.edge(role.node(TICK, tick, fires=Every(Duration(2 * PERIOD)))["result"], hold["tick"], Latest())
    shard = graph.role_of(holding.state.node.role)
    sender = shard.node(SEND_STATE, StateSender, fires=AnyOf("state", "wanted"))
    graph.edge(holding.state, sender["state"], Latest("fragment"))
    connect(graph, sender["published"], hold["published"], Latest("fragment"))
    graph.edge(hold["wanted_state"], sender["wanted"], Latest(), to=shard.at("fragment"))
    connect(graph, sender["part"], hold["state"], Latest())
    graph.edge(hold["final"], record["final_file"], Latest("fragment"))
    if has_moments:
        _add_copy_sender(graph, hold, template)
    return hold


def _add_second_hold(
    graph: Graph, role: Role, told: Port, holding: HeldModelPorts, of_shards: Mapping[str, Any]
) -> Node:
    """Add the node of the evaluator's host that holds what was taken for evaluations."""
    hold = role.node(f"hold-{role.name}", partial(SecondHold, **of_shards), fires=Every(Duration(2 * PERIOD)))
    connect(graph, holding.published, hold["taken"], Latest("fragment"))
    connect(graph, told, hold["told"], Latest("fragment"))
    return hold


def has_neighbours(graph: Template) -> bool:
    """Whether each shard of a graph has the state of the one before it."""
    held = held_model_of(graph)
    return held is not None and held.begins is not None and graph.role_of(held.state.node.role).replicas_min > 1


def _add_neighbours(graph: Graph, holding: HeldModelPorts, record: Node) -> None:
    """Have each shard hold what the one before it goes on from, and give it to the next life of that."""
    template, outer = graph.freeze(), holding.state.node
    shard, fragments = graph.role_of(outer.role), fragments_in(template)
    count = shard.replicas_max
    coder = shard.node(CODE_STATE, partial(StateCoder, fragments), fires=AnyOf("state"))
    body = partial(NeighbourHold, fragments, role=shard.name, shards=count)
    hold = shard.node(HOLD_NEIGHBOUR, body, fires=AnyOf("update", "coded", "tick"))
    ticking = shard.node(TICK_NEIGHBOUR, tick, fires=Every(Duration(2 * PERIOD)))
    graph.edge(ticking["result"], hold["tick"], Latest())
    after, owner = shard.some("fragment", count, [[(p + 1) % count] for p in range(len(fragments))]), shard.at("owner")
    graph.edge(holding.state, coder["state"], Latest("fragment"))
    updates = updates_in(graph, shard, outer, to=after)
    graph.edge(updates, hold["update"], Latest("fragment"), to=after if updates.node is outer else None)
    graph.edge(coder["coded"], hold["coded"], Latest("fragment"), to=after)
    assert holding.begins is not None
    graph.edge(hold["copy"], holding.begins, Latest("fragment"), to=shard.at("fragment"))
    graph.edge(hold["kept"], holding.kept, Latest("fragment"), to=shard.at("fragment"))
    for port in holding.held:
        graph.edge(hold["held"], port, Latest("holder"), to=owner)
    connect(graph, hold["held"], record["held"], Latest("holder"))


def _add_copy_sender(graph: Graph, hold: Node, template: Template) -> None:
    """Have learners send the copies of their local leaves to a hold node."""
    loans = training_of(template).loans
    assert loans is not None
    role = next(each for each in graph.roles if each.name == loans[0].node.role)
    sender = role.node(SEND_COPY, CopySender, fires=AnyOf("wanted"))
    connect(graph, hold["wanted_part"], sender["wanted"], Latest())
    connect(graph, sender["part"], hold["part"], Latest())


def _connect_cuts(graph: Graph, hold: Node, holding: HeldModelPorts) -> None:
    """Have a hold node keep what only learners have, too, as of one step."""
    cut, own, restored = holding.cut, holding.own, holding.restored
    assert cut is not None
    assert own is not None
    assert restored is not None
    connect(graph, cut, hold["cut"], Latest("fragment"))
    connect(graph, own, hold["own"], Latest())
    for port in holding.wanted:
        connect(graph, hold["wanted"], port, Latest())
    graph.edge(hold["restored"], restored, Latest("slot"), to=graph.role_of(restored.node.role).at("slot"))


def _add_keep(graph: Graph, role: Role, keeping: KeptStatePorts, record: Node) -> None:
    """Have the recorder keep the states that learners send, and give the newest to a node that goes on from it."""
    keep = role.node(KEEP, partial(KeptState, *OF_RUN), fires=Every(Duration(2 * PERIOD)))
    connect(graph, keeping.state, keep["state"], Latest())
    connect(graph, keep["kept"], keeping.kept, Latest())
    connect(graph, keep["held"], record["held"], Latest("holder"))


def _add_lend(graph: Graph, role: Role, moments: Port, loan: Port) -> None:
    """Have the replicas of a node lend their moments to one that begins anew."""
    paths = paths_in(graph.freeze())
    lending = partial(Lend, role=moments.node.role, period=1 if paths is None else paths.count)
    lend = role.node(LEND, lending, fires=AnyOf("moments"))
    connect(graph, moments, lend["moments"], Latest())
    graph.edge(lend["loan"], loan, Latest("slot"), to=graph.role_of(loan.node.role).at("slot"))


def _add_evaluator(graph: ProgramGraph, job: Job) -> None:
    """Evaluation of the token-weighted mean of the learners' parameters, for programs without a global model."""
    trees, reports = training_of(graph).mean_of, training_of(graph).reports
    assert trees is not None
    assert reports is not None
    role = graph.role(EVALUATOR, replicas=(1, 1))
    mean = partial(EvaluateMean, job.task, roles=(trees.node.role,), tokens=job.tokens, times=job.evaluations)
    evaluate = role.node(EVALUATE, mean, fires=Every(Duration(2 * PERIOD)))
    graph.edge(trees, evaluate["parameters"], Latest(), to=role.all)
    graph.edge(reports, evaluate["progress"], Latest(), to=role.all)
    has_model = training_of(graph).model is not None
    graph.train(
        evaluation=evaluate["evaluation"],
        model=None if has_model else evaluate["final"],
        control=evaluate["control"],
    )
