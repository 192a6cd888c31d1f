"""The host: feeds events to its scheduler core and performs the commands, nothing else.

Clock, channel and executor are arguments; the same host runs in a test under the virtual clock and in a process of its
own. Payloads stay here, behind handles. Every event goes to the core in a turn of the loop, and onto the tape with the
core's commands.

The thread that ends a firing feeds its event to the core: the node's own thread, where the executor has threads, which
takes a turn for it. So the next firing of a learner begins, its outputs leave, and arrived items are taken, without a
detour through the loop, on warm caches. Actions outside of the core (the channel, timers, callbacks) are *deferred* to
the end of the event, in order. What an item means, and which program this is, does not come in.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from isthmus.runtime.channels.contract import Channel, Parcel
from isthmus.runtime.channels.goodput import PeerLinks
from isthmus.runtime.clock import Clock, Duration, Instant, milliseconds
from isthmus.runtime.cores.scheduler_core import Scheduler
from isthmus.runtime.cores.scheduler_events import (
    BodyFailed,
    CancelTimer,
    Command,
    CreditGranted,
    DropItem,
    EndNode,
    Event,
    FailHost,
    FiringEnded,
    GrantCredit,
    HostRecord,
    ItemArrived,
    ItemsEmitted,
    NodeOpened,
    NodesNudged,
    Output,
    ReplicaJoined,
    ResendItem,
    RunBody,
    SendItem,
    SetTimer,
    ShareItem,
    TimerFired,
)
from isthmus.runtime.errors import InvariantError, LocalProtocolError, RemoteProtocolError
from isthmus.runtime.graph.plans import EdgePlan, NodePlan, Plan
from isthmus.runtime.graph.template import Every, Quorum, Reference
from isthmus.runtime.host.bodies import Bodies, Emission, FiringResult, Payload, Payloads
from isthmus.runtime.host.busy import Busy, user_nodes
from isthmus.runtime.host.contract import (
    AWAY,
    NOWHERE,
    Executor,
    IslandDevices,
    Span,
    Trace,
    Traffic,
    Whereabouts,
    raised,
    story,
)
from isthmus.runtime.ids import Handle, Member, Replica
from isthmus.runtime.items import layout
from isthmus.runtime.items.schemas import Mismatch, compiled
from isthmus.runtime.supervision.flows import EdgeFlow, Flows, NodeFlow
from isthmus.runtime.supervision.incidents import Raised
from isthmus.runtime.supervision.messages import ItemRefusal
from isthmus.runtime.system.disk import DISK, Disk
from isthmus.runtime.tape.last_events import LastEvents
from isthmus.runtime.tape.writing import Tape

BRIEF_MAX: Final = milliseconds(50)
"""The longest delay of a channel's answers: a window of 32 MiB a peer, taken once in this time, is 5 Gbit/s."""


class InputPolicy:
    """Whether the host has to process input by itself, or bodies that fire do so soon and often.

    A node that *hears* takes items of other hosts. Where all such nodes of a host are free-running, their firings
    follow each other, and items that arrive during a firing wait until its end in any case. So while each of them is in
    a firing, it is enough to poll at the end, in the thread that is there. A firing that follows longer ones, or none,
    is expected to be long: then the host listens, because credit, links and long transfers need an answer meanwhile.
    One that is unexpectedly long is noticed at the next heartbeat of the owner.
    """

    def __init__(self, plan: Plan) -> None:
        hearing = [node for node in plan.nodes if _hears(plan, node)]
        is_free = all(node.never_waits for node in hearing)
        self._hearing = frozenset(node.index for node in hearing if is_free)
        self._brief: set[int] = set()
        self._firing: set[int] = set()
        self.is_needed = True
        """Whether the host has to listen by itself."""

    def began(self, node: int) -> None:
        """A firing of a node begins."""
        if node in self._brief:
            self._firing.add(node)
            self.is_needed = self._firing != self._hearing

    def ended(self, node: int, took: Duration) -> None:
        """A firing of a node has ended."""
        if node in self._hearing:
            self._firing.discard(node)
            self.is_needed = True
            if took > BRIEF_MAX:
                self._brief.discard(node)
            elif node not in self._brief:
                self._brief.add(node)


def _hears(plan: Plan, node: NodePlan) -> bool:
    """Whether a node takes items of other hosts."""
    return any(plan.edges[edge].route != "local" for port in node.inputs for edge in port.edges)


def _is_voted(node: NodePlan, port: str) -> bool:
    """Whether the items at a port of a node are votes."""
    return isinstance(node.fires, Quorum) and port == node.fires.port


def _nothing_follows(result: Any, error: BaseException | None) -> None:
    """The end of work that is no firing."""


WAIT_MIN: Final = milliseconds(1)
"""Shorter waits are hops of the loop, not stalls."""
REFUSED_MAX: Final = 256
"""Distinct faults of peers that are counted separately; a broken peer can produce any number."""


USUAL_STEP: Final = "usual_step_ns"
"""What a body that steps publishes as its usual duration of a step."""


class Host:
    """One runtime host: a plan, run for one member."""

    def __init__(
        self,
        plan: Plan,
        member: Member,
        *,
        clock: Clock,
        channel: Channel,
        executor: Executor,
        seed: int,
        resolve: Callable[[Reference], Any],
        disk: Disk = DISK,
        tape: Tape | None = None,
        trace: Trace | None = None,
        island: IslandDevices | None = None,
        folder: Path | None = None,
        whereabouts: Whereabouts = NOWHERE,
        on_ended: Callable[[Host, str], None] = lambda host, node: None,
        on_failed: Callable[[Host, str, str], None] = lambda host, node, error: None,
        on_opened: Callable[[], None] = lambda: None,
    ) -> None:
        self.plan = plan
        self.member = member
        self._name = str(member.replica)
        self.scheduler = Scheduler(plan, member)
        self.links = PeerLinks(channel.pace)
        self.traffic = Traffic(goodput=self.links.goodput, round_trips=self.links.round_trips)
        self.busy = Busy(user_nodes(plan), usual_step=self._usual_step, was_away=self._was_away)
        self.refused: Counter[str] = Counter()
        self.raised: Raised | None = None
        """The first exception of a body."""
        self._texts: dict[int, str] = {}
        """Node -> the whole text of its exception."""
        self.refusals: dict[tuple[Member, int], ItemRefusal] = {}
        self.bodies = Bodies(
            plan,
            member,
            clock=clock,
            seed=seed,
            resolve=resolve,
            disk=disk,
            traffic=self.traffic,
            members=lambda: self.scheduler.members,
            whereabouts=whereabouts,
            emitted=self._emitted_meanwhile,
            away=lambda: self.busy.away,
            island=island,
            folder=folder,
        )
        self._clock, self._channel, self._executor = clock, channel, executor
        self._tape, self._trace = tape, trace
        self._last_events = LastEvents(tape, HostRecord)
        if tape is not None:
            tape.begin(self.scheduler.saved)
        self._on_ended, self._on_failed, self._on_opened = on_ended, on_failed, on_opened
        self._nodes: dict[int, NodePlan] = {node.index: node for node in plan.nodes}
        self._payloads = Payloads(plan)
        self._checks = {edge: compiled(each.schema) for edge, each in plan.edges.items() if each.schema is not None}
        self._voting = {
            index: edge.target
            for index, edge in plan.edges.items()
            if edge.target in self._nodes and _is_voted(self._nodes[edge.target], edge.target_port)
        }
        """Edge -> the node to which it brings votes."""
        self._timers: dict[int, Callable[[], None]] = {}
        self._waiting: dict[int, Instant] = {}
        self._engaged: set[int] = set()
        """The nodes whose bodies are engaged."""
        self._cause: Event | None = None
        """The event whose commands are carried out."""
        self._between: dict[tuple[int, int], int] = {
            (edge.source, edge.target): index for index, edge in plan.edges.items() if edge.route == "local"
        }
        self._local_edges: dict[tuple[int, int], tuple[int, ...]] = {
            (node.index, port): tuple(edge for edge in output.edges if plan.edges[edge].route == "local")
            for node in plan.nodes
            for port, output in enumerate(node.outputs)
        }
        self._now = Instant(0)
        self._input_policy = InputPolicy(plan)
        self._is_closed = False
        self._deferred: deque[Callable[[], None]] = deque()
        self._perform: dict[type, Callable[[Any], None]] = {
            RunBody: self._run_body,
            SendItem: self._send_item,
            ResendItem: self._resend_item,
            GrantCredit: self._grant_credit,
            ShareItem: self._share_item,
            DropItem: self._drop_item,
            SetTimer: self._set_timer,
            CancelTimer: self._cancel_timer,
            EndNode: self._end_node,
            FailHost: self._fail_host,
        }
        for edge in plan.edges.values():
            layout.freeze(edge.initial)

    # -- interface -----------------------------------------------------------------------------------------------------

    def start(self, roster: Iterable[Member]) -> None:
        """Open every body, and report the live members to the core (this member must be among them)."""
        for member in roster:
            self.handle(ReplicaJoined(member))
        self._channel.open(self)
        for node in self.plan.nodes:
            self._executor.submit(node.index, partial(self.bodies.open, node), partial(self._opened, node.index))

    def handle(self, event: Event, at: Instant | None = None) -> None:
        """Feed one event to the core, as of `at` or now, and perform its commands.

        Only in a turn, like every call of a host.
        """
        commands, self._cause = self._decide(event, self._clock.now() if at is None else at), event
        for command in commands:
            self._perform[type(command)](command)
        while self._deferred:
            self._deferred.popleft()()

    @property
    def flows(self) -> Flows:
        """What this host has moved and awaited so far."""
        traffic = self.traffic
        return Flows(
            tuple(
                EdgeFlow(index, each.items, each.size_bytes, Duration(each.waited))
                for index, each in sorted(traffic.edges.items())
            ),
            tuple(
                NodeFlow(node.index, traffic.nodes[node.name].fired, Duration(traffic.nodes[node.name].waited))
                for node in self.plan.nodes
            ),
        )

    @property
    def is_open(self) -> bool:
        """Whether every body is open."""
        return len(self.bodies) == len(self.plan.nodes)

    @property
    def published(self) -> dict[str, dict[str, Any]]:
        """The status that each body has published, by the name of its node."""
        return self.bodies.published

    @property
    def stop_requested(self) -> bool:
        """Whether a stop of the run was requested."""
        return self.bodies.stop_requested

    @property
    def payloads_count(self) -> int:
        """The number of items that this host holds."""
        return len(self._payloads)

    @property
    def leave_requested(self) -> bool:
        """Whether this host is to leave the run."""
        return self.bodies.leave_requested

    @property
    def has_left(self) -> bool:
        """Whether it was to leave, and no body is engaged: it may end once all that it has sent has arrived."""
        return self.bodies.leave_requested and not self._engaged

    @property
    def leaves_itself(self) -> bool:
        """Whether one of its bodies has it leave, and nobody else."""
        return self.bodies.leaves_itself

    def request_leave(self) -> None:
        """Tell the bodies that this host is to leave the run: what they have to give, they give now."""
        self.bodies.leave_requested = True
        self.handle(NodesNudged())

    def follow_stop(self, *, is_stopping: bool) -> None:
        """Tell the bodies whether the run is stopping, as its home says now."""
        if is_stopping != self.bodies.is_stopping:
            self.bodies.is_stopping = is_stopping
            self.bodies.stop_requested |= is_stopping
            self.handle(NodesNudged())

    def check(self) -> None:
        """Raise InvariantError, with its last events, unless the invariants of the core hold."""
        with self._last_events.told():
            self.scheduler.check()

    def close(self) -> None:
        """Stop at once: no firing begins, nothing is sent or received any more."""
        self._is_closed = True
        self._executor.close()
        self._channel.close()
        for cancel in self._timers.values():
            cancel()
        self._timers.clear()

    def carried(self, edge: int, target: Member, size_bytes: int, begun: Instant, arrived: Instant) -> None:
        """An item of this host has arrived at another, over the channel."""
        self.links.carried(target, size_bytes, begun, arrived)
        self.traffic.bytes_sent += size_bytes
        on_edge = self.traffic.edges[edge]
        on_edge.items += 1
        on_edge.size_bytes += size_bytes

    def item_arrived(self, source: Member, parcel: Parcel) -> None:
        """An item arrived over the channel; one that violates the schema of its body goes no further."""
        mismatch = self.mismatch(source, parcel)
        if mismatch is not None:
            self._refuse(source, parcel.edge, mismatch)
            if self.plan.edges[parcel.edge].kind == "queue":
                self._channel.grant(source, parcel.edge, 1)
            return
        handle = self._payloads.keep(Payload(parcel.item, parcel.digest, parcel.size_bytes))
        self.traffic.bytes_received += parcel.size_bytes
        self.handle(ItemArrived(parcel.edge, source, handle, parcel.fields, parcel.digest))
        if parcel.edge in self._voting:
            self._give_early(self._voting[parcel.edge], handle, parcel.item)

    def _give_early(self, node: int, handle: Handle, vote: Any) -> None:
        """Give the body of a node a vote that has arrived, if that waits for its round to close."""
        if not self.bodies.takes_early(node) or not self._payloads.holds(handle):
            return
        if self._executor.has_threads:
            self._executor.submit(node, partial(self.bodies.take_early, node, vote), _nothing_follows)
        else:  # It takes no time that a model of durations would know.
            self.bodies.take_early(node, vote)

    def mismatch(self, source: Member, parcel: Parcel) -> Mismatch | None:
        """The fault of an item that came from `source`, or None."""
        check = self._checks.get(parcel.edge)
        return None if check is None else check(parcel.item, {}, source)

    def credit_granted(self, target: Member, edge: int, count: int) -> None:
        """Credit arrived over the channel."""
        self.handle(CreditGranted(edge, target, count))

    def _refuse(self, source: Member, index: int, mismatch: Mismatch) -> None:
        """Count a refused item, by its sender."""
        edge = self.plan.edges[index]
        refusal = self.refusals.get((source, index))
        if refusal is not None:
            self.refusals[source, index] = msgspec.structs.replace(refusal, count=refusal.count + 1)
        elif len(self.refusals) < REFUSED_MAX:
            is_vote = index in self._voting
            self.refusals[source, index] = ItemRefusal(source, edge.name, *mismatch, is_vote=is_vote)

    def _usual_step(self) -> Duration:
        """The usual duration of a step, as a body has published it; 0 where none has."""
        published = list(self.bodies.published.values())
        return Duration(max((int(each.get(USUAL_STEP, 0)) for each in published), default=0))

    def _was_away(self, since: Instant, until: Instant) -> None:
        if self._trace is not None:
            self._trace.add(Span(self._name, AWAY, since, until))

    def _record_rejected(self) -> None:
        """Refuse the items that bodies have reported as wrong."""
        while self.bodies.rejected_inputs:
            rejected = self.bodies.rejected_inputs.popleft()
            for index, edge in self.plan.edges.items():
                if (edge.target, edge.target_port) == (rejected.node, rejected.port):
                    slot, incarnation = rejected.sender
                    sender = Member(Replica(edge.source_role, slot), incarnation)
                    self._refuse(sender, index, rejected.mismatch)

    # -- the core ------------------------------------------------------------------------------------------------------

    def _decide(self, event: Event, now: Instant) -> Sequence[Command]:
        """Feed an event to the core; returns its commands, which go onto the tape."""
        if self._is_closed:
            self._forget(event)
            return ()
        self._now = now
        try:
            commands = self.scheduler.handle(event, now)
        except RemoteProtocolError as error:
            reason = str(error)
            self.refused[reason if len(self.refused) < REFUSED_MAX or reason in self.refused else "others"] += 1
            self._forget(event)
            return ()
        except (LocalProtocolError, InvariantError) as error:
            self._forget(event)
            self._last_events.add_to(error, event)
            # As in a traceback, what it is comes last: that line is the record of a failure without a body's exception.
            text = "\n".join([*error.last_events, error.message])
            self._deferred.append(partial(self._on_failed, self, "", text))
            return ()
        if self._tape is not None:
            self._tape.append(now, event, commands)
        return commands

    # -- bodies --------------------------------------------------------------------------------------------------------

    def _opened(self, node: int, is_idle: bool, error: BaseException | None) -> None:
        with self._executor.turn:
            opened = error is None
            self.handle(NodeOpened(node, is_idle) if opened else self._body_failed(self._nodes[node], error))
            if opened and self.is_open:
                self._on_opened()

    def _body_failed(self, node: NodePlan, error: BaseException | None) -> BodyFailed:
        """The event of a body's exception, whose record and text are kept here: tapes leave the machine."""
        told = raised(node.name, error)
        self.raised = self.raised or told
        self._texts[node.index] = story(error)
        return BodyFailed(node.index, f"{told.exception or 'an error'}, {told.file}:{told.line}")

    def _run_body(self, command: RunBody) -> None:
        node = self._nodes[command.node]
        since = self._waiting.pop(command.node, None)
        if since is not None and (waited := self._now - since) > WAIT_MIN:
            self.traffic.nodes[node.name].waited += waited
            awaited = self._awaited(node.index)
            if awaited is not None:
                self.traffic.edges[awaited].waited += waited
        inputs = self._inputs(node, command)
        fire = self.bodies.firing if self._executor.lends(node.index) else self.bodies.fire
        work = partial(fire, node, inputs)
        if not node.body_may_wait:
            self.busy.began(node.name, self._now)
        self._input_policy.began(node.index)
        self._executor.submit(node.index, work, partial(self._fired, node))

    def _awaited(self, node: int) -> int | None:
        """The edge of a node whose item, or room, is the cause of its firing; None if it fires for another reason."""
        match self._cause:
            case ItemArrived(edge=edge) if self.plan.edges[edge].target == node:
                return edge
            case CreditGranted(edge=edge) if self.plan.edges[edge].source == node:
                return edge
            case FiringEnded(node=other) | ItemsEmitted(node=other):
                # An item first: a consumer that ends takes the next item, and so makes room for this node's.
                return self._between.get((other, node), self._between.get((node, other)))
            case _:
                return None

    def _inputs(self, node: NodePlan, command: RunBody) -> dict[str, Any]:
        """The keywords of a firing: items by port, None for required ports of an idle node."""
        inputs: dict[str, Any] = dict.fromkeys(node.ports_idle)
        for port, entries in command.inputs:
            plan = node.inputs[port]
            if plan.is_bare:
                inputs[plan.name] = self._payloads.use(entries[0][2]).item
            else:
                inputs[plan.name] = {
                    (replica, key): self._payloads.use(handle).item for replica, key, handle in entries
                }
        if node.has_decision:
            inputs["decision"] = command.decision
        return inputs

    def _emitted_meanwhile(self, node: NodePlan, emissions: list[Emission]) -> None:
        """A firing emitted items before its end."""
        if self._executor.has_threads:
            self._emitted(node, emissions)
        else:  # The event that starts this firing is still being carried out.
            self._clock.post(partial(self._emitted, node, emissions))

    def _emitted(self, node: NodePlan, emissions: list[Emission]) -> None:
        with self._executor.turn:
            self.handle(ItemsEmitted(node.index, self._outputs(node, emissions)))

    def _outputs(self, node: NodePlan, emissions: list[Emission]) -> tuple[Output, ...]:
        """Emissions as the core sees them; their payloads are kept."""
        keep = self._payloads.keep
        for each in emissions:
            for edge in self._local_edges[node.index, each.port]:
                self.traffic.edges[edge].items += 1
        return tuple([Output(each.port, keep(each.payload), each.fields, each.payload.digest) for each in emissions])

    def _fired(self, node: NodePlan, ended: FiringResult | None, error: BaseException | None) -> None:
        with self._executor.turn:
            if self._is_closed:
                return
            if not self._input_policy.is_needed:
                self._executor.poll()
            now = self._clock.now()
            self._record_rejected()
            self.busy.ended(node.name, now)
            self._input_policy.ended(node.index, Duration(0 if ended is None else now - ended.begun))
            self.handle(self._ending(node, ended, error, now), now)
            if ended is not None:  # After its items were sent.
                (self._engaged.add if ended.is_engaged else self._engaged.discard)(node.index)
            self._executor.listen(self._input_policy.is_needed)

    def _ending(self, node: NodePlan, ended: FiringResult | None, error: BaseException | None, now: Instant) -> Event:
        """The event of the end of a firing."""
        if ended is None or error is not None:
            return self._body_failed(node, error)
        traffic = self.traffic.nodes[node.name]
        traffic.fired += 1
        traffic.spent += ended.ended - ended.begun
        traffic.emitted += len(ended.emissions)
        if self._trace is not None:
            until = ended.ended if ended.ended > ended.begun else now
            self._trace.add(Span(self._name, node.name, ended.begun, until))
        if not ended.is_idle and not ended.is_finished and not isinstance(node.fires, Every):
            self._waiting[node.index] = now
        outputs = self._outputs(node, ended.emissions) if ended.emissions else ()
        return FiringEnded(node.index, outputs, ended.is_idle, ended.is_finished)

    def _forget(self, event: Event) -> None:
        """Release the payloads of an event that the core did not accept."""
        if isinstance(event, ItemArrived):
            self._payloads.forget(event.handle)
        elif isinstance(event, ItemsEmitted | FiringEnded):
            for output in event.outputs:
                self._payloads.forget(output.handle)

    # -- commands ------------------------------------------------------------------------------------------------------

    def _send_item(self, command: SendItem) -> None:
        self._send(command, self._payloads.use(command.handle))

    def _resend_item(self, command: ResendItem) -> None:
        self._send(command, self._payloads.look(command.handle))

    def _send(self, command: SendItem | ResendItem, payload: Payload) -> None:
        edge: EdgePlan = self.plan.edges[command.edge]
        encoding = payload.digest, payload.size_bytes, payload.encoded
        parcel = Parcel(command.edge, command.key, payload.item, command.fields, *encoding)
        self._deferred.append(partial(self._channel.send, command.target, parcel, replaces=edge.kind == "latest"))

    def _grant_credit(self, command: GrantCredit) -> None:
        self._deferred.append(partial(self._channel.grant, command.source, command.edge, command.count))

    def _share_item(self, command: ShareItem) -> None:
        self._payloads.share(command.handle, command.uses)

    def _drop_item(self, command: DropItem) -> None:
        self._payloads.use(command.handle)

    def _set_timer(self, command: SetTimer) -> None:
        self._deferred.append(partial(self._arm_timer, command.timer, command.at))

    def _arm_timer(self, timer: int, at: Instant) -> None:
        self._cancel(timer)
        if not self._is_closed:
            self._timers[timer] = self._clock.call_at(at, partial(self._timer_came_due, timer))

    def _timer_came_due(self, timer: int) -> None:
        self._timers.pop(timer, None)
        self.handle(TimerFired(timer))

    def _cancel_timer(self, command: CancelTimer) -> None:
        self._deferred.append(partial(self._cancel, command.timer))

    def _cancel(self, timer: int) -> None:
        cancel = self._timers.pop(timer, None)
        if cancel is not None:
            cancel()

    def _end_node(self, command: EndNode) -> None:
        self._deferred.append(partial(self._on_ended, self, self._nodes[command.node].name))

    def _fail_host(self, command: FailHost) -> None:
        text = self._texts.get(command.node, command.error)
        self._deferred.append(partial(self._on_failed, self, self._nodes[command.node].name, text))
