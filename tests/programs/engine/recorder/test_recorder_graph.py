"""What a graph is given in case shards and learners die together: who holds the model, and who hears of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from isthmus.ops.learner.copy_sender import CopySender
from isthmus.ops.recovery.hold import NEIGHBOUR, Hold, held_by
from isthmus.ops.recovery.second_hold import SecondHold
from isthmus.ops.syncer.neighbour import NeighbourHold, StateCoder
from isthmus.programs import decoupled, diloco, streaming_diloco
from isthmus.programs.engine.recorder.books import Books
from isthmus.programs.engine.recorder.node import LOST_TIMES, ModelHolders
from isthmus.programs.engine.recorder.roles import faults, with_recorder
from isthmus.programs.engine.snapshots.holds import KeptHold
from isthmus.programs.engine.snapshots.taken_hold import TakenHold
from isthmus.programs.job import Job, TensorSpec
from isthmus.programs.program_graph import ProgramGraph, training_of
from isthmus.programs.wings.data_parallel import data_parallel
from isthmus.runtime.graph.template import Reference, Route, Template
from isthmus.runtime.graph.verify import verify
from isthmus.runtime.ids import Member, Replica

LAYOUT = (TensorSpec("w", (8, 8), "float32"), TensorSpec("v", (8, 8), "float32"))
JOB = Job("program", Reference("a:b"), LAYOUT, 64, 100_000, 2)
HOLDS = (Hold, KeptHold, SecondHold, TakenHold)
WITH_SHARDS = (decoupled, diloco, streaming_diloco)


def recorded(program: Any, *, has_evaluator: bool = True, **settings: Any) -> Template:
    graph: ProgramGraph = program.build(JOB, **settings)
    if not has_evaluator:
        graph.edges = [edge for edge in graph.edges if edge.target.node.role != "evaluator"]
        graph.nodes = [node for node in graph.nodes if node.role != "evaluator"]
        graph.roles = [role for role in graph.roles if role.name != "evaluator"]
        graph.declared["training"] = replace(training_of(graph), evaluation=None)
    return with_recorder(graph.freeze(), JOB)


def ends(graph: Template, port: str) -> set[tuple[str, str]]:
    """The edges that leave a port of a hold node: (role that holds, where it ends)."""
    leaving = [edge for edge in graph.edges if edge.source.node.body in HOLDS and edge.source.name == port]
    return {(edge.source.node.role, f"{edge.target.node.name}.{edge.target.name}") for edge in leaving}


@pytest.mark.parametrize("program", WITH_SHARDS)
def test_recorder_and_evaluator_hold_what_shards_publish(program: Any) -> None:
    graph = recorded(program)
    verify(graph)
    pacing, learning = ("pacer", "inner-step") if program is decoupled else ("conductor", "gate")
    holders = ("evaluator", "recorder")
    assert ends(graph, "copy") == {(role, f"{learning}.update") for role in holders}
    told = {(role, f"{name}.held") for role in holders for name in (pacing, "record")}
    if program is decoupled:  # Its evaluator has what it took, and gives copies of what the home has nothing newer of.
        told |= {("recorder", "hold-evaluator.elsewhere")}
    assert ends(graph, "held") == told


@pytest.mark.parametrize("update", ["float32", "int4"])
def test_shards_send_a_recorder_values_only_where_it_asks_for_them(update: str) -> None:
    graph = recorded(decoupled, update=update)
    verify(graph)
    arriving = {
        f"{edge.source.node.name}.{edge.source.name}"
        for edge in graph.edges
        if edge.target.node.role == "recorder" and edge.source.node.role == "syncer"
    }
    sending = {"outer-step.merged", "pacer.changed", "pacer.held", "state-sender.published", "state-sender.part"}
    assert arriving == sending
    [asked] = [edge for edge in graph.edges if edge.source.name == "wanted_state"]
    assert asked.target.node.role == "syncer"


@pytest.mark.parametrize("update", ["float32", "int4"])
def test_shards_send_an_evaluator_values_only_where_it_asks_for_them(update: str) -> None:
    graph = recorded(decoupled, update=update, shards=2, fragments=2)
    verify(graph)
    between = [edge for edge in graph.edges if edge.source.node.role != edge.target.node.role]
    of = [edge for edge in between if "evaluator" in (edge.source.node.role, edge.target.node.role)]
    values = [edge for edge in of if edge.target.node.role == "evaluator" and edge.source.node.role == "syncer"]
    names = {f"{edge.source.node.name}.{edge.source.name}" for edge in values}
    assert names == {"outer-step.told", "version-sender.version"}
    [asked] = [edge for edge in of if edge.source.name == "wanted"]
    assert (asked.source.node.role, asked.target.node.role) == ("evaluator", "syncer")


@pytest.mark.parametrize("has_evaluator", [True, False])
@pytest.mark.parametrize("program", WITH_SHARDS)
def test_whoever_hears_what_is_held_hears_by_whom(program: Any, *, has_evaluator: bool) -> None:
    """Also where there is only one holder."""
    graph = recorded(program, has_evaluator=has_evaluator)
    listening = [node for node in graph.nodes if node.input("held") is not None]
    assert len(listening) == 2
    assert all(port.collects for node in listening for port in node.inputs if port.name == "held")


def test_each_fragment_is_held_for_its_own_shard() -> None:
    graph = recorded(decoupled, shards=2, fragments=2)
    assert {node.keywords["shards"] for node in graph.nodes if node.body in HOLDS} == {2}


@pytest.mark.parametrize("update", ["float32", "int4"])
def test_each_of_several_shards_is_sent_versions_and_codes_of_the_one_before_it(update: str) -> None:
    graph = recorded(decoupled, shards=3, fragments=3, update=update)
    verify(graph)
    [hold] = [node for node in graph.nodes if node.body is NeighbourHold]
    into = {edge.target.name: edge for edge in graph.edges if edge.target.node is hold and not edge.is_local}
    route = into["coded"].route
    assert route is not None
    assert (route.role, route.key, route.period, route.classes) == ("syncer", "fragment", 3, ((1,), (2,), (0,)))
    if update == "float32":
        assert into["update"].route == route
    else:
        [receive] = [edge.source.node for edge in graph.edges_into(hold, "update")]
        assert [edge.route for edge in graph.edges_into(receive, "update")] == [
            route,
            Route("syncer", "at", "slot"),
        ]
    leaving = {edge.target.name: edge.route for edge in graph.edges if edge.source.node is hold}
    assert {name: route and route.key for name, route in leaving.items() if name in ("copy", "kept")} == {
        "copy": "fragment",
        "kept": "fragment",
    }
    told = [edge for edge in graph.edges if edge.source.node is hold and edge.target.name == "held"]
    assert {(edge.target.node.role, edge.route.key if edge.route else None) for edge in told} == {
        ("syncer", "owner"),
        ("recorder", None),
    }


@pytest.mark.parametrize("program", WITH_SHARDS)
def test_an_only_shard_has_no_neighbour(program: Any) -> None:
    graph = recorded(program)
    assert not [node for node in graph.nodes if node.body in (NeighbourHold, StateCoder)]


def test_a_name_that_neighbours_need_is_refused_only_where_there_are_some() -> None:
    for shards, count in ((1, 0), (2, 1)):
        graph: ProgramGraph = decoupled.build(JOB, shards=shards, fragments=2)
        graph.roles[0].node("state-coder", lambda: None)
        assert len([fault for fault in faults(graph.freeze()) if "state-coder" in fault.action]) == count


def test_a_shard_holds_its_own_fragments_and_those_of_the_one_before_it() -> None:
    """What it says of its own, of merges that the recorder does not know, does not take the others' place."""
    holders, shard = ModelHolders(2), Replica("syncer", 1)
    books = Books(sizes=(1, 1))
    members = [Member(shard, 1)]
    near = held_by(NEIGHBOUR, fragments=[0], merged=[0])
    holders.record({(shard, NEIGHBOUR): near, (Replica("evaluator", 0), "evaluator"): held_by("evaluator")})
    holders.record({(shard, "syncer"): held_by("syncer", merged=[1])})
    for _ in range(LOST_TIMES):
        holders.look(books, members)
    assert holders.gone == [1], "of the other nothing is left"


def test_without_a_model_that_is_published_nobody_holds_one() -> None:
    graph = recorded(data_parallel)
    assert not [node for node in graph.nodes if node.body in HOLDS]


@pytest.mark.parametrize(
    ("program", "seconds", "is_there"),
    [(decoupled, 0.0, False), (decoupled, 60.0, True), (streaming_diloco, 60.0, False), (data_parallel, 60.0, False)],
)
def test_learners_send_their_copies_where_no_cut_has_them(program: Any, seconds: float, *, is_there: bool) -> None:
    job = replace(JOB, moments_every=seconds)
    graph = with_recorder(program.build(job).freeze(), job)
    verify(graph)
    sent = {(edge.source.name, edge.target.node.role) for edge in graph.edges if edge.source.node.body is CopySender}
    asked = {edge.target.node.role for edge in graph.edges if edge.source.name == "wanted_part"}
    assert (sent, asked) == (({("part", "recorder")}, {"learner"}) if is_there else (set(), set()))
