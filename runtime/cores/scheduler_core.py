"""The scheduler core: one host's plan, from arrivals to firings.

It decides when a node fires, what each firing takes and when a node ends. `scheduler_flow` decides where items go and
which are held for lack of credit, `scheduler_live_links` keeps live replicas and links, and decides readiness. None of
them runs bodies, moves payloads, measures time or knows what an item means.

Theory of operation. A node is *running* from `RunBody` to `FiringEnded`; one firing at a time. Ready nodes are started
at once, in the order in which they became ready, at the end of the event that made them so. An *idle* node (declared so
by its body) takes no required inputs: it fires when something new is sampled, until its body is idle no more. A node
with *held* outputs waits until the last of them has left, and only then fires again, or ends. Within an event
everything that is ready starts before held outputs leave, node by node; then what is ready now, and so on: so the
inputs of a firing do not depend on the order in which nodes that became ready together start.

Links come and go with replicas: what an old incarnation's link held is dropped and counted. For a Latest edge to other
hosts the newest item per key is kept, and sent again to replicas that join later (ResendItem ends no use). An illegal
event raises and leaves the state as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from isthmus.runtime.clock import Instant
from isthmus.runtime.cores.scheduler_events import (
    BodyFailed,
    CancelTimer,
    Command,
    CreditGranted,
    EndNode,
    Entry,
    Event,
    FailHost,
    FiringEnded,
    ItemArrived,
    ItemsEmitted,
    NodeOpened,
    NodesNudged,
    ReplicaJoined,
    ReplicaLeft,
    RunBody,
    SetTimer,
    TimerFired,
)
from isthmus.runtime.cores.scheduler_flow import Flow
from isthmus.runtime.cores.scheduler_live_links import NodeState, Roster, RosterChange, is_ready, subjects
from isthmus.runtime.cores.scheduler_ports import CONSTANTS_PER_EDGE, constant
from isthmus.runtime.errors import LocalProtocolError, demand
from isthmus.runtime.graph.plans import EdgePlan, NodePlan, OutputPlan, Plan
from isthmus.runtime.graph.template import Every, Quorum
from isthmus.runtime.ids import Member
from isthmus.runtime.tape.state import Kind

__all__ = ["CONSTANTS_PER_EDGE", "Scheduler", "constant"]

STATE: Final = Kind(
    ("cores", "ids"),
    arguments=(Plan, NodePlan, OutputPlan, EdgePlan, Quorum),
    numbered=lambda core: core.plan.edges,
)


class Scheduler:
    """The core of one host. `handle(event, now)` returns the commands, in the order in which to perform them."""

    def __init__(self, plan: Plan, member: Member) -> None:
        self.plan = plan
        self.member = member
        self._nodes: dict[int, NodeState] = {node.index: NodeState(node) for node in plan.nodes}
        self._roster = Roster(plan, member, self._nodes)
        self._flow = Flow(self._roster, self._nodes)
        self._holding: list[NodeState] = []
        self._handlers: dict[type, Callable[[Any], None]] = {
            FiringEnded: self._firing_ended,
            ItemsEmitted: self._items_emitted,
            ItemArrived: self._flow.arrive,
            CreditGranted: self._flow.grant,
            NodeOpened: self._node_opened,
            BodyFailed: self._body_failed,
            TimerFired: self._timer_fired,
            ReplicaJoined: self._replica_joined,
            ReplicaLeft: self._replica_left,
            NodesNudged: self._nudge,
        }

    def handle(self, event: Event, now: Instant) -> list[Command]:
        """Commands that follow from `event`. Raises LocalProtocolError or RemoteProtocolError for an illegal one."""
        flow = self._flow
        if now < flow.now:
            raise LocalProtocolError(f"{event} came at {now} ns, after an event at {flow.now} ns. Fix the clock.")
        flow.now = now
        self._handlers[type(event)](event)
        woken, holding = flow.woken, self._holding
        while True:
            while woken:
                node = woken.popleft()
                if node.held:
                    holding.append(node)
                elif is_ready(node):
                    self._start(node)
            if not holding:
                break
            self._release()
        commands = flow.commands
        flow.commands = []
        return commands

    def saved(self) -> bytes:
        """The whole state of the core, except its plan."""
        return STATE.frozen(self)

    def restore(self, state: bytes) -> None:
        """Load the state of a core of the same plan into this new one; ValueError for other bytes."""
        STATE.thaw(self, state)

    def live(self, role: str) -> tuple[Member, ...]:
        """The live replicas of a role, by slot."""
        return self._roster.live[role]

    @property
    def members(self) -> frozenset[Member]:
        """The live members of every role of the graph; callable from any thread."""
        return self._roster.members

    def statistics(self) -> dict[str, int]:
        """Firings, and dropped items by reason, since the start."""
        return dict(self._flow.counts) | {"firings": sum(node.firings for node in self._nodes.values())}

    def check(self) -> None:
        """Raise InvariantError unless counters and contents agree, and nothing waits that could go on."""
        for node in self._nodes.values():
            node.check()
            self._flow.check(node)
            is_started = bool(node.held) or not is_ready(node)
            demand("scheduler", is_started, subjects(node.plan), "{}: ready, but not started", node.plan.name)
        self._roster.check()

    # -- events --------------------------------------------------------------------------------------------------------

    def _items_emitted(self, event: ItemsEmitted) -> None:
        self._flow.emit(self._running(event.node), event.outputs)

    def _firing_ended(self, event: FiringEnded) -> None:
        node = self._running(event.node)
        if event.outputs:
            self._flow.emit(node, event.outputs)
        node.is_running = False
        node.is_idle = event.is_idle
        if not event.is_finished:
            self._flow.woken.append(node)
        elif node.held:
            node.is_ending = True
        else:
            self._finish(node)

    def _node_opened(self, event: NodeOpened) -> None:
        node = self._nodes.get(event.node)
        if node is None or node.is_open:
            raise LocalProtocolError(f"node {event.node} was opened twice, or is not of this host")
        node.is_open = True
        node.is_idle = node.is_nudged = event.is_idle
        if isinstance(node.plan.fires, Every):
            self._set_timer(node, node.plan.fires)
        self._flow.woken.append(node)

    def _body_failed(self, event: BodyFailed) -> None:
        node = self._nodes.get(event.node)
        if node is None or (node.is_open and not node.is_running):
            raise LocalProtocolError(f"node {event.node} failed, which was neither being opened nor running")
        node.is_running = False
        node.is_open = False
        self._flow.commands.append(FailHost(event.node, event.error))

    def _timer_fired(self, event: TimerFired) -> None:
        node = self._nodes.get(event.timer)
        if node is not None and isinstance(node.plan.fires, Every):
            if not node.is_finished:
                node.is_due = True
                self._set_timer(node, node.plan.fires)
                self._flow.woken.append(node)
            return
        for other in self._nodes.values():
            if other.rounds is not None and other.rounds.owns(event.timer):
                self._flow.settle(other, other.rounds.timer_fired(event.timer, self._flow.now))
                return

    def _replica_joined(self, event: ReplicaJoined) -> None:
        self._carry_out(self._roster.join(event.member))

    def _replica_left(self, event: ReplicaLeft) -> None:
        self._carry_out(self._roster.leave(event.member))

    def _nudge(self, _: NodesNudged) -> None:
        for node in self._nodes.values():
            node.is_nudged = True
            self._flow.woken.append(node)

    def _running(self, index: int) -> NodeState:
        node = self._nodes.get(index)
        if node is None or not node.is_running:
            raise LocalProtocolError(f"a firing of node {index} emitted or ended that had not begun")
        return node

    def _set_timer(self, node: NodeState, fires: Every) -> None:
        self._flow.commands.append(SetTimer(node.index, Instant(self._flow.now + fires.period)))

    def _carry_out(self, change: RosterChange) -> None:
        """Carry out the consequences of a roster change; rounds hear of lost voters first, then of new ones."""
        flow = self._flow
        flow.commands.extend(change.resent)
        for handle in change.dropped:
            flow.drop(handle, "link ended")
        for arrival, member in change.left:
            node = self._nodes[arrival.consumer]
            if arrival.is_voting and node.rounds is not None:
                flow.settle(node, node.rounds.left(member, flow.now))
        for arrival, member in change.joined:
            node = self._nodes[arrival.consumer]
            if arrival.is_voting and node.rounds is not None:
                flow.settle(node, node.rounds.joined(member, flow.now))
        flow.woken.extend(self._nodes.values())

    # -- firing --------------------------------------------------------------------------------------------------------

    def _start(self, node: NodeState) -> None:
        """Fire a ready node: take its inputs, return credit."""
        inputs: list[tuple[int, tuple[Entry, ...]]] = []
        decision: dict[str, Any] | None = None
        flow = self._flow
        if node.rounds is not None and not node.is_idle:
            closed = node.rounds.pop_closed()
            for link in closed.links:
                flow.return_vote(link)
            inputs.extend(closed.inputs)
            decision = closed.decision
        for port, inlet, is_required in node.inlets:
            if inlet.new and not (is_required and node.is_idle):
                entries, links = inlet.take()
                inputs.append((port, entries))
                for link in links:
                    flow.give_back(link)
        node.is_running = True
        node.is_due = node.is_nudged = False
        node.link_newest = self._roster.link_newest
        node.firings += 1
        flow.commands.append(RunBody(node.index, node.firings, tuple(inputs), decision))

    def _release(self) -> None:
        """Send held outputs of nodes that may have got credit; a node that then holds nothing goes on, or ends."""
        if len(self._holding) > 1:
            self._holding.sort(key=lambda node: node.index)
        for node in self._holding:
            self._flow.release(node)
            if node.held:
                continue
            if node.is_ending:
                self._finish(node)
            else:
                self._flow.woken.append(node)
        self._holding.clear()

    def _finish(self, node: NodeState) -> None:
        """End a node. Items that wait for it are dropped without returning credit: producers need not send it more."""
        node.is_ending, node.is_finished = False, True
        commands = self._flow.commands
        for _, inlet, _ in node.inlets:
            for handle in inlet.clear():
                self._flow.drop(handle, "node finished")
        if node.rounds is not None:
            handles, timers = node.rounds.clear()
            for handle in handles:
                self._flow.drop(handle, "node finished")
            commands.extend(timers)
            node.rounds = None
        if isinstance(node.plan.fires, Every):
            commands.append(CancelTimer(node.index))
        commands.append(EndNode(node.index))
