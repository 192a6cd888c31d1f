"""The part of a run on this machine: performs the commands of its station's core, and feeds it events.

It decides nothing. A home has one beside its own core, an outpost has one alone. The hosts' status for people travels
beside reports, by life, and no core sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import assert_never

from isthmus.runtime.clock import Instant, seconds
from isthmus.runtime.daemon.ground import Ground, Handler
from isthmus.runtime.daemon.host_endpoint import HostEndpoint, Shown
from isthmus.runtime.daemon.ledger import LedgerError
from isthmus.runtime.ids import Member
from isthmus.runtime.supervision.incidents import Exited
from isthmus.runtime.supervision.messages import BEAT_SECONDS, LONELY_BEATS, NOBODY, Directory, Orders, Report
from isthmus.runtime.supervision.rosters import DirectoryDifference, Table
from isthmus.runtime.supervision.station import Station
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
    Remembered,
    SendReport,
    StartProcess,
    StationBeat,
    StationBegan,
    StationCommand,
    StationLeft,
    TellHosts,
    TurnAway,
    WatchProcess,
)


class Site:
    """The hosts of a run on this machine.

    Arguments:
        ground: where they run.
        run: the run's name.
        is_at_home: this machine is the run's home.
        home: the machine that is, at first.
        term: the term of that home.
        report: called with each report of the station, and the hosts' status.
        turn_away: performs the command to turn a home away.
        follow: performs the command to follow another home.
        lonely_beats: without orders for so many beats hosts end.
        on_over: called once, when every process has ended for good.
        commands: handle messages that no host sends.
    """

    def __init__(
        self,
        ground: Ground,
        *,
        run: str,
        is_at_home: bool,
        home: str,
        term: int,
        report: Callable[[Report, Mapping[Member, Shown]], None],
        turn_away: Callable[[TurnAway], None],
        follow: Callable[[FollowHome], None] = lambda command: None,
        lonely_beats: int = LONELY_BEATS,
        on_over: Callable[[], None] = lambda: None,
        commands: Mapping[str, Handler] | None = None,
    ) -> None:
        """Serve hosts; raises what the ground's `serve` raises."""
        self.shown = dict[Member, Shown]()
        self.station = Station(is_at_home=is_at_home, lonely_beats=lonely_beats)
        self._ground, self._ledger = ground, ground.ledger
        self._home, self._term = home, term
        self._follow, self._turn_away = follow, turn_away
        self._directory, self._machines = NOBODY, Table()
        self._report, self._on_over = report, on_over
        self._is_closed = False
        self._driver = ground.drive("station", self.station, self._perform)
        self.endpoint_of_hosts = HostEndpoint(ground.serve, run, self._spoke, commands or {})

    def start(self) -> None:
        """Publish this daemon's endpoint, and adopt the hosts that live here."""
        self._ground.publish(self.endpoint_of_hosts.endpoint)
        remembered = tuple(Remembered(*row) for row in self._ledger.newest())
        # What has ended meanwhile is wanted again soon.
        self._ground.launch.prepare([each.member.replica for each in remembered])
        self._driver.feed(StationBegan(remembered, self._ledger.is_lost("station"), self._home, self._term))

    def call(self, home: str, term: int) -> None:
        """A machine claims to be the home of the run."""
        self._driver.feed(HomeCalled(home, term))

    def order(self, orders: Orders, directory: DirectoryDifference | None) -> None:
        """Handle orders of a home, and what has changed of its machines; None: nothing."""
        if directory is not None:
            before = self._machines.mark
            self._machines.take(directory)
            if self._machines.mark != before:
                self._directory = Directory.of_rows(self._machines.rows())
        self._driver.feed(OrdersCame(orders))

    @property
    def directory_mark(self) -> int:
        """The mark of the directory that it holds."""
        return self._machines.mark

    def listening(self) -> list[str]:
        """The endpoints at which hosts listen here."""
        heartbeats = [life.heartbeat for life in self.station.lives.values()]
        return [endpoint for each in heartbeats if each.endpoints is not None for endpoint in each.endpoints[:2]]

    def relayed(self) -> dict[str, list[str]]:
        """Host -> the hosts that a porter relays to it."""
        figures = {str(member.replica): shown["figures"].get("relayed", []) for member, shown in self.shown.items()}
        return {name: list(others) for name, others in sorted(figures.items()) if others}

    def full(self) -> list[str]:
        """The disks here, by where they are mounted, that have no room for what hosts or this daemon write."""
        of_hosts = (place for shown in self.shown.values() for place in shown["figures"].get("full", ()))
        return sorted({*self._ground.full(), *of_hosts})

    def beat(self) -> bool:
        """Count a beat, every BEAT_SECONDS; returns whether the ledger had been deleted."""
        was_removed = self._ground.restore_ledger()
        self.endpoint_of_hosts.restore()
        self._ledger.settle()
        processes = self._ground.processes
        idle = processes.idle(self.station.in_user_code(), self._ground.clock.now())
        self._driver.feed(StationBeat(processes.stopped(), tuple(idle.items())))
        return was_removed

    def ask_leave(self, seconds_max: float) -> None:
        """Leave the run within so many seconds: hosts give what they have, and end."""
        self._driver.feed(LeaveAsked(max(0, round(seconds_max / BEAT_SECONDS))))
        # Beats of a busy daemon come late, and a grace is the scheduler's.
        self._ground.clock.call_at(Instant(self._ground.clock.now() + seconds(seconds_max)), self._end_of_grace)

    def _end_of_grace(self) -> None:
        if not self._is_closed:
            self._driver.feed(StationLeft())

    def leave(self) -> None:
        """Leave the run: end every host."""
        self._driver.feed(StationLeft())

    def close(self) -> None:
        """Release everything; the hosts, if any are left, go on."""
        self._is_closed = True
        self.endpoint_of_hosts.close()
        self._ground.close()

    # -- events --------------------------------------------------------------------------------------------------------

    def _spoke(self, event: HostSpoke, shown: Shown) -> None:
        self.shown[event.member] = shown
        self._driver.feed(event)
        if event.member.replica not in self.station.lives:
            self.shown.pop(event.member, None)

    def _started(self, member: Member, pid: int) -> None:
        if not self._is_closed:
            self._driver.feed(ProcessStarted(member, pid))

    def _ended(self, member: Member, end: Exited, cpu_seconds: float | None) -> None:
        if self._is_closed:
            return
        self.endpoint_of_hosts.forget(member)
        self._driver.feed(ProcessEnded(member, end, cpu_seconds))
        self.shown.pop(member, None)

    # -- commands ------------------------------------------------------------------------------------------------------

    def _perform(self, command: StationCommand) -> None:
        match command:
            case NoteLives():
                self._note_lives(command.members)
            case NoteFound():
                self._ledger.mark_whole("station")
            case StartProcess():
                self._start_process(command.member)
            case NoteProcess():
                self._ledger.started(command.member, command.pid)
            case WatchProcess():
                self._ground.processes.watch(command.member, command.pid, self._ended)
            case KillProcess():
                self._ground.processes.kill(command.member)
            case TellHosts():
                self.endpoint_of_hosts.tell(command, self._directory)
            case DismissHost():
                self.endpoint_of_hosts.dismiss(command.member)
            case SendReport():
                named = [seen.member for seen in command.report.lives]
                self._report(command.report, {member: self.shown[member] for member in named if member in self.shown})
            case FollowHome():
                self._follow(command)
            case TurnAway():
                self._turn_away(command)
            case CloseStation():
                self._ground.launch.close()
                self._ground.forget_memory()
                self._ground.clock.call_soon(self._on_over)
            case _:
                assert_never(command)

    def _note_lives(self, members: tuple[Member, ...]) -> None:
        try:
            self._ledger.begin(members)
        except LedgerError as error:
            self._driver.feed(LivesNotNoted(members, str(error)))
            return
        lives = {member.replica: member for member in members}
        self._driver.feed(LivesNoted(tuple(lives[replica] for replica in self._ground.launch.prepare(list(lives)))))

    def _start_process(self, member: Member) -> None:
        try:
            self._ground.launch(member, self.endpoint_of_hosts.endpoint, lambda pid: self._started(member, pid))
        except OSError as error:
            self._driver.feed(ProcessNotStarted(member, str(error)))
