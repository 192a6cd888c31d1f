"""Every rule of single roles, nodes, ports and edges, with its message: read by people who have just made a mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from isthmus.runtime.clock import Duration, milliseconds, seconds
from isthmus.runtime.errors import GraphError
from isthmus.runtime.graph.template import AllOf, AnyOf, Every, Graph, Latest, Node, Policy, Queue, Quorum, Role, Route
from isthmus.runtime.graph.verify import CAPACITY_MAX, verify
from tests.runtime.graph.example_bodies import decide, join, merge, sample, source, through


def messages(graph: Graph) -> list[str]:
    """What is wrong with a graph; the last message ends with its name and size."""
    with pytest.raises(GraphError) as caught:
        verify(graph.freeze())
    assert str(caught.value) == "\n".join(map(str, caught.value.faults))
    size = str(caught.value)[str(caught.value).rindex(" (graph") :]
    assert size.startswith(f" (graph '{graph.name}', {len(graph.nodes)} node")
    return str(caught.value).removesuffix(size).replace(".\n  ", ".\n").split("\n")


def consumer(body: Callable[..., Any], *ports: str, policy: Policy = Latest(), **options: Any) -> Graph:  # noqa: B008
    """A source, and a node that it feeds at `ports`."""
    graph = Graph("example")
    worker = graph.role("worker", replicas=(1, 4))
    first = worker.node("first", source)
    second = worker.node("second", body, **options)
    for port in ports:
        graph.edge(first["result"], second[port], policy)
    return graph


def test_a_graph_has_a_role() -> None:
    assert messages(Graph("empty")) == [
        "the graph: expected a role with a node, found no role.",
        "Add one: graph.role('learner', replicas=(1, 64)).",
    ]


@pytest.mark.parametrize("replicas", [(4, 1), (-1, 2), (0, 0), (1, 2.0), (True, 2), ("1", "2")])
def test_the_range_of_a_role(replicas: tuple[int, int]) -> None:
    graph = Graph("example")
    graph.role("worker", replicas=replicas).node("only", source)
    assert messages(graph) == [
        "role 'worker': expected whole numbers 0 <= smallest <= largest, with a largest of at least 1, found "
        f"replicas={replicas!r}.",
        "Write replicas=(smallest, largest).",
    ]


def test_a_role_has_a_node() -> None:
    graph = consumer(through, "item")
    graph.role("idle", replicas=(0, 1))
    assert messages(graph) == [
        "role 'idle': expected at least one node, found none.",
        "Add a node to it, or remove the role.",
    ]


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("innerStep", "Call it 'inner-step'."),
        ("inner_step", "Call it 'inner-step'."),
        ("Step 2", "Call it 'step'."),
        ("2", "Choose another name."),
    ],
)
def test_names(name: str, better: str) -> None:
    graph = Graph("example")
    graph.role("worker", replicas=(1, 4)).node(name, source)
    expected = "expected a name of small letters, digits and hyphens that begins with a letter"
    assert messages(graph) == [f"node {name!r}: {expected}, found {name!r}.", better]
    graph = Graph("example")
    graph.role(name, replicas=(1, 4)).node("only", source)
    assert messages(graph) == [f"role {name!r}: {expected}, found {name!r}.", better]


def test_a_node_among_others_has_an_edge_unless_a_timer_fires_it() -> None:
    graph = consumer(through, "item")
    graph.roles[0].node("watch", sample, fires=Every(seconds(1)))
    verify(graph.freeze())
    graph.roles[0].node("lone", sample)
    assert messages(graph) == [
        "node 'lone': expected an edge to or from it, found none: no item ever reaches it or leaves it.",
        "Connect it, fire it by Every(period) if it works for itself, or remove it.",
    ]


def test_every_one_of_two_nodes_without_edges_is_told() -> None:
    graph = Graph("example")
    worker = graph.role("worker", replicas=(1, 4))
    worker.node("first", source)
    worker.node("second", source)
    assert [message.split(":")[0] for message in messages(graph)[::2]] == ["node 'first'", "node 'second'"]


def test_a_required_port_has_an_edge() -> None:
    assert messages(consumer(join, "left")) == [
        "port 'right' of node 'second': expected an edge into it, because the node fires only with an item there, "
        "found none.",
        "Connect it, or give the parameter a default if the node can do without.",
    ]


def test_a_sampled_port_has_a_default() -> None:
    expected = "and a firing may find nothing there, found none."
    assert messages(consumer(join, "left", "right", fires=AllOf(("left",)))) == [
        f"port 'right' of node 'second': expected a default, because the port is not named by AllOf {expected}",
        "Write right=None in the body, or name the port in AllOf, too.",
    ]
    assert messages(consumer(join, "left", "right", fires=AnyOf("left", "right"))) == [
        f"port 'left' of node 'second': expected a default, because the port is one of several in AnyOf {expected}",
        "Write left=None in the body, or leave `fires` out to wait for every port.",
        f"port 'right' of node 'second': expected a default, because the port is one of several in AnyOf {expected}",
        "Write right=None in the body, or leave `fires` out to wait for every port.",
    ]
    assert messages(consumer(through, "item", fires=Every(seconds(1)))) == [
        f"port 'item' of node 'second': expected a default, because the port is not named by Every {expected}",
        "Write item=None in the body, or leave `fires` out to wait for every port.",
    ]


def test_a_lone_port_of_any_of_is_never_empty() -> None:
    verify(consumer(through, "item", fires=AnyOf("item")).freeze())


def test_the_ports_of_a_firing_rule_exist() -> None:
    for fires in (AllOf(("itme",)), AnyOf("itme")):
        assert messages(consumer(sample, "item", fires=fires)) == [
            f"node 'second', which fires by {type(fires).__name__}: expected input ports of its body, found 'itme'.",
            "Did you mean 'item'?",
        ]


def test_a_firing_rule_is_one() -> None:
    assert messages(consumer(sample, "item", fires=("item",))) == [
        "node 'second': expected a firing rule, AllOf, AnyOf, Every or Quorum, found fires=('item',).",
        "Leave `fires` out to fire whenever all ports without default have an item.",
    ]
    graph = consumer(sample, "item", fires=("item",))
    graph.roles[0].node("Third", source)
    assert len(messages(graph)) == 6  # The third has a wrong name, and no edge.
    assert messages(consumer(sample, "item", fires=AllOf("item"))) == [  # type: ignore[arg-type]
        "node 'second': expected a tuple of port names in AllOf, found 'item'.",
        "Write AllOf(('item',)).",
    ]
    assert messages(consumer(sample, "item", fires=AnyOf())) == [
        "node 'second': expected at least one port in AnyOf, found none: it never fires.",
        "Name one of: item.",
    ]


@pytest.mark.parametrize(
    ("period", "found"),
    [(Duration(500_000), "0.5 ms"), (seconds(3601), "3601 s"), (0.5, "0.5"), (Duration(-1), "-1e-06 ms")],
)
def test_the_period_of_every(period: Duration, found: str) -> None:
    assert messages(consumer(sample, "item", fires=Every(period))) == [
        "node 'second', which fires by Every: expected a period from 1 ms to 1 h, in whole nanoseconds, "
        f"found {found}.",
        "Write Every(milliseconds(100)) or Every(seconds(10)).",
    ]


def test_periods_up_to_the_limits_are_sound() -> None:
    for period in (milliseconds(1), seconds(3600)):
        verify(consumer(sample, "item", fires=Every(period)).freeze())


def test_the_edges_of_a_port_are_of_one_kind() -> None:
    graph = consumer(through, "item")
    third = graph.roles[0].node("third", source)
    graph.edge(third["result"], graph.nodes[1]["item"], Queue(2))
    assert messages(graph) == [
        "port 'item' of node 'second': expected edges of one kind, all Queue or all Latest, found "
        "first.result -> second.item [Latest] and third.result -> second.item [Queue(2)].",
        "Choose one kind, or give the body a port for each.",
    ]


def test_an_edge_is_there_once() -> None:
    assert messages(consumer(through, "item", "item")) == [
        "port 'item' of node 'second': expected one edge from first.result, found two.",
        "Remove one of the two.",
    ]


@pytest.mark.parametrize("capacity", [0, -1, 65_537, 2.0, True, "2"])
def test_the_capacity_of_a_queue(capacity: int) -> None:
    assert messages(consumer(through, "item", policy=Queue(capacity))) == [
        "edge first.result -> second.item: expected a capacity from 1 to 65536 items, found "
        f"Queue(capacity={capacity!r}).",
        "Write Queue(capacity=2).",
    ]


def test_the_initial_items_of_a_queue() -> None:
    verify(consumer(through, "item", policy=Queue(65_536, initial=(None,))).freeze())
    assert messages(consumer(through, "item", policy=Queue(1, initial=(1, 2)))) == [
        "edge first.result -> second.item: expected at most 1 initial item, for a capacity of 1, found 2.",
        "Raise the capacity: initial items occupy it.",
    ]
    assert messages(consumer(through, "item", policy=Queue(2, initial=5))) == [  # type: ignore[arg-type]
        "edge first.result -> second.item: expected a tuple of initial values, found initial=5.",
        "Write initial=(value,): one entry per initial item.",
    ]


@pytest.mark.parametrize("key", ["", 3])
def test_the_key_of_latest(key: str) -> None:
    assert messages(consumer(through, "item", policy=Latest(key))) == [
        f"edge first.result -> second.item: expected the name of a field of the item, found key={key!r}.",
        "Write Latest('fragment'), or Latest().",
    ]


def routed(to: Callable[[Role, Role], Route], others: tuple[int, int] = (1, 4)) -> Graph:
    """An edge between two roles; `to` gets that of its source and that of its target."""
    graph = Graph("example")
    worker, other = graph.role("worker", replicas=(1, 4)), graph.role("other", replicas=others)
    first, second = worker.node("first", source), other.node("second", through)
    graph.edge(first["result"], second["item"], Latest(), to=to(worker, other))
    return graph


def test_routes() -> None:
    edge = "edge first.result -> second.item: expected"
    verify(routed(lambda worker, other: other.at("fragment")).freeze())
    assert messages(routed(lambda worker, other: worker.at("fragment"))) == [
        f"{edge} a route within the role of its target, 'other', found to=worker.at.",
        "Use a route of role 'other', such as to=other.all.",
    ]
    assert messages(routed(lambda worker, other: other.next)) == [
        f"{edge} both ends in one role, because `other.next` leads from replica i to i + 1, "
        "found a source in role 'worker'.",
        "Use other.at(key), or other.all to reach every other.",
    ]
    assert messages(routed(lambda worker, other: other.at(""))) == [
        f"{edge} the name of a field of the item, found at('').",
        "Write other.at('fragment').",
    ]
    assert messages(routed(lambda worker, other: other.group, others=(1, 3))) == [
        f"{edge} a fixed number of replicas of 'worker' or 'other': it is the number of groups, found ranges.",
        "Give one of them replicas=(N, N), or use other.all.",
    ]
    verify(routed(lambda worker, other: other.group, others=(3, 3)).freeze())
    assert messages(routed(lambda worker, other: Route("other", "al"))) == [  # type: ignore[arg-type]
        f"{edge} a route: all, next, at, group or some, found 'al'.",
        "Did you mean 'all'?",
    ]


def quorum(
    opening: Policy = Queue(2),  # noqa: B008
    voting: Policy = Latest(),  # noqa: B008
    **changes: Any,
) -> tuple[Graph, Node, Node]:
    """Up to 4 voters and a merge with a pacer; `changes` are those of its firing rule."""
    graph = Graph("example")
    voter, syncer = graph.role("voter", replicas=(1, 4)), graph.role("syncer", replicas=(1, 1))
    answer, pacer = voter.node("answer", source), syncer.node("pacer", source)
    rule: dict[str, Any] = {"port": "vote", "key": "round", "opened_by": "opening"} | changes
    merging = syncer.node("merge", merge, fires=Quorum(**rule))
    graph.edge(answer["result"], merging["vote"], voting, to=syncer.all)
    graph.edge(pacer["result"], merging["opening"], opening)
    return graph, answer, merging


@pytest.mark.parametrize("voting", [Latest(), Queue(1)])
def test_a_sound_quorum(voting: Policy) -> None:
    """The port `decision` needs neither edge nor default, and the ports of votes and openings no default."""
    verify(quorum(voting=voting, count_min=4, grace=milliseconds(0))[0].freeze())


MERGE = "node 'merge', which fires by Quorum"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"key": ""},
            [f"{MERGE}: expected the name of the field that names a round, found key=''.", "Write key='round'."],
        ),
        ({"count_min": 0}, [f"{MERGE}: expected a count_min of at least 1, found count_min=0.", "Write count_min=1."]),
        (
            {"count_min": 5},
            [
                f"{MERGE}, on port 'vote': expected at least 5 voters, for count_min=5, found 4 at most.",
                "Allow more replicas of the voters' role, or lower count_min.",
            ],
        ),
        (
            {"grace": -1},
            [
                f"{MERGE}: expected a grace of 0 ns or more, or None for no limit, found grace=-1.",
                "Write grace=milliseconds(50), or leave it out.",
            ],
        ),
        (
            {"opened_by": "vote"},
            [
                "port 'opening' of node 'merge': expected a default, because the port is not named by Quorum and a "
                "firing may find nothing there, found none.",
                "Write opening=None in the body, or name the port as `port` or `opened_by`.",
                f"{MERGE}: expected two ports, one of votes and one that opens rounds, found 'vote' for both.",
                "Give the body a port for each.",
            ],
        ),
    ],
)
def test_the_figures_of_a_quorum(changes: dict[str, Any], expected: list[str]) -> None:
    assert messages(quorum(**changes)[0]) == expected


@pytest.mark.parametrize(
    ("route", "voters"),
    [(None, 1), (Route("peer", "next"), 1), (Route("peer", "all"), 4), (Route("peer", "at", "a"), 4)],
)
def test_no_quorum_needs_more_votes_than_can_come(route: Route | None, voters: int) -> None:
    def build(count_min: int) -> Graph:
        graph = Graph("example")
        peer = graph.role("peer", replicas=(1, 4))
        answer, pacer = peer.node("answer", source), peer.node("pacer", source)
        merging = peer.node("merge", merge, fires=Quorum("vote", "round", "opening", count_min))
        graph.edge(answer["result"], merging["vote"], Latest(), to=route)
        graph.edge(pacer["result"], merging["opening"], Queue(2))
        return graph

    verify(build(voters).freeze())
    found = f"expected at least {voters + 1} voters, for count_min={voters + 1}, found {voters} at most."
    assert messages(build(voters + 1))[0] == f"{MERGE}, on port 'vote': {found}"


def test_voters_that_are_missing_for_another_reason_are_not_counted() -> None:
    graph, _, _ = quorum(count_min=2)
    del graph.edges[0]
    assert [message.split(":")[0] for message in messages(graph)[::2]] == [
        "node 'answer'",
        "port 'vote' of node 'merge'",
    ]
    graph, _, _ = quorum(count_min=2)
    graph.roles[0] = Role(graph, "voter", 1, "4")  # type: ignore[arg-type]
    assert [message.split(":")[0] for message in messages(graph)[::2]] == ["role 'voter'"]


def test_the_edges_of_a_quorum() -> None:
    assert messages(quorum(Latest())[0]) == [
        "edge pacer.result -> merge.opening: expected a Queue, because every item opens a round and none may be "
        "superseded, found Latest.",
        "Write Queue(capacity), with as many as rounds may be open.",
    ]
    graph, answer, merging = quorum()
    graph.edge(answer["result"], merging["decision"], Latest(), to=graph.role_of("syncer").all)
    assert messages(graph) == [
        "edge answer.result -> merge.decision: expected no edge into 'decision' of a Quorum node: the runtime fills "
        "it, found one.",
        "Give the port another name.",
    ]
    graph, answer, merging = quorum()
    second = graph.roles[0].node("second", source)
    graph.edge(second["result"], merging["vote"], Latest(), to=graph.role_of("syncer").all)
    assert messages(graph) == [
        "node 'merge', which fires by Quorum, on port 'vote': expected one edge from role 'voter', because a replica "
        "has one vote, found 2.",
        "Let one node of the role vote.",
    ]


@pytest.mark.parametrize("is_connected", [True, False])
def test_nobody_votes_on_the_port_that_the_runtime_fills(is_connected: bool) -> None:
    graph = Graph("example")
    voter, syncer = graph.role("voter", replicas=(1, 4)), graph.role("syncer", replicas=(1, 1))
    answer, pacer = voter.node("answer", source), syncer.node("pacer", source)
    deciding = syncer.node("decide", decide, fires=Quorum("decision", "round", "item"))
    graph.edge(pacer["result"], deciding["item"], Queue(1))
    graph.edge(answer["result"], deciding["decision" if is_connected else "hint"], Latest(), to=syncer.all)
    assert messages(graph) == [
        "node 'decide', which fires by Quorum: expected votes and openings on ports of their own, because the runtime "
        "fills 'decision', found port='decision', opened_by='item'.",
        "Give the body a port for each.",
    ]


def test_a_quorum_has_no_initial_items() -> None:
    queue = Queue(2, initial=({"round": 0},))
    unseen = "of a Quorum node: the 'round' in them is not seen, so they would belong to no round, found"
    opening, voting = "edge pacer.result -> merge.opening", "edge answer.result -> merge.vote"
    assert messages(quorum(queue, queue)[0]) == [
        f"{opening}: expected no initial items on port 'opening' {unseen} Queue(2, 1 initial).",
        "Leave `initial` out, and let the opener emit the first rounds.",
        f"{voting}: expected no initial items on port 'vote' {unseen} Queue(2, 1 initial).",
        "Leave `initial` out, and let the voters emit the first votes.",
    ]
    assert len(messages(quorum(Queue(2, initial=5))[0])) == 2  # type: ignore[arg-type]
    assert len(messages(quorum(Queue(CAPACITY_MAX, initial=({"round": 0},)))[0])) == 2
