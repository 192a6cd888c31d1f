"""Graph templates: ports from signatures, and what is refused on the line where it is written."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from isthmus.runtime.clock import seconds
from isthmus.runtime.errors import Fault, GraphError, nearest
from isthmus.runtime.graph.template import (
    AllOf,
    AnyOf,
    Every,
    Graph,
    Latest,
    Node,
    Queue,
    Quorum,
    Role,
    Route,
)
from tests.runtime.graph.example_bodies import Batches, InnerStep, advise, join, merge, sample, source, through


@pytest.fixture
def graph() -> Graph:
    return Graph("example")


@pytest.fixture
def worker(graph: Graph) -> Role:
    return graph.role("worker", replicas=(1, 4))


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(GraphError) as caught:
        action()
    return str(caught.value)


# -- bodies and their ports --------------------------------------------------------------------------------------------


def test_the_parameters_of_a_function_are_its_ports(worker: Role) -> None:
    node = worker.node("step", advise)
    assert [(port.name, port.has_default) for port in node.inputs] == [("item", False), ("hint", True)]
    assert node.outputs == ("result",)
    assert node.fires == AllOf(("item",))
    assert node.required == ("item",)
    assert node.body_name == "tests.runtime.graph.example_bodies:advise"


def test_the_parameters_of_call_are_the_ports_of_a_class(worker: Role) -> None:
    node = worker.node("inner-step", partial(InnerStep, emit_every=24))
    assert [(port.name, port.has_default) for port in node.inputs] == [("batch", False), ("update", True)]
    assert node.outputs == ("parameters", "progress")
    assert (node.arguments, dict(node.keywords)) == ((), {"emit_every": 24})
    assert node.input("batch") == node.inputs[0]
    assert node.input("progress") is None


def test_a_class_inherits_its_call(worker: Role) -> None:
    class Slow(InnerStep):
        pass

    assert worker.node("slow", partial(Slow, 24)).inputs == worker.node("fast", partial(InnerStep, 24)).inputs


def test_node_keeps_its_own_keywords(worker: Role) -> None:
    node = worker.node("step", sample, fires=Every(seconds(1)), never_waits=True, body_may_wait=True)
    assert (node.fires, node.never_waits, node.body_may_wait) == (Every(seconds(1)), True, True)
    assert node.required == ()
    assert dict(node.keywords) == {}


def test_the_required_ports_are_those_that_the_rule_names(worker: Role) -> None:
    assert worker.node("any", join, fires=AnyOf("left", "right")).required == ("left", "right")
    rule = Quorum("vote", key="round", opened_by="opening")
    assert worker.node("merge", merge, fires=rule).required == ("opening", "vote")


def variadic(*items: int) -> int:
    return len(items)


def keywords(**items: int) -> int:
    return len(items)


def positional(item: int, /) -> int:
    return item


@pytest.mark.parametrize(
    ("body", "parameter"), [(variadic, "*items: 'int'"), (keywords, "**items: 'int'"), (positional, "item: 'int'")]
)
def test_every_port_has_a_name(worker: Role, body: Callable[..., int], parameter: str) -> None:
    assert refusal(lambda: worker.node("step", body)) == (
        "node 'step' of role 'worker': expected a body whose parameters are its input ports, by name, "
        f"found parameter {parameter}.\n"
        "  Name every input port as a parameter of its own."
    )


class Uncallable:
    outputs = ("item",)


@pytest.mark.parametrize("body", [Uncallable, InnerStep(1), partial(InnerStep(1)), 3, None])
def test_a_body_is_a_function_or_a_class_whose_instances_can_be_called(worker: Role, body: Any) -> None:
    assert refusal(lambda: worker.node("step", body)) == (
        "node 'step' of role 'worker': expected a function, or a class whose instances can be called, "
        f"found {getattr(body, 'func', body)!r}.\n"
        "  Give the body itself: node(name, function), node(name, Class) or node(name, partial(Class, arguments))."
    )


def test_outputs_are_a_tuple(worker: Role) -> None:
    class Body(Batches):
        outputs = "batch"  # type: ignore[assignment]

    assert refusal(lambda: worker.node("step", partial(Body, 0))) == (
        "node 'step' of role 'worker': expected a tuple of names in `outputs`, found 'batch'.\n"
        "  Write outputs = ('batch',)."
    )


def test_a_function_takes_no_arguments_here(worker: Role) -> None:
    assert refusal(lambda: worker.node("step", partial(advise, 3, hint=4))) == (
        "node 'step' of role 'worker': expected no arguments: the parameters of a function are its input ports, "
        "found 2 arguments.\n"
        "  Write a class with __init__ and __call__."
    )


def test_a_class_gets_the_arguments_that_it_takes(worker: Role) -> None:
    assert refusal(lambda: worker.node("step", partial(InnerStep, emit_evry=24))) == (
        "node 'step' of role 'worker': expected the arguments of InnerStep(emit_every: 'int') -> 'None', "
        "found missing a required argument: 'emit_every'.\n"
        "  Give the body what it takes: partial(InnerStep, ...)."
    )


def test_a_refused_node_is_not_added(graph: Graph, worker: Role) -> None:
    refusal(lambda: worker.node("step", InnerStep))
    assert graph.nodes == []


# -- names, ports, edges -----------------------------------------------------------------------------------------------


def test_names_are_taken_once(graph: Graph, worker: Role) -> None:
    worker.node("step", source)
    other = graph.role("other", replicas=(1, 1))
    assert refusal(lambda: other.node("step", source)) == (
        "node 'step' of role 'other': expected a name that no other node has, found 'step'.\n  Choose another name."
    )
    assert refusal(lambda: graph.role("other", replicas=(1, 1))) == (
        "role 'other': expected a name that no other role has, found 'other'.\n  Choose another name."
    )


@pytest.mark.parametrize("replicas", [3, (1, 2, 3), "12"])
def test_a_role_has_a_range(graph: Graph, replicas: Any) -> None:
    assert refusal(lambda: graph.role("worker", replicas=replicas)) == (
        f"role 'worker': expected a pair (smallest, largest), found replicas={replicas!r}.\n  Write replicas=(1, 64)."
    )


def test_a_port_is_looked_up_at_once(worker: Role) -> None:
    step = worker.node("inner-step", partial(InnerStep, 24))
    assert step["batch"].node is step
    assert refusal(lambda: step["bacth"]) == (
        "port 'bacth' of node 'inner-step' (body tests.runtime.graph.example_bodies:InnerStep): "
        "expected one of its ports: inputs batch, update; outputs parameters, progress, found 'bacth'.\n"
        "  Did you mean 'batch'?"
    )
    assert refusal(lambda: worker.node("data", partial(Batches, 0))["x"]).endswith(
        "inputs none; outputs batch, found 'x'.\n  There is: batch."
    )


def pair(worker: Role) -> tuple[Node, Node]:
    return worker.node("first", through), worker.node("second", through)


def test_an_edge_leads_from_an_output_to_an_input(graph: Graph, worker: Role) -> None:
    first, second = pair(worker)
    assert refusal(lambda: graph.edge(first["item"], second["item"], Latest())) == (
        "edge first.item -> second.item: expected an output port of 'first', found the input port 'item'.\n"
        "  There is: result."
    )
    assert refusal(lambda: graph.edge(first["result"], second["result"], Latest())) == (
        "edge first.result -> second.result: expected an input port of 'second', found the output port 'result'.\n"
        "  There is: item."
    )
    assert refusal(lambda: graph.edge(first, second["item"], Latest())) == (  # type: ignore[arg-type]
        "an edge of graph 'example': expected ports at both ends, found a Node.\n"
        "  Name them, as in graph.edge(data['batch'], step['batch'], Queue(capacity=2))."
    )
    assert graph.edges == []


def test_an_edge_stays_in_its_graph(graph: Graph, worker: Role) -> None:
    first, _ = pair(worker)
    stranger = Graph("other").role("worker", replicas=(1, 1)).node("stranger", through)
    assert refusal(lambda: graph.edge(first["result"], stranger["item"], Latest())) == (
        "edge first.result -> stranger.item: expected nodes of graph 'example', "
        "found node 'stranger' of another graph.\n"
        "  Connect nodes of one graph."
    )


def test_a_policy_has_no_default(graph: Graph, worker: Role) -> None:
    first, second = pair(worker)
    assert refusal(lambda: graph.edge(first["result"], second["item"], Queue)) == (  # type: ignore[arg-type]
        "edge first.result -> second.item: expected a policy, Queue(capacity) or Latest(), "
        "found <class 'isthmus.runtime.graph.template.Queue'>.\n"
        "  Choose one: it has no default."
    )


def test_where_items_go(graph: Graph, worker: Role) -> None:
    first, second = pair(worker)
    other = graph.role("other", replicas=(1, 2))
    far = other.node("far", through)
    inside = graph.edge(first["result"], second["item"], Latest())
    beside = graph.edge(first["result"], first["item"], Latest(), to=worker.next)
    across = graph.edge(first["result"], far["item"], Latest(), to=other.all)
    by_key = graph.edge(second["result"], far["item"], Latest(), to=other.at("fragment"))
    routes = [edge.route for edge in (inside, beside, across, by_key)]
    assert routes == [None, Route("worker", "next"), Route("other", "all"), Route("other", "at", "fragment")]
    assert [edge.is_local for edge in graph.edges] == [True, False, False, False]
    template = graph.freeze()
    assert template.edges_into(far, "item") == [across, by_key]
    assert [edge for edge in template.edges if edge.source.node is first] == [inside, beside, across]
    assert str(across) == "first.result -> far.item"
    assert graph.role_of("other") is other
    with pytest.raises(KeyError):
        graph.role_of("nobody")


def test_an_edge_between_roles_says_where_its_items_go(graph: Graph, worker: Role) -> None:
    first, _ = pair(worker)
    far = graph.role("parameter-server", replicas=(1, 2)).node("far", through)
    assert refusal(lambda: graph.edge(first["result"], far["item"], Latest())) == (
        "edge first.result -> far.item: expected `to`, because role 'worker' and role 'parameter-server' are on "
        "different hosts, found none.\n"
        "  Write to=parameter_server.all for every live replica, or to=parameter_server.at('field') for one."
    )
    assert graph.edges == []


def test_a_template_stays_as_it_is(graph: Graph, worker: Role) -> None:
    first, second = pair(worker)
    graph.declared["seen"] = first["result"]
    template = graph.freeze()
    more = Graph.of(template)
    third = more.role("other", replicas=(1, 1)).node("third", through)
    more.edge(first["result"], third["item"], Latest(), to=more.role_of("other").all)
    more.declared["told"] = third["item"]
    graph.edge(first["result"], second["item"], Latest())
    for one in (template, Graph("example").freeze()):
        assert one.edges == ()
    assert [node.name for node in template.nodes] == ["first", "second"]
    assert [role.name for role in template.roles] == ["worker"]
    assert dict(template.declared) == {"seen": first["result"]}
    assert [node.name for node in more.freeze().nodes] == ["first", "second", "third"]
    assert dict(more.freeze().declared) == {"seen": first["result"], "told": third["item"]}
    assert graph.role_of("worker") is worker


def test_a_port_that_is_declared_is_one_of_the_graph(graph: Graph, worker: Role) -> None:
    first, second = pair(worker)
    assert graph.declared_port("seen", first["result"]) == first["result"]
    assert graph.declared_port("told", second["item"], is_input=True) == second["item"]
    assert refusal(lambda: graph.declared_port("told", second["result"], is_input=True)) == (
        "told= of graph 'example': expected an input port of 'second', found 'result'.\n  There is: item."
    )


def test_edges_with_initial_arrays_can_be_kept_in_sets(graph: Graph, worker: Role) -> None:
    """What has no equality or hash of its own may be an initial value: an edge is equal to itself only."""
    first, second = pair(worker)
    edges = [graph.edge(first["result"], second["item"], Queue(1, initial=({"w": []},))) for _ in range(2)]
    assert len(set(edges)) == 2


def take(item: int, other: int | None = None) -> int:
    return item


def test_a_port_that_takes_one_item_refuses_an_edge_that_could_bring_several(graph: Graph, worker: Role) -> None:
    server = graph.role("server", replicas=(1, 1))
    one, several = server.node("one", take), worker.node("several", take)
    graph.edge(one["result"], several["item"], Latest(), to=worker.all)  # Of one server.
    graph.edge(several["result"], worker.node("beside", take)["item"], Queue(1), to=worker.next)
    graph.edge(several["result"], worker.node("alone", take)["item"], Latest())
    edges = list(graph.edges)
    do = "  Have the body take {(replica, key): item} there, and say so: collects = ('item',)."
    expected = "expected one item at a time, which is what take takes at 'item'"
    assert refusal(lambda: graph.edge(several["result"], one["item"], Latest(), to=server.all)) == (
        f"edge several.result -> one.item: {expected}, found one of every worker.\n{do}"
    )
    assert refusal(lambda: graph.edge(several["result"], one["item"], Latest(), to=server.at("key"))) == (
        f"edge several.result -> one.item: {expected}, found one of every worker.\n{do}"
    )
    assert refusal(lambda: graph.edge(one["result"], one["item"], Latest("fragment"))) == (
        f"edge one.result -> one.item: {expected}, found one of each 'fragment'.\n{do}"
    )
    assert refusal(lambda: graph.edge(several["result"], several["item"], Latest())) == (
        f"edge several.result -> several.item: {expected}, found one of one.result, too.\n{do}"
    )
    assert graph.edges == edges


def test_a_body_says_at_which_ports_it_collects(worker: Role) -> None:
    node = worker.node("step", partial(InnerStep, 24))
    assert [(port.name, port.collects) for port in node.inputs] == [("batch", False), ("update", True)]

    class Text(InnerStep):
        collects = "update"  # type: ignore[assignment]

    class Strange(InnerStep):
        collects = ("updates",)

    assert refusal(lambda: worker.node("text", partial(Text, 24))) == (
        "node 'text' of role 'worker': expected a tuple of names in `collects`, found 'update'.\n"
        "  Write collects = ('update',)."
    )
    assert refusal(lambda: worker.node("strange", partial(Strange, 24))) == (
        "node 'strange' of role 'worker': expected input ports of the body in `collects`, found 'updates'.\n"
        "  Did you mean 'update'?"
    )


def test_votes_are_collected(worker: Role) -> None:
    rule = Quorum("item", key="round", opened_by="other")
    assert refusal(lambda: worker.node("merge", take, fires=rule)) == (
        "node 'merge' of role 'worker', which fires by Quorum: expected a body that takes {(replica, key): vote} at "
        "'item', found one that takes one item there.\n"
        "  Say so in its class: collects = ('item',)."
    )


# -- errors ------------------------------------------------------------------------------------------------------------


def test_an_error_shows_all_its_faults() -> None:
    faults = [Fault("one", "a", "b", "Do c."), Fault("two", "d", "e", "Do f.")]
    error = GraphError.of(iter(faults))
    assert error.faults == tuple(faults)
    assert str(error) == "one: expected a, found b.\n  Do c.\ntwo: expected d, found e.\n  Do f."
    with pytest.raises(ValueError, match="at least one fault"):
        GraphError.of([])


def test_the_nearest_name() -> None:
    assert nearest("bacth", ["update", "batch"]) == "Did you mean 'batch'?"
    assert nearest("x", ["update", "batch"]) == "There is: batch, update."
    assert nearest("x", []) == "There is none."
