"""The scheduler's rules, one by one, with the whole list of commands of each event."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.runtime.clock import Instant, milliseconds
from isthmus.runtime.cores.scheduler_core import constant
from isthmus.runtime.cores.scheduler_events import (
    BodyFailed,
    CancelTimer,
    CreditGranted,
    DropItem,
    EndNode,
    FailHost,
    GrantCredit,
    ItemsEmitted,
    NodeOpened,
    NodesNudged,
    Output,
    ReplicaJoined,
    ReplicaLeft,
    ResendItem,
    SendItem,
    SetTimer,
    ShareItem,
    TimerFired,
)
from isthmus.runtime.cores.scheduler_flow import HELD_MAX
from isthmus.runtime.errors import InvariantError, LocalProtocolError, RemoteProtocolError
from isthmus.runtime.graph.template import AnyOf, Every, Graph, Latest, Policy, Queue, Route
from isthmus.runtime.ids import Handle
from tests.runtime.cores.scheduler_stories import MS, Story, arrived, body, ended, life, run

H = Handle


def two_nodes(policy: Policy, *, fires: Any = None) -> Graph:
    """source.out -> sink.item, both here."""
    graph = Graph("two")
    here = graph.role("here", replicas=(1, 3))
    source = here.node("source", body(outputs="out"))
    sink = here.node("sink", body(required="item"), fires=fires)
    graph.edge(source["out"], sink["item"], policy)
    return graph


def sink_here(policy: Policy, *, required: str = "item", sampled: str = "", fires: Any = None, to: Any = None) -> Graph:
    """Role there (1 to 3 replicas) sends from one port to every port of a sink here; the sink is node 0."""
    graph = Graph("sink")
    here = graph.role("here", replicas=(1, 3))
    there = graph.role("there", replicas=(1, 3))
    sink = here.node("sink", body(required, sampled), fires=fires)
    source = there.node("source", body(outputs="out"))
    for port in f"{required} {sampled}".split():
        graph.edge(source["out"], sink[port], policy, to=to or here.all)
    return graph


def source_here(policy: Policy, *, to: Route | None = None, replicas: tuple[int, int] = (1, 3)) -> Graph:
    """A source here sends to a sink in every replica of role there; the source is node 0."""
    graph = Graph("source")
    here = graph.role("here", replicas=(1, 3))
    there = graph.role("there", replicas=replicas)
    source = here.node("source", body(outputs="out"))
    sink = there.node("sink", body(required="item"))
    graph.edge(source["out"], sink["item"], policy, to=to or there.all)
    return graph


# -- firing ------------------------------------------------------------------------------------------------------------


def test_a_node_fires_when_its_body_is_open_one_firing_at_a_time() -> None:
    story = Story(two_nodes(Queue(1)), is_open=False)
    assert story.begun == []
    assert story.at(1, NodeOpened(0)) == [run(0, 1)]
    assert story.at(2, NodeOpened(1)) == []
    assert story.at(3, ended(0, (0, 7))) == [run(1, 1, (0, [("here/0", 7)])), run(0, 2)]
    assert story.at(4, ended(0, (0, 8))) == []
    assert story.at(5, ended(1)) == [run(1, 2, (0, [("here/0", 8)])), run(0, 3)]


def test_a_producer_without_credit_waits_until_its_consumer_takes() -> None:
    story = Story(two_nodes(Queue(2)))
    story.at(1, ended(0, (0, 1)))  # Is being consumed.
    story.at(2, ended(0, (0, 2)))
    assert story.at(3, ended(0, (0, 3))) == []
    assert story.at(4, ended(1)) == [run(1, 2, (0, [("here/0", 2)])), run(0, 4)]


def test_a_firing_need_not_emit() -> None:
    assert Story(two_nodes(Queue(1))).at(1, ended(0)) == [run(0, 2)]


def test_initial_items_are_there_from_the_start_and_occupy_credit() -> None:
    story = Story(two_nodes(Queue(2, ("a", "b"))))
    first, second = constant(0, 0), constant(0, 1)
    assert story.begun == [run(1, 1, (0, [("here/0", first)])), run(0, 1)]
    assert story.at(1, ended(0, (0, 7))) == []
    assert story.at(2, ended(1)) == [run(1, 2, (0, [("here/0", second)])), run(0, 2)]
    assert story.at(3, ended(1)) == [run(1, 3, (0, [("here/0", 7)]))]


def test_the_newest_item_of_a_mailbox_supersedes_the_others() -> None:
    story = Story(two_nodes(Latest()))
    assert story.at(1, ended(0, (0, 1))) == [run(1, 1, (0, [("here/0", 1)])), run(0, 2)]
    assert story.at(2, ended(0, (0, 2))) == [run(0, 3)]
    assert story.at(3, ended(0, (0, 3))) == [DropItem(H(2), "superseded"), run(0, 4)]
    assert story.at(4, ended(1)) == [run(1, 2, (0, [("here/0", 3)]))]
    assert story.core.statistics() == {"superseded": 1, "firings": 6}


def test_mailboxes_have_keys_and_are_taken_in_order_of_arrival() -> None:
    story = Story(two_nodes(Latest("fragment")))
    story.at(1, ended(0, (0, 1, {"fragment": 0})))
    story.at(2, ended(0, (0, 2, {"fragment": 5}), (0, 3, {"fragment": "x"}), (0, 4, {"fragment": 6})))
    assert story.at(3, ended(0, (0, 5, {"fragment": 5}))) == [DropItem(H(2), "superseded"), run(0, 4)]
    taken = [("here/0", "x", 3), ("here/0", 6, 4), ("here/0", 5, 5)]
    assert story.at(4, ended(1)) == [run(1, 2, (0, taken))]


def test_all_of_waits_for_every_live_producer_of_a_queue() -> None:
    story = Story(sink_here(Queue(2)), "there/0", "there/1")
    assert story.at(1, arrived(0, "there/0", 1)) == []
    assert story.at(2, arrived(0, "there/0", 2)) == []
    grants = [GrantCredit(0, life("there/0"), 1), GrantCredit(0, life("there/1"), 1)]
    assert story.at(3, arrived(0, "there/1", 3)) == [*grants, run(0, 1, (0, [("there/0", 1), ("there/1", 3)]))]
    assert story.at(4, ended(0)) == []
    assert story.at(5, ReplicaLeft(life("there/1"))) == [grants[0], run(0, 2, (0, [("there/0", 2)]))]


def test_all_of_waits_for_any_producer_of_a_mailbox_and_for_every_port() -> None:
    story = Story(sink_here(Latest(), required="left right"), "there/0", "there/1")
    assert story.at(1, arrived(0, "there/1", 1), arrived(0, "there/0", 2)) == []
    both = (0, [("there/1", 1), ("there/0", 2)])
    assert story.at(2, arrived(1, "there/0", 3)) == [run(0, 1, both, (1, [("there/0", 3)]))]


def test_a_sampled_port_is_never_waited_for_and_gives_what_is_new() -> None:
    story = Story(sink_here(Latest(), sampled="hint"), "there/0")
    assert story.at(1, arrived(1, "there/0", 1)) == []
    assert story.at(2, arrived(0, "there/0", 2)) == [run(0, 1, (0, [("there/0", 2)]), (1, [("there/0", 1)]))]
    story.at(3, ended(0))
    assert story.at(4, arrived(0, "there/0", 3)) == [run(0, 2, (0, [("there/0", 3)]))]


def test_a_sampled_queue_gives_one_item_of_each_producer_and_credit_back() -> None:
    story = Story(sink_here(Queue(2), required="", sampled="item"), "there/0", "there/1")
    assert story.begun == [run(0, 1)]
    assert story.at(1, arrived(0, "there/0", 1), arrived(0, "there/0", 2)) == []
    assert story.at(2, ended(0)) == [GrantCredit(0, life("there/0"), 1), run(0, 2, (0, [("there/0", 1)]))]


def test_any_of_waits_for_one_of_its_ports() -> None:
    fires = AnyOf("left", "right")
    story = Story(sink_here(Latest(), required="", sampled="left right hint", fires=fires), "there/0")
    assert story.at(1, arrived(2, "there/0", 1)) == []
    assert story.at(2, arrived(1, "there/0", 2)) == [run(0, 1, (1, [("there/0", 2)]), (2, [("there/0", 1)]))]


def test_every_fires_once_a_period_and_takes_what_there_is() -> None:
    story = Story(sink_here(Latest(), required="", sampled="item", fires=Every(milliseconds(10))), "there/0")
    assert story.begun == [SetTimer(0, Instant(10 * MS))]
    assert story.at(1, arrived(0, "there/0", 1)) == []
    assert story.at(10, TimerFired(0)) == [SetTimer(0, Instant(20 * MS)), run(0, 1, (0, [("there/0", 1)]))]
    assert story.at(20, TimerFired(0)) == [SetTimer(0, Instant(30 * MS))]
    assert story.at(22, ended(0)) == [run(0, 2)]
    assert story.at(23, ended(0)) == []
    assert story.at(30, TimerFired(0)) == [SetTimer(0, Instant(40 * MS)), run(0, 3)]
    assert story.at(31, ended(0, finished=True)) == [CancelTimer(0), EndNode(0)]
    assert story.at(40, TimerFired(0)) == []


def test_an_idle_node_fires_when_something_new_is_sampled_without_required_inputs() -> None:
    story = Story(sink_here(Latest(), sampled="hint"), "there/0", is_open=False)
    assert story.at(1, NodeOpened(0, is_idle=True)) == [run(0, 1)]
    assert story.at(2, ended(0, idle=True)) == []
    assert story.at(3, arrived(0, "there/0", 1)) == []
    assert story.at(4, arrived(1, "there/0", 2)) == [run(0, 2, (1, [("there/0", 2)]))]
    assert story.at(5, ended(0)) == [run(0, 3, (0, [("there/0", 1)]))]


def test_a_stop_lets_idle_nodes_fire_once() -> None:
    story = Story(sink_here(Latest(), sampled="hint"), "there/0", is_open=False)
    story.at(1, NodeOpened(0, is_idle=True), ended(0, idle=True))
    assert story.at(2, NodesNudged()) == [run(0, 2)]
    assert story.at(3, ended(0, idle=True)) == []
    busy = Story(sink_here(Latest()), "there/0")
    assert busy.at(1, NodesNudged()) == []


def test_a_finished_node_takes_nothing_more_and_keeps_the_credit() -> None:
    story = Story(sink_here(Queue(2)), "there/0")
    story.at(1, arrived(0, "there/0", 1))
    assert story.at(2, arrived(0, "there/0", 2)) == []
    assert story.at(3, ended(0, finished=True)) == [DropItem(H(2), "node finished"), EndNode(0)]
    assert story.at(4, arrived(0, "there/0", 3)) == [DropItem(H(3), "node finished")]
    with pytest.raises(RemoteProtocolError, match=r"there/0#1 sent an item on source.out -> sink.item without credit"):
        story.at(5, arrived(0, "there/0", 4))
    assert story.at(6, ReplicaLeft(life("there/0")), NodesNudged()) == []


def test_a_body_that_fails_fails_its_host_and_may_be_opened_again() -> None:
    story = Story(two_nodes(Queue(1)))
    assert story.at(1, BodyFailed(0, "why")) == [FailHost(0, "why")]
    assert story.at(2, NodesNudged()) == []
    assert story.at(3, NodeOpened(0)) == [run(0, 2)]


# -- where items go ----------------------------------------------------------------------------------------------------


def test_a_queue_to_other_hosts_sends_and_waits_for_credit_from_each() -> None:
    story = Story(source_here(Queue(1)), "there/0", "there/1")
    sent = [SendItem(0, life("there/0"), H(1)), SendItem(0, life("there/1"), H(1))]
    assert story.at(1, ended(0, (0, 1))) == [ShareItem(H(1), 2), *sent]
    assert story.at(2, CreditGranted(0, life("there/1"), 1)) == []
    assert story.at(3, CreditGranted(0, life("there/0"), 1)) == [run(0, 2)]
    story.at(4, ended(0, (0, 2)), CreditGranted(0, life("there/0"), 1))
    assert story.at(5, ReplicaLeft(life("there/1"))) == [run(0, 3)]


def test_an_item_that_nobody_gets_is_dropped() -> None:
    story = Story(source_here(Queue(1)))
    assert story.at(1, ended(0, (0, 1))) == [DropItem(H(1), "nobody to send to"), run(0, 2)]


def test_the_next_replica_is_the_next_live_slot_and_changes_with_the_roster() -> None:
    graph = Graph("ring")
    here = graph.role("here", replicas=(1, 3))
    node = here.node("node", body("item", outputs="out"))
    graph.edge(node["out"], node["item"], Queue(2, ("a",)), to=here.next)
    story = Story(graph)
    assert story.begun == [run(0, 1, (0, [("here/0", constant(0, 0))]))]
    assert story.at(1, ended(0, (0, 1))) == [run(0, 2, (0, [("here/0", 1)]))]
    # Its next is here/1 from now on, and who comes before it first here/1, then here/2.
    before = [DropItem(constant(0, 0), "link ended")]
    assert story.at(2, ReplicaJoined(life("here/1")), ReplicaJoined(life("here/2"))) == before
    assert story.at(3, ended(0, (0, 2))) == [
        DropItem(H(2), "nobody to send to"),
        GrantCredit(0, life("here/2"), 1),
        run(0, 3, (0, [("here/2", constant(0, 0))])),
    ]
    assert story.at(4, ended(0, (0, 3))) == [SendItem(0, life("here/1"), H(3))]
    assert story.at(5, arrived(0, "here/1", 9)) == [DropItem(H(9), "not connected")]


def test_a_pair_that_begins_during_a_firing_counts_from_the_next() -> None:
    story = Story(source_here(Queue(1, ("a",))), "there/0", is_open=False)
    assert story.at(0, NodeOpened(0), CreditGranted(0, life("there/0"), 1)) == [run(0, 1)]
    assert story.at(1, ReplicaJoined(life("there/1"))) == []
    assert story.at(2, ended(0, (0, 1))) == [SendItem(0, life("there/0"), H(1))]
    assert story.at(3, CreditGranted(0, life("there/0"), 1)) == []
    assert story.at(4, CreditGranted(0, life("there/1"), 1)) == [run(0, 2)]


def test_a_key_names_a_replica_where_their_number_is_fixed() -> None:
    story = Story(source_here(Latest("n"), to=Route("there", "at", "n"), replicas=(2, 2)), "there/0", "there/1")
    sent = [ShareItem(H(1), 2), SendItem(0, life("there/1"), H(1), 7, {"n": 7})]
    assert story.at(1, ended(0, (0, 1, {"n": 7}))) == [*sent, run(0, 2)]
    story.at(2, ReplicaLeft(life("there/1")))
    assert story.at(3, ended(0, (0, 2, {"n": 3}))) == [run(0, 3)]


def test_a_key_names_one_of_the_live_replicas_where_their_number_changes() -> None:
    story = Story(source_here(Queue(1), to=Route("there", "at", "n")), "there/0", "there/2")
    assert story.at(1, ended(0, (0, 1, {"n": 5}))) == [SendItem(0, life("there/2"), H(1), None, {"n": 5})]
    assert story.at(2, CreditGranted(0, life("there/2"), 1)) == [run(0, 2)]
    emitted = ItemsEmitted(0, (Output(0, H(2), {"n": 0}),))
    assert story.at(3, emitted) == [SendItem(0, life("there/0"), H(2), None, {"n": 0})]
    # There is no credit for there/0 any more, but for there/2.
    assert story.at(4, ended(0, (0, 3, {"n": 1}))) == [SendItem(0, life("there/2"), H(3), None, {"n": 1})]


def test_what_a_firing_emits_on_its_way_leaves_at_once() -> None:
    story = Story(two_nodes(Latest()))
    assert story.at(1, ItemsEmitted(0, (Output(0, H(1)),))) == [run(1, 1, (0, [("here/0", 1)]))]
    assert story.at(2, ended(0, (0, 2))) == [run(0, 2)]


# -- what has to wait for credit ---------------------------------------------------------------------------------------


def sent_to(slot: int, *handles: int) -> list[SendItem]:
    return [SendItem(0, life(f"there/{slot}"), H(handle)) for handle in handles]


def test_outputs_beyond_the_credit_leave_in_order_as_credit_comes() -> None:
    story = Story(source_here(Queue(2)), "there/0")
    assert story.at(1, ended(0, (0, 1), (0, 2), (0, 3), (0, 4), (0, 5))) == sent_to(0, 1, 2)
    assert story.at(2, NodesNudged()) == []
    assert story.at(3, CreditGranted(0, life("there/0"), 1)) == sent_to(0, 3)
    assert story.at(4, CreditGranted(0, life("there/0"), 2)) == sent_to(0, 4, 5)
    assert story.at(5, CreditGranted(0, life("there/0"), 1)) == [run(0, 2)]


def test_credit_for_more_than_what_is_held_lets_the_node_fire_at_once() -> None:
    story = Story(source_here(Queue(2)), "there/0")
    story.at(1, ended(0, (0, 1), (0, 2), (0, 3)))
    assert story.at(2, CreditGranted(0, life("there/0"), 2)) == [*sent_to(0, 3), run(0, 2)]


def test_a_consumer_here_takes_held_outputs_one_by_one() -> None:
    story = Story(two_nodes(Queue(1)))
    assert story.at(1, ended(0, (0, 1), (0, 2), (0, 3))) == [run(1, 1, (0, [("here/0", 1)]))]
    assert story.at(2, ended(1)) == [run(1, 2, (0, [("here/0", 2)]))]
    assert story.at(3, ended(1)) == [run(1, 3, (0, [("here/0", 3)])), run(0, 2)]


def test_the_slowest_consumer_holds_an_output_for_all() -> None:
    story = Story(source_here(Queue(1)), "there/0", "there/1")
    assert story.at(1, ended(0, (0, 1), (0, 2))) == [ShareItem(H(1), 2), *sent_to(0, 1), *sent_to(1, 1)]
    assert story.at(2, CreditGranted(0, life("there/0"), 1)) == []
    both = [ShareItem(H(2), 2), *sent_to(0, 2), *sent_to(1, 2)]
    assert story.at(3, CreditGranted(0, life("there/1"), 1)) == both


def two_ports() -> Graph:
    """source.out -> sink.item by a Queue, source.hint -> sink.hint by Latest; the source is here, the sink there."""
    graph = Graph("two ports")
    here, there = graph.role("here", replicas=(1, 3)), graph.role("there", replicas=(1, 3))
    source = here.node("source", body(outputs="out hint"))
    sink = there.node("sink", body(required="item", sampled="hint"))
    graph.edge(source["out"], sink["item"], Queue(1), to=there.all)
    graph.edge(source["hint"], sink["hint"], Latest(), to=there.all)
    return graph


def test_whatever_is_emitted_later_waits_behind_what_is_held() -> None:
    story = Story(two_ports(), "there/0")
    hint = [ShareItem(H(3), 2), SendItem(1, life("there/0"), H(3))]
    assert story.at(1, ItemsEmitted(0, (Output(0, H(1)), Output(0, H(2))))) == sent_to(0, 1)
    assert story.at(2, ItemsEmitted(0, (Output(1, H(3)),))) == []
    assert story.at(3, CreditGranted(0, life("there/0"), 1)) == [*sent_to(0, 2), *hint]
    assert story.at(4, ended(0, (0, 4))) == []
    assert story.at(5, CreditGranted(0, life("there/0"), 1)) == sent_to(0, 4)


def test_a_node_ends_when_the_last_of_what_it_holds_has_left() -> None:
    story = Story(two_nodes(Queue(1)))
    assert story.at(1, ended(0, (0, 1), (0, 2), (0, 3), finished=True)) == [run(1, 1, (0, [("here/0", 1)]))]
    assert story.at(2, ended(1)) == [run(1, 2, (0, [("here/0", 2)])), EndNode(0)]
    assert story.at(3, ended(1)) == [run(1, 3, (0, [("here/0", 3)]))]
    assert story.at(4, ended(1)) == []


def test_held_outputs_leave_in_the_order_of_the_graph_whoever_got_credit_first() -> None:
    graph = Graph("two sources")
    here, there = graph.role("here", replicas=(1, 1)), graph.role("there", replicas=(1, 1))
    first, second = here.node("first", body(outputs="out")), here.node("second", body(outputs="out"))
    both, far = here.node("both", body("left right")), there.node("far", body(sampled="left right"))
    graph.edge(second["out"], both["left"], Queue(1))
    graph.edge(first["out"], both["right"], Queue(1))
    graph.edge(first["out"], far["left"], Latest(), to=there.all)
    graph.edge(second["out"], far["right"], Latest(), to=there.all)
    story = Story(graph, "there/0")
    story.at(1, ended(0, (0, 1), (0, 2)))
    commands = story.at(2, ended(1, (0, 3), (0, 4)))
    assert [command.handle for command in commands if isinstance(command, SendItem)] == [3, 2, 4]


def test_a_pair_that_begins_while_outputs_are_held_is_not_meant() -> None:
    story = Story(source_here(Queue(1)), "there/0")
    story.at(1, ended(0, (0, 1), (0, 2)))
    assert story.at(2, ReplicaJoined(life("there/1"))) == []
    assert story.at(3, CreditGranted(0, life("there/0"), 1)) == sent_to(0, 2)
    both = [ShareItem(H(3), 2), *sent_to(0, 3), *sent_to(1, 3)]
    assert story.at(4, CreditGranted(0, life("there/0"), 1), ended(0, (0, 3))) == [run(0, 2), *both]


def test_what_is_held_for_a_replica_that_leaves_is_dropped_where_nobody_else_is_meant() -> None:
    story = Story(source_here(Queue(1)), "there/0", "there/1")
    story.at(1, ended(0, (0, 1), (0, 2), (0, 3)), CreditGranted(0, life("there/0"), 1))
    assert story.at(2, ReplicaLeft(life("there/1"))) == sent_to(0, 2)
    gone = [DropItem(H(3), "nobody to send to"), run(0, 2)]
    assert story.at(3, ReplicaJoined(life("there/0", 2))) == gone
    assert story.core.statistics() == {"nobody to send to": 1, "firings": 2}


def test_the_newest_item_of_a_mailbox_is_kept_for_replicas_that_join_later() -> None:
    story = Story(source_here(Latest("key")), is_open=True)
    assert story.at(1, ended(0, (0, 1, {"key": 0}), (0, 2, {"key": 1}))) == [run(0, 2)]
    assert story.at(2, ended(0, (0, 3, {"key": 0}))) == [DropItem(H(1), "newest no more"), run(0, 3)]
    resent = [ResendItem(0, life("there/0"), H(2), 1, {"key": 1}), ResendItem(0, life("there/0"), H(3), 0, {"key": 0})]
    assert story.at(3, ReplicaJoined(life("there/0"))) == resent


# -- who is live -------------------------------------------------------------------------------------------------------


def test_what_a_replica_had_sent_is_dropped_when_it_leaves() -> None:
    story = Story(sink_here(Queue(2), required="left right"), "there/0")
    assert story.at(1, arrived(0, "there/0", 1), arrived(0, "there/0", 2)) == []
    dropped = [DropItem(H(1), "link ended"), DropItem(H(2), "link ended")]
    assert story.at(2, ReplicaLeft(life("there/0"))) == dropped
    assert story.at(3, arrived(0, "there/0", 3)) == [DropItem(H(3), "not connected")]


def test_a_new_incarnation_begins_with_fresh_credit_and_fresh_initial_items() -> None:
    story = Story(source_here(Queue(1)), "there/0")
    story.at(1, ended(0, (0, 1)))
    assert story.at(2, ReplicaJoined(life("there/0", 2))) == [run(0, 2)]
    assert story.at(3, CreditGranted(0, life("there/0"), 1)) == []
    assert story.at(4, ended(0, (0, 2))) == [SendItem(0, life("there/0", 2), H(2))]
    other = Story(sink_here(Queue(1, ("a",))), "there/0")
    other.at(1, ended(0))
    grant = GrantCredit(0, life("there/0", 5), 1)
    again = run(0, 2, (0, [("there/0", constant(0, 0))]))
    assert other.at(2, ReplicaJoined(life("there/0", 5))) == [grant, again]


def test_a_new_incarnation_takes_the_place_of_the_old_one_in_a_ring() -> None:
    graph = Graph("ring")
    here = graph.role("here", replicas=(1, 3))
    node = here.node("node", body("item", outputs="out"))
    graph.edge(node["out"], node["item"], Queue(2, ("a",)), to=here.next)
    story = Story(graph, "here/1", "here/2")
    assert story.at(1, ended(0, (0, 1))) == [SendItem(0, life("here/1"), H(1))]
    # Nobody else's pairs change: no item of here/2 is dropped, and no pair with it begins.
    assert story.at(2, ReplicaJoined(life("here/1", 2))) == []
    assert story.at(3, arrived(0, "here/2", 9))[-1] == run(0, 2, (0, [("here/2", 9)]))
    assert story.at(4, ended(0, (0, 2))) == [SendItem(0, life("here/1", 2), H(2))]


def test_ready_nodes_start_in_the_order_in_which_they_became_ready() -> None:
    graph = Graph("fan")
    here = graph.role("here", replicas=(1, 1))
    names = ["c", "a", "b"]
    source = here.node("source", body(outputs="out"))
    for name in names:
        graph.edge(source["out"], here.node(name, body("item"))["item"], Queue(1))
    started = [command.node for command in Story(graph).at(1, ended(0, (0, 1))) if not isinstance(command, ShareItem)]
    assert started == [1, 2, 3, 0]


# -- what is illegal ---------------------------------------------------------------------------------------------------

ILLEGAL = [
    (ended(9), "a firing of node 9 emitted or ended that had not begun"),
    (ended(1), "a firing of node 1 emitted or ended that had not begun"),
    (ended(0, (1, 1)), "node 'source' emitted on port 1, which it does not have"),
    (ended(0, (0, 1)), "expected an integer or a text in field 'key', found None"),
    (ended(0, (0, 1, {"key": True})), "expected an integer or a text in field 'key', found True"),
    (NodeOpened(0), "node 0 was opened twice, or is not of this host"),
    (BodyFailed(1, "why"), "node 1 failed, which was neither being opened nor running"),
    (ReplicaLeft(life("here/0", 2)), "here/0#2 left, but is not live"),
    (ReplicaJoined(life("here/0")), "here/0#1 joined, but incarnation 1 has joined before"),
    (ReplicaJoined(life("here/3")), "here/3#1 joined; graph 'two' has no replica here/3"),
    (CreditGranted(0, life("here/0"), 1), "here/0#1 granted credit on edge 0, no Queue that begins here"),
    (arrived(7, "here/0", 1), "here/0#1 sent an item on edge 7, which does not lead here"),
    (arrived(0, "there/0", 1), "there/0#1 sent an item on edge 0, which does not lead here"),
    (arrived(0, "here/1", 1), "here/1#1 sent an item on source.out -> sink.item without 'key'"),
]


@pytest.mark.parametrize(("event", "what"), ILLEGAL, ids=[what[:30] for _, what in ILLEGAL])
def test_an_illegal_event_says_what_is_wrong(event: Any, what: str) -> None:
    story = Story(two_nodes(Latest("key")))
    with pytest.raises((LocalProtocolError, RemoteProtocolError)) as caught:
        story.at(1, event)
    assert what in str(caught.value)
    assert story.at(1, ended(0)) == [run(0, 2)]


def test_a_node_holds_no_more_than_it_may() -> None:
    story = Story(source_here(Queue(2)), "there/0")
    many = [(0, number) for number in range(1, HELD_MAX + 4)]
    refused = (
        rf"'source' emitted {HELD_MAX + 3} items at once: expected at most {HELD_MAX} that have to wait for credit, "
        rf"found {HELD_MAX + 1}. Emit fewer a firing, or raise the capacity of its Queue edges."
    )
    with pytest.raises(LocalProtocolError, match=refused):
        story.at(1, ended(0, *many))
    sent = [SendItem(0, life("there/0"), H(1)), SendItem(0, life("there/0"), H(2))]
    assert story.at(2, ItemsEmitted(0, ended(0, *many[:-1]).outputs)) == sent
    with pytest.raises(LocalProtocolError, match=f"'source' emitted 1 items at once: .* found {HELD_MAX + 1}"):
        story.at(3, ended(0, many[-1]))
    assert story.at(4, CreditGranted(0, life("there/0"), 1)) == [SendItem(0, life("there/0"), H(3))]
    assert story.at(5, ended(0, many[-1])) == []


def test_an_output_that_needs_no_credit_is_held_too_and_counts() -> None:
    story = Story(two_ports(), "there/0")
    assert story.at(1, ItemsEmitted(0, tuple(Output(0, H(1 + i)) for i in range(1 + HELD_MAX)))) == sent_to(0, 1)
    with pytest.raises(LocalProtocolError, match=f"found {HELD_MAX + 1}"):
        story.at(2, ItemsEmitted(0, (Output(1, H(9999)),)))


def test_a_peer_may_send_and_grant_no_more_than_there_is_credit_for() -> None:
    story = Story(sink_here(Queue(1)), "there/0", "there/1")
    story.at(1, arrived(0, "there/0", 1))
    with pytest.raises(RemoteProtocolError, match=r"there/0#1 sent an item on .* without credit"):
        story.at(2, arrived(0, "there/0", 2))
    other = Story(source_here(Queue(2)), "there/0")
    other.at(1, ended(0, (0, 1)))
    with pytest.raises(RemoteProtocolError, match=r"granted 2 credits on .* where 1 items were under way"):
        other.at(2, CreditGranted(0, life("there/0"), 2))


def test_time_does_not_run_backwards() -> None:
    story = Story(two_nodes(Queue(1)))
    story.at(5, NodesNudged())
    with pytest.raises(LocalProtocolError, match="Fix the clock"):
        story.at(4, NodesNudged())


def test_the_check_notices_what_does_not_agree() -> None:
    for break_it, what in (
        (lambda core: setattr(core._nodes[0].outlets[0], "starved", 1), "source: starved"),
        (lambda core: setattr(core._nodes[1].inlets[0][1], "new", 1), "sink: new"),
        (lambda core: setattr(core._nodes[0], "is_running", False), "source: ready, but not started"),
        (lambda core: core._nodes[0].held.append(Output(0, H(1))), "source: holds what could leave"),
        (lambda core: core._nodes[0].held.extend([Output(0, H(1))] * (HELD_MAX + 1)), "source: holds more than it may"),
        (lambda core: setattr(core._nodes[0], "is_ending", True), "source: ending, but holds nothing"),
        (lambda core: core._roster.routes[0].links.clear(), "source.out -> sink.item: links"),
        (lambda core: core._roster.arrivals[0].links[life("here/0")].items.append(1), "new"),
        (lambda core: setattr(core._roster.routes[0].links[life("here/0")], "credit", 3), "credit out of range"),
        (lambda core: setattr(core._roster.routes[0].links[life("here/0")], "credit", 1), "are not its capacity"),
    ):
        story = Story(two_nodes(Queue(2)))
        break_it(story.core)
        with pytest.raises(InvariantError, match=what):
            story.core.check()
