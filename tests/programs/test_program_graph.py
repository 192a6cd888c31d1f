"""What a graph of a program declares of the whole: by which ports a run trains it, holds its model, keeps its state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from isthmus.programs.program_graph import (
    ProgramGraph,
    Training,
    chosen_for,
    held_model_of,
    kept_state_of,
    training_of,
)
from isthmus.runtime.errors import GraphError
from isthmus.runtime.graph.template import Graph, Node, Role


@pytest.fixture
def graph() -> ProgramGraph:
    return ProgramGraph("example")


@pytest.fixture
def worker(graph: ProgramGraph) -> Role:
    return graph.role("worker", replicas=(1, 4))


def through(item: int) -> int:
    return item


def pair(worker: Role) -> tuple[Node, Node]:
    return worker.node("first", through), worker.node("second", through)


def refusal(action: Callable[[], Any]) -> str:
    with pytest.raises(GraphError) as caught:
        action()
    return str(caught.value)


def test_a_graph_that_declares_nothing_cannot_be_trained_and_has_no_model_to_hold() -> None:
    for graph in (Graph("example"), ProgramGraph("example")):
        assert training_of(graph) == training_of(graph.freeze()) == Training()
        assert held_model_of(graph) is None
        assert kept_state_of(graph) is None
        assert dict(chosen_for(graph)) == {}


def test_what_a_template_declares_stays_as_it_is(graph: ProgramGraph, worker: Role) -> None:
    first, second = pair(worker)
    graph.train(reports=first["result"], control=second["item"])
    graph.chose(interval=24)
    template = graph.freeze()
    more = ProgramGraph.of(template)
    third = more.role("other", replicas=(1, 1)).node("third", through)
    more.train(evaluation=third["result"], control=third["item"])
    more.chose(fragments=3)
    assert training_of(template) == Training(reports=first["result"], control=(second["item"],))
    assert dict(chosen_for(template)) == {"interval": 24}
    assert training_of(more).control == (second["item"], third["item"])
    assert training_of(more).evaluation == third["result"]
    assert dict(chosen_for(more)) == {"interval": 24, "fragments": 3}


def test_the_ports_by_which_a_run_knows_a_graph_are_declared_once(graph: ProgramGraph, worker: Role) -> None:
    first, second = pair(worker)
    stranger = ProgramGraph("other").role("worker", replicas=(1, 1)).node("stranger", through)
    assert refusal(lambda: graph.train(reports=first["item"])) == (
        "reports= of graph 'example': expected an output port of 'first', found 'item'.\n  There is: result."
    )
    assert refusal(lambda: graph.train(reports=first["result"], control=second["result"])) == (
        "control= of graph 'example': expected an input port of 'second', found 'result'.\n  There is: item."
    )
    assert refusal(lambda: graph.train(reports=stranger["result"])) == (
        "reports= of graph 'example': expected an output port of its nodes, "
        "found one of node 'stranger' of another graph.\n  Name a port of this graph."
    )
    assert refusal(lambda: graph.train(reports=first)) == (  # type: ignore[arg-type]
        "reports= of graph 'example': expected an output port, found a Node.\n"
        "  Name it, as in reports=step['progress']."
    )
    assert refusal(lambda: graph.keep(first["result"], second["result"])) == (
        "kept= of graph 'example': expected an input port of 'second', found 'result'.\n  There is: item."
    )
    assert training_of(graph) == Training()
    assert kept_state_of(graph) is None
    graph.train(reports=first["result"], stop=[second["result"]])
    graph.train(model=second["result"], stop=first["result"])
    assert training_of(graph).stop == (second["result"], first["result"])
    assert refusal(lambda: graph.train(reports=second["result"])) == (
        "train(reports=) of graph 'example': expected ports that are not declared yet, found first.result.\n"
        "  Declare each once."
    )
