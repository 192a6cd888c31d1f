"""What one host sees of a graph."""

from __future__ import annotations

import pytest

from isthmus.runtime.clock import milliseconds
from isthmus.runtime.graph.plans import OPENING_FIELDS, Plan, lower
from isthmus.runtime.graph.template import AllOf, AnyOf, Every, Graph, Latest, Queue, Quorum
from tests.runtime.cores.scheduler_stories import body


def plans() -> dict[str, Plan]:
    """Learners, two shards and an observer, with one edge of every kind."""
    graph = Graph("program")
    learner = graph.role("learner", replicas=(1, 8))
    shard = graph.role("shard", replicas=(2, 2))
    observer = graph.role("observer", replicas=(1, 1))
    step = learner.node("step", body("batch", "update", "answer progress"), fires=AllOf(("batch",)))
    data = learner.node("data", body(outputs="batch"))
    pacer = shard.node("pacer", body("", "progress", "round pull"), fires=AnyOf("progress"))
    merge = shard.node("merge", body("answer opened", "decision", "update"), fires=Quorum("answer", "round", "opened"))
    watch = observer.node("watch", body("", "update progress"), fires=Every(milliseconds(50)))
    graph.edge(data["batch"], step["batch"], Queue(2, ("first",)))
    graph.edge(step["answer"], merge["answer"], Latest("fragment"), to=shard.at("fragment"))
    graph.edge(step["progress"], pacer["progress"], Latest(), to=shard.all)
    graph.edge(pacer["round"], merge["opened"], Queue(4))
    graph.edge(merge["update"], step["update"], Latest("fragment"), to=learner.all)
    graph.edge(merge["update"], watch["update"], Latest("fragment"), to=observer.all)
    graph.edge(step["progress"], watch["progress"], Latest(), to=observer.all)
    return lower(graph.freeze())


def test_a_plan_has_the_nodes_of_its_role_and_the_edges_that_touch_it() -> None:
    found = {name: ([node.name for node in plan.nodes], list(plan.edges)) for name, plan in plans().items()}
    assert found == {
        "learner": (["step", "data"], [0, 1, 2, 4, 6]),
        "shard": (["pacer", "merge"], [1, 2, 3, 4, 5]),
        "observer": (["watch"], [5, 6]),
    }
    plan = plans()["shard"]
    assert plan.replicas == {"learner": (1, 8), "shard": (2, 2), "observer": (1, 1)}
    assert plan.node_named("merge").index == 3
    with pytest.raises(KeyError):
        plan.node_named("step")


def test_nodes_and_edges_keep_their_index_of_the_graph_on_every_host() -> None:
    edges = {index: edge for plan in plans().values() for index, edge in plan.edges.items()}
    for plan in plans().values():
        for index, edge in plan.edges.items():
            assert edge == edges[index]
            assert edge.index == index
    ends = [(edge.source, edge.target, edge.route, edge.route_key) for _, edge in sorted(edges.items())]
    assert ends == [
        (1, 0, "local", None),
        (0, 3, "at", "fragment"),
        (0, 2, "all", None),
        (2, 3, "local", None),
        (3, 0, "all", None),
        (3, 4, "all", None),
        (0, 4, "all", None),
    ]
    assert [(edge.kind, edge.capacity, edge.initial, edge.key) for _, edge in sorted(edges.items())][:2] == [
        ("queue", 2, ("first",), None),
        ("latest", 0, (), "fragment"),
    ]


def test_a_port_gives_the_item_or_what_it_has_collected_as_its_body_says() -> None:
    class Sums:
        collects = ("many",)

        def __call__(self, one: int, many: object = None) -> int: ...

    graph = Graph("sums")
    role = graph.role("only", replicas=(1, 1))
    node = role.node("sums", Sums)
    graph.edge(role.node("data", body(outputs="out"))["out"], node["one"], Queue(1))
    graph.edge(graph.nodes[1]["out"], node["many"], Latest())
    found = {
        port.name: (port.is_bare, port.is_required, port.kind) for port in lower(graph.freeze())["only"].nodes[0].inputs
    }
    assert found == {"one": (True, True, "queue"), "many": (False, False, "latest")}


def test_votes_for_rounds_that_are_opened_beside_them_are_not_kept_for_a_later_life() -> None:
    kept = {index for plan in plans().values() for index, edge in plan.edges.items() if edge.is_kept}
    assert kept == {2, 4, 5, 6}
    graph = Graph("elsewhere")
    voter, opener, merger = (graph.role(name, replicas=(1, 1)) for name in ("voter", "opener", "merger"))
    vote = voter.node("vote", body(outputs="vote"))
    opening = opener.node("open", body(outputs="round"))
    merge = merger.node("merge", body("vote opened", "", "update"), fires=Quorum("vote", "round", "opened"))
    graph.edge(vote["vote"], merge["vote"], Latest(), to=merger.all)
    graph.edge(opening["round"], merge["opened"], Latest(), to=merger.all)
    assert lower(graph.freeze())["merger"].edges[0].is_kept, "its opener outlives the merger"


def test_cores_see_the_fields_that_edges_and_rounds_need() -> None:
    found = {
        f"{node.name}.{port.name}": (port.edges, port.fields, port.fields_integer, port.fields_optional)
        for plan in plans().values()
        for node in plan.nodes
        for port in node.outputs
    }
    assert found == {
        "step.answer": ((1,), ("fragment", "round"), ("fragment", "round"), ()),
        "step.progress": ((2, 6), (), (), ()),
        "data.batch": ((0,), (), (), ()),
        "pacer.round": ((3,), ("round",), ("round",), OPENING_FIELDS),
        "pacer.pull": ((), (), (), ()),
        "merge.update": ((4, 5), ("fragment",), (), ()),
    }
