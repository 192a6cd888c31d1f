"""The rules that concern the whole graph, with their messages, and the graphs that must be legal."""

from __future__ import annotations

from functools import partial

import pytest

from isthmus.runtime.clock import seconds
from isthmus.runtime.errors import GraphError
from isthmus.runtime.graph.template import AllOf, AnyOf, Every, Graph, Latest, Policy, Queue, Quorum, Role, Route
from isthmus.runtime.graph.verify import verify
from tests.runtime.graph.example_bodies import Batches, InnerStep, advise, join, merge, sample, source, through


def refusal(graph: Graph) -> str:
    with pytest.raises(GraphError) as caught:
        verify(graph.freeze())
    return str(caught.value)


def one_role() -> tuple[Graph, Role]:
    graph = Graph("example")
    return graph, graph.role("worker", replicas=(1, 4))


def gossip(policy: Policy, *, is_required: bool) -> Graph:
    """The example of the architecture page, with `average.neighbour` sampled or required."""

    def average(mine: int, neighbour: int | None = None) -> int:
        return mine

    graph = Graph("gossip")
    learner = graph.role("learner", replicas=(2, 64))
    data = learner.node("data", partial(Batches, 0))
    step = learner.node("inner-step", partial(InnerStep, emit_every=24), never_waits=True)
    fires = AllOf(("mine", "neighbour")) if is_required else None
    mean = learner.node("average", average, fires=fires)
    graph.edge(data["batch"], step["batch"], Queue(capacity=2))
    graph.edge(step["parameters"], mean["mine"], Queue(capacity=1))
    graph.edge(step["parameters"], mean["neighbour"], policy, to=learner.next)
    graph.edge(mean["result"], step["update"], Latest())
    return graph


# -- what runs free ----------------------------------------------------------------------------------------------------


def test_in_gossip_everything_runs_free() -> None:
    proof = verify(gossip(Latest(), is_required=False).freeze())
    assert [(node, verdict.free_running) for node, verdict in proof.verdicts.items()] == [
        ("data", True),
        ("inner-step", True),
        ("average", True),
    ]


def test_gossip_that_waits_for_its_neighbour_is_refused() -> None:
    assert refusal(gossip(Queue(capacity=1), is_required=True)) == (
        "node 'inner-step', declared never_waits=True: expected that it never waits for another host, nor for a body "
        "that may wait, found this chain: inner-step waits for credit from average (another learner) on "
        "inner-step.parameters -> average.neighbour [Queue(1), next learner] (and others, to inner-step (another "
        "learner)).\n"
        "  Let what comes from elsewhere be sampled, and what goes there be Latest; or drop never_waits=True. "
        "(graph 'gossip', 3 nodes, 4 edges)"
    )


def test_everybody_who_holds_a_node_up_directly_is_named() -> None:
    graph = Graph("example")
    learner, syncer = graph.role("learner", replicas=(1, 1)), graph.role("syncer", replicas=(1, 1))
    step = learner.node("step", source, never_waits=True)
    for name in ("first", "second", "third"):
        graph.edge(step["result"], syncer.node(name, through)["item"], Queue(1), to=syncer.all)
    assert (
        "this chain: step waits for credit from first (syncer) on step.result -> first.item [Queue(1), every syncer] "
        "(and others, to second (syncer), third (syncer)).\n"
    ) in refusal(graph)


def test_the_chain_is_told_edge_by_edge() -> None:
    """The neighbour's newest is waited for: nobody owes inner-step credit elsewhere, but `average` holds it up."""
    assert (
        "found this chain: inner-step waits for credit from average on inner-step.parameters -> average.mine "
        "[Queue(1)]; average waits for an item from inner-step (another learner) on inner-step.parameters -> "
        "average.neighbour [Latest, next learner].\n"
    ) in refusal(gossip(Latest(), is_required=True))


def test_with_one_replica_the_next_is_the_same_host() -> None:
    graph = Graph("example")
    worker = graph.role("worker", replicas=(1, 1))
    first = worker.node("first", through, never_waits=True)
    graph.edge(first["result"], first["item"], Queue(2, initial=(0,)), to=worker.next)
    assert verify(graph.freeze())["first"].free_running


def test_a_body_that_may_wait() -> None:
    graph, worker = one_role()
    step = worker.node("step", source, never_waits=True)
    write = worker.node("write", through, body_may_wait=True)
    graph.edge(step["result"], write["item"], Queue(1))
    assert refusal(graph) == (
        "node 'step', declared never_waits=True: expected that it never waits for another host, nor for a body that "
        "may wait, found this chain: step waits for credit from write on step.result -> write.item [Queue(1)]; "
        "write is declared body_may_wait.\n"
        "  Feed write by Latest edges, and only sample what it sends; or drop never_waits=True. "
        "(graph 'example', 2 nodes, 1 edge)"
    )


def test_the_verdict_names_who_can_hold_a_node_up() -> None:
    graph = Graph("example")
    learner, syncer = graph.role("learner", replicas=(1, 4)), graph.role("syncer", replicas=(1, 1))
    data, step, send = learner.node("data", source), learner.node("step", through), learner.node("send", through)
    store = syncer.node("store", through)
    graph.edge(data["result"], step["item"], Queue(1))
    graph.edge(step["result"], send["item"], Latest())
    graph.edge(send["result"], store["item"], Latest("fragment"), to=syncer.at("fragment"))
    proof = verify(graph.freeze())
    assert [verdict.node for verdict in proof.verdicts.values() if verdict.free_running] == ["data", "step", "send"]
    assert proof["store"].blocked_by == ("data", "send", "step")
    near = [hold.place for hold in proof["store"].holds if hold.is_near]
    assert near == ["send (learner)"]
    assert proof["store"].chain("step") == (
        "store waits for an item from send (learner) on send.result -> store.item [Latest(fragment), syncer at "
        "fragment]; send (learner) waits for an item from step (learner) on step.result -> send.item [Latest]"
    )
    with pytest.raises(KeyError):
        proof["data"].chain("store")


def test_an_alternative_on_the_same_host_is_enough() -> None:
    """A node waits for nobody in particular if any of its items will do, and one of them is its own host's."""
    graph = Graph("example")
    learner, syncer = graph.role("learner", replicas=(1, 4)), graph.role("syncer", replicas=(1, 1))
    near, far = learner.node("near", source), syncer.node("far", source)
    any_of = learner.node("any", sample, never_waits=True, fires=AnyOf("item"))
    graph.edge(near["result"], any_of["item"], Latest())
    graph.edge(far["result"], any_of["item"], Latest(), to=learner.all)
    assert verify(graph.freeze())["any"].free_running


def test_alternatives_that_only_feed_each_other_are_not_enough() -> None:
    """The loop of `any` through itself is empty until an item comes from elsewhere."""
    graph = Graph("example")
    learner, syncer = graph.role("learner", replicas=(1, 4)), graph.role("syncer", replicas=(1, 1))
    far = syncer.node("far", source)
    any_of = learner.node("any", sample, fires=AnyOf("item"))
    graph.edge(any_of["result"], any_of["item"], Latest())
    graph.edge(far["result"], any_of["item"], Latest(), to=learner.all)
    assert verify(graph.freeze())["any"].chain("far") == (
        "any waits for any item, such as one from far (syncer) on far.result -> any.item [Latest, every learner]"
    )


def test_a_round_that_asks_for_every_vote_sets_nothing_going() -> None:
    """`merge` needs one vote only, but its opener may ask for all; so `any` has nothing to begin with."""
    graph = Graph("example")
    peer = graph.role("peer", replicas=(1, 4))
    answer, pacer, rule = peer.node("answer", source), peer.node("pacer", source), Quorum("vote", "round", "opening")
    merging, any_of = peer.node("merge", merge, fires=rule), peer.node("any", sample, fires=AnyOf("item"))
    graph.edge(answer["result"], merging["vote"], Latest(), to=Route("peer", "all"))
    graph.edge(pacer["result"], merging["opening"], Queue(1))
    graph.edge(merging["result"], any_of["item"], Latest())
    graph.edge(any_of["result"], any_of["item"], Latest())
    assert verify(graph.freeze())["any"].blocked_by == ("answer",)


def test_an_alternative_by_key_may_never_come() -> None:
    """The keys of this replica's own items may all name others; then it lives on what others send."""
    graph = Graph("example")
    peer = graph.role("peer", replicas=(1, 4))
    near, any_of = peer.node("near", source), peer.node("any", sample, fires=AnyOf("item"))
    graph.edge(near["result"], any_of["item"], Latest(), to=peer.at("key"))
    assert verify(graph.freeze())["any"].blocked_by == ("near",)
    alone = Graph("example")
    peer = alone.role("peer", replicas=(1, 1))
    near, any_of = peer.node("near", source), peer.node("any", sample, fires=AnyOf("item"))
    alone.edge(near["result"], any_of["item"], Latest(), to=peer.at("key"))
    assert verify(alone.freeze())["any"].free_running


def test_an_alternative_that_keeps_a_queue_flowing_holds_up_its_producer() -> None:
    """As long as items come from `far`, `any` goes on and takes the hint of `near` sooner or later. Without them a late
    hint leaves `near` waiting for credit, and `any` for an item of `near`."""
    graph = Graph("example")
    learner, syncer = graph.role("learner", replicas=(1, 4)), graph.role("syncer", replicas=(1, 1))
    near, far = learner.node("near", source), syncer.node("far", source)
    any_of = learner.node("any", advise, fires=AnyOf("item"))
    graph.edge(near["result"], any_of["item"], Latest())
    graph.edge(far["result"], any_of["item"], Latest(), to=learner.all)
    graph.edge(near["result"], any_of["hint"], Queue(1))
    assert verify(graph.freeze())["near"].chain("far") == (
        "near waits for credit from any on near.result -> any.hint [Queue(1)]; any waits for any item, such as one "
        "from far (syncer) on far.result -> any.item [Latest, every learner]"
    )


# -- cycles and the start ----------------------------------------------------------------------------------------------


def ring(policy: Policy) -> Graph:
    graph = Graph("ring")
    peer = graph.role("peer", replicas=(2, 8))
    hop = peer.node("hop", through)
    graph.edge(hop["result"], hop["item"], policy, to=peer.next)
    return graph


def test_a_ring_with_initial_items_is_legal() -> None:
    proof = verify(ring(Queue(capacity=2, initial=(0,))).freeze())
    assert proof["hop"].blocked_by == ("hop",)
    assert proof["hop"].chain("hop") == (
        "hop waits for credit from hop (another peer) on hop.result -> hop.item [Queue(2, 1 initial), next peer]"
    )


def test_a_ring_without_is_refused() -> None:
    assert refusal(ring(Queue(capacity=2))) == (
        "the cycle hop -> hop: expected a Latest edge or a Queue with initial items in it, because each of its nodes "
        "waits for the one before, found hop.result -> hop.item [Queue(2), next peer].\n"
        "  Give one of these Queues initial items, as in Queue(capacity=2, initial=(value,)), or make one edge Latest. "
        "(graph 'ring', 1 node, 1 edge)"
    )


def pipeline(back: Policy) -> Graph:
    """Two stages, and batches that come back."""
    graph = Graph("pipeline")
    front, rear = graph.role("front", replicas=(1, 1)), graph.role("rear", replicas=(1, 1))
    forward, backward = front.node("forward", through), rear.node("backward", through)
    graph.edge(forward["result"], backward["item"], Queue(capacity=2), to=rear.all)
    graph.edge(backward["result"], forward["item"], back, to=front.all)
    return graph


def test_a_pipeline_of_two_roles_with_a_queue_cycle() -> None:
    proof = verify(pipeline(Queue(capacity=2, initial=(0, 0))).freeze())
    assert proof["forward"].blocked_by == ("backward",)
    assert "the cycle forward -> backward -> forward: expected" in refusal(pipeline(Queue(capacity=2)))


def test_every_cycle_is_named_once_and_nothing_else_is_blamed_on_it() -> None:
    graph, worker = one_role()
    first, second, third = (worker.node(name, join) for name in ("first", "second", "third"))
    sink = worker.node("sink", through)
    for source_node, target, port in ((first, second, "left"), (second, third, "left"), (third, first, "left")):
        graph.edge(source_node["result"], target[port], Queue(1))
    graph.edge(second["result"], first["right"], Queue(1))
    graph.edge(first["result"], second["right"], Queue(1))
    graph.edge(third["result"], third["right"], Queue(2, initial=(0,)))
    graph.edge(third["result"], sink["item"], Queue(1))
    with pytest.raises(GraphError) as caught:
        verify(graph.freeze())
    assert [fault.action for fault in caught.value.faults] == [
        "the cycle first -> second -> first",
        "the cycle second -> third -> first -> second",
    ]


def test_a_latest_edge_in_a_cycle_does_not_set_it_going() -> None:
    graph, worker = one_role()
    first, second, sink = worker.node("first", through), worker.node("second", through), worker.node("sink", through)
    graph.edge(first["result"], second["item"], Latest())
    graph.edge(second["result"], first["item"], Queue(1))
    graph.edge(first["result"], sink["item"], Queue(1))
    assert refusal(graph) == (
        "nodes 'first', 'second': expected that every node can fire once from the start, found that each waits for the "
        "next: first waits for an item from second on second.result -> first.item [Queue(1)]; second waits for an item "
        "from first on first.result -> second.item [Latest]; and behind them, sink waits for an item from first on "
        "first.result -> sink.item [Queue(1)].\n"
        "  Give a Queue between them initial items, or the parameter of a port that waits a default. "
        "(graph 'example', 3 nodes, 3 edges)"
    )


def test_a_queue_that_is_full_from_the_start() -> None:
    graph, worker = one_role()
    first, middle, last = worker.node("first", source), worker.node("middle", through), worker.node("last", join)
    graph.edge(first["result"], last["left"], Queue(1, initial=(0,)))
    graph.edge(first["result"], middle["item"], Queue(1))
    graph.edge(middle["result"], last["right"], Queue(1))
    assert refusal(graph) == (
        "nodes 'first', 'middle', 'last': expected that every node can fire once from the start, found that each waits "
        "for the next: first waits for credit from last on first.result -> last.left [Queue(1, 1 initial)]; last waits "
        "for an item from middle on middle.result -> last.right [Queue(1)]; middle waits for an item from first on "
        "first.result -> middle.item [Queue(1)].\n"
        "  Give a Queue between them initial items, or the parameter of a port that waits a default; or raise a "
        "capacity above the number of its initial items. (graph 'example', 3 nodes, 3 edges)"
    )


def test_those_who_wait_behind_a_knot_may_come_before_it() -> None:
    graph, worker = one_role()
    sink, only = worker.node("sink", through), worker.node("only", through)
    graph.edge(only["result"], only["item"], Latest())
    graph.edge(only["result"], sink["item"], Queue(1))
    with pytest.raises(GraphError) as caught:
        verify(graph.freeze())
    assert [fault.action for fault in caught.value.faults] == ["node 'only'"]


def test_a_node_that_waits_for_itself() -> None:
    graph, worker = one_role()
    only = worker.node("only", through)
    graph.edge(only["result"], only["item"], Latest())
    itself = "found that it waits for itself: only waits for an item from only on only.result -> only.item [Latest].\n"
    assert itself in refusal(graph)
    graph.edge(only["result"], worker.node("sink", through)["item"], Queue(1))
    behind = "; and behind it, sink waits for an item from only on only.result -> sink.item [Queue(1)].\n"
    assert itself.replace(".\n", behind) in refusal(graph)


def test_a_quorum_needs_its_votes_to_start() -> None:
    """Two of three voters wait for the merge: one vote is there at the start, and two are needed."""

    def build(count_min: int) -> Graph:
        graph = Graph("example")
        fast, slow = graph.role("fast", replicas=(1, 1)), graph.role("slow", replicas=(2, 2))
        syncer = graph.role("syncer", replicas=(1, 1))
        ready, waiting, pacer = fast.node("ready", source), slow.node("waiting", through), syncer.node("pacer", source)
        rule = Quorum("vote", key="round", opened_by="opening", count_min=count_min)
        merging = syncer.node("merge", merge, fires=rule)
        graph.edge(ready["result"], merging["vote"], Latest(), to=syncer.all)
        graph.edge(waiting["result"], merging["vote"], Latest(), to=syncer.all)
        graph.edge(pacer["result"], merging["opening"], Queue(1))
        graph.edge(merging["result"], waiting["item"], Latest(), to=slow.all)
        return graph

    verify(build(1).freeze())
    assert "nodes 'waiting', 'merge': expected that every node can fire once" in refusal(build(2))


# -- queues that fill up -----------------------------------------------------------------------------------------------


def test_a_queue_into_a_sampled_port_can_stop_its_producer_for_good() -> None:
    graph, worker = one_role()
    data, step = worker.node("data", source), worker.node("step", advise)
    graph.edge(data["result"], step["item"], Queue(1))
    graph.edge(data["result"], step["hint"], Queue(1))
    assert refusal(graph) == (
        "edge data.result -> step.hint: expected an edge that holds nobody up, because step can fire without an item "
        "of it, found Queue(1): when an item is late it fills up, and then for good: data waits for credit from step "
        "on data.result -> step.hint [Queue(1)]; step waits for an item from data on data.result -> step.item "
        "[Queue(1)].\n"
        "  Make the edge Latest, or let step wait for it: name 'hint' in AllOf, without a default. "
        "(graph 'example', 2 nodes, 2 edges)"
    )


def test_rounds_that_several_replicas_open_can_stop_their_openers_for_good() -> None:
    graph = Graph("example")
    peer, syncer = graph.role("peer", replicas=(1, 4)), graph.role("syncer", replicas=(1, 1))
    answer, merging = peer.node("answer", source), syncer.node("merge", merge, fires=Quorum("vote", "round", "opening"))
    graph.edge(answer["result"], merging["vote"], Latest(), to=syncer.all)
    graph.edge(answer["result"], merging["opening"], Queue(2), to=syncer.all)
    told = refusal(graph)
    assert told.startswith("edge answer.result -> merge.opening: expected an edge that holds nobody up, because merge")
    assert told.endswith(".\n  Let a single replica open the rounds. (graph 'example', 2 nodes, 2 edges)")


def test_a_timer_that_asks_over_queues_can_stop_for_good() -> None:
    """Two requests leave before the first answer is there; then both Queues are full, and each end waits for credit."""
    graph, worker = one_role()
    asking = worker.node("ask", sample, fires=Every(seconds(1)))
    answering = worker.node("answer", through)
    graph.edge(asking["result"], answering["item"], Queue(1))
    graph.edge(answering["result"], asking["item"], Queue(1, initial=(0,)))
    assert "  Make the edge Latest, or leave `fires` out to wait for every port. (graph" in refusal(graph)


def test_a_queue_into_a_sampled_port_is_legal_where_nobody_waits_for_its_producer() -> None:
    graph, worker = one_role()
    log = worker.node("log", sample, fires=Every(seconds(1)))
    graph.edge(worker.node("step", source)["result"], log["item"], Queue(64))
    assert verify(graph.freeze())["step"].free_running


# -- all at once -------------------------------------------------------------------------------------------------------


def test_all_faults_are_told_at_once() -> None:
    graph = Graph("example")
    worker, other = graph.role("Worker", replicas=(2, 1)), graph.role("other", replicas=(1, 2))
    data, step = worker.node("data", source), worker.node("step", join, never_waits=True)
    far = other.node("far", through)
    graph.edge(data["result"], step["left"], Queue(0))
    graph.edge(step["result"], far["item"], Queue(1), to=other.next)
    graph.edge(other.node("spare", source)["result"], far["item"], Latest())
    with pytest.raises(GraphError) as caught:
        verify(graph.freeze())
    assert [fault.action for fault in caught.value.faults] == [
        "role 'Worker'",
        "role 'Worker'",
        "port 'right' of node 'step'",
        "edge data.result -> step.left",
        "edge step.result -> far.item",
        "port 'item' of node 'far'",
        "node 'step', declared never_waits=True",
    ]
    assert str(caught.value).count("(graph 'example', 4 nodes, 3 edges)") == 1
