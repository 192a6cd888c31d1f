"""Queues, mailboxes, credit, and who is at the other end of an edge."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from isthmus.runtime.cores.scheduler_ports import (
    KEPT_MAX,
    Exit,
    Link,
    Mailbox,
    OutgoingRoute,
    Outlet,
    QueueInlet,
    consumers,
    producers,
)
from isthmus.runtime.errors import LocalProtocolError, RemoteProtocolError
from isthmus.runtime.graph.plans import EdgePlan, OutputPlan
from isthmus.runtime.ids import Handle, Member, Replica
from tests.runtime.cores.scheduler_stories import life

EDGE = EdgePlan(0, "a.out -> b.item", "queue", 2, (), None, "all", None, "here", 0, "out", "there", 1, "item")
LATEST = replace(EDGE, kind="latest", capacity=0, key="key", is_kept=True)


def link(number: int, slot: int = 0, edge: EdgePlan = EDGE, outlet: Outlet | None = None) -> Link:
    return Link(number, edge, life(f"here/{slot}"), outlet)


def test_a_queue_gives_the_first_item_of_every_link_that_has_one() -> None:
    inlet, one, two = QueueInlet(), link(1, 1), link(2, 2)
    inlet.open(one, ())
    inlet.open(two, (Handle(-1),))
    assert (bool(inlet.new), inlet.is_complete()) == (True, False)
    assert inlet.put(one, Handle(10), None) is None
    assert inlet.put(one, Handle(11), None) is None
    assert inlet.is_complete()
    entries = ((Replica("here", 1), None, 10), (Replica("here", 2), None, -1))
    assert inlet.take() == (entries, [one, two])
    assert inlet.take() == (((Replica("here", 1), None, 11),), [one])
    assert inlet.take() == ((), [])
    assert not inlet.new


def test_a_queue_without_links_is_never_complete() -> None:
    assert not QueueInlet().is_complete()


def test_a_closed_link_gives_up_what_it_held() -> None:
    inlet, one, two = QueueInlet(), link(1, 1), link(2, 2)
    inlet.open(one, (Handle(1),))
    inlet.open(two, (Handle(2), Handle(3)))
    assert inlet.close(two) == [2, 3]
    assert inlet.is_complete()
    assert inlet.clear() == [1]
    assert not inlet.new
    assert inlet.close(one) == []


def test_a_mailbox_keeps_the_newest_item_per_link_and_key() -> None:
    box, one, two = Mailbox(), link(1, 1, LATEST), link(2, 2, LATEST)
    assert not box.is_complete()
    assert [box.put(*put) for put in ((one, Handle(1), 0), (two, Handle(2), 0), (one, Handle(3), "0"))] == [None] * 3
    assert box.put(one, Handle(4), 0) == 1
    assert box.new
    assert box.is_complete()
    here = [Replica("here", slot) for slot in (1, 2)]
    assert box.take() == (((here[1], 0, 2), (here[0], "0", 3), (here[0], 0, 4)), [])
    box.put(one, Handle(5), 1)
    box.put(two, Handle(6), 1)
    assert box.close(one) == [5]
    assert box.clear() == [6]
    assert not box.new


@given(st.lists(st.tuples(st.sampled_from(["open", "close", "spend", "grant"]), st.integers(1, 3), st.integers(1, 3))))
def test_an_outlet_counts_the_links_without_credit(steps: list[tuple[str, int, int]]) -> None:
    outlet = Outlet(0)
    links: dict[int, Link] = {}
    for step, number, count in steps:
        found = links.get(number)
        if step == "open" and found is None:
            initial = replace(EDGE, initial=("x",) * (count - 1))
            links[number] = link(number, edge=initial, outlet=outlet)
            outlet.open(links[number])
        elif step == "close" and found is not None:
            outlet.close(links.pop(number))
        elif step == "spend" and found is not None and found.credit:
            outlet.spend(found)
        elif step == "grant" and found is not None:
            before = found.credit
            if before + count > EDGE.capacity:
                with pytest.raises(RemoteProtocolError, match=f"granted {count} credits on a.out -> b.item"):
                    outlet.grant(found, count)
                assert found.credit == before
            else:
                outlet.grant(found, count)
                assert found.credit == before + count
        assert outlet.starved == sum(each.credit == 0 for each in links.values())


def test_nobody_grants_nothing_or_less() -> None:
    outlet = Outlet(0)
    one = link(1, outlet=outlet)
    outlet.open(one)
    outlet.spend(one)
    for count in (0, -1):
        with pytest.raises(RemoteProtocolError, match="where 1 items were under way"):
            outlet.grant(one, count)


def test_a_latest_edge_to_other_hosts_keeps_the_newest_item_of_each_key() -> None:
    route = OutgoingRoute(LATEST, None)
    assert route.keeps
    assert [route.keep(0, Handle(1), None), route.keep(1, Handle(2), None), route.keep(0, Handle(3), None)] == [
        None,
        None,
        1,
    ]
    assert [handle for handle, _ in route.kept.values()] == [2, 3]
    assert not OutgoingRoute(EDGE, None).keeps
    assert not OutgoingRoute(replace(LATEST, is_kept=False), None).keeps


def test_what_is_kept_is_bounded() -> None:
    route = OutgoingRoute(LATEST, None)
    let_go = [route.keep(key, Handle(key + 1), None) for key in range(KEPT_MAX + 3)]
    assert [handle for handle in let_go if handle is not None] == [1, 2, 3]
    assert len(route.kept) == KEPT_MAX


FIELDS = OutputPlan("out", (0,), ("key", "number"), ("number",), ("grace",))


@pytest.mark.parametrize("fields", [{"key": 1, "number": 2}, {"key": "x", "number": -1, "grace": None}])
def test_an_exit_takes_items_with_the_fields_that_edges_need(fields: dict[str, object]) -> None:
    Exit(FIELDS).check_fields("node", fields)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        (None, "an integer or a text in field 'key', found None"),
        ({"key": 1.0, "number": 1}, "an integer or a text in field 'key', found 1.0"),
        ({"key": False, "number": 1}, "an integer or a text in field 'key', found False"),
        ({"key": "x"}, "expected an integer in field 'number', found None"),
        ({"key": "x", "number": "x"}, "expected an integer in field 'number', found 'x'"),
    ],
)
def test_an_exit_refuses_items_without(fields: dict[str, object] | None, what: str) -> None:
    with pytest.raises(LocalProtocolError, match=f"node 'node' emitted an item on 'out': .*{what}"):
        Exit(FIELDS).check_fields("node", fields)


# -- who is at the other end -------------------------------------------------------------------------------------------


def live(*texts: str) -> dict[str, tuple[Member, ...]]:
    members = sorted(map(life, texts))
    return {role: tuple(m for m in members if m.replica.role == role) for role in ("here", "there")}


def test_everybody_is_a_consumer_unless_the_edge_says_who() -> None:
    roster = live("here/0", "here/2", "there/1", "there/5")
    assert consumers(EDGE, life("here/0"), roster) == (life("there/1"), life("there/5"))
    assert consumers(EDGE, life("here/1"), roster) == ()
    own = replace(EDGE, target_role="here")
    assert consumers(replace(own, route="local"), life("here/2"), roster) == (life("here/2"),)
    assert consumers(replace(own, route="next"), life("here/0"), roster) == (life("here/2"),)
    assert consumers(replace(own, route="next"), life("here/2"), roster) == (life("here/0"),)
    assert consumers(replace(own, route="next"), life("here/0"), live("here/0")) == (life("here/0"),)


slots = st.sets(st.integers(0, 4)).map(lambda found: [f"here/{slot}" for slot in found])


@given(slots, slots, st.sampled_from(["local", "all", "next", "at"]), st.booleans())
def test_producers_are_those_whose_consumer_one_is(mine: list[str], other: list[str], route: str, is_own: bool) -> None:
    edge = replace(EDGE, route="all" if not is_own and route in ("local", "next") else route)
    edge = replace(edge, target_role="here") if is_own else edge
    roster = live(*mine, *(text.replace("here", "there") for text in other))
    pairs = Counter((a, b) for a in roster["here"] for b in consumers(edge, a, roster))
    backwards = Counter((a, b) for b in roster[edge.target_role] for a in producers(edge, b, roster))
    assert pairs == backwards
    if edge.route == "next" and pairs:
        ring: deque[Member] = deque([roster["here"][0]])
        while len(ring) < len(pairs):
            ring.extend(consumers(edge, ring[-1], roster))
        assert sorted(ring) == list(roster["here"])  # One round goes past everybody.


def test_a_group_is_the_replicas_of_one_number_modulo_that_of_the_groups() -> None:
    live = {
        "here": tuple(life(f"here/{slot}") for slot in (0, 1, 2, 5)),
        "there": tuple(life(f"there/{slot}") for slot in range(2)),
    }
    edge = replace(LATEST, route="group", groups=2)
    assert consumers(edge, live["here"][3], live) == (live["there"][1],)
    assert producers(edge, live["there"][1], live) == (live["here"][1], live["here"][3])
    back = replace(edge, source_role="there", target_role="here")
    assert consumers(back, live["there"][0], live) == (live["here"][0], live["here"][2])
    assert producers(back, live["here"][2], live) == (live["there"][0],)
    assert consumers(edge, life("here/3"), live) == ()
