"""One host process in a universe: the real host over the real wire, on a clock, sockets and a machine of its own.

It decides nothing about the run. It sends heartbeats to the daemon of its machine, looks for the next one when that is
silent, applies its rosters, exits on its order, and shows its channel's traffic to the checkers.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, final

from isthmus.runtime.channels.contract import Parcel, Receiver
from isthmus.runtime.clock import Duration, Instant
from isthmus.runtime.cores.membership_messages import PHASES, Phase
from isthmus.runtime.errors import InvariantError
from isthmus.runtime.graph.plans import EdgePlan, Plan, peers_most
from isthmus.runtime.graph.template import Reference
from isthmus.runtime.host.contract import Span, Trace
from isthmus.runtime.host.driver import Host
from isthmus.runtime.host.own_process import (
    DaemonSilence,
    HostRoster,
    Meeting,
    Meetings,
    Parting,
    PeerReach,
    RosterNews,
    is_orphan,
    is_searching,
    message_of,
    met_by,
    phase_of,
    suspended,
)
from isthmus.runtime.host.virtual_time import InlineExecutor, Spread, VirtualClock
from isthmus.runtime.ids import HostMachine, Member, Replica, keeps_run
from isthmus.runtime.items.encoding import encode
from isthmus.runtime.items.layout import fields as fields_of
from isthmus.runtime.sim.faults import Forge
from isthmus.runtime.sim.machine import HostClock, Mount, SimulatedDisk
from isthmus.runtime.sim.network import Ether, EtherSockets
from isthmus.runtime.sim.world import SEGMENT_BYTES, DurationOf, durations
from isthmus.runtime.supervision.incidents import Exited
from isthmus.runtime.supervision.messages import HEARTBEAT_SECONDS, Formed
from isthmus.runtime.supervision.rosters import Row
from isthmus.runtime.tape.reading import TapeFiles, named
from isthmus.runtime.tape.writing import Piece, Tape, frames
from isthmus.runtime.wire.channel import WireChannel
from isthmus.runtime.wire.control_messages import Message
from isthmus.runtime.wire.control_messages import encode as encode_message
from isthmus.runtime.wire.peers import Limits

RUN: Final = Path("/run")
KNOWN: Final[dict[str, Phase]] = {phase: phase for phase in PHASES}
BYTES_MAX: Final = 1 << 40
"""More than any tape of a universe: all are kept to their end."""


@final
class LifeTape:
    """The tape of one life, on `disk`.

    It is kept whole in memory, for inspection, and in files, as a real host writes it. The disk holds nothing else, and
    loses power with the machine. After any failure, each file must be a beginning of its segment, whole up to a record;
    `check` tests that.
    """

    def __init__(self, member: Member, disk: SimulatedDisk) -> None:
        self.tape = Tape(SEGMENT_BYTES)
        self._name = f"{member.replica.role}-{member.replica.slot}-{member.incarnation}"
        self._disk, self._mount = disk, Mount(disk)
        self._files = TapeFiles.of_host(RUN, member, disk=self._mount, bytes_max=BYTES_MAX)
        self._segments: dict[int, bytes] = {}
        self._new: list[Piece] = []

    def flush(self) -> None:
        """Write new records to the files, as a host does twice a second."""
        self._files.write(self)

    def end(self) -> None:
        """The process is gone: unwritten records are lost."""
        self._mount.is_gone = True

    def news(self) -> list[Piece]:
        """Pieces of the tape since the last call."""
        self.drain()
        news, self._new = self._new, []
        return news

    def check(self) -> int:
        """The number of bytes of the tape in files; InvariantError if these contain anything else."""
        self.drain()
        files = sorted(
            (of[1], data)
            for path, data in self._disk.files().items()
            if (of := named(path.name)) and of[0] == self._name
        )
        for segment, (number, data) in enumerate(files, 1):
            stored = frames(data)
            if not self._segments.get(segment, b"").startswith(data):
                raise InvariantError(f"{self._name}.{number}.tape has other bytes than segment {segment} of the tape")
            if stored.rest and not stored.is_unfinished:
                raise InvariantError(f"{self._name}.{number}.tape is not whole up to its last record: {stored.rest}")
        return sum(len(data) for _, data in files)

    # -- source of the files -------------------------------------------------------------------------------------------

    def drain(self) -> list[Piece]:
        pieces = self.tape.drain()
        self._new += pieces
        for piece in pieces:
            self._segments[piece.segment] = self._segments.get(piece.segment, b"") + piece.data
        return pieces

    def renew(self) -> None:
        self.tape.renew()


STEPPING: Final = "inner-step"
"""The node in which a learner steps, and may be away."""
EXIT_SECONDS: Final = 0.05
"""The time that a host takes to exit on request."""
FORMING_NS: Final = 1_000_000_000
"""The stall that a host reports for a new form of its island: no devices form here."""


class Witness(Protocol):
    """Callbacks for a host's traffic; they raise on a violation."""

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        """A host sends an item."""

    def arrived(self, life: Life, source: Member, edge: EdgePlan, item: Any) -> None:
        """A host is about to receive an item."""

    def rostered(self, life: Life, rows: Sequence[Row]) -> None:
        """A host is about to receive a roster."""

    def connected(self, life: Life, peer: Member) -> None:
        """A connection of a host with a peer is up, or was lost."""

    def granted(self, life: Life, source: Member, edge: int, count: int) -> None:
        """A host took `count` items of a Queue edge, and reports that to their sender."""

    def credited(self, life: Life, target: Member, edge: int, count: int) -> None:
        """A host is about to receive `count` credits for a Queue edge."""


@dataclass(frozen=True, slots=True)
class UniverseSetting:
    """The objects and callbacks that all hosts of a universe share.

    `spoke` sends a heartbeat to the daemon that a host has dialled, `found` returns the present daemon; `left` is
    called for a host that exits by itself; `forgeries` are the changes to the items that a life sends; `folder` is that
    in which a host leaves files for its next life, None where none does.
    """

    clock: VirtualClock
    ether: Ether
    plans: Mapping[str, Plan]
    seed: int
    resolve: Callable[[Reference], Any]
    duration: DurationOf
    jitter: float
    spread: Spread
    meets: Callable[[Replica, Replica], Meeting]
    checkers: Sequence[Witness]
    trace: Trace | None
    limits: Limits
    most: Mapping[str, int]
    ended: Callable[[Life, str], None]
    failed: Callable[[Life, str, str], None]
    spoke: Callable[[Life, bytes], None]
    daemon_of: Callable[[Life], object | None]
    left: Callable[[Life, Exited], None]
    forgeries: Callable[[Life], Sequence[Forge]]
    folder: Path | None = None


class Life:
    """A host that runs as `member` on the machine at `address`, with its disk as `mount` and its tape on disk `tapes`.

    `factor` multiplies the time of its firings, `stuck` has the seconds by which the next firing of a node is longer;
    `away` are those for which the user's code keeps it from its next step.
    """

    def __init__(
        self,
        setting: UniverseSetting,
        member: Member,
        pid: int,
        machine: str,
        address: str,
        mount: Mount,
        tapes: SimulatedDisk,
        daemon: object,
    ) -> None:
        self.member, self.pid, self.machine, self.address = member, pid, machine, address
        self.daemon: object | None = daemon
        self.was_killed = False
        self.forgeries = Counter[str]()
        self.failures_at_end: int | None = None
        self.plan = setting.plans[member.replica.role]
        self.mount = mount
        self.factor = 1.0
        self.stuck: dict[str, float] = {}
        self.away: float | None = None
        self._has_been_away = False
        self._names = {node.index: node.name for node in self.plan.nodes}
        self.endpoints: tuple[str, str] | None = None
        self.formed = Formed()
        self.clock = HostClock(setting.clock)
        self._setting = setting
        self._is_leaving = self._is_over = False
        self._parting = Parting()
        self.tape = LifeTape(member, tapes)
        self.checkers, self._trace = setting.checkers, setting.trace
        rng = random.Random(f"{setting.seed} {member}")
        self.channel = WireChannel(
            member,
            clock=self.clock,
            sockets=EtherSockets(setting.ether, address, self.clock.run, rng),
            run=RUN.name,
            fingerprint="fingerprint",
            limits=setting.limits.for_peers(peers_most(self.plan, setting.most)),
            watch=self._watch,
            on_peer_up=self._connected,
            on_peer_lost=lambda peer, reason: self._connected(peer),
            holds_strangers=True,
        )
        took = durations(self.plan, member.replica, setting.duration, setting.jitter, setting.seed, setting.spread)
        self.host = Host(
            self.plan,
            member,
            clock=self.clock,
            channel=_Shown(self),
            executor=InlineExecutor(self.clock, lambda node: self._duration(node, took(node))),
            seed=setting.seed,
            resolve=setting.resolve,
            disk=mount,
            folder=setting.folder,
            tape=self.tape.tape,
            trace=self._trace,
            whereabouts=self,
            on_ended=lambda host, node: self._node_ended(node),
            on_failed=lambda host, node, error: setting.failed(self, node, error),
        )
        self.roster = HostRoster(met_by(self.plan, member.replica))
        self.meetings = Meetings(
            self.plan,
            member,
            PeerReach(lambda other: setting.meets(member.replica, other)),
            channel=self.channel,
            tell=self.host.handle,
        )

    def machine_of(self, role: str, slot: int) -> HostMachine:
        return self.meetings.machine_of(role, slot)

    def was_on(self, member: Member) -> str:
        return self.meetings.was_on(member)

    def start(self, *, listens: bool) -> None:
        """Start, like a new process."""
        if listens:
            control, data, *_ = self.channel.bind(f"tcp://{self.address}:0")
            self.endpoints = control, data
        self.host.start([self.member])
        self._silence = DaemonSilence(self.clock.now() / 1e9, HEARTBEAT_SECONDS)
        self.say()
        self.clock.call_at(Instant(self.clock.now() + round(HEARTBEAT_SECONDS * 1e9)), self._beat)

    def true_now(self) -> Instant:
        """The time of the universe, regardless of this life's clock."""
        return self._setting.clock.now()

    @property
    def phase(self) -> Phase:
        """The phase that it reports."""
        return KNOWN[phase_of(self.host, self.clock.now())]

    @property
    def is_dead(self) -> bool:
        """Whether its process is gone."""
        return self.clock.is_dead

    @property
    def shown(self) -> list[dict[str, Any]]:
        """The status that its nodes publish; empty for a recorder, which publishes that of the run."""
        return [] if keeps_run(self.member.replica) else list(self.host.published.values())

    @property
    def step(self) -> int:
        """The last inner step that it has reported; 0 where it reports none."""
        return max((int(shown.get("step", 0)) for shown in self.shown), default=0)

    def deliver(self, daemon: object, message: Message) -> None:
        """Handle a daemon's message, if it is the one that this host has dialled."""
        if daemon is self.daemon:
            self.clock.run(partial(self._on_message, message))

    def say(self) -> None:
        """Send a heartbeat to the daemon."""
        told = message_of(self.host, self.channel, self.clock.now(), formed=self.formed, roster=self.roster)
        kind = "over" if self._is_over else "heartbeat"
        said = {"type": kind, "run": RUN.name, "pid": self.pid, "endpoints": self.endpoints, "phase": self.phase}
        self._setting.spoke(self, encode_message({**told, **said}))

    def kill(self) -> None:
        """End the process at once; the kernel closes its sockets."""
        if self.is_dead:
            return
        self.was_killed = True
        self.clock.is_dead = True
        self.mount.is_gone = True
        self.tape.end()
        self.host.close()
        self.host.bodies.close()

    def forged(self, parcel: Parcel) -> Parcel:
        """The item to send: a changed one, where a fault requires it."""
        item, port = parcel.item, self.edge(parcel).source_port
        for fault in self._setting.forgeries(self):
            if fault.port == port and isinstance(item, dict):
                item = _forged(item, fault)
                self.forgeries[f"{port}.{fault.field}"] += 1
        if item is parcel.item:
            return parcel
        encoded = encode(item)
        fields = None if parcel.fields is None else {**parcel.fields, **fields_of(item, parcel.fields)}
        return Parcel(parcel.edge, parcel.key, item, fields, encoded.digest, encoded.size_bytes, encoded)

    def sent(self, target: Member, parcel: Parcel) -> None:
        """Show the checkers an item that is sent."""
        for checker in self.checkers:
            checker.sent(self, target, self.edge(parcel), parcel.item)

    def arrived(self, source: Member, parcel: Parcel) -> None:
        """Show the checkers an item that is delivered."""
        for checker in self.checkers:
            checker.arrived(self, source, self.edge(parcel), parcel.item)

    def edge(self, parcel: Parcel) -> EdgePlan:
        """The edge of an item."""
        return self.plan.edges[parcel.edge]

    def _on_message(self, message: Message) -> None:
        self._silence.heard(self.clock.now() / 1e9)
        if "is_stopping" in message:
            self.host.follow_stop(is_stopping=message["is_stopping"])
        match message["type"]:
            case "roster" | "beat":
                news = self.roster.take(message)
                if news is not None:
                    self._take_roster(news)
            case "leave":
                if not self.host.leave_requested:
                    self.host.request_leave()
            case "exit":
                if not self._is_leaving:
                    self._is_leaving = True
                    at = Instant(self.clock.now() + round(EXIT_SECONDS * 1e9))
                    self.clock.call_at(at, lambda: self._leave(Exited(0)))

    def _take_roster(self, news: RosterNews) -> None:
        for form in news.forms:
            if form.members[0] == self.member and form.number > self.formed.number:
                stall = FORMING_NS if self.formed.number else 0
                self.formed = Formed(form.number, len(form.members), stall)
        for checker in self.checkers:
            checker.rostered(self, self.roster.rows)
        self.meetings.follow(news)

    def _leave(self, how: Exited) -> None:
        """Exit by itself."""
        self.host.close()
        self.host.bodies.close()
        disk = self.mount.disk()
        self.failures_at_end, self.was_killed = disk.failures, disk.is_cut  # A cut disk: it died while it exited.
        self.tape.flush()
        self.tape.end()
        self.clock.is_dead = self.mount.is_gone = True
        self._setting.left(self, how)

    def _node_ended(self, node: str) -> None:
        self._setting.ended(self, node)
        if keeps_run(self.member.replica):
            self._is_over = True
            self.say()

    def _duration(self, node: int, took: Duration) -> Duration:
        name = self._names[node]
        stuck = self.stuck.pop(name, 0.0)
        if name == STEPPING and self.away and not self._has_been_away:  # Once for each fault.
            self.host.busy.left(name, self.clock.now())
            stuck += self.away
        self._has_been_away = bool(self.away) and (name == STEPPING or self._has_been_away)
        return Duration(round(took * self.factor + stuck * 1e9))

    def _connected(self, peer: Member) -> None:
        for checker in self.checkers:
            checker.connected(self, peer)

    def _beat(self) -> None:
        self.host.links.look(self.channel.under_way, self.clock.now())
        silence = self._silence.beat(self.clock.now() / 1e9)
        self.host.busy.suspended(suspended(self._silence.late, 0.0), self.clock.now())
        if is_searching(silence):
            daemon = self._setting.daemon_of(self)
            if is_orphan(silence, has_daemon=daemon is not None):
                self._leave(Exited(1))
                return
            self.daemon = daemon or self.daemon
        self.say()
        self.tape.flush()
        if self._parting.is_over(self.host, self.channel, self.clock.now()):
            self._leave(Exited(0))
            return
        self.clock.call_at(Instant(self.clock.now() + round(HEARTBEAT_SECONDS * 1e9)), self._beat)

    def _watch(self, edge: int, source: Member, target: Member, size: int, begun: Instant, arrived: Instant) -> None:
        self.host.carried(edge, target, size, begun, arrived)
        if self._trace is not None:
            name = self.plan.edges[edge].name
            self._trace.add(Span(str(source.replica), name, begun, arrived, str(target.replica), size))


class _Shown:
    """A channel whose traffic the checkers see."""

    def __init__(self, life: Life) -> None:
        self._life, self._channel = life, life.channel
        self._receiver: Receiver | None = None
        self.pace, self.pause, self.resume = self._channel.pace, self._channel.pause, self._channel.resume
        self.close, self.statistics = self._channel.close, self._channel.statistics

    def open(self, receiver: Receiver) -> None:
        """Deliver to `receiver`, through this object."""
        self._receiver = receiver
        self._channel.open(self)

    def send(self, target: Member, parcel: Parcel, *, replaces: bool) -> None:
        """Send an item."""
        self._life.sent(target, parcel)
        self._channel.send(target, self._life.forged(parcel), replaces=replaces)

    def grant(self, source: Member, edge: int, count: int) -> None:
        """Return credit."""
        for checker in self._life.checkers:
            checker.granted(self._life, source, edge, count)
        self._channel.grant(source, edge, count)

    def credit_granted(self, target: Member, edge: int, count: int) -> None:
        """Credit was returned."""
        assert self._receiver is not None
        for checker in self._life.checkers:
            checker.credited(self._life, target, edge, count)
        self._receiver.credit_granted(target, edge, count)

    def item_arrived(self, source: Member, parcel: Parcel) -> None:
        assert self._receiver is not None
        if self._life.host.mismatch(source, parcel) is None:
            self._life.arrived(source, parcel)
        self._receiver.item_arrived(source, parcel)


def _forged(item: dict[str, Any], fault: Forge) -> dict[str, Any]:
    """The changed item."""
    rest = {name: value for name, value in item.items() if name != fault.field}
    if fault.how == "drop":
        return rest
    value = _listed(fault.value) if fault.how == "set" else item[fault.field] * fault.value
    return {**rest, fault.field: value}


def _listed(value: Any) -> Any:
    """A value as items have it: with lists for tuples."""
    return list(map(_listed, value)) if isinstance(value, tuple) else value
