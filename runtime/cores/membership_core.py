"""The membership core: incarnation, phase and liveness of every member, which members are slow, and why one is gone.

It decides which members are admitted, suspected, marked slow, and removed. It does not open connections, choose slots
or incarnations, restart or kill processes, or decide what a removal means for a round or an edge.

Theory of operation. A replica is absent, or has one member. An announcement of a new incarnation admits it, after
removing the one before. An incarnation that ended, or that is older than the newest seen, is refused for ever. A member
can fail in three ways, each with its own answer:

- *dead*. A supervisor knows that the process is gone: it is removed at once. Or it is silent: every heartbeat renews it
  and teaches the core its rhythm, silence makes it suspect, which only informs, and then removes it. A silence with a
  known outside cause (the process is stopped, its machine cannot be reached) is excused: such a member is neither
  suspect nor removed before `excused_max`. One that is away, in the user's own code, may be silent as long as it is.
- *stuck*. It sends heartbeats, reports that it is stepping, and has been in one firing for longer than its own steps
  make likely; or it steps on, and one firing of another node lasts `firing_max` and many steps: it is removed. A member
  that never made a step is judged by the steps of others in its role, and by nothing where there are none.
- *slow*. It makes progress, and a step takes it much longer than the median of its role: that is reported, and nothing
  else.

A replica that was removed for silence or for being stuck gets twice the patience in its next incarnation: the removal
ended the interval from which a longer deadline would have been learned.

One timer serves all members. It may be early (heartbeats move deadlines, not the timer) and is then set again. If it
fires late, this host itself was suspended for that long: its peers may have sent heartbeats meanwhile, so that time is
not counted as their silence. Being stuck needs no timer: it is judged when a heartbeat arrives.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, assert_never, cast

from isthmus.runtime.clock import Duration, Instant, milliseconds, seconds
from isthmus.runtime.cores.membership_messages import (
    PHASES,
    SILENT,
    AdmitMember,
    Cause,
    Excuse,
    Excused,
    ExcuseEnded,
    HeardAgain,
    HeartbeatArrived,
    HostAnnounced,
    HostEnded,
    KeepsUp,
    LongExcuse,
    MembershipCommand,
    MembershipEvent,
    MembershipTimerFired,
    MemberVerdict,
    NoteMember,
    Pace,
    Phase,
    Refusal,
    Refused,
    RemoveMember,
    SetMembershipTimer,
    Silence,
    SilenceExcused,
    SlowHost,
    Stall,
    State,
    Suspected,
)
from isthmus.runtime.cores.membership_suspicion import Paces, Rhythm, StepProgress, phi, quantile
from isthmus.runtime.errors import CoreSubject, LocalProtocolError, RemoteProtocolError, demand
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.tape.state import Kind

INTERVAL_FIRST: Final = seconds(1)
DEVIATION_FIRST: Final = seconds(2)
"""A new member is suspect after 7.2 s and gone after 15.1 s of silence: it may be importing or compiling."""
DEVIATION_MIN: Final = milliseconds(500)
"""No member is gone before 3.5 s of silence: a busy interpreter or a paused machine is silent for a second or two."""
SILENCE_MAX: Final = seconds(30)
"""A silent member is gone after this, whatever was learned: one long silence must not excuse the next."""
EXCUSED_MAX: Final = seconds(600)
"""The longest excuse for a silence: a process that was stopped and forgotten must not delay a run for ever."""
PROGRESS_DEVIATION_MIN: Final = seconds(2)
"""A host that steps all the time is stuck after at least 14.3 s without a step. A hang lasts for ever, so some seconds
more cost little, and an occasional long firing (a page that was swapped out, a file that is fetched) costs no life."""
FIRING_MAX: Final = seconds(60)
"""A firing that lasts longer, while other nodes step on, hangs: work beside the steps takes a few seconds."""
PROGRESS_DEVIATION_FIRST: Final = seconds(5)
"""The first steps of a host may each compile something: it has at least 35 s for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipOptions:
    """What the verdicts of a membership core depend on. LocalProtocolError for values out of range.

    No option needs to be set: deadlines are learned from arrivals, and these options set the confidence.
    """

    slots_max: Mapping[str, int]
    """Role -> number of its slots."""
    phi_suspect: float = 3.0
    """3 is one wrong suspicion in 1,000 intervals, which costs a line in the status."""
    phi_gone: float = 12.0
    """A wrong removal costs a restart, and real intervals have longer tails than the normal distribution; 8 is
    customary, 12 is recommended for shared machines."""
    phi_stuck: float = 12.0
    """The same for steps."""
    interval_first: Duration = INTERVAL_FIRST
    """The assumed rhythm of a new member."""
    deviation_first: Duration = DEVIATION_FIRST
    """Likewise."""
    deviation_min: Duration = DEVIATION_MIN
    silence_max: Duration = SILENCE_MAX
    excused_max: Duration = EXCUSED_MAX
    progress_deviation_first: Duration = PROGRESS_DEVIATION_FIRST
    progress_deviation_min: Duration = PROGRESS_DEVIATION_MIN
    firing_max: Duration = FIRING_MAX
    z_suspect: float = field(init=False)
    z_gone: float = field(init=False)
    z_stuck: float = field(init=False)

    def __post_init__(self) -> None:
        if not 0.5 <= self.phi_suspect <= self.phi_gone <= 300:
            thresholds = f"{self.phi_suspect} and {self.phi_gone}"
            raise _illegal_option("0.5 <= phi_suspect <= phi_gone <= 300", thresholds)
        if not 0.5 <= self.phi_stuck <= 300:
            raise _illegal_option("0.5 <= phi_stuck <= 300", str(self.phi_stuck))
        durations = ("interval_first", "deviation_first", "deviation_min", "silence_max", "excused_max")
        for name in (*durations, "progress_deviation_first", "progress_deviation_min", "firing_max"):
            if getattr(self, name) <= 0:
                raise _illegal_option(f"{name} above 0 ns", str(getattr(self, name)))
        object.__setattr__(self, "z_suspect", quantile(self.phi_suspect))
        object.__setattr__(self, "z_gone", quantile(self.phi_gone))
        object.__setattr__(self, "z_stuck", quantile(self.phi_stuck))


def _illegal_option(expected: str, found: str) -> LocalProtocolError:
    return LocalProtocolError(f"membership options: expected {expected}, found {found}. Change them.")


class Endurance(NamedTuple):
    """How long something has lasted, and may."""

    lasted: Duration
    limit: Duration


NEVER: Final = Instant(0)
FOREVER: Final = Instant(1 << 62)
"""A century and a half."""
STEPS_MAX: Final = 50
"""Steps that a firing of another node may last: it may wait for the device that computes them, for a few."""


@dataclass(slots=True)
class Attendance:
    """A member, with its last sign of life at `heard_at`; `rhythm` is that of its heartbeats.

    `silent_times` and `stuck_times` multiply its patience, after incarnations of its replica that were removed for the
    same cause.

    It computes deadlines and findings; the core decides what follows when a deadline passes. Times are nanoseconds.
    """

    member: Member
    phase: Phase
    heard_at: Instant
    rhythm: Rhythm
    progress: StepProgress
    silent_times: int
    stuck_times: int
    state: State = "alive"
    excused_at: Instant = NEVER

    @property
    def is_excused(self) -> bool:
        """Whether its silence has a known outside cause."""
        return self.state in ("stopped", "unheard", "away")

    @property
    def is_stepping(self) -> bool:
        """Whether it is alive and reports that it steps."""
        return self.state == "alive" and self.phase == "stepping"

    @property
    def shown(self) -> State:
        """Its state as others see it: `slow` for one that is alive and steps slowly."""
        return "slow" if self.is_stepping and self.progress.is_slow else self.state

    def deadline(self, state: State, options: MembershipOptions) -> Instant:
        """When it leaves `state`, if it stays silent."""
        least = options.deviation_min
        if state == "away":  # How long the user's code may last is not decided here.
            return FOREVER
        if state in ("stopped", "unheard"):
            return Instant(self.excused_at + options.excused_max)
        if state == "suspect":
            patience = math.ceil(self.rhythm.patience(options.z_gone, least) * self.silent_times)
        else:
            patience = math.ceil(self.rhythm.patience(options.z_suspect, least))
        return Instant(self.heard_at + min(patience, options.silence_max))

    def silence(self, now: Instant, options: MembershipOptions) -> Silence:
        """The finding for a silence that is too long."""
        silence, deviation = now - self.heard_at, self.rhythm.deviation(options.deviation_min)
        return Silence(
            silence,
            self.rhythm.mean,
            deviation,
            phi(silence, self.rhythm.mean, deviation),
            self.silent_times,
            silence >= options.silence_max,
        )

    def end_of_patience(self, now: Instant, options: MembershipOptions) -> Silence | LongExcuse:
        """The finding for a silence that has lasted as long as allowed."""
        if self.is_excused:
            return LongExcuse(now - self.heard_at, cast(Excuse, self.state), now - self.excused_at)
        return self.silence(now, options)

    def hung(self, node: str, now: Instant, options: MembershipOptions) -> Stall | None:
        """The finding for a host that steps on while one firing of `node` lasts too long; None if it does not."""
        rhythm, firing = self.progress.rhythm, self.progress.lasting(now)
        if rhythm is None or firing < max(options.firing_max, STEPS_MAX * rhythm.mean) * self.stuck_times:
            return None
        deviation = rhythm.deviation(float(options.progress_deviation_min))
        suspicion = phi(firing, rhythm.mean, deviation)
        return Stall(node, firing, rhythm.mean, deviation, suspicion, patience_times=self.stuck_times)

    def step_patience(self, usual: float | None, options: MembershipOptions) -> Duration | None:
        """How long it may make no step in one firing; `usual` as in `stuck`."""
        steps = self._usual_steps(usual, options)
        return None if steps is None else self._step_patience(*steps, options)

    def _step_patience(self, rhythm: Rhythm, least: float, options: MembershipOptions) -> Duration:
        return Duration(math.ceil(rhythm.patience(options.z_stuck, least) * self.stuck_times))

    def _usual_steps(self, usual: float | None, options: MembershipOptions) -> tuple[Rhythm, float] | None:
        """The rhythm by which its steps are judged, with the least deviation of that."""
        if self.progress.rhythm is not None:
            return self.progress.rhythm, float(options.progress_deviation_min)
        first = float(options.progress_deviation_first)
        return None if usual is None else (Rhythm(usual, first**2), first)

    def stuck(
        self, firing: Duration, node: str, usual: float | None, now: Instant, options: MembershipOptions
    ) -> Stall | None:
        """The finding for a host that is stuck in a firing of `node` that lasts `firing`; None if it is not.

        `usual` is the mean interval of steps in its role, for a member that has made none; without it such a member
        cannot be judged: None.
        """
        steps, stalled = self._usual_steps(usual, options), self.progress.stalled(firing, now)
        if steps is None or stalled < self._step_patience(*steps, options):
            return None
        rhythm, least = steps
        deviation = rhythm.deviation(least)
        suspicion = phi(stalled, rhythm.mean, deviation)
        return Stall(node, stalled, rhythm.mean, deviation, suspicion, self.progress.rhythm is None, self.stuck_times)


DOUBLINGS_MAX: Final = 6
"""Sixty-four times the patience is at least a quarter of an hour, for a step that usually takes milliseconds."""

STATE: Final = Kind(("cores", "ids"), arguments=(MembershipOptions,))


class MembershipCore:
    """The members of one run as one host sees them, at most `slots_max` of each role."""

    def __init__(self, options: MembershipOptions) -> None:
        self._options = options
        self._now = Instant(0)
        self._hosts: dict[Replica, Attendance] = {}
        self._newest: dict[Replica, int] = {}  # The highest incarnation seen, live or not.
        self._removals: Counter[tuple[Replica, Cause]] = Counter()
        self._usual: dict[str, float] = {}  # Role -> mean step interval of the member that made the last step.
        self._paces: dict[str, Paces] = {}
        """By role, of those that step: after each event those of whoever it was about."""
        self._timer_at: Instant | None = None
        names = ["members admitted", "members removed", "members refused", "suspicions", "suspicions cleared"]
        names += ["silences excused", "slow", "slow no more", "stuck"]
        self._counts = dict.fromkeys([*names, "heartbeats", "announcements repeated", "ends ignored", "timers"], 0)

    def handle(self, event: MembershipEvent, now: Instant) -> list[MembershipCommand]:
        """Commands that follow from `event` at time `now`, in order of execution.

        Raises, with the state as it was, LocalProtocolError for time that runs backwards, and RemoteProtocolError for
        an unknown phase, an incarnation below 1, or figures below 0.
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
            case SilenceExcused():
                commands = self._excuse(event, now)
            case ExcuseEnded():
                commands = self._end_excuse(event.member, now)
            case MembershipTimerFired():
                commands = self._fire(now)
            case _:
                assert_never(event)
        if not isinstance(event, MembershipTimerFired):
            self._keep_pace(event.member.replica)
        self._now = now
        return commands

    def roster(self) -> tuple[tuple[Member, Phase, State], ...]:
        """Every member with its phase and state, sorted."""
        return tuple((host.member, host.phase, host.shown) for _, host in sorted(self._hosts.items()))

    def members(self, role: str) -> tuple[Member, ...]:
        """The members of a role, suspects among them, by slot."""
        return tuple(member for member, _, _ in self.roster() if member.replica.role == role)

    def has(self, member: Member) -> bool:
        """Whether this life is a member."""
        host = self._hosts.get(member.replica)
        return host is not None and host.member == member

    def state(self, replica: Replica) -> State | None:
        """The state of the member of a replica; None if it has none."""
        host = self._hosts.get(replica)
        return None if host is None else host.shown

    def silence(self, member: Member, now: Instant) -> Endurance | None:
        """How long a member that is suspect has been silent, and may be; None for any other."""
        host = self._hosts.get(member.replica)
        if host is None or host.member != member or host.state != "suspect":
            return None
        limit = host.deadline("suspect", self._options) - host.heard_at
        return Endurance(Duration(max(0, now - host.heard_at)), Duration(limit))

    def stall(self, member: Member, now: Instant) -> Endurance | None:
        """How long a member that steps has made no step in one firing, by its last heartbeat, and may; None for any
        other, and where nothing is usual yet."""
        host = self._hosts.get(member.replica)
        if host is None or host.member != member or not host.is_stepping:
            return None
        limit = host.step_patience(self._usual.get(member.replica.role), self._options)
        return None if limit is None else Endurance(host.progress.last_stalled(now), limit)

    def has_ended(self, member: Member) -> bool:
        """Whether this incarnation was removed, was reported as ended, or is older than the newest seen."""
        host = self._hosts.get(member.replica)
        is_live = host is not None and host.member == member
        return not is_live and member.incarnation <= self._newest.get(member.replica, 0)

    def late(self, now: Instant) -> tuple[Member, ...]:
        """The members that the timer would suspect or remove at `now`, unless their silence is excused meanwhile."""
        hosts = [host for _, host in sorted(self._hosts.items())]
        return tuple(
            host.member for host in hosts if not host.is_excused and now >= host.deadline(host.state, self._options)
        )

    def suspicion(self, replica: Replica, now: Instant) -> float:
        """phi of a member's silence at `now`; KeyError if the replica is absent."""
        host = self._hosts[replica]
        return phi(now - host.heard_at, host.rhythm.mean, host.rhythm.deviation(self._options.deviation_min))

    def statistics(self) -> dict[str, int]:
        """Counts since the start, and the present numbers of members and suspects."""
        suspects = sum(host.state == "suspect" for host in self._hosts.values())
        return self._counts | {"members": len(self._hosts), "suspects": suspects}

    # -- events --------------------------------------------------------------------------------------------------------

    def _announce(self, event: HostAnnounced, now: Instant) -> list[MembershipCommand]:
        member, options = event.member, self._options
        _check_peer(event)
        if not self._has_slot(member.replica):
            return self._refuse(member, "no slot")
        if event.phase == "gone":
            return self._refuse(member, "gone")
        host = self._hosts.get(member.replica)
        if host is not None and host.member == member:
            self._counts["announcements repeated"] += 1
            return self._mark_heard(host, event.phase, now)
        if member.incarnation <= self._newest.get(member.replica, 0):
            return self._refuse(member, self._history(member))
        commands = self._remove(host, "ended") if host is not None else []
        self._newest[member.replica] = member.incarnation
        host = self._hosts[member.replica] = Attendance(
            member,
            event.phase,
            now,
            Rhythm(float(options.interval_first), float(options.deviation_first) ** 2),
            StepProgress(now),
            silent_times=self._times(member.replica, "silent"),
            stuck_times=self._times(member.replica, "stuck"),
        )
        self._counts["members admitted"] += 1
        return [*commands, AdmitMember(member), *self._arm(host.deadline(host.state, self._options))]

    def _beat(self, event: HeartbeatArrived, now: Instant) -> list[MembershipCommand]:
        member = event.member
        _check_peer(event)
        host = self._hosts.get(member.replica)
        if host is None or host.member != member:
            return self._refuse(member, self._history(member))
        self._counts["heartbeats"] += 1
        if event.phase == "gone":
            return self._remove(host, "ended")
        # An excused silence does not count as an interval.
        if not host.is_excused:
            host.rhythm.learn(float(min(now - host.heard_at, self._options.silence_max)))
        was_stepping = host.is_stepping
        commands = self._mark_heard(host, event.phase, now)
        if was_stepping and event.phase == "stepping":
            return commands + self._get_on(host, event, now)
        host.progress.begin(event.steps, event.busy, now)
        return commands

    def _get_on(self, host: Attendance, event: HeartbeatArrived, now: Instant) -> list[MembershipCommand]:
        """Judge the progress of a stepping host by its heartbeat."""
        progress, role = host.progress, host.member.replica.role
        first = float(self._options.progress_deviation_first)
        if progress.record(event.steps, event.busy, event.firing, now, first):
            assert progress.rhythm is not None
            hang = host.hung(event.node, now, self._options)
            if hang is not None:
                self._counts["stuck"] += 1
                return self._remove(host, "stuck", hang)
            self._usual[role] = progress.rhythm.mean
            return self._compare(host, now)
        stall = host.stuck(event.firing, event.node, self._usual.get(role), now, self._options)
        if stall is None:
            return []
        self._counts["stuck"] += 1
        return self._remove(host, "stuck", stall)

    def _compare(self, host: Attendance, now: Instant) -> list[MembershipCommand]:
        """Report whether a stepping host has become slow, or keeps up again."""
        replica = host.member.replica
        self._keep_pace(replica)
        paces = self._paces.get(replica.role, Paces())
        usual = paces.median_without(replica.slot)
        if not host.progress.compare(usual, now):
            return []
        assert host.progress.pace is not None
        assert usual is not None
        pace = Pace(host.progress.pace, usual, len(paces) - 1)
        if host.progress.is_slow:
            self._counts["slow"] += 1
            return [NoteMember(host.member, SlowHost(pace))]
        self._counts["slow no more"] += 1
        return [NoteMember(host.member, KeepsUp(pace))]

    def _keep_pace(self, replica: Replica) -> None:
        host = self._hosts.get(replica)
        pace = host.progress.pace if host is not None and host.is_stepping else None
        if pace is not None or replica.role in self._paces:
            self._paces.setdefault(replica.role, Paces()).put(replica.slot, pace)

    def _end(self, event: HostEnded) -> list[MembershipCommand]:
        member = event.member
        if self._has_slot(member.replica):
            self._newest[member.replica] = max(member.incarnation, self._newest.get(member.replica, 0))
        host = self._hosts.get(member.replica)
        if host is None or member.incarnation < host.member.incarnation:
            self._counts["ends ignored"] += 1
            return []
        return self._remove(host, "ended")

    def _excuse(self, event: SilenceExcused, now: Instant) -> list[MembershipCommand]:
        host = self._hosts.get(event.member.replica)
        if host is None or host.member != event.member or host.state == event.excuse:
            return []
        if not host.is_excused:
            host.excused_at = now
        host.state = event.excuse
        self._counts["silences excused"] += 1
        silence = Duration(now - host.heard_at)
        return [
            NoteMember(host.member, Excused(event.excuse, silence)),
            *self._arm(host.deadline(host.state, self._options)),
        ]

    def _end_excuse(self, member: Member, now: Instant) -> list[MembershipCommand]:
        host = self._hosts.get(member.replica)
        if host is None or host.member != member or not host.is_excused:
            return []
        host.state, host.heard_at = "suspect", now
        self._counts["suspicions"] += 1
        return [NoteMember(member, Suspected()), *self._arm(host.deadline(host.state, self._options))]

    def _fire(self, now: Instant) -> list[MembershipCommand]:
        """Judge the silence of every member, less the time by which the timer is late."""
        self._counts["timers"] += 1
        late = 0 if self._timer_at is None else max(0, now - self._timer_at)
        self._timer_at = None
        commands: list[MembershipCommand] = []
        for _, host in sorted(self._hosts.items()):
            host.heard_at = Instant(min(now, host.heard_at + late))
            host.excused_at = Instant(min(now, host.excused_at + late))
            last = host.state if host.state in SILENT else "suspect"
            if now >= host.deadline(last, self._options):
                commands += self._remove(host, "silent", host.end_of_patience(now, self._options))
            elif host.state == "alive" and now >= host.deadline("alive", self._options):
                host.state = "suspect"
                self._counts["suspicions"] += 1
                commands.append(NoteMember(host.member, Suspected(host.silence(now, self._options))))
            else:
                continue
            self._keep_pace(host.member.replica)
        deadlines = [host.deadline(host.state, self._options) for host in self._hosts.values()]
        return commands + (self._arm(min(deadlines)) if deadlines else [])

    # -- members -------------------------------------------------------------------------------------------------------

    def _has_slot(self, replica: Replica) -> bool:
        return 0 <= replica.slot < self._options.slots_max.get(replica.role, 0)

    def _history(self, member: Member) -> Refusal:
        """Why `member`, which is not live, is refused."""
        newest = self._newest.get(member.replica, 0)
        if member.incarnation < newest:
            return "older incarnation"
        return "ended incarnation" if member.incarnation == newest else "unannounced"

    def _refuse(self, member: Member, refusal: Refusal) -> list[MembershipCommand]:
        self._counts["members refused"] += 1
        return [NoteMember(member, Refused(refusal))]

    def _remove(self, host: Attendance, cause: Cause, finding: MemberVerdict | None = None) -> list[MembershipCommand]:
        del self._hosts[host.member.replica]
        self._counts["members removed"] += 1
        self._removals[host.member.replica, cause] += 1
        return [RemoveMember(host.member, cause, finding)]

    def _times(self, replica: Replica, cause: Cause) -> int:
        """The multiple of the usual patience that the next incarnation of a replica gets."""
        return 1 << min(self._removals[replica, cause], DOUBLINGS_MAX)

    def _mark_heard(self, host: Attendance, phase: Phase, now: Instant) -> list[MembershipCommand]:
        """Restart a member's silence, and clear a suspicion."""
        commands: list[MembershipCommand] = []
        if host.state in SILENT:
            host.state = "alive"
            self._counts["suspicions cleared"] += 1
            commands.append(NoteMember(host.member, HeardAgain(now - host.heard_at)))
        host.phase, host.heard_at = phase, now
        return commands + self._arm(host.deadline(host.state, self._options))

    def _arm(self, at: Instant) -> list[MembershipCommand]:
        """Make the timer fire at `at` or before."""
        if self._timer_at is not None and self._timer_at <= at:
            return []
        self._timer_at = at
        return [SetMembershipTimer(at)]

    # -- invariants ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise InvariantError unless every member has a slot, a deadline and the newest incarnation of its replica."""
        for replica in self._newest:
            _demand(self._has_slot(replica), (CoreSubject("replica", replica),), "{} is known and has no slot", replica)
        for replica, host in self._hosts.items():
            about = (CoreSubject("replica", replica),)
            newest, rhythm = self._newest.get(replica), host.rhythm
            _demand(host.member.replica == replica, about, "{} is kept as {}", host.member, replica)
            _demand(
                host.member.incarnation == newest,
                about,
                "{} is live, the newest incarnation is {}",
                host.member,
                newest,
            )
            _demand(host.phase != "gone", about, "{} is live in phase gone", host.member)
            _demand(
                host.heard_at <= self._now,
                about,
                "{} was heard at {} ns, after {} ns",
                host.member,
                host.heard_at,
                self._now,
            )
            is_rhythm = rhythm.mean >= 0 and rhythm.variance >= 0
            _demand(is_rhythm, about, "{} has {} ns, {} ns^2", host.member, rhythm.mean, rhythm.variance)
            deadline = host.deadline(host.state, self._options)
            is_armed = self._timer_at is not None and self._timer_at <= deadline
            _demand(is_armed, about, "{} is due at {} ns, the timer is at {} ns", host.member, deadline, self._timer_at)
            pace = host.progress.pace if host.is_stepping else None
            kept = self._paces.get(replica.role, Paces()).of(replica.slot)
            _demand(kept == pace, about, "{} has the pace {}, {} is kept", host.member, pace, kept)
        live = len(self._hosts) + self._counts["members removed"]
        _demand(
            live == self._counts["members admitted"], (), "{} members live or removed, not as many as admitted", live
        )


def _check_peer(event: HostAnnounced | HeartbeatArrived) -> None:
    """Raise RemoteProtocolError for values that no host of this version sends."""
    member, doing = event.member, f"hearing {event.member}"
    if event.phase not in PHASES:
        expected = f"expected a phase, one of {', '.join(PHASES)}"
        raise RemoteProtocolError(f"{doing}: {expected}, found {event.phase!r}. Use one version everywhere.")
    if member.incarnation < 1:
        raise RemoteProtocolError(f"{doing}: expected an incarnation from 1 on. Use one version everywhere.")
    if isinstance(event, HeartbeatArrived) and min(event.steps, event.busy, event.firing) < 0:
        raise RemoteProtocolError(f"{doing}: expected figures from 0 on. Use one version everywhere.")


def _illegal(action: str, expected: str, found: str, remedy: str) -> LocalProtocolError:
    return LocalProtocolError(f"{action}: expected {expected}, found {found}. {remedy}")


_demand: Final = partial(demand, "membership")
