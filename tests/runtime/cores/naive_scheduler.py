"""A naive scheduler, to compare the real one with. It shares no code with it but the quorum core (tested by itself).

Nothing is counted or kept up to date: what waits at a port, what credit a producer has and who is ready is worked out
anew, from everything that was ever put, taken, sent and granted. `handle` gives the commands of an event in no
particular order; the inputs of a firing are in the order that matters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from isthmus.runtime.clock import Instant
from isthmus.runtime.cores import quorum_core as q
from isthmus.runtime.cores import scheduler_events as e
from isthmus.runtime.cores.scheduler_core import constant
from isthmus.runtime.errors import LocalProtocolError
from isthmus.runtime.graph.plans import EdgePlan, NodePlan, Plan
from isthmus.runtime.graph.template import AnyOf, Every, Quorum
from isthmus.runtime.ids import Handle, Member, Replica


@dataclass(eq=False)
class Pair:
    """An edge between this host and a member (this host itself, where both ends are here), with all that happened."""

    edge: EdgePlan
    member: Member
    opened: int
    puts: list[tuple[Any, Handle]] = field(default_factory=list)
    """(key, handle), in order, the initial items first; at the consumer's end."""
    gone: set[int] = field(default_factory=set)
    """Which of `puts` were taken, superseded or dropped."""
    sent: int = 0
    granted: int = 0

    def waiting(self) -> list[tuple[Any, Handle]]:
        return [put for number, put in enumerate(self.puts) if number not in self.gone]

    def let_go(self, handle: Handle) -> None:
        self.gone.add(next(n for n, put in enumerate(self.puts) if put[1] == handle and n not in self.gone))

    def credit(self) -> int:
        return self.edge.capacity - len(self.edge.initial) - self.sent + self.granted


@dataclass(eq=False)
class Node:
    plan: NodePlan
    is_open: bool = False
    is_running: bool = False
    is_idle: bool = False
    is_nudged: bool = False
    is_due: bool = False
    is_ending: bool = False
    is_finished: bool = False
    held: list[e.Output] = field(default_factory=list)
    """What the last firing emitted and there was no credit for, in order."""
    firings: int = 0
    started: int = 0
    asked: list[tuple[q.QuorumEvent, Instant]] = field(default_factory=list)
    """Everything that the quorum core was told."""
    came: dict[tuple[str, Handle], Pair] = field(default_factory=dict)
    """Votes and openings that have not been used up, by port and handle."""
    closed: list[tuple[Handle, tuple[tuple[Replica, Handle], ...], dict[str, Any], int]] = field(default_factory=list)
    timers: dict[int, int] = field(default_factory=dict)


class NaiveScheduler:
    def __init__(self, plan: Plan, member: Member) -> None:
        self.plan = plan
        self.member = member
        self.nodes = {node.index: Node(node) for node in plan.nodes}
        self.live: list[Member] = []
        self.out: list[Pair] = []
        self.into: list[Pair] = []
        self.order: list[Handle] = []
        self.emitted: list[tuple[EdgePlan, Any, Handle, e.Fields]] = []
        """Everything that went to edges that keep: the newest of each key is kept."""
        self.now = Instant(0)
        self.number = 0
        self.commands: list[e.Command] = []
        self.drops: Counter[str] = Counter()

    def handle(self, event: e.Event, now: Instant) -> list[e.Command]:
        self.now = now
        self.number += 1
        self.commands = []
        match event:
            case e.ReplicaJoined():
                self._roster([*(m for m in self.live if m.replica != event.member.replica), event.member])
            case e.ReplicaLeft():
                self._roster([m for m in self.live if m != event.member])
            case e.NodeOpened():
                node = self.nodes[event.node]
                node.is_open, node.is_idle, node.is_nudged = True, event.is_idle, event.is_idle
                if isinstance(node.plan.fires, Every):
                    self.commands.append(e.SetTimer(event.node, Instant(now + node.plan.fires.period)))
            case e.ItemsEmitted():
                self._emit(self.nodes[event.node], event.outputs)
            case e.FiringEnded():
                node = self.nodes[event.node]
                node.is_running, node.is_idle, node.is_ending = False, event.is_idle, event.is_finished
                self._emit(node, event.outputs)
            case e.BodyFailed():
                self.nodes[event.node].is_open = self.nodes[event.node].is_running = False
                self.commands.append(e.FailHost(event.node, event.error))
            case e.ItemArrived():
                self._arrive(event)
            case e.CreditGranted():
                for pair in self.out:
                    if pair.edge.index == event.edge and pair.member == event.target:
                        pair.granted += event.count
            case e.TimerFired():
                self._fire_timer(event.timer)
            case e.NodesNudged():
                for node in self.nodes.values():
                    node.is_nudged = True
        is_settled = False
        while not is_settled:
            while ready := [node for node in self.nodes.values() if self.is_ready(node)]:
                self._start(ready[0])
            left = [self._emit(node) for node in self.nodes.values()]
            is_settled = not any(left)
        self.drops.update(command.reason for command in self.commands if isinstance(command, e.DropItem))
        return self.commands

    # -- who is ready --------------------------------------------------------------------------------------------------

    def is_ready(self, node: Node) -> bool:
        if not node.is_open or node.is_running or node.is_finished or node.held:
            return False
        if any(pair.credit() < 1 for pair in self.queues_out_of(node)):
            return False
        sampled = [port.name for port in node.plan.inputs if not port.is_required]
        if node.is_idle:
            return node.is_nudged or any(self._is_new(node, name) for name in sampled)
        fires = node.plan.fires
        if isinstance(fires, Every):
            return node.is_due
        if isinstance(fires, Quorum):
            return bool(node.closed)
        if isinstance(fires, AnyOf):
            return any(self._is_new(node, name) for name in fires.ports)
        return all(self._is_complete(node, name) for name in fires.ports)

    def queues_out_of(self, node: Node) -> list[Pair]:
        return [pair for pair in self.out if pair.edge.source == node.plan.index and pair.edge.kind == "queue"]

    def pairs_into(self, node: Node, name: str) -> list[Pair]:
        return [pair for pair in self.into if pair.edge.target == node.plan.index and pair.edge.target_port == name]

    def _is_new(self, node: Node, name: str) -> bool:
        return not self._votes(node, name) and any(pair.waiting() for pair in self.pairs_into(node, name))

    def _is_complete(self, node: Node, name: str) -> bool:
        pairs = self.pairs_into(node, name)
        if pairs and pairs[0].edge.kind == "queue":
            return all(pair.waiting() for pair in pairs)
        return any(pair.waiting() for pair in pairs)

    @staticmethod
    def _votes(node: Node, name: str) -> bool:
        return isinstance(node.plan.fires, Quorum) and name in (node.plan.fires.port, node.plan.fires.opened_by)

    # -- firing --------------------------------------------------------------------------------------------------------

    def _start(self, node: Node) -> None:
        inputs: list[tuple[int, tuple[e.Entry, ...]]] = []
        decision = None
        fires = node.plan.fires
        if isinstance(fires, Quorum) and not node.is_idle:
            opening, votes, decision, key = node.closed.pop(0)
            names = [port.name for port in node.plan.inputs]
            opener = node.came[fires.opened_by, opening].member.replica
            inputs.append((names.index(fires.opened_by), ((opener, None, opening),)))
            inputs.append((names.index(fires.port), tuple((voter, key, handle) for voter, handle in votes)))
            self._use_up(node, fires.opened_by, opening)
            for _, handle in votes:
                self._use_up(node, fires.port, handle)
        for number, port in enumerate(node.plan.inputs):
            if self._votes(node, port.name) or (node.is_idle and port.is_required):
                continue
            found: list[tuple[Pair, Any, Handle]] = []
            for pair in self.pairs_into(node, port.name):
                waiting = pair.waiting()
                found += [(pair, *put) for put in (waiting[:1] if pair.edge.kind == "queue" else waiting)]
            if port.kind == "latest":
                found.sort(key=lambda entry: self.order.index(entry[2]))
            for pair, _, handle in found:
                pair.let_go(handle)
                self._give_back(pair)
            if found:
                inputs.append((number, tuple((pair.member.replica, key, handle) for pair, key, handle in found)))
        node.is_running, node.is_due, node.is_nudged = True, False, False
        node.firings += 1
        node.started = self.number
        self.commands.append(e.RunBody(node.plan.index, node.firings, tuple(inputs), decision))

    def _give_back(self, pair: Pair) -> None:
        if pair.edge.kind == "queue" and pair in self.into:
            pair.granted += 1
            if pair not in self.out:
                self.commands.append(e.GrantCredit(pair.edge.index, pair.member, 1))

    def _finish(self, node: Node) -> None:
        node.is_ending, node.is_finished = False, True
        for pair in self.into:
            if pair.edge.target == node.plan.index:
                self._empty(pair, "node finished")
        for _, handle in node.came:
            self.commands.append(e.DropItem(handle, "node finished"))
        self.commands += [e.CancelTimer((node.plan.index + 1 << 32) + number) for number in node.timers]
        node.came, node.timers = {}, {}
        if isinstance(node.plan.fires, Every):
            self.commands.append(e.CancelTimer(node.plan.index))
        self.commands.append(e.EndNode(node.plan.index))

    def _empty(self, pair: Pair, reason: str) -> None:
        for _, handle in pair.waiting():
            self.commands.append(e.DropItem(handle, reason))
            pair.let_go(handle)

    # -- items ---------------------------------------------------------------------------------------------------------

    def targets(self, node: Node, output: e.Output) -> list[Pair]:
        """The pairs along which an output of a running node goes."""
        name = node.plan.outputs[output.port].name
        found = []
        for pair in self.out:
            edge = pair.edge
            if (edge.source, edge.source_port) != (node.plan.index, name):
                continue
            if edge.kind == "queue" and pair.opened > node.started:
                continue
            if edge.route == "at" and pair.member.replica != self._addressed(edge, output.fields):
                continue
            found.append(pair)
        return found

    def _addressed(self, edge: EdgePlan, fields: e.Fields) -> Replica:
        assert fields is not None
        assert edge.route_key is not None
        number = fields[edge.route_key]
        low, high = self.plan.replicas[edge.target_role]
        slots = sorted(member.replica.slot for member in self.live if member.replica.role == edge.target_role)
        if low == high:
            return Replica(edge.target_role, number % high)
        return Replica(edge.target_role, number if number in slots else slots[number % len(slots)])

    def can_leave(self, node: Node, output: e.Output) -> bool:
        """Whether there is credit for an output wherever it goes."""
        return all(pair.edge.kind != "queue" or pair.credit() > 0 for pair in self.targets(node, output))

    def newest(self, edge: EdgePlan) -> dict[Any, tuple[Handle, e.Fields]]:
        """The newest item of every key of a Latest edge, in the order of being emitted."""
        newest: dict[Any, tuple[Handle, e.Fields]] = {}
        for other, key, handle, fields in self.emitted:
            if other is edge:
                newest.pop(key, None)
                newest[key] = (handle, fields)
        return newest

    def _emit(self, node: Node, outputs: Iterable[e.Output] = ()) -> bool:
        """Let a node's outputs leave, after those that it holds, until one has no credit; whether any did."""
        node.held += outputs
        count = len(node.held)
        while node.held and self.can_leave(node, node.held[0]):
            self._let_leave(node, node.held.pop(0))
        if node.is_ending and not node.held:
            self._finish(node)
        return len(node.held) < count

    def _let_leave(self, node: Node, output: e.Output) -> None:
        pairs = self.targets(node, output)
        keeping = [
            self.plan.edges[index] for index in node.plan.outputs[output.port].edges if self.plan.edges[index].is_kept
        ]
        uses = len(pairs) + len(keeping)
        if uses == 0:
            self.commands.append(e.DropItem(output.handle, "nobody to send to"))
        if uses > 1:
            self.commands.append(e.ShareItem(output.handle, uses))
        for edge in keeping:
            key = _key(edge, output.fields)
            if key in self.newest(edge):
                self.commands.append(e.DropItem(self.newest(edge)[key][0], "newest no more"))
            self.emitted.append((edge, key, output.handle, output.fields))
        for pair in pairs:
            pair.sent += 1
            key = _key(pair.edge, output.fields)
            if pair in self.into:
                self._put(pair, key, output.handle, output.fields, source=node.plan.index)
            else:
                sent = e.SendItem(pair.edge.index, pair.member, output.handle, key, output.fields)
                self.commands.append(sent)

    def _arrive(self, event: e.ItemArrived) -> None:
        found = [p for p in self.into if p.edge.index == event.edge and p.member == event.source and p not in self.out]
        if not found:
            self.commands.append(e.DropItem(event.handle, "not connected"))
            return
        key = _key(found[0].edge, event.fields)
        self._put(found[0], key, event.handle, event.fields, source=None)
        found[0].sent += 1

    def _put(self, pair: Pair, key: Any, handle: Handle, fields: e.Fields, source: int | None) -> None:
        node = self.nodes[pair.edge.target]
        if node.is_finished:
            self.commands.append(e.DropItem(handle, "node finished"))
        elif self._votes(node, pair.edge.target_port):
            try:
                self._ask(node, self._vote(node, pair, handle, fields or {}), pair)
            except LocalProtocolError as error:
                if source is None:
                    raise
                self.commands.append(e.DropItem(handle, "not allowed"))
                self._give_back(pair)
                self.commands.append(e.FailHost(source, str(error)))
        else:
            older = [put for put in pair.waiting() if put[0] == key] if pair.edge.kind == "latest" else []
            for _, superseded in older:
                pair.let_go(superseded)
                self.commands.append(e.DropItem(superseded, "superseded"))
            pair.puts.append((key, handle))
            self.order.append(handle)

    # -- rounds --------------------------------------------------------------------------------------------------------

    def _vote(self, node: Node, pair: Pair, handle: Handle, fields: dict[str, Any]) -> q.QuorumEvent:
        fires = node.plan.fires
        assert isinstance(fires, Quorum)
        if pair.edge.target_port == fires.port:
            return q.VoteArrived(fields[fires.key], pair.member.replica, pair.member.incarnation, handle)
        voters = self.pairs_into(node, fires.port)
        edges = [edge for edge in self.plan.edges.values() if edge.target == node.plan.index]
        role = next(edge.source_role for edge in edges if edge.target_port == fires.port)
        members = [voter.member for voter in voters]
        if fields.get("members") is not None:
            members = [Member(Replica(role, slot), life) for slot, life in fields["members"]]
        return q.RoundOpened(
            fields[fires.key],
            fields.get("attempt", 1),
            tuple(members),
            fields.get("count_min", fires.count_min),
            fields.get("grace", fires.grace),
            tuple(Replica(role, slot) for slot in fields.get("required") or []),
            fields.get("deadline"),
            handle,
            fields.get("chain"),
        )

    def _ask(self, node: Node, event: q.QuorumEvent, pair: Pair | None = None) -> None:
        """Tell a new quorum core everything from the beginning, and carry out what it says last."""
        fires = node.plan.fires
        assert isinstance(fires, Quorum)
        core = q.QuorumCore()
        for earlier, at in node.asked:
            core.handle(earlier, at)
        commands = core.handle(event, self.now)
        node.asked.append((event, self.now))
        if pair is not None:
            assert isinstance(event, q.VoteArrived | q.RoundOpened)
            node.came[pair.edge.target_port, event.handle] = pair
        base = (node.plan.index + 1) << 32
        for command in commands:
            match command:
                case q.CloseRound():
                    why = command.decision
                    decision = {
                        "reason": why.reason,
                        "opened_at": why.opened_at,
                        "quorum_at": why.quorum_at,
                        "closed_at": why.closed_at,
                        "left_out": [replica.slot for replica in why.left_out],
                    }
                    node.closed.append((command.opening, command.votes, decision, command.key))
                case q.WithdrawRound():
                    decision = {"reason": command.reason, "left_out": []}
                    node.closed.append((command.opening, (), decision, command.key))
                case q.RefuseVote():
                    self._refuse(node, fires.port, command.handle, f"vote refused: {command.reason}")
                case q.RefuseOpening():
                    self._refuse(node, fires.opened_by, command.opening, "opening refused")
                case q.ReplaceOpening():
                    self._refuse(node, fires.opened_by, command.dropped, "opening renewed")
                case q.SetQuorumTimer():
                    node.timers[command.timer] = command.key
                    self.commands.append(e.SetTimer(base + command.timer, command.at))
                case q.CancelQuorumTimer():
                    node.timers.pop(command.timer, None)
                    self.commands.append(e.CancelTimer(base + command.timer))

    def _refuse(self, node: Node, port: str, handle: Handle, reason: str) -> None:
        self._use_up(node, port, handle)
        self.commands.append(e.DropItem(handle, reason))

    def _use_up(self, node: Node, port: str, handle: Handle) -> None:
        self._give_back(node.came.pop((port, handle)))

    def _fire_timer(self, timer: int) -> None:
        node = self.nodes.get(timer)
        if node is not None and isinstance(node.plan.fires, Every):
            if not node.is_finished:
                node.is_due = True
                self.commands.append(e.SetTimer(timer, Instant(self.now + node.plan.fires.period)))
            return
        node = self.nodes.get((timer >> 32) - 1)
        key = node.timers.pop(timer & 0xFFFFFFFF, None) if node is not None else None
        if node is not None and key is not None:
            self._ask(node, q.QuorumTimerFired(key, timer & 0xFFFFFFFF))

    # -- the roster ----------------------------------------------------------------------------------------------------

    def consumers(self, edge: EdgePlan, member: Member) -> list[Member]:
        if member not in self.live:
            return []
        peers = sorted(other for other in self.live if other.replica.role == edge.target_role)
        if edge.route == "local":
            return [member]
        if edge.route == "next":
            return [peers[(peers.index(member) + 1) % len(peers)]]
        return peers

    def _roster(self, live: list[Member]) -> None:
        self.live = live
        ended: list[Pair] = []
        begun: list[Pair] = []
        for edge in self.plan.edges.values():
            wanted = self.consumers(edge, self.member) if edge.source in self.nodes else []
            mine = [pair for pair in self.out if pair.edge is edge]
            self.out = [pair for pair in self.out if pair.edge is not edge or pair.member in wanted]
            fresh = [m for m in wanted if all(pair.member != m for pair in mine)]
            self.out += [Pair(edge, member, self.number) for member in fresh]
            for member in fresh:
                for key, (handle, fields) in self.newest(edge).items():
                    is_meant = edge.route != "at" or member.replica == self._addressed(edge, fields)
                    if is_meant and not (member == self.member and edge.target in self.nodes):
                        self.commands.append(e.ResendItem(edge.index, member, handle, key, fields))
        for edge in self.plan.edges.values():
            wanted = []
            if edge.target in self.nodes:
                sources = sorted(m for m in live if m.replica.role == edge.source_role)
                wanted = [m for m in sources if self.member in self.consumers(edge, m)]
            mine = [pair for pair in self.into if pair.edge is edge]
            ended += [pair for pair in mine if pair.member not in wanted]
            self.into = [pair for pair in self.into if pair not in ended]
            for member in wanted:
                if all(pair.member != member for pair in mine):
                    here = [pair for pair in self.out if pair.edge is edge and pair.member == member == self.member]
                    pair = here[0] if here else Pair(edge, member, self.number)
                    if not self.nodes[edge.target].is_finished:
                        pair.puts += [(None, constant(edge.index, i)) for i in range(len(edge.initial))]
                    self.into.append(pair)
                    begun.append(pair)
        for pair in ended:
            self._empty(pair, "link ended")
        for pairs, kind in ((ended, q.MemberLeft), (begun, q.MemberJoined)):
            for pair in pairs:
                node = self.nodes[pair.edge.target]
                fires = node.plan.fires
                if isinstance(fires, Quorum) and fires.port == pair.edge.target_port and not node.is_finished:
                    self._ask(node, kind(pair.member))

    # -- what is held --------------------------------------------------------------------------------------------------

    def held(self) -> Counter[Handle]:
        """How often each payload is still to be used by what waits here."""
        held: Counter[Handle] = Counter()
        for pair in self.into:
            held.update(handle for _, handle in pair.waiting())
        for node in self.nodes.values():
            held.update(handle for _, handle in node.came)
            held.update(output.handle for output in node.held)
        for edge in self.plan.edges.values():
            held.update(handle for handle, _ in self.newest(edge).values())
        return held

    def statistics(self) -> dict[str, int]:
        return dict(self.drops) | {"firings": sum(node.firings for node in self.nodes.values())}


def _key(edge: EdgePlan, fields: e.Fields) -> Any:
    return None if edge.key is None or fields is None else fields[edge.key]
