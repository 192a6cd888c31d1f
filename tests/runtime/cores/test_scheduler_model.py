"""The scheduler against a naive one: random graphs, random events, and illegal events that must leave no trace.

Three schedulers see the same legal events. `core` also sees illegal ones, of which it must not remember anything;
`twin` does not, is restored from its own state now and then, and must go on saying the same, word for word; `naive`
works everything out anew, and must say the same in any order. Payloads are counted as a host counts them.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from inspect import Parameter, Signature
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from isthmus.runtime.clock import Duration, Instant, milliseconds
from isthmus.runtime.cores import scheduler_events as e
from isthmus.runtime.cores.scheduler_core import STATE, Scheduler
from isthmus.runtime.cores.scheduler_flow import HELD_MAX
from isthmus.runtime.errors import LocalProtocolError, RemoteProtocolError
from isthmus.runtime.graph.plans import EdgePlan, Plan, lower
from isthmus.runtime.graph.template import (
    AllOf,
    AnyOf,
    Every,
    Firing,
    Graph,
    Latest,
    Node,
    Policy,
    Queue,
    Quorum,
    Role,
    Route,
)
from isthmus.runtime.ids import Handle, Member, Replica
from tests.effort import examples
from tests.runtime.cores.naive_scheduler import NaiveScheduler
from tests.runtime.tape.twin import restored

HERE = Member(Replica("here", 0), 1)
RANGES = ((1, 3), (2, 2))
PORTS = ("left", "right", "side")
PORTS_EMITTED = st.sampled_from([[], [0], [1], [0, 1], [0, 0, 1, 0], [1, 1, 1], [0] * 6, [1, 0, 0, 1, 0, 1]])
"""The output ports that a firing emits on: on some of them more often than any Queue gives credit for."""


@cache
def body(name: str) -> type:
    """A body with three inputs and two outputs."""

    def call(self: Any) -> None:
        raise NotImplementedError

    ports = [Parameter(port, Parameter.KEYWORD_ONLY, default=None) for port in PORTS]
    call.__signature__ = Signature([Parameter("self", Parameter.POSITIONAL_OR_KEYWORD), *ports])  # type: ignore[attr-defined]
    return type(name, (), {"__call__": call, "outputs": ("one", "two"), "collects": PORTS})


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """The plan of role `here`: up to three nodes, with edges among them, and to and from role `there`."""
    graph = Graph("random")
    here = graph.role("here", replicas=draw(st.sampled_from(RANGES)))
    there = graph.role("there", replicas=draw(st.sampled_from(RANGES)))
    count = draw(st.integers(1, 3))
    names = [f"node-{i}" for i in range(count)]
    ends = [*names, "far"]
    is_quorum = {name: draw(st.integers(0, 2)) == 2 for name in names} | {"far": False}
    kinds_of_edges = draw(st.sampled_from([["queue"], ["queue", "latest"]]))
    ports = [(name, port) for name in names if is_quorum[name] for port in PORTS[:2]]
    ports += draw(st.lists(st.tuples(st.sampled_from(ends), st.sampled_from(PORTS)), min_size=1, max_size=5))
    entering: dict[tuple[str, str], list[tuple[str, Policy, Route | None]]] = {}
    kinds: dict[tuple[str, str], str] = {}
    for target, port in ports:
        source = draw(st.sampled_from(ends))
        sources = entering.setdefault((target, port), [])
        is_round = is_quorum[target] and port != "side"
        if source == target == "far" or any(other == source for other, *_ in sources) or (is_round and sources):
            continue
        is_opening = is_round and port == "right"
        kind = kinds.setdefault((target, port), "queue" if is_opening else draw(st.sampled_from(kinds_of_edges)))
        roles = ["there" if end == "far" else "here" for end in (source, target)]
        sources.append((source, draw(policies(kind, is_round)), draw(routes(roles, here, there))))
    nodes: dict[str, Node] = {}
    for name in names:
        ports = [port for port in PORTS if entering.get((name, port))]
        nodes[name] = here.node(name, body("Body"), fires=draw(firings(ports, is_quorum[name])))
    nodes["far"] = there.node("far", body("Body"), fires=AllOf(()))
    for (target, port), sources in entering.items():
        for source, policy, route in sources:
            output = nodes[source][draw(st.sampled_from(["one", "two"]))]
            graph.edge(output, nodes[target][port], policy, to=route)
    return lower(graph.freeze())["here"]


def policies(kind: str, is_round: bool) -> st.SearchStrategy[Policy]:
    if kind == "latest":
        return st.sampled_from([Latest(), Latest("key")])
    queues = [Queue(1), Queue(2), Queue(2, ("a",)), Queue(1, ("a",)), Queue(3, ("a", "b"))]
    return st.sampled_from(queues[:2] if is_round else queues)


def routes(roles: list[str], here: Role, there: Role) -> st.SearchStrategy[Route | None]:
    if roles == ["here", "here"]:
        return st.sampled_from([None, None, here.next, Route("here", "all"), here.at("number")])
    target = here if roles[1] == "here" else there
    return st.sampled_from([target.all, target.at("number")])


def firings(ports: list[str], is_quorum: bool) -> st.SearchStrategy[Firing]:
    if is_quorum and set(PORTS[:2]) <= set(ports):
        grace = st.sampled_from([None, Duration(0), milliseconds(3)])
        return st.builds(Quorum, st.just("left"), st.just("round"), st.just("right"), st.integers(1, 2), grace)
    some = st.sampled_from([*(ports[:n] for n in range(len(ports) + 1)), ports[1:]])
    choices: list[st.SearchStrategy[Firing]] = [some.map(lambda names: AllOf(tuple(names)))] * 2
    choices.append(st.just(Every(milliseconds(2))))
    if ports:
        choices.append(some.map(lambda names: AnyOf(*names)))
    return st.one_of(choices)


class Payloads:
    """What a host keeps, and how often it will still be used."""

    def __init__(self) -> None:
        self.uses: dict[Handle, int] = {}
        self.last = 0

    def new(self) -> Handle:
        self.last += 1
        self.uses[Handle(self.last)] = 1
        return Handle(self.last)

    def use(self, handle: Handle) -> None:
        if handle < 0:
            return
        self.uses[handle] -= 1
        if not self.uses[handle]:
            del self.uses[handle]

    def perform(self, commands: list[e.Command]) -> None:
        for command in commands:
            match command:
                case e.ShareItem():
                    assert self.uses[command.handle] == 1
                    assert command.uses > 1
                    self.uses[command.handle] = command.uses
                case e.SendItem() | e.DropItem():
                    self.use(command.handle)
                case e.ResendItem():
                    assert command.handle in self.uses
                case e.RunBody():
                    for _, entries in command.inputs:
                        for _, _, handle in entries:
                            self.use(handle)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(plan=plans(), is_late=st.booleans())
    def begin(self, plan: Plan, is_late: bool) -> None:
        self.plan = plan
        self.core, self.twin = Scheduler(plan, HERE), Scheduler(plan, HERE)
        self.naive = NaiveScheduler(plan, HERE)
        self.payloads = Payloads()
        self.now = 0
        self.lives: Counter[Replica] = Counter()
        self.rounds = 0
        self.timers: dict[int, Instant] = {}
        self.fields = sorted({name for node in plan.nodes for out in node.outputs for name in out.fields})
        if not is_late:
            for replica in (HERE.replica, Replica("there", 0), Replica("there", 1)):
                self.join(replica)
            for node in plan.nodes:
                self.tell(e.NodeOpened(node.index))

    # -- feeding -------------------------------------------------------------------------------------------------------

    def tell(self, event: e.Event) -> list[e.Command]:
        expected = self.naive.handle(event, Instant(self.now))
        commands = self.core.handle(event, Instant(self.now))
        assert commands == self.twin.handle(event, Instant(self.now))
        assert sorted(map(repr, commands)) == sorted(map(repr, expected))
        for command in commands:
            if isinstance(command, e.SetTimer):
                self.timers[command.timer] = command.at
            elif isinstance(command, e.CancelTimer):
                self.timers.pop(command.timer, None)
        self.payloads.perform(commands)
        self.core.check()
        return commands

    def refuse(self, event: e.Event, kind: type[Exception], now: int | None = None) -> None:
        with pytest.raises(kind):
            self.core.handle(event, Instant(self.now if now is None else now))
        self.core.check()

    def join(self, replica: Replica, by: int = 1) -> None:
        self.lives[replica] += by
        self.tell(e.ReplicaJoined(Member(replica, self.lives[replica])))

    def running(self) -> list[int]:
        return [index for index, node in self.naive.nodes.items() if node.is_running]

    # -- items ---------------------------------------------------------------------------------------------------------

    def item_fields(self, data: st.DataObject, edges: list[EdgePlan]) -> dict[str, Any] | None:
        """Fields as the edges need them; rounds are opened with growing keys, or on the fringe of what is allowed."""
        fields: dict[str, Any] = {}
        small = st.integers(0, 2)
        for edge in edges:
            if edge.key is not None:
                fields[edge.key] = data.draw(st.one_of(small, st.sampled_from(["x", "y"])))
            if edge.route_key is not None:
                fields[edge.route_key] = data.draw(st.integers(-1, 4))
            consumer = self.naive.nodes.get(edge.target)
            fires = None if consumer is None else consumer.plan.fires
            if isinstance(fires, Quorum) and edge.target_port == fires.port and "round" not in fields:
                fields["round"] = data.draw(st.integers(max(0, self.rounds - 2), self.rounds + 1))
            if isinstance(fires, Quorum) and edge.target_port == fires.opened_by:
                self.rounds += 1
                fields |= {"round": self.rounds} | data.draw(openings())
        return fields or None

    def outputs(
        self, data: st.DataObject, index: int, ports: st.SearchStrategy[list[int]] = PORTS_EMITTED
    ) -> tuple[e.Output, ...]:
        """What a running node may emit now: as much as it likes, whatever credit there is."""
        node = self.naive.nodes[index]
        outputs: list[e.Output] = []
        for port in data.draw(ports):
            fields = self.item_fields(data, [self.plan.edges[i] for i in node.plan.outputs[port].edges])
            outputs.append(e.Output(port, self.payloads.new(), fields))
        return tuple(outputs)

    # -- legal events --------------------------------------------------------------------------------------------------

    @rule(ms=st.integers(0, 3))
    def wait(self, ms: int) -> None:
        self.now += milliseconds(ms)

    @rule()
    def restore(self) -> None:
        self.twin = restored(STATE, self.twin, Scheduler(self.plan, HERE))
        self.twin.check()

    @rule(replica=st.builds(Replica, st.sampled_from(["here", "there"]), st.integers(0, 2)), by=st.integers(1, 2))
    def come_or_go(self, replica: Replica, by: int) -> None:
        live = [member for member in self.naive.live if member.replica == replica]
        if live and (by == 1 or replica == HERE.replica):
            self.tell(e.ReplicaLeft(live[0]))
        elif replica.slot < self.plan.replicas[replica.role][1] and not (
            replica == HERE.replica and self.lives[replica]
        ):
            self.join(replica, by if replica != HERE.replica else 1)

    @precondition(lambda self: any(not node.is_open for node in self.naive.nodes.values()))
    @rule(data=st.data(), is_idle=st.booleans())
    def open(self, data: st.DataObject, is_idle: bool) -> None:
        closed = [index for index, node in self.naive.nodes.items() if not node.is_open]
        self.tell(e.NodeOpened(data.draw(st.sampled_from(closed)), is_idle))

    @precondition(lambda self: self.running())
    @rule(data=st.data(), is_idle=st.sampled_from([False, False, True]), is_finished=st.integers(0, 9))
    def end(self, data: st.DataObject, is_idle: bool, is_finished: int) -> None:
        index = data.draw(st.sampled_from(self.running()))
        self.tell(e.FiringEnded(index, self.outputs(data, index), is_idle, is_finished == 9))

    @precondition(lambda self: self.running())
    @rule(data=st.data(), times=st.integers(1, 8), share=st.integers(0, 2))
    def go_on(self, data: st.DataObject, times: int, share: int) -> None:
        for index in self.running() * times:
            if self.naive.nodes[index].is_running:
                self.tell(e.FiringEnded(index, self.outputs(data, index)))
            if share:
                self.grant(share)

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def emit(self, data: st.DataObject) -> None:
        index = data.draw(st.sampled_from(self.running()))
        self.tell(e.ItemsEmitted(index, self.outputs(data, index)))

    @precondition(lambda self: self.running())
    @rule(data=st.data(), is_finished=st.booleans(), share=st.integers(1, 2))
    def flood(self, data: st.DataObject, is_finished: bool, share: int) -> None:
        """A firing ends with more than there is credit for; then its consumers take some."""
        index = data.draw(st.sampled_from(self.running()))
        queues = [
            number
            for number, output in enumerate(self.naive.nodes[index].plan.outputs)
            if any(self.plan.edges[edge].kind == "queue" for edge in output.edges)
        ]
        ports = st.just(queues * 2 + [0, 1] + queues * 2)
        self.tell(e.FiringEnded(index, self.outputs(data, index, ports), False, is_finished))
        for _ in range(data.draw(st.integers(0, 6))):
            self.grant(share)
            for consumer in self.running():
                self.tell(e.FiringEnded(consumer, ()))

    @rule(data=st.data(), times=st.integers(1, 4))
    def arrive(self, data: st.DataObject, times: int) -> None:
        entering = [edge for edge in self.plan.edges.values() if edge.target in self.naive.nodes]
        for edge in entering * times:
            slot = data.draw(st.integers(0, 2))
            source = Member(Replica(edge.source_role, slot), max(1, self.lives[Replica(edge.source_role, slot)]))
            pairs = [pair for pair in self.naive.into if pair.edge is edge and pair.member == source]
            if source == HERE or (edge.kind == "queue" and pairs and pairs[0].credit() < 1):
                continue
            event = e.ItemArrived(edge.index, source, self.payloads.new(), self.item_fields(data, [edge]))
            try:
                self.tell(event)
            except LocalProtocolError:  # The naive one says so, of an opening that is not allowed.
                self.payloads.use(event.handle)
                self.refuse(event, RemoteProtocolError)

    @rule(share=st.integers(1, 2))
    def grant(self, share: int) -> None:
        for pair in list(self.naive.out):
            under_way = pair.edge.capacity - pair.credit()
            if pair.edge.kind == "queue" and pair not in self.naive.into and under_way > 0:
                self.tell(e.CreditGranted(pair.edge.index, pair.member, -(-under_way // share)))

    @precondition(lambda self: self.timers)
    @rule(data=st.data(), is_early=st.booleans())
    def fire_timer(self, data: st.DataObject, is_early: bool) -> None:
        timer, at = data.draw(st.sampled_from(sorted(self.timers.items())))
        if not is_early:
            self.now = max(self.now, at)
        del self.timers[timer]
        self.tell(e.TimerFired(timer))

    @rule(data=st.data(), what=st.sampled_from(["stop", "timer", "fail"]))
    def disturb(self, data: st.DataObject, what: str) -> None:
        if what == "stop":
            self.tell(e.NodesNudged())
        elif what == "timer":
            timer = (data.draw(st.integers(0, 4)) << 32) + data.draw(st.integers(0, 3))
            if timer not in self.naive.nodes and timer not in self.timers:
                self.tell(e.TimerFired(timer))
        elif self.running():
            self.tell(e.BodyFailed(data.draw(st.sampled_from(self.running())), "why"))

    # -- illegal events ------------------------------------------------------------------------------------------------

    @rule(data=st.data(), index=st.integers(-1, 4))
    def refuse_what_is_illegal(self, data: st.DataObject, index: int) -> None:
        self.refuse_a_strange_node(index)
        self.refuse_an_arrival(data)
        self.refuse_credit()
        self.refuse_members()
        if self.running():
            self.refuse_outputs(data)
        if self.core._flow.now == self.now > 0:
            self.refuse(e.NodesNudged(), LocalProtocolError, self.now - 1)

    def refuse_a_strange_node(self, index: int) -> None:
        node = self.naive.nodes.get(index)
        if node is None or not node.is_running:
            self.refuse(e.FiringEnded(index, ()), LocalProtocolError)
            self.refuse(e.ItemsEmitted(index, (e.Output(0, Handle(99)),)), LocalProtocolError)
        if node is None or node.is_open:
            self.refuse(e.NodeOpened(index), LocalProtocolError)
        if node is None or (node.is_open and not node.is_running):
            self.refuse(e.BodyFailed(index, "why"), LocalProtocolError)

    def refuse_outputs(self, data: st.DataObject) -> None:
        index = data.draw(st.sampled_from(self.running()))
        legal = [e.Output(out.port, out.handle, out.fields) for out in self.outputs(data, index)]
        for output in legal:
            self.payloads.use(output.handle)
        wrong = data.draw(st.sampled_from(["port", "fields", "flood"]))
        node = self.naive.nodes[index]
        if wrong == "port":
            legal.append(e.Output(data.draw(st.sampled_from([-1, 2])), Handle(99)))
        elif wrong == "fields":
            broken = [out for out in legal if node.plan.outputs[out.port].fields]
            if not broken:
                return
            out = data.draw(st.sampled_from(broken))
            name = data.draw(st.sampled_from(node.plan.outputs[out.port].fields))
            fields = dict(out.fields or {}) | {name: data.draw(st.sampled_from([None, 0.5, True, [1]]))}
            legal.append(e.Output(out.port, Handle(99), fields))
        else:
            flood = [out for out in legal if any(p.edge.kind == "queue" for p in self.naive.targets(node, out))]
            if not flood:
                return
            capacity_max = max(edge.capacity for edge in self.plan.edges.values())
            legal += [e.Output(flood[0].port, Handle(99), flood[0].fields)] * (HELD_MAX + capacity_max + 1)
        kind = data.draw(st.sampled_from([e.FiringEnded, e.ItemsEmitted]))
        self.refuse(kind(index, tuple(legal)), LocalProtocolError)

    def refuse_an_arrival(self, data: st.DataObject) -> None:
        stranger = Member(Replica("nowhere", 0), 1)
        far = Member(Replica("there", 0), max(1, self.lives[Replica("there", 0)]))
        leaving = [edge.index for edge in self.plan.edges.values() if edge.target not in self.naive.nodes]
        for index in (99, *leaving):
            self.refuse(e.ItemArrived(index, far, Handle(99)), RemoteProtocolError)
        for edge in self.plan.edges.values():
            if edge.target not in self.naive.nodes:
                continue
            self.refuse(e.ItemArrived(edge.index, stranger, Handle(99)), RemoteProtocolError)
            fires = self.naive.nodes[edge.target].plan.fires
            source = data.draw(st.sampled_from([m for m in (far, HERE) if m.replica.role == edge.source_role]))
            pair = next((p for p in self.naive.into if p.edge is edge and p.member == source), None)
            if edge.key is not None:
                for fields in (None, {edge.key: None}, {edge.key: True}):
                    self.refuse(e.ItemArrived(edge.index, source, Handle(99), fields), RemoteProtocolError)
            elif pair is not None and source != HERE and not self.naive.nodes[edge.target].is_finished:
                fields = {"round": self.rounds + 1}
                if edge.kind == "queue" and pair.credit() < 1:
                    self.refuse(e.ItemArrived(edge.index, source, Handle(99), fields), RemoteProtocolError)
                elif isinstance(fires, Quorum) and edge.target_port != "side":
                    fields = {"round": "x"} if edge.target_port == fires.port else {**fields, "members": [1]}
                    self.refuse(e.ItemArrived(edge.index, source, Handle(99), fields), RemoteProtocolError)

    def refuse_credit(self) -> None:
        far = Member(Replica("there", 0), 1)
        self.refuse(e.CreditGranted(99, far, 1), RemoteProtocolError)
        for edge in self.plan.edges.values():
            if edge.kind == "latest" or edge.source not in self.naive.nodes:
                self.refuse(e.CreditGranted(edge.index, far, 1), RemoteProtocolError)
        for pair in self.naive.out:
            if pair.edge.kind == "queue":
                for count in (-1, 0, pair.edge.capacity - pair.credit() + 1):
                    self.refuse(e.CreditGranted(pair.edge.index, pair.member, count), RemoteProtocolError)

    def refuse_members(self) -> None:
        for replica in (Replica("nowhere", 0), Replica("here", 3), Replica("here", -1)):
            self.refuse(e.ReplicaJoined(Member(replica, 1)), RemoteProtocolError)
            self.refuse(e.ReplicaLeft(Member(replica, 1)), LocalProtocolError)
        for replica, newest in self.lives.items():
            for incarnation in range(newest + 1):
                self.refuse(e.ReplicaJoined(Member(replica, incarnation)), RemoteProtocolError)
            for incarnation in (newest - 1, newest, newest + 1):
                member = Member(replica, incarnation)
                if member not in self.naive.live:
                    self.refuse(e.ReplicaLeft(member), LocalProtocolError)

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        self.core.check()
        assert self.core.statistics() == self.twin.statistics() == self.naive.statistics()
        kept = {handle: uses for handle, uses in self.naive.held().items() if handle > 0}
        assert self.payloads.uses == kept


def openings() -> st.SearchStrategy[dict[str, Any]]:
    """Fields of an opening beside its key; some are not allowed."""
    pairs = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 2)).map(list), max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            "members": st.one_of(st.none(), pairs),
            "attempt": st.integers(1, 2),
            "count_min": st.integers(0, 2),
            "grace": st.sampled_from([None, 0, 2_000_000]),
            "required": st.lists(st.integers(0, 2), max_size=2),
            "deadline": st.sampled_from([None, 4_000_000]),
        },
    )


TestScheduler = pytest.mark.timeout(600)(SchedulerMachine.TestCase)  # A failure is shrunk, which takes minutes.
TestScheduler.settings = settings(max_examples=examples(250), stateful_step_count=50)
