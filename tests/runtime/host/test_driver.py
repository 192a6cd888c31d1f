"""The host: what it tells, payloads that are let go in time, and peers that misbehave."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from isthmus.runtime.channels.contract import Parcel
from isthmus.runtime.clock import Duration, Instant, milliseconds, seconds
from isthmus.runtime.cores.scheduler_events import (
    FiringEnded,
    HostRecord,
    ItemsEmitted,
    NodeOpened,
    ReplicaJoined,
    TimerFired,
)
from isthmus.runtime.errors import CoreSubject, InvariantError
from isthmus.runtime.graph.plans import lower
from isthmus.runtime.graph.template import Every, Graph, Latest, Port, Queue, Quorum
from isthmus.runtime.host.bodies import Emission, Payload
from isthmus.runtime.host.contract import Context, Trace
from isthmus.runtime.host.driver import REFUSED_MAX, Host
from isthmus.runtime.host.one_process import LocalRun
from isthmus.runtime.ids import Handle, Member, Replica
from isthmus.runtime.items.encoding import encode
from isthmus.runtime.sim.world import World
from isthmus.runtime.tape.last_events import concerns
from isthmus.runtime.tape.reading import read
from tests.runtime.cores.naive_scheduler import NaiveScheduler
from tests.runtime.cores.scheduler_stories import life
from tests.runtime.host.worlds import Collect, Count, Remember, body_of, pipe, rounds, start

NODE_0 = (CoreSubject("node", 0),)

# -- what a host tells -------------------------------------------------------------------------------------------------


def test_a_stop_is_seen_by_bodies_also_by_idle_ones() -> None:
    class Patient:
        outputs = ("item",)
        is_idle = True
        is_finished = False

        def open(self, context: Context) -> None:
            self.context = context

        def __call__(self) -> Any:
            self.is_finished = self.context.stop_requested()
            return {"item": self.is_finished}

    world = World(lower(pipe(Patient, 2).freeze()), {"here": 1}, seed=0, resolve=lambda reference: reference)
    world.clock.call_at(Instant(seconds(3)), partial(world.hosts[Replica("here", 0)].follow_stop, is_stopping=True))
    world.run(lambda: ("here/0", "collect") in world.ended, seconds_max=5.0)
    assert body_of(world, "collect").seen == [False, True]
    assert world.clock.now() < seconds(3.1)


def test_what_a_body_publishes_is_a_copy_by_node() -> None:
    class Publishes(Collect):
        def __call__(self, item: int) -> None:
            super().__call__(item)
            self.shown = {"item": item}
            self.context.publish(self.shown)

    graph = pipe(Count, arguments=(9,))
    graph.edge(graph.nodes[0]["item"], graph.roles[0].node("shows", partial(Publishes, 3))["item"], Queue(1))
    world = start(graph, until="shows")
    assert world.hosts[Replica("here", 0)].published == {"shows": {"item": 3}}
    body_of(world, "shows").shown["item"] = "changed"
    assert world.hosts[Replica("here", 0)].published == {"shows": {"item": 3}}


def waits(world: World) -> dict[str, int]:
    """How long each node of a host waited, of those that did."""
    nodes = world.hosts[Replica("here", 0)].traffic.nodes
    return {name: each.waited for name, each in nodes.items() if each.waited}


def test_waits_for_items_and_credit_are_counted_and_nothing_else() -> None:
    graph = pipe(Count, 4, arguments=(9,), policy=Queue(1))
    samples = graph.roles[0].node("samples", partial(Remember, 99), fires=Every(milliseconds(3)))
    graph.edge(graph.nodes[0]["item"], samples["item"], Latest())
    times = {"source": milliseconds(2), "collect": milliseconds(10), "samples": Duration(0)}
    slow_sink = start(graph, until="collect", duration=lambda replica, node: times[node])
    # Opening takes as long as a firing. The source has items at 4, 12, 22 and 32 ms; they are taken at 10, 20, 30, 40.
    assert waits(slow_sink) == {"source": milliseconds(6 + 8 + 8 + 8)}
    times = {"source": milliseconds(20), "collect": milliseconds(5), "samples": Duration(0)}
    slow_source = start(graph, until="collect", duration=lambda replica, node: times[node])
    assert waits(slow_source) == {"collect": milliseconds(15 * 3)}


def test_bytes_of_items_that_cross_are_counted_and_traced() -> None:
    trace = Trace()
    graph = pipe(Count, 3, arguments=(3, lambda number: np.zeros(100)), two=True)
    world = start(graph, until="collect", trace=trace, delay=lambda edge, size: milliseconds(2))
    here, there = (world.hosts[Replica.parse(name)].traffic for name in ("here/0", "there/0"))
    crossed = 3 * encode(np.zeros(100)).size_bytes
    assert crossed >= 2400
    assert (here.bytes_sent, here.bytes_received) == (crossed, 0)
    assert (there.bytes_sent, there.bytes_received) == (0, crossed)
    kinds = Counter((span.host, span.name, span.peer, span.ended - span.begun) for span in trace.spans)
    assert kinds == {
        ("here/0", "source", "", milliseconds(1)): 3,
        ("here/0", "source.item -> collect.item", "there/0", milliseconds(2)): 3,
        ("there/0", "collect", "", milliseconds(1)): 3,
    }


# -- payloads ----------------------------------------------------------------------------------------------------------


def keeping() -> Graph:
    """Something of everything: superseded and shared items, finished nodes, rounds, items for nobody."""
    graph = rounds(most=5)
    here, there = graph.roles
    count = here.node("count", partial(Count, 50, lambda number: {"key": number % 3, "data": np.zeros(2)}))
    mailbox = there.node("mailbox", partial(Remember, 4))
    graph.edge(count["item"], mailbox["item"], Latest("key"), to=there.at("key"))
    graph.edge(count["item"], there.node("queue", partial(Collect, 7))["item"], Queue(3), to=there.all)
    return graph


@pytest.mark.parametrize("jitter", [0.0, 0.9])
def test_no_payload_is_kept_that_the_core_does_not_hold(jitter: float) -> None:
    graph = keeping()
    world = start(
        graph, until="merge", counts={"here": 1, "there": 3}, jitter=jitter, delay=lambda e, s: milliseconds(2)
    )
    for name, data in world.tape().items():
        host = world.hosts[Replica.parse(name)]
        naive = NaiveScheduler(host.plan, host.member)
        for record in read(data, HostRecord).records:
            naive.handle(record.event, record.at)
        held = {handle: uses for handle, uses in naive.held().items() if handle > 0}
        assert {handle: payload.uses for handle, payload in host._payloads._items.items()} == held
        assert len(held) < 20


class Ends:
    """A channel that remembers what it was given."""

    def __init__(self) -> None:
        self.sent: list[tuple[Member, Parcel, bool]] = []
        self.granted: list[tuple[Member, int, int]] = []
        self.is_open = False

    def open(self, receiver: Any) -> None:
        assert receiver.scheduler.live("here"), "items must not come before the roster"
        self.is_open = True

    def send(self, target: Member, parcel: Parcel, *, replaces: bool) -> None:
        self.sent.append((target, parcel, replaces))

    def grant(self, source: Member, edge: int, count: int) -> None:
        self.granted.append((source, edge, count))

    def pause(self) -> None:
        raise NotImplementedError

    def resume(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.is_open = False

    def statistics(self) -> dict[str, int]:
        return {}


@pytest.fixture
def alone() -> tuple[Host, Ends, World]:
    """The host of a sink whose peer is elsewhere, and what it gives its channel."""
    world = World(
        lower(pipe(Count, 3, arguments=(9,), two=True).freeze()), {"here": 1, "there": 1}, seed=0, resolve=str
    )
    channel = Ends()
    host = world.hosts[Replica("there", 0)]
    host._channel = channel
    host._on_failed = lambda host, node, error: pytest.fail(error)
    host.start([life("here/0"), life("there/0")])
    return host, channel, world


@pytest.fixture
def feeding() -> tuple[Host, Ends, World]:
    """The host of a source that feeds a queue and a mailbox elsewhere, and what it gives its channel."""
    graph = pipe(Count, 3, arguments=(9, lambda number: {"key": number % 2, "data": np.full(3, number)}), two=True)
    here, there = graph.roles
    graph.edge(graph.nodes[0]["item"], there.node("late", partial(Remember, 9))["item"], Latest("key"), to=there.all)
    graph.edge(graph.nodes[0]["item"], here.node("local", partial(Remember, 9))["item"], Latest())
    world = World(lower(graph.freeze()), {"here": 1, "there": 1}, seed=0, resolve=str)
    channel = Ends()
    host = world.hosts[Replica("here", 0)]
    host._channel = channel
    return host, channel, world


def test_what_is_sent_says_whether_it_replaces_and_what_it_is(feeding: tuple[Host, Ends, World]) -> None:
    host, channel, world = feeding
    host.start([life("here/0"), life("there/0")])
    world.clock.run(lambda: len(channel.sent) == 4, Instant(seconds(1)))
    sent = {(target, parcel.edge, parcel.key, replaces) for target, parcel, replaces in channel.sent}
    assert sent == {(life("there/0"), 0, None, False), *((life("there/0"), 1, key, True) for key in (0, 1))}
    for _, parcel, _ in channel.sent:
        encoded = encode(parcel.item)
        assert (parcel.digest, parcel.size_bytes) == (encoded.digest, encoded.size_bytes)
        assert parcel.fields == {"key": parcel.item["key"]}
    outputs = [
        output
        for record in read(world.tape()["here/0"], HostRecord).records
        for output in getattr(record.event, "outputs", ())
    ]
    assert [output.digest for output in outputs] == [parcel.digest for _, parcel, _ in channel.sent[::2]]


def test_what_a_core_finds_broken_comes_with_the_last_events_of_that(feeding: tuple[Host, Ends, World]) -> None:
    host, _, world = feeding
    failures: list[str] = []
    host._on_failed = lambda host, node, error: failures.append(error)
    host.start([life("here/0"), life("there/0")])
    world.clock.run(lambda: host.traffic.nodes[host.plan.nodes[0].name].fired == 2, Instant(seconds(1)))
    host.check()
    host.handle(NodeOpened(0))
    *events, now, message = failures[0].splitlines()
    assert message == "node 0 was opened twice, or is not of this host"
    assert now == f"now: {NodeOpened(0)}"
    records = [record for record in read(world.tape()["here/0"], HostRecord).records if concerns(record.event, NODE_0)]
    assert len(records) >= 3
    for line, record in zip(events[::-1], records[::-1], strict=False):
        assert line.startswith(f"at {record.at} ns: {record.event}")
    host.scheduler._nodes[0].is_ending = True
    with pytest.raises(InvariantError) as broken:
        host.check()
    assert broken.value.about[0] == NODE_0[0]
    assert any(str(records[-1].event) in line for line in broken.value.last_events)


def test_the_newest_items_are_sent_to_who_joins_late_and_are_still_kept(
    feeding: tuple[Host, Ends, World],
) -> None:
    host, channel, world = feeding
    host.start([life("here/0")])
    node = host.scheduler._nodes[0]
    world.clock.run(lambda: node.firings == 4, Instant(seconds(1)))
    assert channel.sent == []
    for joiner in (life("there/0"), life("there/0", 2)):
        host.handle(ReplicaJoined(joiner))
        resent = [(target, parcel.edge, parcel.item["data"][0], replaces) for target, parcel, replaces in channel.sent]
        assert resent == [(joiner, 1, 2.0, True), (joiner, 1, 3.0, True)]
        channel.sent.clear()
    assert {payload.item["data"][0] for payload in host._payloads._items.values()} == {2.0, 3.0}


def test_payloads_of_an_event_that_the_core_refuses_are_let_go(feeding: tuple[Host, Ends, World]) -> None:
    host, *_ = feeding
    failures: list[str] = []
    host._on_failed = lambda host, node, error: failures.append(error)
    host.start([life("here/0"), life("there/0")])
    outputs = host._outputs(host.plan.nodes[0], [Emission(0, Payload({"key": 1}), {"key": 1})])
    for event in (FiringEnded(0, outputs), ItemsEmitted(0, outputs)):
        host.handle(event)
        assert host._payloads._items == {}
    messages = [failure.splitlines()[-1] for failure in failures]
    assert messages == ["a firing of node 0 emitted or ended that had not begun"] * 2


def test_a_timer_that_is_cancelled_does_not_fire() -> None:
    graph = rounds(most=1)
    graph.nodes[1] = replace(graph.nodes[1], fires=Quorum("vote", "round", "opened", grace=milliseconds(50)))
    graph.edges[0] = replace(graph.edges[0], target=Port(graph.nodes[1], "opened"))
    graph.edges[2] = replace(graph.edges[2], target=Port(graph.nodes[1], "vote"))
    world = start(graph, until="merge", counts={"here": 1, "there": 2}, jitter=0.5)
    while world.clock.step():
        pass
    events = [record.event for record in read(world.tape()["here/0"], HostRecord).records]
    assert world.clock.now() < milliseconds(50)
    assert not any(isinstance(event, TimerFired) for event in events)


def item(edge: int, value: Any = 1) -> Parcel:
    return Parcel(edge, None, value, None, 0, 8)


def test_a_peer_that_does_wrong_is_counted_and_survived(alone: tuple[Host, Ends, World]) -> None:
    host, channel, world = alone
    world.clock.run(lambda: host.is_open and host.scheduler._nodes[1].is_open, Instant(seconds(1)))
    assert channel.is_open
    for _ in range(3):
        host.item_arrived(life("here/0"), item(0))
    host.item_arrived(life("here/0"), item(0))
    host.item_arrived(life("here/0"), item(9))
    host.item_arrived(life("stranger/0"), item(0))
    host.credit_granted(life("here/0"), 0, 1)
    assert dict(host.refused) == {
        "here/0#1 sent an item on source.item -> collect.item without credit": 1,
        "here/0#1 sent an item on edge 9, which does not lead here": 1,
        "stranger/0#1 sent an item on edge 0, which does not lead here": 1,
        "here/0#1 granted credit on edge 0, no Queue that begins here": 1,
    }
    assert list(host._payloads._items) == [2, 3]
    assert channel.granted == [(life("here/0"), 0, 1)]
    for number in range(REFUSED_MAX + 50):
        host.item_arrived(life("here/0"), item(100 + number))
    assert len(host.refused) == REFUSED_MAX + 1
    assert host.refused["others"] == 54
    assert host.refused.total() == 4 + REFUSED_MAX + 50
    assert len(host._payloads._items) == 2


def test_a_closed_host_takes_nothing_and_keeps_nothing(alone: tuple[Host, Ends, World]) -> None:
    host, channel, world = alone
    host.close()
    host.item_arrived(life("here/0"), item(0))
    host.follow_stop(is_stopping=True)
    assert host._payloads._items == {}
    assert not channel.is_open
    assert world.clock.due() is None or world.clock.step() is not None
    assert host.scheduler.statistics()["firings"] == 0
    host.close()


def test_a_stop_is_known_for_ever_and_in_force_as_the_home_says_now(alone: tuple[Host, Ends, World]) -> None:
    host, _, _ = alone
    known = []
    for is_stopping in (False, True, True, False):
        host.follow_stop(is_stopping=is_stopping)
        known.append((host.stop_requested, host.bodies.is_stopping))
    assert known == [(False, False), (True, True), (True, True), (True, False)]
    host.close()


def test_closing_bodies_closes_all_and_tells_what_they_raise() -> None:
    closed: list[str] = []

    class Closes(Collect):
        def close(self) -> None:
            closed.append(self.context.node)
            if self.context.node == "first":
                raise ValueError("cannot close")

    graph = pipe(Count, arguments=(9,))
    for name in ("first", "second"):
        graph.edge(graph.nodes[0]["item"], graph.roles[0].node(name, partial(Closes, 2))["item"], Queue(1))
    world = start(graph, until="second")
    with pytest.raises(ExceptionGroup, match="closing the bodies of here/0#1") as caught:
        world.close()
    assert closed == ["first", "second"]
    assert [str(error) for error in caught.value.exceptions] == ["cannot close"]


def test_timers_of_a_closed_host_do_not_fire() -> None:
    graph = Graph("timers")
    role = graph.role("here", replicas=(1, 1))
    role.node("tick", partial(Remember, 9), fires=Every(milliseconds(5)))
    world = World(lower(graph.freeze()), {"here": 1}, seed=0, resolve=str)
    world.clock.call_at(Instant(milliseconds(12)), world.close)
    with pytest.raises(TimeoutError, match="nothing is left to do"):
        world.run(lambda: False, seconds_max=1.0)
    assert len(body_of(world, "tick").seen) == 2


def test_handles_are_never_used_again() -> None:
    world = start(keeping(), until="merge", counts={"here": 1, "there": 2})
    for data in world.tape().values():
        seen: list[Handle] = []
        for record in read(data, HostRecord).records:
            outputs = getattr(record.event, "outputs", ())
            seen += [output.handle for output in outputs]
            seen += [record.event.handle] if hasattr(record.event, "handle") else []
        assert len(seen) == len(set(seen))


def test_with_threads_too_what_a_generator_yields_leaves_while_its_firing_goes_on() -> None:
    seen = threading.Event()

    class Waits:
        outputs = ("item",)
        is_finished = True

        def __call__(self) -> Iterator[Any]:
            yield {"item": np.zeros(3)}
            assert seen.wait(60.0)  # Passes only if the item has left before this firing ends.
            return {"item": np.ones(3)}

    class Sees(Collect):
        def __call__(self, item: Any) -> None:
            super().__call__(item)
            seen.set()

    graph = Graph("early")
    role = graph.role("here", replicas=(1, 1))
    graph.edge(role.node("waits", Waits)["item"], role.node("sees", partial(Sees, 2))["item"], Queue(2))
    run = LocalRun(lower(graph.freeze()), {"here": 1}, ends_with="sees", seed=0, resolve=str)
    run.start()
    try:
        assert run.wait(60.0)
        assert run.error is None
        sees = run.hosts[Replica("here", 0)].bodies[1]
        assert [item.sum() for item in sees.seen] == [0.0, 3.0]
    finally:
        assert run.close()
