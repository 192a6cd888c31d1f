"""One host in a process of its own: the loop, the channel, the link to its daemon, and the files that it writes.

The main thread is the loop; bodies have threads of their own. The daemon sends rosters of live members and their
endpoints; this host dials some of its peers, expects others to dial it, and feeds joins and leaves to its core. It
reports four times a second. Without a message from a daemon it looks for the one that has taken over, and ends after a
minute without any.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
import uvloop
from msgspec import UNSET

from isthmus.runtime.channels.contract import DiallingChannel, Endpoints, OnTransfer
from isthmus.runtime.channels.crossings import LENT, Account, EdgeCrossing, lines
from isthmus.runtime.clock import Clock, Duration, Instant, seconds
from isthmus.runtime.cores.scheduler_events import Event, ReplicaJoined, ReplicaLeft
from isthmus.runtime.graph.plans import Plan, group_met, roles_met
from isthmus.runtime.graph.template import Reference
from isthmus.runtime.host.bodies import Bodies
from isthmus.runtime.host.contract import (
    ONE_PROCESS,
    IslandDevices,
    Span,
    Trace,
    Traffic,
    raised,
    spans_file,
    story,
    untold,
)
from isthmus.runtime.host.driver import Host
from isthmus.runtime.host.threads import LentThread, ThreadExecutor
from isthmus.runtime.ids import (
    ONE_MACHINE,
    ONE_RECORDER,
    RECORDER,
    HostMachine,
    MachineOwner,
    Member,
    Replica,
    keeps_run,
    leader,
    leads_island,
    takes_island,
)
from isthmus.runtime.supervision.incidents import PLACES_MAX, Starved
from isthmus.runtime.supervision.messages import (
    FULL_MAX,
    HEARTBEAT_SECONDS,
    MISSING_MAX,
    NOBODY,
    Directory,
    Form,
    Formed,
    HostFigures,
)
from isthmus.runtime.supervision.rosters import Met, RosterCopy, RosterDifference, Row
from isthmus.runtime.system import processes
from isthmus.runtime.system.disk import DISK
from isthmus.runtime.system.files import write_bytes
from isthmus.runtime.system.loop_clock import LoopClock
from isthmus.runtime.system.memory import ProportionalMemory
from isthmus.runtime.system.phases import Phase, note
from isthmus.runtime.system.shared_loop import SharedLoop
from isthmus.runtime.system.user_files import user_places
from isthmus.runtime.tape.reading import TapeFiles, segment_bytes
from isthmus.runtime.tape.writing import TAPE_BYTES, Tape
from isthmus.runtime.wire import account_files, loopback_marks
from isthmus.runtime.wire.control_client import ControlClient
from isthmus.runtime.wire.control_messages import Message
from isthmus.runtime.wire.daemon_notes import note_of
from isthmus.runtime.wire.security_keys import Keyring, is_loopback

Meeting: TypeAlias = Literal["dial", "wait", "relay"]
"""The way to meet a peer: this host dials it, it dials this host, or both dial a third."""


@dataclass(frozen=True, slots=True)
class PeerReach:
    """How one host is reached by its peers, and reaches them.

    Attributes:
        meets: the way to meet a replica.
        listens: the endpoint at which others dial it, as `bind` takes it; None if none do.
        porter: the endpoint of this machine's porter; '' if it has none.
        reaches: addresses of other machines' porters as this machine reaches them, where it knows better than they do.
        only_porters: there is no other way to another machine.
        is_inside: this host, where it listens on loopback, is reached by others through its porter alone.
        machines: gets the machine of each replica that a roster names.
        keys: gets the keys of the machines in the directory; None in a run without keys.
    """

    meets: Callable[[Replica], Meeting]
    listens: str | None = None
    porter: str = ""
    reaches: Mapping[str, str] = field(default_factory=dict)
    only_porters: bool = False
    is_inside: bool = False
    machines: dict[Replica, str] = field(default_factory=dict)
    keys: Keyring | None = None


def met_by(plan: Plan, own: Replica) -> tuple[Met, ...]:
    """The replicas that a host of this plan meets, itself, and whoever leads its island or relays between learners.

    Of a role to which all its edges lead by groups, those of its own group alone.
    """
    met = {Met(own.role, own.slot, 0), Met(leader(own).role, own.slot, 0), Met(RECORDER)}
    for role in roles_met(plan):
        group = group_met(plan, own.slot, role)
        if group is None:
            met.add(Met(role))
        else:
            first = group.width * group.own
            met |= {Met(role, first + number, group.width * group.groups) for number in range(group.width)}
    return tuple(sorted(met, key=lambda each: (each.role, each.first, each.step)))


class HostRoster:
    """The roster of one host as its daemon sends it, in changes, and what that says of its machines.

    `meets` is what it asks for. `rows` are all that it holds; `take` returns what a message has changed.
    """

    def __init__(self, meets: tuple[Met, ...]) -> None:
        self.meets, self.directory = meets, NOBODY
        self._copy = RosterCopy()

    @property
    def rows(self) -> list[Row]:
        """All rows that it holds."""
        return self._copy.rows()

    def said(self) -> Message:
        """What the host tells its daemon with each heartbeat."""
        return {"meets": msgspec.to_builtins(self.meets), "asks": self._copy.asks}

    def take(self, message: Mapping[str, Any]) -> RosterNews | None:
        """Apply a daemon's message; None where that has nothing new."""
        if message.get("roster") is None:
            return None
        change = msgspec.convert(message["roster"], RosterDifference)
        taken = self._copy.take(change)
        if taken is None or message["type"] != "roster":
            return None
        known = {} if change.since is None else {row[0]: row for row in self.directory.rows()}
        for name, about in message["directory"].items():
            known.pop(name, None)
            if about is not None:
                known[name] = (name, *msgspec.convert(about, tuple[str, MachineOwner | None]))
        if message["directory"] or change.since is None:
            self.directory = Directory.of_rows(known.values())
        return RosterNews(*taken, self.directory, msgspec.convert(message["forms"], list[Form]))


class RosterNews(NamedTuple):
    """Rows of a roster that are new or have changed, and the names of those that are gone; the directory of the
    machines, and the forms of the host's island."""

    rows: Sequence[Row]
    gone: Sequence[str]
    directory: Directory = NOBODY
    forms: Sequence[Form] = ()


class Meetings:
    """The peers of one host, which runs `plan` as `member`. `live` holds the members that it has met, and itself.

    It decides which peers to dial, to wait for, to reach through another, and to forget, and reports joins and leaves
    to the core. A member whose row is gone from the roster is gone; one with another incarnation has been replaced. A
    member that is gone never comes back: a daemon whose disk failed may name lives that ended before it began. Members
    that it does not meet are ignored; one that cannot be met yet is met with a later roster. When the relay has a new
    life, the members behind it are reached through that. `is_here` says of the endpoint of a host that listens on
    loopback whether that is the loopback of this host.
    """

    def __init__(
        self,
        plan: Plan,
        member: Member,
        reach: PeerReach,
        *,
        channel: DiallingChannel,
        tell: Callable[[Event], None],
        is_here: Callable[[str], bool] = lambda control: False,
    ) -> None:
        self.live: dict[Replica, Member] = {member.replica: member}
        self._is_here = is_here
        self._member, self._reach, self._channel, self._tell = member, reach, channel, tell
        self._roles, self._met = roles_met(plan), met_by(plan, member.replica)
        self._relay: Member | None = None
        self._directory = NOBODY
        self._rows: dict[Replica, tuple[Member, Sequence[str], str]] = {}
        """(member, endpoints, machine) by replica, as the rosters say."""
        self._changed: set[Replica] = set()
        """Those of which it has to be seen whether they are met."""
        self._gone: dict[Replica, int] = {}
        """The latest life of each replica whose member has gone."""
        self._places: dict[Member, str] = {}
        """The machine of each member that was ever in a roster."""

    def machine_of(self, role: str, slot: int) -> HostMachine:
        """The machine of a host in the rosters, and whose that is; of nobody in a run of one machine."""
        machine = self._reach.machines.get(Replica(role, slot), "")
        name = "" if machine == ONE_MACHINE else machine
        return HostMachine(name, self._directory.owners.get(machine, MachineOwner(name)))

    def was_on(self, member: Member) -> str:
        """The name of the machine of a member that was ever in a roster; '' of one that was in none."""
        return self._places.get(member, "")

    def follow(self, news: RosterNews) -> None:
        """Meet the new members of a roster, and forget those that are gone.

        A daemon whose ledger was lost may name a life before one that was met: a replaced member is not met again.
        """
        self._directory = news.directory
        for name in news.gone:
            replica = Replica.parse(name)
            self._rows.pop(replica, None)
            self._changed.add(replica)
        for name, incarnation, listens, where in news.rows:
            replica = Replica.parse(name)
            self._rows[replica] = Member(replica, incarnation), listens, where
            self._reach.machines[replica] = where
            self._places[Member(replica, incarnation)] = where
            self._changed.add(replica)
        own = self._present(self._member.replica)
        if own is None or own[0] != self._member:
            return  # The daemon does not know this host yet.
        changed, self._changed = sorted(self._changed), set()
        for replica in changed:
            member, present = self.live.get(replica), self._present(replica)
            if member is not None and (present is None or present[0] != member):
                del self.live[replica]
                self._gone[replica] = member.incarnation
                self._channel.forget(member)
                self._tell(ReplicaLeft(member))
        relay = self._present(ONE_RECORDER)
        if relay is not None and relay[0] != self._relay:
            self._relay = relay[0]
            for replica in sorted(self.live):
                if replica != self._member.replica and self._reach.meets(replica) == "relay":
                    self._channel.relay(self.live[replica], self._relay)
        for replica in changed:
            present = self._present(replica)
            if present is None or replica in self.live or not self._is_met(replica):
                continue
            member, endpoints, machine = present
            dialled = self._endpoints(endpoints, machine, own[2], news.directory.keys) if endpoints else None
            if self._meet(member, dialled, None if relay is None else relay[0]):
                self.live[replica] = member
                self._tell(ReplicaJoined(member))
            else:
                self._changed.add(replica)

    def _is_met(self, replica: Replica) -> bool:
        return replica.role in self._roles and any(met.holds(replica) for met in self._met)

    def _present(self, replica: Replica) -> tuple[Member, Sequence[str], str] | None:
        """The row of a replica, unless that names a life which has gone."""
        row = self._rows.get(replica)
        return None if row is None or self._is_former(row[0]) else row

    def _endpoints(self, endpoints: Sequence[str], machine: str, own: str, keys: Mapping[str, str]) -> Endpoints:
        """The endpoints of a host on `machine`, for a host on the machine `own`.

        A host that listens on loopback of another machine with a porter is inside, unless that machine is this
        computer. Where there is no porter, all machines are one, as in tests.
        """
        control, data, *porters = endpoints
        porter = self._reach.reaches.get(machine, porters[0]) if porters and machine != own else ""
        is_far = is_loopback(control) and not self._is_here(control)
        is_inside = bool(porter) and (self._reach.only_porters or is_far)
        return Endpoints(control, data, keys.get(machine, ""), porter, is_inside)

    def _is_former(self, member: Member) -> bool:
        """Whether this life has gone, or was replaced by one that was met."""
        met = self.live.get(member.replica)
        is_replaced = met is not None and member.incarnation < met.incarnation
        return is_replaced or member.incarnation <= self._gone.get(member.replica, 0)

    def _meet(self, member: Member, endpoints: Endpoints | None, relay: Member | None) -> bool:
        """Dial or expect a peer, or reach it through the relay; False if that is not possible yet."""
        meeting = self._reach.meets(member.replica)
        if meeting == "wait":
            self._channel.expect(member)
        elif meeting == "dial" and endpoints is not None:
            self._channel.connect(member, endpoints)
        elif meeting == "relay" and relay is not None:
            self._channel.relay(member, relay)
        else:
            return False
        return True


def meets(mine: Replica, other: Replica) -> Meeting:
    """The way in which host `mine` meets host `other`.

    Learners dial all others and are never dialled, so that they may be behind NAT, and reach each other through the
    recorder; of two others the one that comes first by name dials.
    """
    if leads_island(mine):
        return "relay" if leads_island(other) else "dial"
    if leads_island(other):
        return "wait"
    return "dial" if mine < other else "wait"


def phase_of(host: Host, now: Instant) -> str:
    """The phase of a host; that of a learner whose steps may wait for the user's own code is that it is away."""
    reported = phase(host.member.replica, host.published, is_open=host.is_open)
    return "away" if reported == "stepping" and host.busy.firings(now).is_away else reported


def phase(replica: Replica, published: Mapping[str, Mapping[str, Any]], *, is_open: bool) -> str:
    """The phase of a host with this published status: for a learner, that of its inner-step."""
    if not is_open:
        return "compiling" if takes_island(replica) else "starting"
    for each in published.values():
        if "phase" in each and leads_island(replica):
            return "recovering" if each["phase"] == "ready" else str(each["phase"])
    return "serving"


def steps(published: Mapping[str, Mapping[str, Any]]) -> int:
    """The steps of this life, from the node that publishes the phase."""
    return next((int(each["step"]) for each in list(published.values()) if "phase" in each and "step" in each), 0)


WINDOW: Final = seconds(5)
ITEMS_MIN: Final = 8
"""Items of a source in a window, which lasts until there are so many: a slow and rare source is reported later."""
BUSY_MIN: Final = 0.8
"""The share of the time that the source is in a firing."""
WAITING_MIN: Final = 0.5
"""The share of the time that the consumer waits: data that take longer than everything else in a step."""


class _Count(NamedTuple):
    """Counts at an instant."""

    at: Instant
    emitted: int
    spent: int
    waited: int


class Supply:
    """Judges the sources of the host that runs a plan.

    A *source* is a node that needs no connected input, its *consumer* one that it feeds by a Queue within the host. The
    source is the bottleneck where it is in a firing nearly all of the time, so that it never waits for room, and the
    consumer waits most of the time. Both conditions matter: a source may be busy beside a consumer that is as busy, and
    a consumer may wait for another node. The first window begins when the consumer has waited once: before it is ready,
    it is idle.
    """

    def __init__(self, plan: Plan) -> None:
        nodes = {node.index: node for node in plan.nodes}
        sources = {
            node.index for node in plan.nodes if not any(port.edges and port.is_required for port in node.inputs)
        }
        self._pairs = [
            (nodes[edge.source].name, nodes[edge.target].name)
            for edge in plan.edges.values()
            if edge.kind == "queue" and edge.route == "local" and edge.source in sources and edge.target in nodes
        ]
        self._begun: dict[str, _Count] = {}
        self._found: dict[str, Starved] = {}

    def look(self, traffic: Traffic, now: Instant) -> Starved | None:
        """The starved consumer, by the last complete window of each source; None if there is none."""
        for source, consumer in self._pairs:
            fed, feeds = traffic.nodes[consumer], traffic.nodes[source]
            count = _Count(now, feeds.emitted, feeds.spent, fed.waited)
            begun = self._begun.setdefault(source, count)
            if not begun.waited:
                self._begun[source] = count
            elif now - begun.at >= WINDOW and count.emitted - begun.emitted >= ITEMS_MIN:
                self._begun[source] = count
                self._judge(source, consumer, begun, count)
        return next(iter(self._found.values()), None)

    def _judge(self, source: str, consumer: str, begun: _Count, ended: _Count) -> None:
        """Judge a window."""
        self._found.pop(source, None)
        took, items = ended.at - begun.at, ended.emitted - begun.emitted
        spent, waited = ended.spent - begun.spent, ended.waited - begun.waited
        if spent >= BUSY_MIN * took and waited >= WAITING_MIN * took:
            rest = max(0, took - waited)
            self._found[source] = Starved(consumer, source, round(spent / items), round(rest / items))


def message_of(
    host: Host, channel: DiallingChannel, now: Instant, *, formed: Formed, roster: HostRoster, **figures: Any
) -> Message:
    """What a host tells its daemon of itself in every message; `figures` are those that only its process knows."""
    traffic, published, member = host.traffic, host.published, host.member
    firings, reachability = host.busy.firings(now), channel.reachability()
    refusals = list(host.refusals.values())
    is_compiling = any("compiles_since" in each for each in published.values())
    known = HostFigures(
        now_ns=now if is_compiling else UNSET,
        formed=formed,
        bytes_sent=traffic.bytes_sent,
        bytes_received=traffic.bytes_received,
        refused=sum(host.refused.values()) + sum(each.count for each in refusals),
        steps=steps(published),
        busy_ns=firings.busy,
        firing_ns=firings.oldest,
        firing_node=firings.node,
        outside_ns=firings.outside,
        peers=reachability.peers,
        unreached=len(reachability.missing),
        relayed=tuple(str(peer.replica) for peer in reachability.relayed[:MISSING_MAX]),
        missing=tuple(
            (str(missing.replica), missing.incarnation, silence)
            for missing, silence in reachability.missing[:MISSING_MAX]
        ),
        refusals=tuple(refusals),
        flows=host.flows,
        **figures,
    )
    told = {"replica": str(member.replica), "incarnation": member.incarnation, "published": published}
    return {**told, **roster.said(), "figures": msgspec.to_builtins(known)}


KEPT_BEATS_MAX: Final = 8
"""Two seconds, for a boundary: its inputs are all here."""
SEARCH_SECONDS: Final = 2.0
"""After this long without a message from the daemon, look whether another has taken over."""
ORPHAN_SECONDS: Final = 60.0
"""After this long without a live daemon, end: no other process would ever end this one."""


class DaemonSilence:
    """The time for which a daemon has sent nothing that could have been received; all in seconds of one clock.

    If a beat is late, this process was suspended for that long, and messages of the daemon may lie unread: that time
    does not count as silence. A daemon that is silent but alive is no reason to end. `late`: by how much the last beat.
    """

    def __init__(self, now: float, period: float) -> None:
        self._period, self._heard_at, self._due = period, now, now + period
        self.late = 0.0

    def heard(self, now: float) -> None:
        """A message of the daemon arrived."""
        self._heard_at = now

    def beat(self, now: float) -> float:
        """The silence at a beat, which comes a period after the one before, or late."""
        self.late = max(0.0, now - self._due)
        self._heard_at = min(now, self._heard_at + self.late)
        self._due = now + self._period
        return now - self._heard_at


SUSPENDED_SECONDS: Final = 1.0
"""A beat that is so late, without computation meanwhile, comes from a process that was stopped, or got no core."""


def suspended(late: float, computed: float) -> Duration:
    """How long a process was suspended whose beat is `late`, and which `computed` since its last; both in seconds."""
    idle = late - computed
    return seconds(idle) if idle >= SUSPENDED_SECONDS else Duration(0)


def is_searching(silence: float) -> bool:
    """Whether a host looks for another daemon after this much silence."""
    return silence > SEARCH_SECONDS


def is_orphan(silence: float, *, has_daemon: bool) -> bool:
    """Whether a host ends after this much silence, given whether the process of a daemon exists."""
    return silence > ORPHAN_SECONDS and not has_daemon


ITSELF_STAYS: Final = seconds(1.5)
"""Six heartbeats, for the home to hear of a loop, or of another host, that leaves by itself, and for its answer."""


class Parting:
    """When a host that is to leave may end: no body is engaged, and all that it had sent by then has arrived; and one
    that leaves by itself, because a body has it leave or `is_lent`, stays for ITSELF_STAYS, in which its home may bring
    the run to its end, because no other host goes on. One that awaits that end does not end before."""

    def __init__(self, *, is_lent: bool = False) -> None:
        self._since: Instant | None = None
        self._is_lent = is_lent

    def is_over(self, host: Host, channel: DiallingChannel, now: Instant) -> bool:
        """Whether it may end now; to be asked at each beat. What it sends later, because others go on, does not count:
        small items are acknowledged a beat later, so that some always are under way."""
        if not host.has_left:
            self._since = None
            return False
        self._since = now if self._since is None else self._since
        leaves_itself = self._is_lent or host.leaves_itself
        # One that leaves a run which comes to its end is given the last model.
        if leaves_itself and (host.stop_requested or now - self._since < ITSELF_STAYS):
            return False
        return all(begun > self._since for _, _, begun in channel.under_way())


FLUSH_SECONDS: Final = 0.5
CLOSE_SECONDS: Final = 3.0
"""The time that bodies have to end a firing when the host ends."""

OpenChannel = Callable[[Clock, Any, OnTransfer], DiallingChannel]
"""(clock, loop, watch) -> the channel of this host."""


@dataclass(frozen=True, slots=True)
class RunLife:
    """One life of a host in a run.

    Attributes:
        folder: the run's, on this machine.
        run: the name of the run.
        daemon: the endpoint of its daemon.
        zero_ns: the instant 0 of the run, as the machine's clock has it.
        seed: that of the run.
        tape_bytes: the most that the tapes of all lives of its replica have together.
        niceness: the nice level at which bodies compute for which no other host waits, once they are open; 0 of all
            others, of which learners lower theirs once they step.
    """

    member: Member
    folder: Path
    run: str
    daemon: str
    zero_ns: int
    seed: int
    tape_bytes: int = TAPE_BYTES
    niceness: int = 0


class HostProcess:
    """Runs one plan as one life in a run, until the daemon orders it to exit.

    Arguments:
        reach: how it and its peers reach each other; rosters keep its machines and keys up to date.
        resolve: what a reference among the arguments of a body stands for.
        open_channel: makes its channel.
        island: the devices that it may use, and the processes of its island; None for all devices of this process.
        lent: a node whose thread other code of this process lends: then `run` is called in a thread beside that, and
            that code may ask to leave. The process goes on with what is not ours once this host has left or failed: it
            says that it is gone, and not silent.
    """

    def __init__(
        self,
        plan: Plan,
        life: RunLife,
        reach: PeerReach,
        *,
        resolve: Callable[[Reference], Any],
        open_channel: OpenChannel,
        island: IslandDevices | None = None,
        lent: tuple[int, LentThread] | None = None,
    ) -> None:
        self._plan, self._life, self._reach = plan, life, reach
        loop = uvloop.new_event_loop()
        loop.set_exception_handler(lambda loop, context: self._broken(context))
        self._loop = SharedLoop(loop)
        self._clock = LoopClock(self._loop, life.zero_ns)
        self._is_lent = lent is not None
        self._trace, self._tape = Trace(), Tape(segment_bytes(life.tape_bytes))
        self._tape_files = TapeFiles.of_host(life.folder, life.member, bytes_max=life.tape_bytes)
        self._executor = ThreadExecutor(self._loop, str(life.member.replica), lent)
        self._channel = open_channel(self._clock, self._loop, self._watch)
        self._host = Host(
            plan,
            life.member,
            clock=self._clock,
            channel=self._channel,
            executor=self._executor,
            seed=life.seed,
            resolve=resolve,
            tape=self._tape,
            trace=self._trace,
            island=island,
            folder=life.folder,
            whereabouts=self,
            on_ended=self._node_ended,
            on_failed=self._failed,
            on_opened=lambda: self._note("open", self._clock.now()),
        )
        self._meetings = Meetings(
            plan,
            life.member,
            reach,
            channel=self._channel,
            tell=self._host.handle,
            is_here=partial(loopback_marks.is_here, life.run),
        )
        self._roster = HostRoster(met_by(plan, life.member.replica))
        self._mark: socket.socket | None = None
        self._endpoints = list[str]()
        self._island = ONE_PROCESS if island is None else island.processes
        self._supply = Supply(plan)
        self._silence = DaemonSilence(time.monotonic(), HEARTBEAT_SECONDS)
        self._computed, self._memory = time.process_time(), ProportionalMemory()
        self._parting = Parting(is_lent=lent is not None)
        self._error: str | None = None
        self.exit_reason = ""
        """Why the daemon has told this host to end, if it has."""
        self.is_run_over = False
        """Whether that is because the run is over."""
        self._beats_kept = 0
        self._is_over = self._gives_way = self._is_gone = False
        self._noted: set[Phase] = set()
        self._daemon = ControlClient(self._loop, life.daemon, self._on_message)

    def run(self) -> int:
        """Serve; returns the exit status, 0 if the daemon ended this host, 1 if it failed."""
        if self._reach.listens is not None:
            self._endpoints = list(self._channel.bind(self._reach.listens)[:2])
            if self._reach.porter:
                self._endpoints += [self._reach.porter]
                self._mark = None if self._reach.is_inside else loopback_marks.mark(self._life.run, self._endpoints[0])
        self._loop.call_soon(self._begin)
        self._loop.run_forever()
        self._close()
        return 0 if self._error is None else 1

    @property
    def bodies(self) -> Bodies:
        """The bodies of this host, for code that lends it a thread."""
        return self._host.bodies

    @property
    def leave_requested(self) -> bool:
        """Whether this host was asked to leave: by its daemon, or by code that lends it a thread."""
        return self._host.leave_requested

    def request_leave(self) -> None:
        """Have this host give what it has, and end; from any thread."""
        with self._loop.turn:
            if not self._host.leave_requested:
                self._host.request_leave()

    def fail(self, node: str, error: BaseException, *, is_refusal: bool = False) -> None:
        """End this host because of an exception of the code that lends it a thread; from any thread. `is_refusal`: as
        in Raised."""
        with self._loop.turn:
            told = msgspec.structs.replace(raised(node, error), is_refusal=is_refusal)
            self._host.raised = self._host.raised or told
            self._failed(self._host, node, story(error))

    def _begin(self) -> None:
        self._host.start([self._life.member])
        self._say("hello")
        self._loop.call_later(HEARTBEAT_SECONDS, self._beat)
        self._loop.call_later(FLUSH_SECONDS, self._flush)
        self._loop.call_later(account_files.ACCOUNT_SECONDS, self._account_later)

    # -- the daemon ----------------------------------------------------------------------------------------------------

    def _on_message(self, message: Message) -> None:
        self._silence.heard(time.monotonic())
        if "is_stopping" in message:
            self._host.follow_stop(is_stopping=message["is_stopping"])
        match message["type"]:
            case "roster" | "beat":
                news = self._roster.take(message)
                if news is not None:
                    self._take_roster(news)
            case "leave":
                if not self._host.leave_requested:
                    self._host.request_leave()
            case "exit":
                self.exit_reason, self.is_run_over = message["reason"], message["is_over"]
                if not self._is_kept():
                    self._exit()

    def machine_of(self, role: str, slot: int) -> HostMachine:
        return self._meetings.machine_of(role, slot)

    def was_on(self, member: Member) -> str:
        return self._meetings.was_on(member)

    def _take_roster(self, news: RosterNews) -> None:
        """Apply a roster: meet new members, forget those that are gone."""
        if self._reach.keys is not None:
            self._reach.keys.replace({key: machine for machine, key in news.directory.keys.items()})
        self._meetings.follow(news)
        if self._island is not ONE_PROCESS:
            self._island.on_roster(self._roster.rows, news.forms)

    def _say(self, kind: str, **more: Any) -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        starved = self._supply.look(self._host.traffic, self._clock.now())
        told = message_of(
            self._host,
            self._channel,
            self._clock.now(),
            formed=self._island.form_result,
            roster=self._roster,
            cpu_seconds=used.ru_utime + used.ru_stime + self._island.cpu_seconds(),
            memory_bytes=self._memory.peak_bytes,
            places=self._places_of_user(),
            starved=starved,
            full=tuple(DISK.full.now()[:FULL_MAX]),
        )
        phase = self._phase()
        said = {"type": kind, "run": self._life.run, "pid": os.getpid(), "endpoints": self._endpoints, "phase": phase}
        said["door"] = list(self._island.endpoints)
        self._daemon.send({**told, **said, **more})

    def _phase(self) -> str:
        """The phase that this host reports; one whose island is forming again is not stuck in a step."""
        if self._is_gone:
            return "gone"
        reported = phase_of(self._host, self._clock.now())
        return "recovering" if reported in ("stepping", "away") and self._island.is_forming else reported

    def _beat(self) -> None:
        if self._is_gone:
            return
        self._loop.poll()  # While the loop does not listen, a firing may last longer than those before it.
        self._host.links.look(self._channel.under_way, self._clock.now())
        silence = self._silence.beat(time.monotonic())
        computed, self._computed = time.process_time() - self._computed, time.process_time()
        # Before the heartbeat: a pause of everything is no stall of a firing.
        self._host.busy.suspended(suspended(self._silence.late, computed), self._clock.now())
        if is_searching(silence) and is_orphan(silence, has_daemon=self._find_daemon()):
            self._error = f"no daemon for {ORPHAN_SECONDS:.0f} s"
            self._loop.stop()
            return
        self._lower_priority()
        self._note_first_step()
        # Repeated: the daemon that received it first may be dead, and a run that is over has to end.
        self._say("over" if self._is_over else "heartbeat")
        if self.exit_reason and not self._is_kept():
            self._exit()
            return
        # After the heartbeat, which has the whole of what this life has used.
        if self._parting.is_over(self._host, self._channel, self._clock.now()):
            if self._is_lent:
                self._is_gone = True
                self._say("heartbeat")
            self._loop.stop()
            return
        self._loop.call_later(HEARTBEAT_SECONDS, self._beat)

    def _places_of_user(self) -> list[tuple[str, int, str]]:
        """Where the user's code is that keeps this host, for people; none where it does not."""
        if not self._host.busy.firings(self._clock.now()).is_away:
            return []
        return user_places()[:PLACES_MAX]

    def left(self, node: str) -> None:
        """The user's code has the thread of a lent node from now on."""
        self._host.busy.left(node, self._clock.now())

    def back(self, node: str) -> None:
        """It has given that back."""
        self._host.busy.back(node, self._clock.now())

    def _is_kept(self) -> bool:
        """Whether this host, which is to exit, waits: the user's code has its thread, and what is to be adopted before
        the end is here. Once that is back it has some beats to do so."""
        if not self._is_lent or not self.is_run_over:
            return False
        if self._host.busy.firings(self._clock.now()).outside:
            self._beats_kept = KEPT_BEATS_MAX
        elif steps(self._host.published) and self._phase() != "final":
            self._beats_kept -= 1
        else:
            self._beats_kept = 0
        return self._beats_kept > 0

    def _exit(self) -> None:
        if self._is_lent:
            self._is_gone = True
        self._say("heartbeat")  # The last one has the whole of what this life has used.
        self._loop.stop()

    def _note(self, phase: Phase, at: Instant) -> None:
        """Note when this life reached a phase of its start, once."""
        if phase not in self._noted:
            self._noted.add(phase)
            member = self._life.member
            note(self._life.folder, str(member.replica), phase, life=member.incarnation, at_ns=self._life.zero_ns + at)

    def _note_first_step(self) -> None:
        """Note when the learner began its first step, once it says so."""
        for each in () if "step" in self._noted else list(self._host.published.values()):
            if "first_step" in each:
                self._note("step", Instant(each["first_step"]))

    def _lower_priority(self) -> None:
        """Lower this session's weight once the learner steps, or what others go before is open: a host that begins
        leaves a slot empty meanwhile, and what is to be evaluated first is soon another model."""
        if self._gives_way:
            return
        if self._life.niceness and self._host.is_open:
            self._gives_way = True
            processes.lower_other_threads(self._life.niceness)  # This one is the loop, which answers the daemon.
            processes.lower_priority(self._life.niceness)
        elif self._phase() == "stepping":
            self._gives_way = True
            processes.lower_priority()

    def _find_daemon(self) -> bool:
        """Switch to the daemon that the run folder names; returns whether its process is alive."""
        note = note_of(self._life.folder)
        if note is None:
            return False
        if note.endpoint != self._daemon.endpoint:
            self._daemon.dial(note.endpoint)
            self._say("hello")
        return note.is_living

    # -- the host ------------------------------------------------------------------------------------------------------

    def _node_ended(self, host: Host, node: str) -> None:
        if keeps_run(self._life.member.replica):
            self._is_over = True
            self._say("over")

    def _failed(self, host: Host, node: str, error: str) -> None:
        sys.stderr.write(f"{self._life.member}, node {node!r}: {error}\n")
        self._error, self._is_gone = error, self._is_lent
        self._say("failed", error=msgspec.to_builtins(host.raised or untold(node, error)))
        self._loop.call_later(0.1, self._loop.stop)

    def _broken(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        story = "".join(traceback.format_exception(error)) if error is not None else str(context.get("message"))
        with self._loop.turn:  # A loop reports an exception after the callback's own turn.
            self._failed(self._host, "", story)

    def _watch(
        self, edge: int, source: Member, target: Member, size_bytes: int, begun: Instant, arrived: Instant
    ) -> None:
        self._host.carried(edge, target, size_bytes, begun, arrived)
        name = self._plan.edges[edge].name if edge in self._plan.edges else str(edge)
        self._trace.add(Span(str(source.replica), name, begun, arrived, str(target.replica), size_bytes))

    # -- files ---------------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Write the tape; appending half a second of it takes some tens of microseconds."""
        self._tape_files.write(self._tape)
        self._loop.call_later(FLUSH_SECONDS, self._flush)

    def _account_later(self) -> None:
        self._write_account()
        self._memory.look()
        self._loop.call_later(account_files.ACCOUNT_SECONDS, self._account_later)

    def _write_account(self, *, is_last: bool = False) -> None:
        """Write what has crossed to and from the peers of this host."""
        names = {index: edge.name for index, edge in self._plan.edges.items()}
        account: list[EdgeCrossing] = []
        for member, through, crossed in self._channel.crossed():
            peer = {"peer": str(member.replica), "incarnation": member.incarnation}
            peer |= {"machine": self.was_on(member), "through": "" if through is None else str(through)}
            account += lines(peer, crossed, names)
        own, member = self.was_on(self._life.member), self._life.member
        account_files.write(
            account_files.of_member(self._life.folder, member),
            Account(
                str(member.replica),
                member.incarnation,
                own,
                self._clock.now(),
                time.time(),
                is_last,
                self._reach.keys is not None,
                account,
                lent={name: count for name, count in self._channel.statistics().items() if name in LENT},
            ),
        )

    def _close(self) -> None:
        """Close the bodies, and write the spans to the run folder, for the timeline."""
        with self._loop.turn:
            self._host.close()
        if self._executor.join(CLOSE_SECONDS):
            self._host.bodies.close()
        self._flush()
        self._write_account(is_last=True)
        spans = msgspec.json.encode(list(self._trace.spans))
        with suppress(OSError):  # The timeline then lacks this host; the run does not depend on it.
            write_bytes(spans_file(self._life.folder, self._life.member), spans)
        self._tape_files.close()
        self._daemon.close()
        if self._mark is not None:
            self._mark.close()
        self._loop.close()
