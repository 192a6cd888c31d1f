"""The core of a run's home: which life of which replica is to be, when the next begins, and when the run is over.

It decides for the whole run. What becomes of processes is for the stations of the machines (`station`), of which home
has one like any other; where replicas are, for its `fleet`; who is silent, stuck or slow, for its `roll`.

Theory of operation. A life is numbered, noted, tracked on its machine, seen there by a report, heard, and gone. Its end
is followed by the next life, after a back-off (`restarts`), on the machine where its replica was placed or, once that
is lost or taken away, on one that offers its role. A learner belongs to the islands of its machine, and waits for it.
A member that is silent or stuck is condemned: its station kills it, and its end is then followed like any other.

What was confirmed to anybody is in the journal before it is done: that the run is to stop, how it ended, where replicas
were moved to, who was retired. A daemon that takes over reads it, tracks the newest life of each replica as if nothing
had happened, and learns from the stations which of them are there; of these none is begun, for nobody knows whether
and where it was. It tells no roster until all have spoken that may be there (ADOPT), for whoever is missing in a roster
is gone. Where the ledger was lost, stations and hosts say which lives there were, and numbers go on far beyond them.

The end: the recorder says that all is over, or somebody has the run ended. Hosts are told to end, after EXIT they are
killed, and after ABANDON more, other machines are waited for no longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, assert_never

from isthmus.runtime.clock import Duration, Instant, seconds
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.presence import Excuse, HeartbeatArrived, HostAnnounced, HostEnded, Phase, Stall
from isthmus.runtime.supervision import incidents
from isthmus.runtime.supervision.fleet import Fleet, demand
from isthmus.runtime.supervision.home_events import (
    Cast,
    EndAsked,
    FinishRun,
    HomeBeat,
    HomeBegan,
    HomeCommand,
    HomeEvent,
    HomeTimerFired,
    Journal,
    MachineJoined,
    MachineTakenAway,
    NoteJournal,
    Outcome,
    Places,
    ReportCame,
    SendOrders,
    SetHomeTimer,
    StopAsked,
    Taken,
    WriteIncident,
)
from isthmus.runtime.supervision.machine import Machine
from isthmus.runtime.supervision.messages import Gone, Report, Row, Seen, Stamp
from isthmus.runtime.supervision.restarts import BACKOFF_SECONDS, Restarts
from isthmus.runtime.supervision.roll import PATIENCE, Findings, Roll
from isthmus.runtime.supervision.station_events import LivesNoted, LivesNotNoted, NoteFound, NoteLives
from isthmus.runtime.topology import LEARNER

SERVING: Final[frozenset[Phase]] = frozenset({"stepping", "serving", "final"})
"""The phases of a host that does what it is there for."""
ADOPT: Final = seconds(11)
"""How long a new daemon waits for hosts that may be there to find it, which they do within a few seconds; a second more
than a station whose ledger was lost."""
EXIT: Final = seconds(10)
"""How long hosts may take to end when they are told to; then they are killed."""
ABANDON: Final = seconds(5)
"""How long other machines may take to tell that their hosts are gone, once all are to be killed."""
HELLO_BEATS: Final = 120
"""A minute for a process to say hello, which is two seconds of imports where nobody is in the way."""
BEAT: Final = seconds(0.5)
DAEMON: Final = Member(Replica("daemon", 0), 1)
"""Of whom an incident is that is about no host."""
NUMBERS_SKIPPED: Final = 1000
"""Beyond the highest number that anybody knows, after a ledger was lost: a replica whose lives end again and again is
given up long before."""


@dataclass(slots=True)
class Life:
    """A tracked life that a station has seen, on `machine`."""

    member: Member
    machine: str
    seen: Seen
    served_at: Instant | None = None
    unspoken_beats: int = 0
    verdict: incidents.Verdict | None = None


class Home:
    """The core of one run. `patience` is how long a silent host is waited for, at most."""

    def __init__(self, cast: Cast, places: Places, *, patience: Duration = PATIENCE) -> None:
        self.outcome: Outcome = "running"
        self.failure: incidents.Failure | None = None
        self.is_stopping = self.is_ending = self.is_finished = False
        self.fleet = Fleet(cast, places)
        self.lives: dict[Replica, Life] = {}
        self.used: dict[str, float] = {}
        self._roll = Roll(self.fleet.slots_max, patience, self._excuse, self._described)
        self._restarts = Restarts()
        self._newest: dict[Replica, int] = {}
        self._floor = 0
        self._stamp = Stamp(1)
        self._noting: set[Replica] = set()
        self._due: dict[Replica, Instant] = {}
        self._adopting: set[Replica] = set()
        self._adopt_until: Instant | None = None
        self._exit_at: Instant | None = None
        self._abandon_at: Instant | None = None
        self._timer_at: Instant | None = None
        self._is_unsure = False
        self._reasons: dict[Replica, incidents.Incident] = {}
        self._now = Instant(0)
        self._commands: list[HomeCommand] = []
        self._has_news = self._has_changed = False

    def handle(self, event: HomeEvent, now: Instant) -> list[HomeCommand]:
        """What `event` at `now` leads to, in order."""
        self._now = Instant(max(now, self._now))
        self._commands = []
        match event:
            case HomeBegan():
                self._begin(event)
            case ReportCame():
                self._hear(event.machine, event.report)
            case HomeBeat():
                self._beat()
            case HomeTimerFired():
                self._fire()
            case StopAsked():
                self._stop()
            case EndAsked():
                self._end_run("failed", event.failure)
            case MachineJoined():
                self._join(event.machine, event.islands)
            case MachineTakenAway():
                self._take_away(event.machine, event.how)
            case LivesNoted():
                self._noted(event.members)
            case LivesNotNoted():
                self._not_noted(event)
            case _:
                assert_never(event)
        self._finish_if_alone()
        if self._has_changed:  # Before anything else, so that what is done is known to the next daemon.
            self._commands.insert(0, NoteJournal(self._journal()))
            self._has_changed = False
        if self._has_news:
            self._order()
        self._arm()
        return self._commands

    # -- what is asked of it -------------------------------------------------------------------------------------------

    def state(self, replica: Replica) -> str:
        """'starting', 'alive', 'slow', 'suspect', 'stopped', 'unheard', 'stuck' or 'gone', or how it was retired."""
        known = self.fleet.retired.get(replica) or self._roll.state(replica)
        if known is not None:
            return known
        why = self._reasons.get(replica)
        if not isinstance(why, incidents.Condemned | incidents.Ended):
            return "starting"
        return "stuck" if isinstance(why.verdict, Stall) else "gone"

    def reason(self, replica: Replica) -> incidents.Incident | None:
        """The incident that explains its state, if one does."""
        return self._reasons.get(replica)

    def incarnation(self, replica: Replica) -> int:
        """The number of its newest life; 0 if it has had none."""
        return self._newest.get(replica, 0)

    # -- beginning -----------------------------------------------------------------------------------------------------

    def _begin(self, event: HomeBegan) -> None:
        """Take over what a daemon before this one has left, and start the rest."""
        fleet = self.fleet
        self._newest = {member.replica: member.incarnation for member in event.newest}
        if event.journal is not None:
            self._recall(event.journal)
        fleet.know(self._newest)
        self._has_changed = True
        self._is_unsure = event.is_lost
        expected = [replica for replica in fleet.replicas if fleet.is_expected(replica)]
        known = [] if self._is_unsure else [replica for replica in expected if replica in self._newest]
        for replica in known:
            fleet.of(replica).track(Member(replica, self._newest[replica]))
        self._adopting = set(expected) if self._is_unsure else set(known)
        if self._adopting or self._is_unsure:
            self._adopt_until = Instant(self._now + ADOPT)
        if self.outcome != "running":
            self._end_run(self.outcome, self.failure)
        self._start([replica for replica in fleet.replicas if replica not in known])
        self._has_news = True

    def _recall(self, journal: Journal) -> None:
        self.is_stopping, self.outcome, self.failure = journal.is_stopping, journal.outcome, journal.failure
        self.used, self._floor = dict(journal.used), journal.number_least
        self._stamp = Stamp(journal.epoch + 1)
        self.fleet.recall(journal.machines, journal.away, journal.retired)

    def _adopted_all(self) -> None:
        """Hosts that have not spoken by now are waited for no longer than any other, and are members until they are
        found to be gone: a roster that lacks them would say so to all others, for good."""
        adopting = sorted(self._adopting)
        self._adopting.clear()
        for replica in adopting:
            if self.fleet.is_tracked(replica):
                member = Member(replica, self._newest[replica])
                self._find(self._roll.take(HostAnnounced(member, "starting"), self._now))
        self._adopt_until = None
        if self._is_unsure:
            self._is_unsure = False
            self._floor = NUMBERS_SKIPPED + max(self._newest.values(), default=0)
            self._has_changed = True
            self._write(DAEMON, incidents.NumbersLost(self._floor + 1))
            self._commands.append(NoteFound())
            self._start(self.fleet.replicas)
        self._has_news = True

    # -- lives begin ---------------------------------------------------------------------------------------------------

    def _start(self, replicas: list[Replica]) -> None:
        """Begin the next life of each that has none and is to have one: take its number, before anything else. While
        nobody knows which numbers there were, none is taken."""
        for replica in replicas:
            self._due.pop(replica, None)
        if self._is_unsure or self.is_ending:
            return
        idle = [each for each in replicas if each not in self._noting and not self.fleet.is_tracked(each)]
        fresh = [each for each in idle if each not in self.fleet.retired]
        if fresh:
            self._noting.update(fresh)
            numbers = {replica: 1 + max(self._floor, self._newest.get(replica, 0)) for replica in fresh}
            self._commands.append(NoteLives(tuple(Member(*each) for each in numbers.items())))

    def _has_place(self, replica: Replica) -> bool:
        """Whether there is a machine for the next life of a replica; without one the run fails."""
        before = self.fleet.name(replica)
        has_place = self.fleet.relocate(replica)
        self._has_changed |= self.fleet.name(replica) != before
        if not has_place:
            why = self._reasons.get(replica)
            last = why if isinstance(why, incidents.Ended) else incidents.Ended(incidents.Unseen())
            self._end_run("failed", incidents.Homeless(str(replica), last))
        return has_place

    def _noted(self, members: tuple[Member, ...]) -> None:
        """The numbers are theirs: the lives may be, where there is a machine for them. No replica is moved before this,
        because the next daemon looks for the life of the newest number where the journal says."""
        for member in members:
            replica, is_next = member.replica, member.replica in self._noting
            self._noting.discard(replica)
            self._newest[replica] = max(member.incarnation, self._newest.get(replica, 0))
            if is_next and not self.is_ending and replica not in self.fleet.retired and self._has_place(replica):
                self.fleet.of(replica).track(member, is_new=True)
        self._has_news = True

    def _not_noted(self, event: LivesNotNoted) -> None:
        """The disk takes no number now; it may later."""
        for member in event.members:
            self._noting.discard(member.replica)
            if not self.fleet.is_tracked(member.replica):
                self._reasons[member.replica] = incidents.Delayed(event.error)
                self._due[member.replica] = Instant(self._now + seconds(BACKOFF_SECONDS[-1]))

    # -- lives are seen ------------------------------------------------------------------------------------------------

    def _hear(self, name: str, report: Report) -> None:
        """Take what a station says."""
        machine = self.fleet.machines.get(name)
        if machine is None:  # It took part, and what was noted of that is lost; or it takes part no more.
            machine = self.fleet.machines[name] = Machine(name, is_away=not self._is_unsure)
            self._has_news = True
        if machine.is_away:
            return
        machine.heard()
        if report.obeyed > self._stamp:  # What an earlier daemon has noted was lost.
            self._stamp = Stamp(report.obeyed.epoch + 1)
            self._has_changed = self._has_news = True
        if self._is_unsure:
            self._learn(machine, report)
        for seen in report.lives:
            if machine.has(seen.member):
                self._see(machine, seen)
        for gone in report.ended:
            if machine.has(gone.member):
                self._bury(machine, gone)

    def _learn(self, machine: Machine, report: Report) -> None:
        """Believe what a station says of lives, where nobody else knows any more which there are."""
        for known in (*report.newest, *(seen.member for seen in report.lives)):
            replica = known.replica
            if known.incarnation > self._newest.get(replica, 0):
                self._newest[replica] = known.incarnation
                for former in [each for each in self.fleet.machines.values() if replica in each.tracked]:
                    self._bury(former, Gone(Member(replica, former.tracked[replica]), incidents.Unseen()))
        for seen in report.lives:
            replica = seen.member.replica
            if seen.member.incarnation == self._newest[replica] and not self.fleet.is_tracked(replica):
                self.fleet.know([replica])
                if machine.name != self.fleet.name(replica):
                    self.fleet.place(replica, machine.name)
                    self._has_changed = True
                machine.track(seen.member)
                self._commands.append(NoteLives((seen.member,)))

    def _see(self, machine: Machine, seen: Seen) -> None:
        """A life is there."""
        member, replica = seen.member, seen.member.replica
        life = self.lives.get(replica)
        machine.fresh.discard(replica)  # It was begun: a station that knows nothing of it is not to begin it again.
        if life is None or life.member != member:
            life = self.lives[replica] = Life(member, machine.name, Seen(member, seen.pid))
            if replica in self._adopting or self._roll.has(member):
                self._write(member, incidents.Adopted())
            elif member.incarnation > 1:
                self._write(member, incidents.Restarted())
        if not seen.beats and life.seen.beats:  # Its station is new, and has not heard it yet.
            known = life.seen
            seen = Seen(member, seen.pid, 0, seen.is_stopped, known.error, known.said, known.over)
        before, life.seen = life.seen, seen
        if seen.error and not before.error and not self.is_ending:
            self._write(member, incidents.BodyFailed(seen.error))
        if seen.said.phase in SERVING and life.served_at is None:
            life.served_at = self._now
        if seen.beats and seen.beats != before.beats and replica not in machine.condemned:
            self._hear_host(seen)
        if seen.over is not None and not self.is_ending:
            failure = None if seen.over.error is None else incidents.RecorderFailed(seen.over.error)
            self._settle("failed" if failure else "stopped" if self.is_stopping else "done", failure)

    def _hear_host(self, seen: Seen) -> None:
        """A host spoke: the first time it is let in, and all are told."""
        member, said = seen.member, seen.said
        self._adopting.discard(member.replica)
        if self._roll.has(member):
            beat = HeartbeatArrived(member, said.phase, said.steps, said.busy, said.firing, said.node)
            self._find(self._roll.take(beat, self._now))
        elif not self.is_ending:
            self._reasons.pop(member.replica, None)
            self._find(self._roll.take(HostAnnounced(member, said.phase), self._now))

    def _find(self, found: Findings) -> None:
        """Do what the roll has found."""
        self._has_news |= found.has_changed
        for member, incident in found.written:
            self._write(member, incident)
        for member, verdict in found.condemned:
            if not self.is_ending:  # One that ends with the run is silent while it writes what it has.
                self._condemn(member, verdict)

    def _condemn(self, member: Member, verdict: incidents.Verdict | None) -> None:
        """Have a life killed, so that the next can take its place."""
        life, machine = self.lives.get(member.replica), self.fleet.of(member.replica)
        if not machine.has(member) or member.replica in machine.condemned:
            return
        machine.condemned.add(member.replica)
        self._has_news = True
        if life is not None and verdict is not None:
            life.verdict = verdict
            self._write(member, incidents.Condemned(verdict))

    def _excuse(self, member: Member) -> Excuse | None:
        """What excuses the silence of a member; when the run comes to its end, nothing does."""
        life, machine = self.lives.get(member.replica), self.fleet.of(member.replica)
        if self._is_coming_to_its_end():
            return None
        if machine.name != self.fleet.home and machine.is_silent:
            return "unheard"
        return "stopped" if life is not None and life.seen.is_stopped else None

    def _described(self, member: Member) -> tuple[int, str]:
        life, name = self.lives.get(member.replica), self.fleet.name(member.replica)
        return 0 if life is None else life.seen.pid, "" if name == self.fleet.home else name

    def _is_coming_to_its_end(self) -> bool:
        return self.is_stopping or any(life.seen.said.phase == "final" for life in self.lives.values())

    # -- lives end -----------------------------------------------------------------------------------------------------

    def _bury(self, machine: Machine, gone: Gone) -> None:
        """A life is over; the next one takes its place, unless the run is ending."""
        member, replica = gone.member, gone.member.replica
        machine.forget(member)
        life = self.lives.pop(replica, None)
        for name, value in (("cpu_seconds", gone.cpu_seconds), ("bytes_sent", float(gone.bytes_sent))):
            key = f"{replica.role}.{name}"
            self.used[key] = self.used.get(key, 0.0) + value
        self._adopting.discard(replica)
        self._has_changed = True
        ended = incidents.Ended(gone.end, None if life is None else life.verdict, gone.error)
        self._reasons[replica] = ended
        if not self.is_ending:
            self._write(member, ended)
        self._find(self._roll.take(HostEnded(member), self._now))
        self._has_news = True
        if not self.is_ending and not (self.is_stopping and replica.role == LEARNER and self._has_learner()):
            self._follow(member, None if life is None else life.served_at, ended)

    def _has_learner(self) -> bool:
        """Whether a learner is there that can give the last answers, so that a restart would only delay the end."""
        learners = (life for life in self.lives.values() if life.member.replica.role == LEARNER)
        return any(life.seen.said.phase in SERVING for life in learners)

    def _follow(self, former: Member, served_at: Instant | None, ended: incidents.Ended) -> None:
        """Begin the next life of a replica in time, unless lives of it end again and again."""
        replica = former.replica
        if replica in self.fleet.retired:
            return
        if isinstance(ended.end, incidents.MachineLost | incidents.MachineTaken):
            self._start([replica])  # It is not the program that is at fault.
            return
        if isinstance(ended.end, incidents.NotStarted):  # Nor here: there may be room later.
            self._due[replica] = Instant(self._now + seconds(BACKOFF_SECONDS[-1]))
            return
        delay = self._restarts.delay(replica, served_at, self._now)
        if delay is None:
            self._give_up(former, ended)
        elif delay:
            self._due[replica] = Instant(self._now + delay)
        else:
            self._start([replica])

    def _give_up(self, former: Member, ended: incidents.Ended) -> None:
        """Try no further life of a replica: the others go on, where they can."""
        replica, lives = former.replica, self._restarts.failures(former.replica)
        if not self.fleet.is_spare(replica):
            self._end_run("failed", incidents.Hopeless(str(replica), lives, ended))
            return
        self.fleet.retired[replica] = "given up"
        self._write(former, incidents.GivenUp(lives, ended))
        self._has_changed = True

    # -- machines ------------------------------------------------------------------------------------------------------

    def _join(self, name: str, islands: int) -> None:
        """Let a machine take part, with learners in the next slots that are free."""
        if self.is_stopping or self.is_ending:
            return
        slots = self.fleet.join(name, islands)
        self._has_changed = True
        for replica in slots:
            self._write(Member(replica, 1), incidents.Joined(name))
        self._start(slots)
        self._has_news = True

    def _take_away(self, name: str, how: Taken) -> None:
        """Let a machine take part no more: its hosts end, and its learners' slots with them."""
        machine = self.fleet.machines.get(name)
        if machine is None or machine.is_away:
            return
        self.fleet.take_away(name, how)
        for replica in self.fleet.retired:
            self._due.pop(replica, None)
        self._has_changed = True
        self._lose(machine, incidents.MachineTaken(name, how))
        self._start([replica for replica in self.fleet.replicas if self.fleet.name(replica) == name])
        if not self.fleet.has_learners and not self.is_ending:
            self._stop()  # With none left to train, the model is what was merged last.
        self._has_news = True

    def _lose(self, machine: Machine, end: incidents.End) -> None:
        """Count every life on a machine as ended, whatever becomes of it there."""
        for member in machine.members():
            life = self.lives.get(member.replica)
            seen = life.seen if life is not None and life.member == member else Seen(member, 0)
            self._bury(machine, Gone(member, end, seen.error, seen.said.cpu_seconds, seen.said.bytes_sent))

    # -- time ----------------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Judge machines that are not heard of and hosts that do not speak, and say everything again."""
        for machine in self.fleet.beat():
            self._lose(machine, incidents.MachineLost(machine.name, machine.silent_beats * BEAT))
        for life in list(self.lives.values()):
            is_heard = not self.fleet.machines[life.machine].is_silent or life.machine == self.fleet.home
            if not life.seen.beats and not life.seen.is_stopped and is_heard:
                life.unspoken_beats += 1
                if life.unspoken_beats == HELLO_BEATS:
                    self._condemn(life.member, incidents.Unspoken(HELLO_BEATS * BEAT))
        is_hurried = self._is_coming_to_its_end() and not self.is_ending
        self._find(self._roll.review(self._now, is_hurried=is_hurried))
        self._has_news = True

    def _fire(self) -> None:
        """Do what is due."""
        now, self._timer_at = self._now, None
        if self._adopt_until is not None and now >= self._adopt_until:
            self._adopted_all()
        if self._roll.timer_at is not None and now >= self._roll.timer_at:
            self._find(self._roll.fire(now))
        self._start([replica for replica, at in sorted(self._due.items()) if now >= at])
        if self._exit_at is not None and now >= self._exit_at:
            self._kill_all()
        if self._abandon_at is not None and now >= self._abandon_at:
            self._abandon_at = None
            for name in self.fleet.others:
                self._lose(self.fleet.machines[name], incidents.MachineLost(name, 0))

    def _arm(self) -> None:
        """See to it that the timer fires when the next thing is due."""
        times = [self._adopt_until, self._roll.timer_at, self._exit_at, self._abandon_at, *self._due.values()]
        at = min((time for time in times if time is not None), default=None)
        if at is not None and not self.is_finished and (self._timer_at is None or at < self._timer_at):
            self._timer_at = at
            self._commands.append(SetHomeTimer(at))

    # -- the end -------------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        """Ask the hosts to bring the run to its end."""
        if not self.is_stopping:
            self.is_stopping = True
            self._has_changed = True
        self._has_news = True

    def _settle(self, outcome: Outcome, failure: incidents.Failure | None) -> None:
        """The run is over, in this way, whatever happens to this daemon; hosts may end by themselves."""
        if not self.is_ending:
            self.is_ending = True
            self._due.clear()
            if self.outcome == "running":
                self.outcome, self.failure = outcome, failure
                self._has_changed = True
            self._exit_at = Instant(self._now + EXIT)
        self._has_news = True

    def _end_run(self, outcome: Outcome, failure: incidents.Failure | None) -> None:
        """The run is over, and every process is killed."""
        self._settle(outcome, failure)
        self._kill_all()

    def _kill_all(self) -> None:
        self._exit_at = self._adopt_until if self._is_unsure else None
        if self._is_unsure:  # Nobody knows yet which lives there are.
            return
        for machine in self.fleet.machines.values():
            machine.condemned.update(machine.tracked)
        if self._abandon_at is None:
            self._abandon_at = Instant(self._now + ABANDON)
        self._has_news = True

    def _finish_if_alone(self) -> None:
        """Be finished once the outcome is settled and no life is left."""
        is_alone = self.fleet.is_idle and not self._noting and not self._is_unsure
        if self.is_ending and is_alone and not self.is_finished:
            self.is_finished = True
            self._commands.append(FinishRun())

    # -- what is said --------------------------------------------------------------------------------------------------

    def _write(self, member: Member, incident: incidents.Incident) -> None:
        self._reasons[member.replica] = incident
        self._commands.append(WriteIncident(member, incident))

    def _journal(self) -> Journal:
        """What the next daemon has to know."""
        fleet = self.fleet
        return Journal(
            is_stopping=self.is_stopping,
            outcome=self.outcome,
            failure=self.failure,
            machines=fleet.placed(),
            away=fleet.away,
            retired=tuple((str(replica), how) for replica, how in sorted(fleet.retired.items())),
            used=dict(self.used),
            number_least=self._floor,
            epoch=self._stamp.epoch,
        )

    def _roster(self) -> tuple[Row, ...]:
        rows = []
        for member in self._roll.members():
            life = self.lives.get(member.replica)
            endpoints = () if life is None else life.seen.said.endpoints
            rows.append((str(member.replica), member.incarnation, endpoints, self.fleet.name(member.replica)))
        return tuple(rows)

    def _order(self) -> None:
        """Say everything to every machine. Where nobody knows yet which lives there are, nothing is said."""
        self._has_news = False
        if self._is_unsure:
            return
        fleet = self.fleet
        roster = None if self._adopting else self._roster()
        machines = (fleet.home, *fleet.others)
        self._stamp = Stamp(self._stamp.epoch, self._stamp.number + 1)
        told = SendOrders(fleet.wanted(), roster, machines, self.is_stopping, self.is_ending, self._stamp, fleet.away)
        self._commands.append(told)

    # -- invariants ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise InvariantError unless every replica has one life at most, of the newest number, where it is to be."""
        self.fleet.check()
        for machine in self.fleet.machines.values():
            for member in machine.members():
                newest = self._newest.get(member.replica)
                demand(member.incarnation == newest, f"{member} is tracked, and {newest} is its newest number")
        for replica, life in self.lives.items():
            demand(life.member.replica == replica, f"{life.member} is kept as {replica}")
            demand(self.fleet.machines[life.machine].has(life.member), f"{life.member} is known, and not tracked")
        for replica in self._due:
            demand(not self.fleet.is_tracked(replica), f"{replica} lives, and its next life is due")
        self._roll.check()
