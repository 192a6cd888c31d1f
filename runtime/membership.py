"""The membership core, in its first form: who is alive, in which incarnation and phase.

It decides who is admitted, suspected and removed. It does not open connections, choose slots or incarnations, restart
anybody, or decide what a removal means for a round or an edge.

Theory of operation. A replica is absent, *alive* or *suspect*. An announcement of a new incarnation admits it, after
removing the one before. Every heartbeat renews it and teaches the core the member's rhythm; silence makes it suspect
and then removes it; a supervisor that knows the process is gone removes it at once. Suspicion only informs: a suspect
is a member until it is removed. An incarnation that ended, or that is older than the newest heard of, is refused for
ever. Only a `stepping` host can be stuck; phases are kept in the roster for that.

Deadlines are learned from arrivals (Hayashibara et al., The phi accrual failure detector, SRDS 2004): with intervals
between heartbeats taken as normal with mean m and deviation s, the suspicion after a silence t is

    phi(t) = -log10 P(interval > t) = -log10(erfc((t - m) / (s sqrt 2)) / 2),

so a threshold suspects a healthy member once in 10^phi intervals. phi grows with t, so it is not evaluated while time
passes: phi(t) = threshold is solved once, t = m + z s with z the normal quantile of 1 - 10^-threshold, and that is the
deadline. z is rounded and the rest is +, *, sqrt, all correctly rounded: every machine finds the same nanosecond. We
differ from the paper in that m and s^2 are exponential moving averages (no window to keep; T. Finch, Incremental
calculation of weighted mean and variance, 2009, section 9), in the floor under s, and in `silence_max`.

One timer serves all members. It may be early (heartbeats move deadlines, not the timer) and is then set again. What it
is late by, this host slept itself: its peers may have spoken meanwhile, so that time is not counted as their silence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, assert_never, get_args

from isthmus.runtime.clock import Duration, Instant, milliseconds, seconds
from isthmus.runtime.errors import InvariantError, LocalProtocolError, RemoteProtocolError
from isthmus.runtime.events import Record
from isthmus.runtime.ids import Member, Replica

Phase: TypeAlias = Literal["starting", "compiling", "stepping", "serving", "recovering", "final", "gone"]
State: TypeAlias = Literal["alive", "suspect"]
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)

WEIGHT: Final = 1 / 16
"""Of a new interval in the averages, which then remember about 2 / WEIGHT - 1 = 31 intervals: half a minute at one a
second, long enough for a deviation, short enough to follow a host that begins to compile."""
FLOOR_PER_MEAN: Final = 0.5
"""The least deviation, in means: at the default thresholds a member whose beats are regular is suspect after
1 + 3.09 / 2 = 2.5 intervals (two beats missed) and gone after 1 + 7.03 / 2 = 4.5 (four missed)."""
INTERVAL_FIRST: Final = seconds(1)
DEVIATION_FIRST: Final = seconds(2)
"""A newcomer is suspect after 7.2 s and gone after 15.1 s of silence: it may be importing or compiling."""
DEVIATION_MIN: Final = milliseconds(500)
"""Nobody is gone before 3.5 s of silence: a busy interpreter or a paused machine is silent for a second or two."""
SILENCE_MAX: Final = seconds(30)
"""Whatever was learned, a silent member is gone after this: one long silence must not excuse the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipOptions:
    """`slots_max`: role -> number of its slots. LocalProtocolError for values out of range.

    `phi_suspect`: 3 is one wrong suspicion in 1,000 intervals, which costs a line in the status. `phi_gone`: a wrong
    removal costs a restart, and real intervals have longer tails than the normal; 8 is customary, 12 is what is advised
    for shared machines. `interval_first`, `deviation_first`: what is believed of a newcomer.
    """

    slots_max: Mapping[str, int]
    phi_suspect: float = 3.0
    phi_gone: float = 12.0
    interval_first: Duration = INTERVAL_FIRST
    deviation_first: Duration = DEVIATION_FIRST
    deviation_min: Duration = DEVIATION_MIN
    silence_max: Duration = SILENCE_MAX
    z_suspect: float = field(init=False)
    z_gone: float = field(init=False)

    def __post_init__(self) -> None:
        if not 0.5 <= self.phi_suspect <= self.phi_gone <= 300:
            found = f"{self.phi_suspect} and {self.phi_gone}"
            raise _illegal("membership options", "0.5 <= phi_suspect <= phi_gone <= 300", found, "Change them.")
        for name in ("interval_first", "deviation_first", "deviation_min", "silence_max"):
            if getattr(self, name) <= 0:
                raise _illegal("membership options", f"{name} above 0 ns", str(getattr(self, name)), "Raise it.")
        object.__setattr__(self, "z_suspect", quantile(self.phi_suspect))
        object.__setattr__(self, "z_gone", quantile(self.phi_gone))


def quantile(threshold: float) -> float:
    """The z with phi(m + z s) = threshold, by bisection, to 6 decimals so that no library's last digit reaches a
    deadline; for thresholds of 0.5 to 300."""
    low, high = 0.0, 40.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if phi(middle, 0.0, 1.0) < threshold else (low, middle)
    return round(low, 6)


def phi(silence: float, mean: float, deviation: float) -> float:
    """The suspicion after `silence`; all three in one unit, deviation > 0."""
    x = (silence - mean) / (deviation * math.sqrt(2))
    if x < 20:
        return 0.0 - math.log10(math.erfc(x) / 2)
    # erfc(x) is exp(-x^2) / (x sqrt pi) within 1 / (2 x^2) = 0.2 %, and would soon be too small for a float.
    return x * x / math.log(10) + math.log10(2 * x * math.sqrt(math.pi))


# -- events ------------------------------------------------------------------------------------------------------------


class HostAnnounced(Record, frozen=True):
    """A host said hello, on a new connection."""

    member: Member
    phase: Phase


class HeartbeatArrived(Record, frozen=True):
    """A host is alive. Phase `gone` says that it ends of its own will."""

    member: Member
    phase: Phase


class HostEnded(Record, frozen=True):
    """A supervisor knows that the process is gone; the reason is a sentence."""

    member: Member
    reason: str


class MembershipTimerFired(Record, frozen=True):
    """The timer came due. A superfluous one does no harm."""


# -- commands ----------------------------------------------------------------------------------------------------------


class AdmitMember(Record, frozen=True):
    """A member is alive from now on."""

    member: Member


class RefuseMember(Record, frozen=True):
    """Tell the host that it is no member, and why."""

    member: Member
    reason: str


class SuspectMember(Record, frozen=True):
    """A member has been silent for suspiciously long; it still is one."""

    member: Member
    reason: str


class ClearSuspicion(Record, frozen=True):
    """A suspect was heard again."""

    member: Member
    reason: str


class RemoveMember(Record, frozen=True):
    """A member is gone for good; its replica may return as a new incarnation."""

    member: Member
    reason: str


class SetMembershipTimer(Record, frozen=True):
    """Send MembershipTimerFired at `at`, instead of when it was to be sent before."""

    at: Instant


MembershipEvent: TypeAlias = HostAnnounced | HeartbeatArrived | HostEnded | MembershipTimerFired
MembershipCommand: TypeAlias = (
    AdmitMember | RefuseMember | SuspectMember | ClearSuspicion | RemoveMember | SetMembershipTimer
)


# -- the core ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Host:
    """A member; `mean` (ns) and `variance` (ns^2) of its heartbeat intervals."""

    member: Member
    phase: Phase
    heard_at: Instant
    mean: float
    variance: float
    state: State = "alive"


class MembershipCore:
    """The members of one run as one host sees them, at most `slots_max` of each role."""

    def __init__(self, options: MembershipOptions) -> None:
        self._options = options
        self._now = Instant(0)
        self._hosts: dict[Replica, _Host] = {}
        self._newest: dict[Replica, int] = {}  # The highest incarnation heard of, live or not.
        self._timer_at: Instant | None = None
        names = ("members admitted", "members removed", "members refused", "suspicions", "suspicions cleared")
        self._counts = dict.fromkeys((*names, "heartbeats", "announcements repeated", "ends ignored", "timers"), 0)

    def handle(self, event: MembershipEvent, now: Instant) -> list[MembershipCommand]:
        """What `event` at `now` leads to, in order.

        Raises, with the state as it was, LocalProtocolError for time that runs backwards, and RemoteProtocolError for
        a phase that there is not or an incarnation below 1.
        """
        if now < self._now:
            raise _illegal("handling an event", f"an instant from {self._now} ns on", f"{now} ns", "Fix the clock.")
        match event:
            case HeartbeatArrived():
                commands = self._beat(event, now)
            case HostAnnounced():
                commands = self._announce(event, now)
            case HostEnded():
                commands = self._end(event)
            case MembershipTimerFired():
                commands = self._fire(now)
            case _:
                assert_never(event)
        self._now = now
        return commands

    def roster(self) -> tuple[tuple[Member, Phase, State], ...]:
        """Every member with its phase and state, sorted."""
        return tuple((host.member, host.phase, host.state) for _, host in sorted(self._hosts.items()))

    def members(self, role: str) -> tuple[Member, ...]:
        """The members of a role, suspects among them, by slot."""
        return tuple(member for member, _, _ in self.roster() if member.replica.role == role)

    def suspicion(self, replica: Replica, now: Instant) -> float:
        """phi of a member at `now`; KeyError if the replica is absent."""
        host = self._hosts[replica]
        return phi(now - host.heard_at, host.mean, self._deviation(host))

    def statistics(self) -> dict[str, int]:
        """Counts since the start, and the present numbers of members and suspects."""
        suspects = sum(host.state == "suspect" for host in self._hosts.values())
        return self._counts | {"members": len(self._hosts), "suspects": suspects}

    # -- events --------------------------------------------------------------------------------------------------------

    def _announce(self, event: HostAnnounced, now: Instant) -> list[MembershipCommand]:
        member, options = event.member, self._options
        _check_peer(member, event.phase)
        if not self._has_slot(member.replica):
            slots = options.slots_max.get(member.replica.role, 0)
            return self._refuse(member, f"role {member.replica.role!r} has {slots} slots, numbered from 0")
        if event.phase == "gone":
            return self._refuse(member, "it announced itself in phase 'gone'")
        host = self._hosts.get(member.replica)
        if host is not None and host.member == member:
            self._counts["announcements repeated"] += 1
            return self._hear(host, event.phase, now)
        if member.incarnation <= self._newest.get(member.replica, 0):
            return self._refuse(member, self._history(member))
        commands = self._remove(host, f"replaced by incarnation {member.incarnation}") if host is not None else []
        self._newest[member.replica] = member.incarnation
        variance = float(options.deviation_first) ** 2
        host = self._hosts[member.replica] = _Host(member, event.phase, now, float(options.interval_first), variance)
        self._counts["members admitted"] += 1
        return [*commands, AdmitMember(member), *self._arm(self._deadline(host, host.state))]

    def _beat(self, event: HeartbeatArrived, now: Instant) -> list[MembershipCommand]:
        member = event.member
        _check_peer(member, event.phase)
        host = self._hosts.get(member.replica)
        if host is None or host.member != member:
            return self._refuse(member, self._history(member))
        self._counts["heartbeats"] += 1
        if event.phase == "gone":
            return self._remove(host, "it said that it ends")
        change = float(min(now - host.heard_at, self._options.silence_max)) - host.mean
        host.mean += WEIGHT * change
        host.variance = (1 - WEIGHT) * (host.variance + WEIGHT * change * change)
        return self._hear(host, event.phase, now)

    def _end(self, event: HostEnded) -> list[MembershipCommand]:
        member = event.member
        if self._has_slot(member.replica):
            self._newest[member.replica] = max(member.incarnation, self._newest.get(member.replica, 0))
        host = self._hosts.get(member.replica)
        if host is None or member.incarnation < host.member.incarnation:
            self._counts["ends ignored"] += 1
            return []
        reason = event.reason if host.member == member else f"incarnation {member.incarnation} ended: {event.reason}"
        return self._remove(host, reason)

    def _fire(self, now: Instant) -> list[MembershipCommand]:
        """Judge everybody's silence, less the time by which the timer is late."""
        self._counts["timers"] += 1
        late = 0 if self._timer_at is None else max(0, now - self._timer_at)
        self._timer_at = None
        commands: list[MembershipCommand] = []
        for _, host in sorted(self._hosts.items()):
            host.heard_at = Instant(min(now, host.heard_at + late))
            if now >= self._deadline(host, "suspect"):
                commands += self._remove(host, self._silence(host, now))
            elif host.state == "alive" and now >= self._deadline(host, "alive"):
                host.state = "suspect"
                self._counts["suspicions"] += 1
                commands.append(SuspectMember(host.member, self._silence(host, now)))
        deadlines = [self._deadline(host, host.state) for host in self._hosts.values()]
        return commands + (self._arm(min(deadlines)) if deadlines else [])

    # -- members -------------------------------------------------------------------------------------------------------

    def _has_slot(self, replica: Replica) -> bool:
        return 0 <= replica.slot < self._options.slots_max.get(replica.role, 0)

    def _history(self, member: Member) -> str:
        """Why `member`, which is not live, may not be it."""
        newest = self._newest.get(member.replica, 0)
        if member.incarnation < newest:
            return f"incarnation {member.incarnation} is older than {newest}, the newest of {member.replica}"
        state = "has ended" if member.incarnation == newest else "has not announced itself"
        return f"incarnation {member.incarnation} of {member.replica} {state}"

    def _refuse(self, member: Member, reason: str) -> list[MembershipCommand]:
        self._counts["members refused"] += 1
        return [RefuseMember(member, reason)]

    def _remove(self, host: _Host, reason: str) -> list[MembershipCommand]:
        del self._hosts[host.member.replica]
        self._counts["members removed"] += 1
        return [RemoveMember(host.member, reason)]

    def _hear(self, host: _Host, phase: Phase, now: Instant) -> list[MembershipCommand]:
        """A sign of life: the silence begins anew."""
        commands: list[MembershipCommand] = []
        if host.state == "suspect":
            host.state = "alive"
            self._counts["suspicions cleared"] += 1
            commands.append(ClearSuspicion(host.member, f"heard again after {_milliseconds(now - host.heard_at)}"))
        host.phase, host.heard_at = phase, now
        return commands + self._arm(self._deadline(host, host.state))

    # -- deadlines -----------------------------------------------------------------------------------------------------

    def _deviation(self, host: _Host) -> float:
        return max(math.sqrt(host.variance), self._options.deviation_min, FLOOR_PER_MEAN * host.mean)

    def _deadline(self, host: _Host, state: State) -> Instant:
        """When a member that stays silent leaves `state`."""
        z = self._options.z_suspect if state == "alive" else self._options.z_gone
        patience = math.ceil(host.mean + z * self._deviation(host))
        return Instant(host.heard_at + min(patience, self._options.silence_max))

    def _silence(self, host: _Host, now: Instant) -> str:
        """The sentence about a member that has been silent for too long."""
        silence, deviation = now - host.heard_at, self._deviation(host)
        usual = f"{_milliseconds(host.mean)} +- {_milliseconds(deviation)} are usual"
        most = f", and {_milliseconds(silence)} is allowed at most" if silence >= self._options.silence_max else ""
        return (
            f"no heartbeat for {_milliseconds(silence)}: {usual}, phi is {phi(silence, host.mean, deviation):.1f}{most}"
        )

    def _arm(self, at: Instant) -> list[MembershipCommand]:
        """See to it that the timer fires at `at` or before."""
        if self._timer_at is not None and self._timer_at <= at:
            return []
        self._timer_at = at
        return [SetMembershipTimer(at)]

    # -- invariants ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise InvariantError unless every member has a slot, a deadline and the newest incarnation of its replica."""
        for replica in self._newest:
            _demand(self._has_slot(replica), f"{replica} is known and has no slot")
        for replica, host in self._hosts.items():
            newest = self._newest.get(replica)
            _demand(host.member.replica == replica, f"{host.member} is kept as {replica}")
            _demand(host.member.incarnation == newest, f"{host.member} is live, the newest incarnation is {newest}")
            _demand(host.phase != "gone", f"{host.member} is live in phase gone")
            _demand(host.heard_at <= self._now, f"{host.member} was heard at {host.heard_at} ns, after {self._now} ns")
            _demand(host.mean >= 0 and host.variance >= 0, f"{host.member} has {host.mean} ns, {host.variance} ns^2")
            deadline = self._deadline(host, host.state)
            is_armed = self._timer_at is not None and self._timer_at <= deadline
            _demand(is_armed, f"{host.member} is due at {deadline} ns, the timer is at {self._timer_at} ns")
        live = len(self._hosts) + self._counts["members removed"]
        _demand(live == self._counts["members admitted"], f"{live} members live or removed, not as many as admitted")


def _check_peer(member: Member, phase: Phase) -> None:
    """Raise RemoteProtocolError for what no host of ours sends."""
    if phase not in PHASES:
        expected = f"a phase, one of {', '.join(PHASES)}"
        raise RemoteProtocolError(
            f"hearing {member}: expected {expected}, found {phase!r}. Use one version everywhere."
        )
    if member.incarnation < 1:
        raise RemoteProtocolError(f"hearing {member}: expected an incarnation from 1 on. Use one version everywhere.")


def _milliseconds(duration: float) -> str:
    return f"{duration / 1e6:.1f} ms"


def _illegal(doing: str, expected: str, found: str, do: str) -> LocalProtocolError:
    return LocalProtocolError(f"{doing}: expected {expected}, found {found}. {do}")


def _demand(holds: bool, broken: str) -> None:
    if not holds:
        raise InvariantError(f"membership: {broken}")
