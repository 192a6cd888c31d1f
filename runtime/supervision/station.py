"""The core of a station: the processes of one run on one machine, as the run's home orders them.

It decides which process is started, killed, adopted or dismissed here, and what is reported. `home` decides which lives
a run has, and when the next one of a replica begins.

Theory of operation. Orders list the lives that are wanted. A running life that is not wanted is killed; a wanted one
that is new and was never begun is begun in three steps: its number is recorded in the ledger, its process is started,
the process is recorded. The end of a life is reported until the home no longer asks for it. A host names its own life
in each heartbeat; one that is not the present life of its replica is dismissed.

After a ledger was lost the station does not know which lives are running: for UNSURE_BEATS, and until the first orders,
it adopts hosts by their heartbeats, and begins nothing.

A machine that is to leave begins no life. Its learners are asked to leave first, then the recorder, which has what they
gave; what is left at the end of the time for that is killed.

Not all processes start at once: so many that were asked for have not spoken yet, and the next ones wait for their first
heartbeats. What is no island starts first.

Time is counted in beats of the daemon itself, so that a suspended daemon blames no host for its own pause. A run has
one home in each term; a station follows the home of the highest term that it has seen, and turns away all others.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias, assert_never

import msgspec

from isthmus.runtime.clock import Duration, Instant
from isthmus.runtime.errors import CoreSubject, demand
from isthmus.runtime.ids import Member, Replica, keeps_run, leader, takes_island
from isthmus.runtime.supervision.incidents import NotStarted, Raised, Unseen
from isthmus.runtime.supervision.messages import LONELY_BEATS, Form, Gone, Heartbeat, Orders, Over, Report, Seen, Stamp
from isthmus.runtime.supervision.rosters import Met, MetRoles, RosterDifference, Row, Table
from isthmus.runtime.supervision.station_events import (
    CloseStation,
    DismissHost,
    FollowHome,
    HomeCalled,
    HostSpoke,
    KillProcess,
    LeaveAsked,
    LivesNoted,
    LivesNotNoted,
    NoteFound,
    NoteLives,
    NoteProcess,
    OrdersCame,
    ProcessEnded,
    ProcessNotStarted,
    ProcessStarted,
    SendReport,
    StartProcess,
    StationBeat,
    StationBegan,
    StationCommand,
    StationEvent,
    StationLeft,
    TellHosts,
    TurnAway,
    WatchProcess,
)
from isthmus.runtime.tape.state import Kind

NOTHING: Final = Duration(0)
SILENT_BEATS: Final = 4
"""Two seconds without a heartbeat, of which four come in one."""
UNSURE_BEATS: Final = 20
"""Ten seconds: a host finds a new daemon within two or three."""

STARTING_MAX: Final = 32
"""Processes that start at once: more than the islands of a large machine. Of a thousand on one, all would share its
cores until none has spoken within `run.first_beat_seconds`."""
STARTING_BEATS: Final = 120
"""A minute: a script may take as long as it likes to speak, and others do not wait for it."""

STATE: Final = Kind(("supervision", "cores", "ids"))


Told: TypeAlias = tuple[bool, bool, tuple[Form, ...], bool]
"""What a host is told beside the roster: whether the run is stopping, whether the host is to end, the forms of its
island, whether it is to leave."""


@dataclass(slots=True)
class Process:
    """A life with a running process."""

    member: Member
    pid: int
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    beats: int = 0
    error: Raised | None = None
    over: Over | None = None
    is_stopped: bool = False
    idle: Duration = NOTHING
    silent_beats: int = 0
    """Beats of the daemon since its last heartbeat."""
    meets: MetRoles | None = None
    """The replicas that it meets; None: all."""
    asks: int = 0
    """How often it had asked for the whole roster when that was sent to it."""
    told: int | None = None
    """The version of the roster that it was told last; None: none."""
    heard: Told | None = None
    """What else it was told last."""

    def seen(self) -> Seen:
        """Its entry in a report."""
        heard = self.error, self.heartbeat, self.over
        return Seen(self.member, self.pid, self.beats, self.is_stopped, *heard, self.idle)

    @property
    def is_in_user_code(self) -> bool:
        """Whether the user's code may have its thread: before its first heartbeat, while it is away, once it has left
        the run, and where it holds the interpreter, so that no heartbeat comes."""
        return self.heartbeat.phase in ("away", "gone") or self.silent_beats >= SILENT_BEATS


class Station:
    """The processes of one run on one machine.

    `is_at_home`: the home is in the same daemon, so that reports are prompt and orders never fail to arrive; elsewhere
    the station waits for them for `lonely_beats`. At most `starting_max` processes start at once.
    """

    def __init__(self, *, is_at_home: bool, lonely_beats: int = LONELY_BEATS, starting_max: int = STARTING_MAX) -> None:
        self.refused: Counter[str] = Counter()
        self.lives: dict[Replica, Process] = {}
        self._is_at_home, self._lonely_beats_max = is_at_home, lonely_beats
        self._home, self._term = "", 1
        self._noting: set[Member] = set()
        self._starting_max = starting_max
        self._queue: dict[Replica, Member] = {}
        """Recorded lives whose processes are not asked for yet."""
        self._starting: dict[Replica, Member] = {}
        self._ended: dict[Replica, Gone] = {}
        self._newest: dict[Replica, int] = {}
        self._orders: Orders | None = None
        self._roster = Table()
        self._has_roster = False
        self._wanted: set[Member] = set()
        self._obeyed = Stamp()
        self._lonely_beats = self._unsure_beats = 0
        self._leaving_beats: int | None = None
        """Beats that are left to leave in; None where this machine stays."""
        self._leaving_half = 0
        self._is_over = self._is_closed = self._is_lost = False

    def handle(self, event: StationEvent, now: Instant) -> list[StationCommand]:
        """Commands that follow from `event`, in order of execution."""
        match event:
            case StationBegan():
                return self._begin(event)
            case HomeCalled():
                return self._follow(event.home, event.term)
            case OrdersCame():
                return self._obey(event.orders)
            case LivesNoted():
                return self._start(event.members)
            case LivesNotNoted():
                self._noting.difference_update(event.members)  # The next orders want them again.
                return []
            case ProcessStarted():
                return self._started(event.member, event.pid)
            case ProcessNotStarted():
                return self._not_started(event)
            case ProcessEnded():
                return self._end(event)
            case HostSpoke():
                return self._on_heartbeat(event)
            case StationBeat():
                return self._beat(event)
            case LeaveAsked():
                return self._begin_to_leave(event.beats)
            case StationLeft():
                return self._leave()
            case _:
                assert_never(event)

    def saved(self) -> bytes:
        """The whole state of the core."""
        return STATE.frozen(self)

    def restore(self, state: bytes) -> None:
        """Load a saved state into this new core; ValueError for other bytes."""
        STATE.thaw(self, state)

    def in_user_code(self) -> dict[Member, int]:
        """The lives whose threads the user's code may have, with their processes."""
        return {life.member: life.pid for life in self.lives.values() if life.is_in_user_code}

    def rows(self) -> tuple[Row, ...]:
        """The roster that it holds."""
        return self._roster.rows()

    # -- orders --------------------------------------------------------------------------------------------------------

    def _begin(self, event: StationBegan) -> list[StationCommand]:
        """Adopt the running processes that the ledger records."""
        self._is_lost, self._unsure_beats = event.is_lost, UNSURE_BEATS if event.is_lost else 0
        self._home, self._term = event.home, event.term
        commands: list[StationCommand] = []
        for remembered in event.lives:
            replica = remembered.member.replica
            self._newest[replica] = max(remembered.member.incarnation, self._newest.get(replica, 0))
            if remembered.is_alive and remembered.pid is not None:
                commands += self._adopt(remembered.member, remembered.pid)
        return commands

    def _follow(self, home: str, term: int) -> list[StationCommand]:
        """Follow a machine that claims to be the home, or turn it away."""
        if term < self._term or (term == self._term and self._home not in ("", home)):
            return [TurnAway(home, self._home, self._term)]
        if self._is_at_home and term > self._term and self._home not in ("", home):
            return [TurnAway(self._home, home, term)]  # Its own home gives way, and ends the hosts here.
        is_new, self._home, self._term, self._lonely_beats = term > self._term, home, term, 0
        return [FollowHome(home, term), self._report()] if is_new else []

    def _obey(self, orders: Orders) -> list[StationCommand]:
        """Follow the home that gives the orders and carry them out, or turn it away."""
        # First: a former home may order nothing, not even the end.
        followed = self._follow(orders.home, orders.stamp.term)
        if any(isinstance(each, TurnAway) for each in followed):
            self.refused["orders of a former home"] += 1
            return followed
        return [*followed, *self._carry_out(orders)]

    def _carry_out(self, orders: Orders) -> list[StationCommand]:
        """Kill lives that are not wanted, and begin wanted ones that never were."""
        if orders.is_over or self._is_over:  # Another station may run the lives that this one still had orders for.
            return self._leave()  # Before the stamp is compared: an end holds, however late it comes.
        if orders.stamp <= self._obeyed:
            self.refused["orders that came late"] += 1
            return []
        self._obeyed = orders.stamp
        if orders.roster is not None:
            self._roster.take(orders.roster)
            self._has_roster |= self._roster.mark == orders.roster.mark
        self._orders = msgspec.structs.replace(orders, roster=None)
        # Before any life is judged.
        self._wanted = {each.member for each in orders.wanted if not each.is_condemned}
        wanted = {each.member.replica: each for each in orders.wanted}
        # Before the missing are found: the home no longer asks for the others, so their replicas may begin anew.
        self._ended = {
            replica: gone
            for replica, gone in self._ended.items()
            if replica in wanted and wanted[replica].member == gone.member
        }
        commands: list[StationCommand] = []
        for life in self.lives.values():
            if not self._is_wanted(life.member):
                commands.append(KillProcess(life.member))
        missing, is_news = [], self._drop_unwanted() or not self._is_at_home
        for replica, each in wanted.items():
            if replica in self.lives or replica in self._ended or self._is_beginning(replica):
                continue
            number = each.member.incarnation
            if self._is_lost:  # It may have been begun; by now its host would have sent a heartbeat, if it lives.
                self._newest[replica] = max(number, self._newest.get(replica, 0))
            elif each.is_new and self._newest.get(replica, 0) < number and self._may_begin(each.member):
                missing.append(each.member)
            else:
                self._ended[replica] = Gone(each.member, Unseen())
                is_news = True
        if missing:
            self._noting.update(missing)  # No number is recorded twice: the next orders find it beginning.
            commands.append(NoteLives(tuple(missing)))
        return [*commands, *self._tell_changes(), *([self._report()] if is_news else [])]

    def _start(self, members: tuple[Member, ...]) -> list[StationCommand]:
        """Start the processes of recorded lives, as far as they are still wanted."""
        if self._is_lost:  # These members are those that may have been begun before.
            self._is_lost = False
            return [NoteFound()]
        if len(self._queue) + len(members) > self._starting_max:
            members = tuple(sorted(members, key=lambda member: takes_island(member.replica)))
        for member in members:
            self._noting.discard(member)
            self._newest[member.replica] = member.incarnation  # Wanted or not: a recorded number is never begun again.
            self._queue[member.replica] = member
        self._drop_unwanted()
        return self._start_next()

    def _drop_unwanted(self) -> bool:
        """Have what waits for its process and is not wanted any more end; returns whether there was any."""
        dropped = [member for member in self._queue.values() if not self._may_begin(member)]
        for member in dropped:
            del self._queue[member.replica]
            self._ended[member.replica] = Gone(member, Unseen())
        return bool(dropped)

    def _start_next(self) -> list[StationCommand]:
        """Start the next processes, as far as those before them have spoken."""
        if not self._queue:
            return []
        silent = sum(not life.beats and life.silent_beats < STARTING_BEATS for life in self.lives.values())
        free = self._starting_max - len(self._starting) - silent
        started = list(self._queue.values())[: max(0, free)]
        for member in started:
            del self._queue[member.replica]
            self._starting[member.replica] = member
        return [StartProcess(member) for member in started]

    def _is_beginning(self, replica: Replica) -> bool:
        is_asked = replica in self._starting or replica in self._queue
        return is_asked or any(member.replica == replica for member in self._noting)

    def _may_begin(self, member: Member) -> bool:
        return self._leaving_beats is None and self._is_wanted(member)

    def _is_wanted(self, member: Member) -> bool:
        """Whether a life is wanted; before the first orders, all are."""
        if self._orders is None or self._is_over:
            return not self._is_over
        return member in self._wanted

    def _leave(self) -> list[StationCommand]:
        """End every process; the station closes once none is left."""
        self._is_over = True  # First: the station closes with the last process, which may be none.
        self._queue.clear()
        return [*(KillProcess(life.member) for life in self.lives.values()), *self._close_if_alone()]

    def _begin_to_leave(self, beats: int) -> list[StationCommand]:
        """Ask the hosts to leave, in their order; a second time changes nothing."""
        if self._leaving_beats is not None or self._is_over:
            return []
        self._leaving_beats, self._leaving_half = beats, beats // 2
        self._drop_unwanted()
        return [*self._tell(self._speaking()), self._report(), *self._leave_if_done()]

    def _departing(self) -> tuple[Member, ...]:
        """The hosts that are to leave now: learners; once these have, or have had half of the time, the recorder."""
        if self._leaving_beats is None:
            return ()
        learners = tuple(life.member for life in self.lives.values() if takes_island(life.member.replica))
        if learners and self._leaving_beats > self._leaving_half:
            return learners
        return learners + tuple(life.member for life in self.lives.values() if keeps_run(life.member.replica))

    def _leave_if_done(self) -> list[StationCommand]:
        """End what is left, once all that were asked have left, or their time is over."""
        if self._leaving_beats is None or self._is_over or (self._leaving_beats > 0 and self._departing()):
            return []
        return self._leave()

    def _close_if_alone(self) -> list[StationCommand]:
        is_alone = not self.lives and not self._starting and not self._unsure_beats
        if self._is_over and is_alone and not self._is_closed:
            self._is_closed = True
            return [CloseStation()]
        return []

    # -- processes -----------------------------------------------------------------------------------------------------

    def _adopt(self, member: Member, pid: int) -> list[StationCommand]:
        self.lives[member.replica] = Process(member, pid)
        return [WatchProcess(member, pid)]

    def _started(self, member: Member, pid: int) -> list[StationCommand]:
        self._starting.pop(member.replica, None)
        # The record before the watch: a daemon that dies between the two leaves a process that its successor adopts.
        commands: list[StationCommand] = [NoteProcess(member, pid), *self._adopt(member, pid)]
        if not self._is_wanted(member):  # After the watch: only a watched process can be killed.
            commands.append(KillProcess(member))
        return [*commands, self._report(member.replica)]

    def _not_started(self, event: ProcessNotStarted) -> list[StationCommand]:
        member = event.member
        self._starting.pop(member.replica, None)
        self._ended[member.replica] = Gone(member, NotStarted(event.error))
        return [self._report(member.replica), *self._start_next(), *self._close_if_alone()]

    def _end(self, event: ProcessEnded) -> list[StationCommand]:
        life = self.lives.get(event.member.replica)
        if life is None or life.member != event.member:
            return []
        del self.lives[event.member.replica]  # Before the report, which would list it as running.
        used = life.heartbeat.cpu_seconds if event.cpu_seconds is None else event.cpu_seconds
        self._ended[event.member.replica] = Gone(event.member, event.end, life.error, used, life.heartbeat.flows)
        next_to_leave = [] if self._leaving_beats is None else self._tell(self._speaking())
        reported = [self._report(event.member.replica)]
        return [*reported, *next_to_leave, *self._start_next(), *self._leave_if_done(), *self._close_if_alone()]

    # -- hosts ---------------------------------------------------------------------------------------------------------

    def _on_heartbeat(self, event: HostSpoke) -> list[StationCommand]:
        """Handle a heartbeat for a life: the present one of its replica, or another."""
        member, commands = event.member, list[StationCommand]()
        life = self.lives.get(member.replica)
        if self._is_lost and life is not None and life.member.incarnation < member.incarnation:
            commands.append(DismissHost(life.member))  # Replaced before the ledger was lost; its heartbeat came first.
            life = None
        if life is None and self._is_lost and not self._is_over:  # After the dismissal of an older life.
            self._newest[member.replica] = max(member.incarnation, self._newest.get(member.replica, 0))
            commands += [NoteProcess(member, event.pid), *self._adopt(member, event.pid)]
            life = self.lives[member.replica]
        if life is None or life.member != member:
            if self._is_beginning(member.replica):
                self.refused["too early"] += 1  # The process of the beginning life is not known yet.
                return commands
            self.refused["not the present life"] += 1
            return [*commands, DismissHost(member)]
        # Compared with the heartbeat before, so before that is replaced.
        is_news = not life.beats or (event.error and not life.error) or event.over != life.over
        if event.meets != life.meets or event.asks > life.asks or not life.beats:
            life.meets, life.asks, life.told = event.meets, event.asks, None
        life.heartbeat, life.beats, life.silent_beats = event.heartbeat, life.beats + 1, 0
        life.error, life.over = life.error or event.error, event.over
        if is_news or (life.told is None and self._has_roster):
            commands += self._tell([life])  # A new host waits for its first roster, and one that has missed some.
        if is_news or self._is_at_home:
            commands.append(self._report(member.replica))
        return [*commands, *self._start_next()]

    def _beat(self, event: StationBeat) -> list[StationCommand]:
        commands: list[StationCommand] = []
        self._unsure_beats = max(0, self._unsure_beats - 1)  # Before it is read: the last beat ends the wait.
        if self._is_lost and not self._unsure_beats and self._orders is not None:
            commands.append(NoteLives(self._begun()))
        self._lonely_beats += 1
        if self._leaving_beats is not None:
            self._leaving_beats = max(0, self._leaving_beats - 1)
        idle = dict(event.idle)
        for life in self.lives.values():  # Before the report, which excuses the silence.
            life.is_stopped = life.member in event.stopped
            life.idle, life.silent_beats = idle.get(life.member, Duration(0)), life.silent_beats + 1
        commands += [*self._tell(self._speaking()), self._report()]
        # After a last report: the home may still be there, and only its orders be lost.
        if self._lonely_beats > self._lonely_beats_max and not self._is_at_home:
            commands += self._leave()
        return [*commands, *self._start_next(), *self._leave_if_done(), *self._close_if_alone()]

    def _speaking(self) -> list[Process]:
        return [life for life in self.lives.values() if life.beats]

    def _tell_changes(self) -> list[StationCommand]:
        """Tell those hosts what has changed for which something has; the others hear of it at the next beat."""
        roster, departing, news = self._roster, self._departing(), dict[tuple[int, Met], bool]()
        changed = []
        for life in self._speaking():
            if life.heard != self._heard_by(life, departing):
                changed.append(life)
            elif self._has_roster and life.told != roster.version:
                if life.told is None or life.meets is None:
                    changed.append(life)
                    continue
                for met in life.meets:  # What many hosts meet is looked up once.
                    key = life.told, met
                    if key not in news:
                        news[key] = roster.has_news(*key)
                    if news[key]:
                        changed.append(life)
                        break
        return self._tell(changed)

    def _heard_by(self, life: Process, departing: tuple[Member, ...]) -> Told:
        orders = self._orders or Orders()
        island = leader(life.member.replica)
        forms = tuple(form for form in orders.forms if form.leader == island)
        return orders.is_stopping, orders.is_ending, forms, life.member in departing

    def _tell(self, lives: list[Process]) -> list[StationCommand]:
        """Send hosts what they lack of the home's roster, flags and forms."""
        departing, groups = self._departing(), dict[Any, list[Member]]()
        for life in lives:
            life.heard = self._heard_by(life, departing)
            change = None
            if self._has_roster:
                change = self._lacking(life)
                life.told = self._roster.version
            groups.setdefault((change, life.heard[:3]), []).append(life.member)
        commands: list[StationCommand] = []
        for (change, (is_stopping, is_ending, forms)), members in groups.items():
            leaving = tuple(member for member in members if member in departing)
            commands.append(TellHosts(tuple(members), change, is_stopping, is_ending, forms, leaving))
        return commands

    def _lacking(self, life: Process) -> RosterDifference:
        """What a host lacks of the roster, of the replicas that it meets."""
        if life.told == self._roster.version:
            return RosterDifference(self._roster.version, life.told)
        rows, gone = self._roster.since(life.told or 0, life.meets)
        return RosterDifference(self._roster.version, life.told, rows, gone if life.told is not None else ())

    def _report(self, *replicas: Replica) -> StationCommand:
        """Report some lives to the home, or all."""
        lives = [self.lives[each] for each in replicas if each in self.lives] if replicas else self.lives.values()
        newest = () if replicas else self._begun()
        return SendReport(
            Report(
                tuple(life.seen() for life in lives),
                tuple(self._ended.values()),
                newest,
                self._obeyed,
                self._leaving_beats is not None,
                rostered=self._roster.mark,
            )
        )

    def _begun(self) -> tuple[Member, ...]:
        """The newest life of each replica that was begun here, or may have been."""
        return tuple(Member(replica, number) for replica, number in self._newest.items())

    # -- invariants ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise InvariantError unless each life is in one state only, and none is newer than the recorded number."""
        for replica, life in self.lives.items():
            about = (CoreSubject("replica", replica),)
            _demand(life.member.replica == replica, about, "{} is kept as {}", life.member, replica)
            _demand(not self._is_beginning(replica), about, "{} lives, and another life of it begins", life.member)
            newest = self._newest.get(replica, 0)
            _demand(
                life.member.incarnation <= newest, about, "{} lives, and {} is the newest number", life.member, newest
            )
        for replica, member in (*self._starting.items(), *self._queue.items()):
            about = (CoreSubject("replica", replica),)
            _demand(self._newest.get(replica) == member.incarnation, about, "{} is started and was not noted", member)
        _demand(not self._is_closed or not (self.lives or self._starting), (), "it is closed, and processes are there")


_demand: Final = partial(demand, "station")
