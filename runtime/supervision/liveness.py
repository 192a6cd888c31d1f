"""Liveness of a run's hosts: silence, loss of all peers, failures in a row, and required service.

Four judges, each of one question; the core of the home decides what an answer means for a life:

- `HostLiveness`: which silence is excused, and which silent or stuck member is condemned.
- `Reach`: which member that its daemon hears is cut off from all other hosts.
- `Restarts` and `Repeats`: when the next life of a replica begins, and whether the program is at fault.
- `Service`: whether a required replica has served nothing for so long that the run fails.

They count beats of the home, so that a suspended home condemns no member.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, assert_never

import msgspec

from isthmus.runtime.clock import Duration, Instant, seconds
from isthmus.runtime.cores.membership_core import (
    PROGRESS_DEVIATION_FIRST,
    PROGRESS_DEVIATION_MIN,
    Endurance,
    MembershipCore,
    MembershipOptions,
)
from isthmus.runtime.cores.membership_messages import (
    SILENT,
    AdmitMember,
    Excuse,
    Excused,
    ExcuseEnded,
    MembershipEvent,
    MembershipTimerFired,
    NoteMember,
    RemoveMember,
    SetMembershipTimer,
    SilenceExcused,
)
from isthmus.runtime.ids import Member, Replica, keeps_run, leads_island, takes_island
from isthmus.runtime.supervision import incidents
from isthmus.runtime.supervision.home_events import SILENT_SECONDS, STUCK_SECONDS
from isthmus.runtime.supervision.incidents import Ended, Raised
from isthmus.runtime.supervision.messages import HEARTBEAT_SECONDS, Heartbeat

PATIENCE: Final = seconds(SILENT_SECONDS)
STUCK: Final = seconds(STUCK_SECONDS)
DEVIATION_MIN: Final = seconds(1)
"""A host with regular heartbeats is suspect after 3.3 s of silence, and replaced after 7.3 s: on a machine with six
times as many busy processes as cores a healthy one was silent for 1.9 s, and a body that holds the interpreter for some
seconds must not cost a life."""
HURRY: Final = seconds(5)
"""Once a run comes to its end, no silent learner is awaited for longer than this."""


@dataclass(slots=True)
class Findings:
    """Results of an event: incidents to record, members to kill and why, and whether the live members changed."""

    written: list[tuple[Member, incidents.Incident]] = field(default_factory=list)
    condemned: list[tuple[Member, incidents.Verdict | None]] = field(default_factory=list)
    has_changed: bool = False


class HostLiveness:
    """The membership of one run. `timer_at` is when `fire` has to be called next.

    It translates commands of the membership core into findings; `excuse` returns the present excuse of a member's
    silence.
    """

    def __init__(
        self,
        slots_max: Mapping[str, int],
        patience: Duration,
        excuse: Callable[[Member], Excuse | None],
        described: Callable[[Member], tuple[int, str]],
        *,
        stuck: Duration = STUCK,
    ) -> None:
        """`described` returns the pid of a member, and its machine ('' where that is home).

        A `patience` above PATIENCE, as a user asks for it, is what any silence may last, in proportion also one of a
        host with regular heartbeats; `stuck` likewise for steps.
        """
        more = max(1.0, patience / PATIENCE)
        self.timer_at: Instant | None = None
        self._excuse, self._described = excuse, described
        self._core = MembershipCore(
            MembershipOptions(
                slots_max=slots_max,
                interval_first=seconds(HEARTBEAT_SECONDS),
                deviation_min=_times(DEVIATION_MIN, more),
                silence_max=patience,
                progress_deviation_min=_times(PROGRESS_DEVIATION_MIN, stuck / STUCK),
                progress_deviation_first=_times(PROGRESS_DEVIATION_FIRST, stuck / STUCK),
            )
        )
        self._hurried: dict[Member, Instant] = {}

    def state(self, replica: Replica) -> str | None:
        """The state of the member of a replica; None if it has none."""
        return self._core.state(replica)

    def members(self) -> list[Member]:
        """All members that have not been removed, suspects among them, sorted."""
        return [member for member, _, _ in self._core.roster()]

    def has(self, member: Member) -> bool:
        return self._core.has(member)

    def silence(self, member: Member, now: Instant) -> Endurance | None:
        """How long a member that is suspect has been silent, and may be; None for any other."""
        return self._core.silence(member, now)

    def stall(self, member: Member, now: Instant) -> Endurance | None:
        """How long a member that steps has made no step in one firing, and may; None for any other."""
        return self._core.stall(member, now)

    def has_ended(self, member: Member) -> bool:
        """Whether this life is over for good, even if a report still lists it."""
        return self._core.has_ended(member)

    def is_heard(self, member: Member) -> bool:
        """Whether this life is a member whose heartbeats arrive."""
        return self.has(member) and self._core.state(member.replica) not in SILENT

    def handle(self, event: MembershipEvent, now: Instant, findings: Findings | None = None) -> Findings:
        findings = Findings() if findings is None else findings
        for command in self._core.handle(event, now):
            match command:
                case AdmitMember():
                    findings.has_changed = True
                case RemoveMember():
                    findings.has_changed = True
                    findings.condemned.append((command.member, command.finding))
                case NoteMember(member, incident):
                    if isinstance(incident, Excused):
                        pid, machine = self._described(member)
                        incident = msgspec.structs.replace(incident, pid=pid, machine=machine)
                    findings.written.append((member, incident))
                case SetMembershipTimer():
                    self.timer_at = command.at
                case _:
                    assert_never(command)
        return findings

    def fire(self, now: Instant) -> Findings:
        """Judge all silences when the timer fires."""
        findings = Findings()
        # The same instant for both: no member may become late between the question and the judgement.
        for member in self._core.late(now):
            self._ask(member, "alive", now, findings)
        self.timer_at = None
        return self.handle(MembershipTimerFired(), now, findings)

    def review(self, now: Instant, *, is_hurried: bool) -> Findings:
        """Check whether the excuse of each silence still holds.

        `is_hurried`: the run comes to its end, and no silent learner is awaited for long, because the last rounds would
        wait for it.
        """
        findings = Findings()
        silent = [(member, state) for member, _, state in self._core.roster() if state in SILENT]
        self._hurried = {
            member: self._hurried.get(member, now)
            for member, state in silent
            if is_hurried and takes_island(member.replica) and state != "away"
        }
        for member, state in silent:
            if now - self._hurried.get(member, now) >= HURRY:
                findings.condemned.append((member, incidents.Hurried()))
            elif state != "suspect":
                self._ask(member, state, now, findings)
        return findings

    def check(self) -> None:
        """Raise InvariantError unless the invariants of the membership core hold."""
        self._core.check()

    def _ask(self, member: Member, state: str, now: Instant, findings: Findings) -> None:
        """Start or end the excuse for the silence of a member that is in `state`."""
        excuse = self._excuse(member)
        if excuse is not None:
            self.handle(SilenceExcused(member, excuse), now, findings)
        elif state != "suspect":
            self.handle(ExcuseEnded(member), now, findings)


def _times(duration: Duration, factor: float) -> Duration:
    return Duration(round(duration * factor))


TOLD_BEATS: Final = 10
"""Five seconds, beside the five in which its connections are given up: on busy cores a new host needs some for its
first ones."""
CUT_OFF_BEATS: Final = 40
"""Twenty seconds, as for a lost machine."""
FAR_BEATS: Final = 240
"""Two minutes, where the way leads through a bucket: to begin a connection takes five round trips, of seconds each, and
it outlives a store that is away for less than three."""
HURRY_BEATS: Final = 10
"""Five seconds, as for a learner that is silent while the run comes to its end."""
DOUBLINGS_MAX: Final = 5
"""Ten minutes, as for a silence that is excused."""
BEAT: Final = seconds(0.5)


def _awaits_silent(own: Heartbeat, heard: Container[Member]) -> bool:
    """Whether all that a host does not reach are silent for others, too; not where it has not named all of them."""
    return len(own.missing) == own.unreached and not any(each.member in heard for each in own.missing)


class Reach:
    """The members that are *cut off*: no other host hears them, though their heartbeats reach their daemon.

    Heartbeats pass between daemons, items between hosts, on other ports: a network may block one and not the other. A
    heartbeat contains the number of a host's peers, and to how many of these it has no data connection. A member that
    has none at all is cut off, as long as most members with peers are not: where half of them are, the network is at
    fault, and no host. Nor is it where all those peers are silent for the home, too, as the shard of a region whose
    machine is dark: they are at fault.

    A member that is cut off is awaited for as long as a lost machine, because its work is lost with its life; while the
    run comes to its end, rounds wait for it, and a learner is awaited as briefly as a silent one. Its next life is on
    the same machine, and gets twice the time.
    """

    def __init__(self) -> None:
        self._beats: dict[Member, int] = {}
        self._condemned: Counter[Replica] = Counter()
        self._far: Collection[Member] = ()

    def is_cut_off(self, member: Member) -> bool:
        """Whether this member was reported as cut off."""
        return self._beats.get(member, 0) >= self._told_beats(member)

    def beat(
        self, heartbeats: Mapping[Member, Heartbeat], *, is_hurried: bool, far: Collection[Member] = ()
    ) -> Findings:
        """Count a beat.

        `heartbeats` is the last heartbeat of each member that is heard; `is_hurried`: the run comes to its end; `far`
        are those on machines that are far.
        """
        findings, self._far = Findings(), far
        alone = [member for member, each in heartbeats.items() if each.peers and each.unreached >= each.peers]
        is_of_network = 2 * len(alone) >= sum(bool(each.peers) for each in heartbeats.values())
        cut_off = [member for member in alone if not _awaits_silent(heartbeats[member], heartbeats)]
        before, self._beats = self._beats, {}
        for member in () if is_of_network else cut_off:
            beats = self._beats[member] = before.get(member, 0) + 1
            if beats == self._told_beats(member):
                findings.written.append((member, incidents.CutOff(heartbeats[member].peers)))
            is_brief = is_hurried and leads_island(member.replica)
            usual = FAR_BEATS if member in far else CUT_OFF_BEATS
            if beats >= (HURRY_BEATS if is_brief else usual << self._times(member)):
                lasted, times = Duration(beats * BEAT), 1 << self._times(member)
                findings.condemned.append((member, incidents.Unreached(lasted, heartbeats[member].peers, times)))
        for member, beats in before.items():
            if beats >= self._told_beats(member) and member in heartbeats and member not in self._beats:
                findings.written.append((member, incidents.Reached(Duration(beats * BEAT))))
        return findings

    def _told_beats(self, member: Member) -> int:
        """The beats after which it is reported."""
        return FAR_BEATS // 2 if member in self._far else TOLD_BEATS

    def ended(self, replica: Replica) -> None:
        """A life of a replica ended because it was cut off: its next one gets twice the time."""
        self._condemned[replica] += 1

    def _times(self, member: Member) -> int:
        """The number of times that its patience was doubled."""
        return min(self._condemned[member.replica], DOUBLINGS_MAX)


BACKOFF_SECONDS: Final = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Delay after the n-th failed life in a row; the first restart is at once."""
FAILURES_MAX: Final = 5
HEALTHY: Final = seconds(10)
HEALTHY_IF_KILLED: Final = seconds(2)
"""Of a life that SIGKILL ended, and not the daemon: spot machines and others' memory end processes at any time."""
REPEATS_MIN: Final = 2
"""Lives in a row of one learner that ended by the same error, for the error to be the program's: the first may have
been an accident that hit all at once, such as a full disk."""
LONG: Final = seconds(600)
"""After this long a service an error starts a new row: an equal one before it was another event."""


class Restarts:
    """Counts the failed lives in a row of each replica.

    A life that served for HEALTHY (HEALTHY_IF_KILLED) resets the count. After FAILURES_MAX failed lives in a row the
    program is at fault, and another life is pointless.
    """

    def __init__(self) -> None:
        self._failures: dict[Replica, int] = {}
        self._raised: dict[Replica, tuple[Ended, ...]] = {}

    def ended(self, replica: Replica, ended: Ended, served_at: Instant | None, now: Instant) -> None:
        """A life has ended that began to serve at `served_at`, if it did."""
        is_healthy = served_at is not None and now - served_at >= HEALTHY
        is_fault = ended.error is not None and not is_healthy
        self._raised[replica] = (*self.raised(replica), ended)[-FAILURES_MAX:] if is_fault else ()

    def raised(self, replica: Replica) -> tuple[Ended, ...]:
        """The ends of its last lives that raised, in a row, before they had served for HEALTHY."""
        return self._raised.get(replica, ())

    def delay(
        self, replica: Replica, served_at: Instant | None, now: Instant, *, is_killed: bool = False
    ) -> Duration | None:
        """The delay before the next life of a replica; None if it should have none.

        The life that has just ended began to serve at `served_at`, if it did. `is_killed`: from outside.
        """
        least = HEALTHY_IF_KILLED if is_killed else HEALTHY
        is_healthy = served_at is not None and now - served_at >= least
        failures = self._failures[replica] = 1 if is_healthy else self._failures.get(replica, 0) + 1
        if failures > FAILURES_MAX:
            return None
        return seconds(BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS)) - 1])

    def failures(self, replica: Replica) -> int:
        """Failed lives in a row of a replica."""
        return self._failures.get(replica, 0)


class Repeated(NamedTuple):
    """An error that every learner met, one of them in `lives` lives in a row."""

    error: Raised
    lives: int


class Repeats:
    """Separates the program's own errors, which every learner meets again, from those of one learner alone."""

    def __init__(self) -> None:
        self._rows: dict[Replica, Repeated] = {}

    def ended(self, replica: Replica, error: Raised | None, served_at: Instant | None, now: Instant) -> None:
        """A life of a learner ended, by this error or by none."""
        before = self._rows.pop(replica, None)
        if error is None:
            return
        is_first = served_at is not None and now - served_at >= LONG
        lives = before.lives if before is not None and before.error.mistake == error.mistake and not is_first else 0
        self._rows[replica] = Repeated(error, lives + 1)

    def common(
        self, learners: Collection[Replica], speak_for_all: Callable[[Iterable[Replica]], bool]
    ) -> Repeated | None:
        """The error by which the last life of each of these learners ended, if it is the same and was repeated: one
        whose text is here, if there is one.

        `speak_for_all`: whether those that repeated it may be taken for all of them.
        """
        rows = [self._rows.get(learner) for learner in learners]
        repeated = [row for row in rows if row is not None]
        if (
            not repeated
            or len(repeated) < len(rows)
            or any(row.error.mistake != repeated[0].error.mistake for row in repeated)
        ):
            return None
        again = [learner for learner in learners if self._rows[learner].lives >= REPEATS_MIN]
        with_text = next((row.error for row in repeated if row.error.kept is None), repeated[0].error)
        return Repeated(with_text, max(row.lives for row in repeated)) if speak_for_all(again) else None


UNSERVED_BEATS: Final = 1200
"""Ten minutes, as for a silence that is excused: learners train meanwhile, and keep what they have."""
LAST_BEATS: Final = 120
"""A minute, once the run comes to its end: no learner trains any more, and a new life takes some ten seconds."""


class UnservedReplica(NamedTuple):
    """A replica that has not served for `lasted`."""

    replica: Replica
    lasted: Duration


class Service:
    """The time for which required replicas have not served.

    `Restarts` counts lives that end in a row, `Reach` those that are cut off: each is followed by another life. But a
    machine may have no room for the next process, its disk may accept no number, or its interface may have lost its
    address, while its daemon still sends reports. Then lives follow each other, or none comes, without an end.

    A replica serves if its daemon hears it and it has a data connection with some host. A recorder must have one with
    each other required replica, and with a learner, where any of these is heard: without them it never learns of the
    end. Not with the leader of each group: one that is cut off goes on alone, and takes part again when it is back.
    Learners are awaited for as long as their machines are, and so are replicas on a machine that is not heard.
    """

    def __init__(self) -> None:
        self._beats: dict[Replica, int] = {}
        self._last_beats: dict[Replica, int] = {}

    def beat(
        self,
        needed: Collection[Replica],
        heartbeats: Mapping[Member, Heartbeat],
        *,
        is_hurried: bool,
        group_role: str = "",
    ) -> UnservedReplica | None:
        """Count a beat; returns a `needed` replica that has not served for too long, or None.

        `heartbeats` is the last heartbeat of each member that is heard; `is_hurried`: the run comes to its end;
        `group_role`: that of the leaders of groups, if there are any.
        """
        heard = {member.replica: each for member, each in heartbeats.items()}
        idle = [replica for replica in needed if not _serves(replica, heard, needed, group_role)]
        self._beats = {replica: self._beats.get(replica, 0) + 1 for replica in idle}
        self._last_beats = {replica: self._last_beats.get(replica, 0) + is_hurried for replica in idle}
        for replica, beats in self._beats.items():
            if beats >= UNSERVED_BEATS or self._last_beats[replica] >= LAST_BEATS:
                return UnservedReplica(replica, Duration(beats * BEAT))
        return None


def _serves(replica: Replica, heard: Mapping[Replica, Heartbeat], needed: Collection[Replica], group_role: str) -> bool:
    heartbeat = heard.get(replica)
    if heartbeat is None:
        return False
    if heartbeat.peers and heartbeat.unreached >= heartbeat.peers:
        return False
    if not keeps_run(replica):
        return True
    missing = {each.member.replica for each in heartbeat.missing}
    learners = {each for each in heard if leads_island(each)}
    leaders = {each for each in heard if each.role == group_role}
    required = {each for each in needed if each in heard} - leaders
    return missing.isdisjoint(required) and not any(each and each <= missing for each in (learners, leaders))
