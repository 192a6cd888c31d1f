"""Checkers of a universe: one small class for each invariant.

A checker sees every item that leaves a host or is delivered to one, and is called periodically and at the end. It
raises `ViolationError`, and the universe stops there. Those here hold for every program (`runtime_checkers`, of them
`supervision_checkers` for the supervision of hosts); invariants of one family of programs are checked where that family
is known.

Checkers of the wire keep accounts of their own about pairs of lives, from what each side sends and receives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from isthmus.runtime.clock import Instant
from isthmus.runtime.cores.membership_messages import Stall
from isthmus.runtime.errors import InvariantError
from isthmus.runtime.graph.plans import EdgePlan
from isthmus.runtime.graph.template import Template
from isthmus.runtime.ids import ONE_RECORDER, Member, Replica, leader
from isthmus.runtime.sim.faults import Cut, DaemonFault, Fault, Kill, Mute, RefuseStarts
from isthmus.runtime.sim.host import Life
from isthmus.runtime.sim.universe import HOME, Universe
from isthmus.runtime.supervision.home import Home
from isthmus.runtime.supervision.incidents import (
    Condemned,
    DataSpent,
    Ended,
    GangMemberLost,
    GivenUp,
    Happened,
    Hurried,
    ItemRefused,
    RecorderFailed,
    RestartsExhausted,
    TooFewProcesses,
    Unreached,
    Unserved,
)
from isthmus.runtime.supervision.liveness import BEAT, LAST_BEATS
from isthmus.runtime.supervision.rosters import Row
from isthmus.runtime.wire.protocol_credit import CHARGE_MIN

PAYLOADS_MAX: Final = 400
"""Items that a host of a small run may hold at once: a few for each key of each edge and peer."""
PAYLOADS_A_PEER: Final = 16
"""The same for each peer of one that meets many: an item for each key of each edge between them."""


class ViolationError(Exception):
    """An invariant did not hold; the message states which, where, and what was found."""


class Checker:
    """Checks nothing. Invariants override the callbacks that they need."""

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

    def began(self, universe: Universe, member: Member) -> None:
        """A daemon is about to start the process of a life."""

    def happened(self, universe: Universe, happened: Happened) -> None:
        """A home records an incident of a host."""

    def finished(self, universe: Universe, home: Home) -> None:
        """A home reports that the run is over, and no process is left."""

    def polled(self, universe: Universe) -> None:
        """Called every few hundred events."""

    def ended(self, universe: Universe) -> None:
        """The run is over."""


class WaitsChecker(Checker):
    """A node that is declared to never wait waits for no other host. `nodes` names those of each role."""

    def __init__(self, nodes: Mapping[str, frozenset[str]]) -> None:
        self._nodes = nodes

    def polled(self, universe: Universe) -> None:
        """Check the waiting times of every host's nodes."""
        for life in universe.living():
            for node in sorted(self._nodes.get(life.member.replica.role, ())):
                waited = life.host.traffic.nodes[node].waited
                if waited:
                    raise ViolationError(f"{life.member}: free-running node {node!r} waited {waited / 1e6:.1f} ms")

    def ended(self, universe: Universe) -> None:
        """Check a last time."""
        self.polled(universe)


class BoundsChecker(Checker):
    """Cores keep their own invariants, and no host hoards items."""

    def polled(self, universe: Universe) -> None:
        """Check every core; count the items held."""
        for life in universe.living():
            life.host.check()
            held = life.host.payloads_count
            most = max(PAYLOADS_MAX, PAYLOADS_A_PEER * len(life.meetings.live))
            if held > most:
                raise ViolationError(f"{life.member} holds {held} items; at most {most} are expected")
            if life.host.refused:
                raise ViolationError(f"{life.member} refused what a sound peer sent: {dict(life.host.refused)}")

    def ended(self, universe: Universe) -> None:
        """Check a last time."""
        self.polled(universe)


class RosterChecker(Checker):
    """A host follows its rosters.

    It never knows an earlier life of a replica than its rosters named, nor goes back to one, nor accepts its items, nor
    those of a member that it does not know: its core would drop them. And no roster brings back a life that an earlier
    one left out, unless the disk of its daemon has failed, which may not know.
    """

    def __init__(self) -> None:
        self._newest: dict[tuple[Member, Replica], int] = {}
        self._live: dict[Member, set[Member]] = {}
        self._gone: dict[Member, set[Member]] = {}
        self._back: list[str] = []

    def rostered(self, life: Life, rows: Sequence[Row]) -> None:
        """Record the live members; a host that is not in the roster is not known yet, and ignores it."""
        members = [Member(Replica.parse(row[0]), row[1]) for row in rows]
        if life.member in members:
            for member in members:
                self._know(life, member)
            gone = self._gone.setdefault(life.member, set())
            self._back += [
                f"{life.member} is told that {each} is back, which had gone" for each in members if each in gone
            ]
            gone |= self._live.get(life.member, set()) - set(members)
            self._live[life.member] = set(members)

    def arrived(self, life: Life, source: Member, edge: EdgePlan, item: Any) -> None:
        """Check the sender."""
        newest = self._newest.get((life.member, source.replica), 0)
        if source.incarnation < newest:
            raise ViolationError(f"{life.member} takes an item of {source}, and was told of incarnation {newest}")
        if life.meetings.live.get(source.replica) != source:
            raise ViolationError(f"{life.member} is given an item of {source}, whom it does not know")

    def polled(self, universe: Universe) -> None:
        """Compare the members that every host knows with its rosters."""
        if self._back and not (universe.disks[universe.home].failures or universe.disks[universe.home].refusals):
            raise ViolationError(self._back[0])
        for life in universe.living():
            for member in life.meetings.live.values():
                newest = self._newest.get((life.member, member.replica), 0)
                if member.incarnation < newest:
                    raise ViolationError(f"{life.member} knows {member}, and was told of incarnation {newest}")
                self._know(life, member)

    def ended(self, universe: Universe) -> None:
        """Check a last time."""
        self.polled(universe)

    def _know(self, life: Life, member: Member) -> None:
        key = life.member, member.replica
        self._newest[key] = max(self._newest.get(key, 0), member.incarnation)


class TapeFilesChecker(Checker):
    """The files of every tape are the tape, whole up to a record, after any kill or power failure."""

    def ended(self, universe: Universe) -> None:
        """Check the files of every life."""
        for life in universe.lives:
            try:
                life.tape.check()
            except InvariantError as error:
                raise ViolationError(f"the tape of {life.member}: {error}") from None


SLOWING: Final = frozenset({"stick", "slow", "pause", "hang"})
"""Kinds of faults that make a firing long."""
DEAFENING: Final = frozenset({"mute", "cut", "one-way cut", "clog", "lose", "throttle"})
"""Kinds of faults that separate a host from the others."""
SILENCING: Final = DEAFENING | {"daemon kill", "lost ledger", "daemon pause", "lost report"}
"""Kinds of faults after which the home does not hear of a host."""
STARTS_REFUSED_MIN: Final = 6
"""From this many on, eight seconds apart, a machine has no room for as long as the end of a run is awaited."""
CARRIED_OUT_NS: Final = 15_000_000_000
"""A home that has taken over gives no orders before it has waited 11 s for the hosts that it adopts."""


class LivesChecker(Checker):
    """Each number is used once: no process is ever started for a life that had one before. And all cores are sound."""

    def __init__(self) -> None:
        self._began: set[Member] = set()

    def began(self, universe: Universe, member: Member) -> None:
        """Check for a second start."""
        if member in self._began:
            raise ViolationError(f"{member} is started a second time")
        self._began.add(member)

    def polled(self, universe: Universe) -> None:
        """Check every core of the live daemons."""
        for daemon in universe.daemons:
            if not daemon.clock.is_dead:
                daemon.check()

    def ended(self, universe: Universe) -> None:
        """Check a last time."""
        self.polled(universe)


class VerdictsChecker(Checker):
    """Verdicts have a cause.

    A host that no fault concerned is killed neither for silence nor for being stuck, and is not given up; a daemon
    reports the end of a life once. And they are carried out: in calm, a condemned host is gone.
    """

    def __init__(self) -> None:
        self._told: set[tuple[str, Member]] = set()
        self._condemned: dict[Member, tuple[str, Instant]] = {}

    def polled(self, universe: Universe) -> None:
        """Look for hosts that the present daemon of the home has condemned, and whose stations have heard so."""
        living = {life.member for life in universe.living()}
        for member, (by, at) in self._condemned.items():
            heard_ns = min(universe.clock.now() - at, universe.calm_ns)
            if member in living and by == universe.home_name and heard_ns > CARRIED_OUT_NS:
                raise ViolationError(f"{member} was condemned {heard_ns / 1e9:.0f} s ago, and is there")

    def happened(self, universe: Universe, happened: Happened) -> None:
        member, incident = happened.member, happened.incident
        if isinstance(incident, Condemned):
            self._condemned[member] = universe.home_name, universe.clock.now()
        if is_of_liar(universe, member.replica) and not isinstance(incident, Ended):
            return  # It says what it likes of its own hosts.
        # At the end of a run nothing excuses a silence, neither a cut link nor a stopped process.
        is_ending = universe.phase == "final" or universe.injector.counts["stop"]
        match incident:
            case Condemned(verdict=Unreached()):
                is_stopped = bool(is_ending) and member.replica in universe.injector.touched
                if not (is_stopped or DEAFENING & set(universe.injector.counts)):
                    raise ViolationError(f"{member} is killed, and no way was broken: {incident.verdict}")
            case Condemned(verdict=GangMemberLost() | TooFewProcesses()):
                # A process whose machine is unheard is left out, too, and may be one too many.
                is_touched = any(leader(each) == leader(member.replica) for each in universe.injector.touched)
                if not (is_touched or SILENCING & set(universe.injector.counts)):
                    raise ViolationError(f"{member} is killed for its island, and no fault was about that")
            case Condemned():
                is_late = isinstance(incident.verdict, Hurried) or _is_cut_off(universe, member.replica)
                if member.replica not in universe.injector.touched and not (is_late and is_ending):
                    raise ViolationError(f"{member} is killed, and no fault was about it: {incident.verdict}")
                if isinstance(incident.verdict, Stall) and not SLOWING & set(universe.injector.counts):
                    raise ViolationError(f"{member} is called stuck, and nothing was slow: {incident.verdict}")
            case ItemRefused():
                is_invented = is_of_liar(universe, Replica.parse(incident.refusal.by))
                if member.replica not in universe.injector.forgeries and not is_invented:
                    raise ViolationError(f"an item of {member} is refused, and none was forged: {incident.refusal}")
            case GivenUp():
                if not (universe.injector.counts["crash loop"] or member.replica in universe.injector.forgeries):
                    raise ViolationError(f"{member} is given up after {incident.lives} lives, and no life had to end")
            case Ended():
                end = universe.home_name, member
                if end in self._told:
                    raise ViolationError(f"{end[0]} tells the end of {member} twice")
                self._told.add(end)


class EndChecker(Checker):
    """A run ends once, with no process left.

    It is done when its recorder reported so, stopped where a stop was requested, or all learners have left, and failed
    only where its end was requested, or a required replica was given up.
    """

    def __init__(self) -> None:
        self._outcome: str | None = None
        self._has_spent = False

    def happened(self, universe: Universe, happened: Happened) -> None:
        """Note that no learner had any more data of its own to train."""
        self._has_spent |= isinstance(happened.incident, DataSpent) and happened.incident.is_last

    def finished(self, universe: Universe, home: Home) -> None:
        if self._outcome not in (None, home.outcome):
            raise ViolationError(f"the run is over as {home.outcome!r}, and was as {self._outcome!r}")
        self._outcome = home.outcome
        requests, has_crashed = universe.requests, universe.injector.counts["crash loop"]
        if universe.is_stopped and home.outcome == "done":
            raise ViolationError("the run is over as 'done', after a host was told that it stops")
        if home.outcome == "stopped" and "stop" not in requests and not self._has_spent:
            raise ViolationError("the run is over as 'stopped', and no one has asked for it")
        if home.outcome == "done" and universe.last(ONE_RECORDER) is None:
            raise ViolationError("the run is over as 'done', and there was no recorder")
        is_told = isinstance(home.failure, RecorderFailed)  # A program's own checkers judge whether it is right.
        is_told |= isinstance(home.failure, Unserved) and _is_barred(universe.injector.happened)
        if isinstance(home.failure, RestartsExhausted):
            is_told |= _kills(universe, home.failure.host) >= home.failure.lives
        if home.outcome == "failed" and not ("end" in requests or has_crashed or is_told):
            raise ViolationError(f"the run has failed: {home.failure}")

    def ended(self, universe: Universe) -> None:
        """Check that no process is left."""
        if lives := left(universe):
            raise ViolationError(f"the run is over, and {', '.join(str(life.member) for life in lives)} are there")


def _kills(universe: Universe, host: str) -> int:
    """The lives of a host that faults have killed."""
    return sum(isinstance(fault, Kill) and fault.host == host for fault, _ in universe.injector.happened)


def left(universe: Universe) -> list[Life]:
    """The hosts that have not ended; a machine that lied may have lied itself out of its orders to end them."""
    return [life for life in universe.living() if not is_of_liar(universe, life.member.replica)]


def is_of_liar(universe: Universe, replica: Replica) -> bool:
    """Whether the last life of a replica was on a machine that has lied, or that the same party has brought; one that
    has not begun counts as begun."""
    machine = universe.machine_of(replica)
    liars = {universe.party(name) for name in universe.injector.liars}
    return machine in universe.injector.liars or universe.party(machine) in liars


def _is_cut_off(universe: Universe, replica: Replica) -> bool:
    """Whether the path between a host's machine and the home was cut, at least one way, or lacked a daemon."""
    life = universe.last(replica)
    ends = {life.machine if life else HOME, HOME, universe.home}
    happened = [fault for fault, _ in universe.injector.happened]
    if any(isinstance(fault, DaemonFault) and fault.machine in ends for fault in happened):
        return True
    cuts = [fault for fault in happened if isinstance(fault, Cut)]
    return any(cut.machine in ends and (cut.target is None or cut.target in ends) for cut in cuts)


def _is_barred(happened: Sequence[tuple[Fault, str]]) -> bool:
    """Whether faults may have kept a replica from serving for as long as the end of a run waits for it."""
    mute = max((fault.seconds for fault, _ in happened if isinstance(fault, Mute)), default=0.0)
    refused = sum(isinstance(fault, RefuseStarts) for fault, _ in happened)
    return mute * 1e9 >= LAST_BEATS * BEAT or refused >= STARTS_REFUSED_MIN


def supervision_checkers() -> list[Checker]:
    """A checker for each invariant, new for each universe."""
    return [LivesChecker(), VerdictsChecker(), EndChecker()]


EXPECTED: Final = frozenset({"connection", "stranger", "crossed"})
"""Reasons for which a sound peer may be refused: a message of an older connection, or for another life, arrives late;
two have dialled each other. A sound peer sends nothing that is refused for another reason."""
WAYS_MAX: Final = 64
"""Connections of a machine, all of which are looked at with each item that it sends; of more now and then."""
WINDOWS_MAX: Final = 2
"""Windows on one connection: that of the peer, and those of the peers that it relays; in a small run two at once are
many."""
CROSSING_NS_MAX: Final = 12_000_000_000
"""The longest crossing in calm: a connection that died silently is given up after 5 s, the next one, if a relay lost
its first message, after 5 s more; then it is made within a second."""


class WireChecker(Checker):
    """No host refuses a message of a sound peer, nor accepts an older connection of a peer after a newer one."""

    def __init__(self) -> None:
        self._newest: dict[tuple[Member, Member], int] = {}

    def connected(self, life: Life, peer: Member) -> None:
        """Check the number of the connection; a host that has forgotten its peer knows none."""
        number, key = life.channel.accepted(peer), (life.member, peer)
        newest = self._newest.pop(key, 0)
        if number is not None and number < newest:
            raise ViolationError(f"{life.member} takes connection {number} of {peer} after connection {newest}")
        if number is not None:
            self._newest[key] = number

    def polled(self, universe: Universe) -> None:
        """Check the refusals of every channel."""
        for life in universe.living():
            for name, count in sorted(life.channel.statistics().items()):
                if name.startswith("refused_") and count and name.removeprefix("refused_") not in EXPECTED:
                    raise ViolationError(f"{life.member} refused a message of a sound peer {count} times: {name}")

    def ended(self, universe: Universe) -> None:
        """Check a last time."""
        self.polled(universe)


@dataclass(slots=True)
class _Account:
    """The account of a Queue edge between two lives.

    `items` sent and not arrived, `grants` of credit not received, each with its instant; and the `credit` of the
    producer.
    """

    capacity: int
    credit: int
    items: deque[Instant] = field(default_factory=deque)
    grants: deque[Instant] = field(default_factory=deque)


class ForgottenChecker(Checker):
    """A forgotten life has no connection: a host keeps and accepts none with a life that its roster has dropped.

    That is, one that the roster names no more, or in a later life.
    """

    def __init__(self) -> None:
        self._known: dict[Member, set[Member]] = {}
        self._gone: dict[Member, set[Member]] = {}

    def rostered(self, life: Life, rows: Sequence[Row]) -> None:
        """Record the members in rosters, and those that are gone from them."""
        present = {Member(Replica.parse(row[0]), row[1]) for row in rows}
        if life.member not in present:
            return
        met = self._known.setdefault(life.member, set())
        self._gone.setdefault(life.member, set()).update(met - present)
        met |= present

    def connected(self, life: Life, peer: Member) -> None:
        """Check the peer of a connection that was made, or was lost, which makes a host forget."""
        if peer in self._gone.get(life.member, ()) and life.channel.accepted(peer):
            raise ViolationError(f"{life.member} has a connection with {peer}, which was said to be gone")

    def polled(self, universe: Universe) -> None:
        """Check the peers that hosts still know."""
        for life in universe.living():
            for member in self._gone.get(life.member, ()):
                if life.channel.accepted(member) is not None:
                    raise ViolationError(f"{life.member} still knows {member}, which was said to be gone")


class WindowChecker(Checker):
    """Credit never exceeds the window.

    No more messages are under way between two hosts than fit in the window of the receiver, at the minimum that each of
    them costs.
    """

    def __init__(self) -> None:
        self._universe: Universe | None = None
        self._sent = 0

    def began(self, universe: Universe, member: Member) -> None:
        """Keep a reference to the universe."""
        self._universe = universe

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        """Count the messages under way. A few relayed peers have a window each."""
        universe = self._universe
        assert universe is not None
        most, ways = -(-universe.window_bytes // CHARGE_MIN), universe.ether.of(life.address)
        self._sent += 1
        if self._sent % (len(ways) // WAYS_MAX or 1):
            return
        for connection in ways:
            if connection.purpose == "data" and max(connection.under_way()) > WINDOWS_MAX * most:
                excess = f"{max(connection.under_way())} messages are under way between {connection.machines}"
                raise ViolationError(f"{excess}; a window holds {most}")


Pair: TypeAlias = tuple[Member, Member, int]
"""(producer, consumer, edge)."""


class CreditChecker(Checker):
    """Credit of Queue edges is conserved.

    No host sends without credit, none receives more credit than was granted, and between two live hosts that know each
    other nothing is lost on the way: no item, and no credit.
    """

    def __init__(self) -> None:
        self._accounts: dict[Pair, _Account] = {}

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        """Count an item that is sent: it costs a credit."""
        if edge.kind == "queue":
            account = self._of((life.member, target, edge.index), edge)
            account.credit -= 1
            account.items.append(life.true_now())
            if account.credit < 0:
                raise ViolationError(f"{life.member} sends an item on {edge.name} to {target} without credit")

    def arrived(self, life: Life, source: Member, edge: EdgePlan, item: Any) -> None:
        if edge.kind == "queue":
            account = self._of((source, life.member, edge.index), edge)
            if not account.items:
                raise ViolationError(f"{life.member} gets an item on {edge.name} that {source} did not send")
            account.items.popleft()

    def granted(self, life: Life, source: Member, edge: int, count: int) -> None:
        """Count items that a consumer has taken."""
        account = self._of((source, life.member, edge), life.plan.edges[edge])
        account.grants.extend([life.true_now()] * count)
        if account.credit + len(account.items) + len(account.grants) > account.capacity:
            raise ViolationError(
                f"{life.member} grants {source} more credit than the {account.capacity} of edge {edge}"
            )

    def credited(self, life: Life, target: Member, edge: int, count: int) -> None:
        account = self._of((life.member, target, edge), life.plan.edges[edge])
        if count > len(account.grants):
            raise ViolationError(f"{life.member} gets {count} credits of {target}, which gave {len(account.grants)}")
        for _ in range(count):
            account.grants.popleft()
        account.credit += count

    def polled(self, universe: Universe) -> None:
        """In calm, check that nothing is lost on the way."""
        if universe.calm_ns <= CROSSING_NS_MAX:
            return
        lives = {life.member: life for life in universe.living()}
        now = universe.clock.now()
        for (producer, consumer, edge), account in self._accounts.items():
            if not self._are_met(lives.get(producer), lives.get(consumer)):
                continue
            for what, since in (("an item", account.items), ("a credit", account.grants)):
                if since and now - max(since[0], universe.injector.calm_since) > CROSSING_NS_MAX:
                    took = f"{(now - since[0]) / 1e9:.1f} s"
                    raise ViolationError(f"{what} of edge {edge} is lost between {producer} and {consumer}: {took}")

    def _of(self, pair: Pair, edge: EdgePlan) -> _Account:
        return self._accounts.setdefault(pair, _Account(edge.capacity, edge.capacity - len(edge.initial)))

    def _are_met(self, producer: Life | None, consumer: Life | None) -> bool:
        if producer is None or consumer is None:
            return False
        knows = producer.meetings.live.get(consumer.member.replica) == consumer.member
        return knows and consumer.meetings.live.get(producer.member.replica) == producer.member


def runtime_checkers(graph: Template) -> list[Checker]:
    """The checkers that hold for every program, new for each universe."""
    free = {
        role.name: frozenset(node.name for node in graph.nodes if node.role == role.name and node.never_waits)
        for role in graph.roles
    }
    checkers = [BoundsChecker(), RosterChecker(), ForgottenChecker(), WaitsChecker(free), TapeFilesChecker()]
    checkers += [WireChecker(), CreditChecker(), WindowChecker()]
    return [*checkers, *supervision_checkers()]
