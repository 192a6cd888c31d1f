"""The daemon of a computer in memory: the cores, and what a shell does for them, on that computer's disk and processes.

It may be killed between any two commands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from isthmus.runtime.clock import Instant
from isthmus.runtime.cores.membership_messages import Phase
from isthmus.runtime.ids import Member, Replica, leads_island
from isthmus.runtime.supervision.driver import Driver
from isthmus.runtime.supervision.home import STATE as HOME_STATE
from isthmus.runtime.supervision.home import Home
from isthmus.runtime.supervision.home_events import (
    FinishRun,
    HomeBegan,
    HomeCommand,
    Journal,
    NoteJournal,
    ReportCame,
    SendOrders,
    SetHomeTimer,
    WriteIncident,
)
from isthmus.runtime.supervision.incidents import Exited
from isthmus.runtime.supervision.rosters import Met, MetRoles, RosterCopy
from isthmus.runtime.supervision.station import STATE as STATION_STATE
from isthmus.runtime.supervision.station import Station
from isthmus.runtime.supervision.station_events import (
    CloseStation,
    DismissHost,
    KillProcess,
    LivesNoted,
    LivesNotNoted,
    NoteFound,
    NoteLives,
    NoteProcess,
    OrdersCame,
    ProcessEnded,
    ProcessNotStarted,
    Remembered,
    SendReport,
    StartProcess,
    StationBegan,
    StationCommand,
    TellHosts,
    WatchProcess,
)
from tests.runtime.supervision.supervision_stories import KILLED
from tests.runtime.tape.twin import Twin

if TYPE_CHECKING:
    from tests.runtime.supervision.supervised_world import Computer, World

FULL: Final = "the disk is full"
STARTING_MAX: Final = 2
"""Fewer than there are, so that some wait for others."""


class DaemonKilledError(Exception):
    """The daemon died before it performed a command."""


@dataclass(slots=True)
class Process:
    """A host; `phase` is what it says of itself, `roster` what it holds of that."""

    member: Member
    pid: int
    phase: Phase = "serving"
    is_stopped: bool = False
    is_leaving: bool = False
    roster: RosterCopy = field(default_factory=RosterCopy)
    misses: int = 0
    """So many messages to it are lost."""

    @property
    def meets(self) -> MetRoles | None:
        """What it asks for: a learner for itself and the syncers, others for everything."""
        own = self.member.replica
        return (Met(own.role, own.slot, 0), Met("syncer")) if leads_island(own) else None


@dataclass(slots=True)
class Disk:
    """A ledger. Those in `lost` have not made up for the loss of the one before."""

    numbers: dict[Replica, int] = field(default_factory=dict)
    lives: dict[Replica, tuple[Member, int | None]] = field(default_factory=dict)
    journal: Journal | None = None
    lost: set[str] = field(default_factory=set)

    def note_process(self, member: Member, pid: int) -> None:
        """Note which process a life has, unless a later life was noted."""
        if member.replica not in self.lives or self.lives[member.replica][0] <= member:
            self.lives[member.replica] = member, pid


class Daemon:
    """The cores on one computer, and what a shell would hold. `commands_left`: it is killed after so many more."""

    def __init__(self, computer: Computer, world: World) -> None:
        self.computer, self.world = computer, world
        self.commands_left: int | None = None
        self.watched: dict[Member, int] = {}
        self.asked: list[Member] = []
        self.ended: list[ProcessEnded] = []
        self.timer_at: Instant | None = None
        self.finished = 0
        self.owed: list[Callable[[], None]] = []
        self.station = Station(is_at_home=computer.is_home, starting_max=STARTING_MAX)
        again = partial(Station, is_at_home=computer.is_home, starting_max=STARTING_MAX)
        station = Twin(STATION_STATE, self.station, again)
        self.of_station = Driver(station, self._do_here, lambda: world.now)
        self.home = Home(world.cast, world.places)
        home = Twin(HOME_STATE, self.home, lambda: Home(world.cast, world.places))
        self.of_home = Driver(home, self._do_for_run, lambda: world.now)

    def start(self) -> None:
        """Adopt what there is."""
        disk, pids = self.computer.disk, self.computer.processes
        lives = tuple(Remembered(life, pid, pid in pids) for life, pid in disk.lives.values())
        self.of_station.feed(StationBegan(lives, "station" in disk.lost))
        if self.computer.is_home:
            numbers = tuple(Member(*each) for each in sorted(disk.numbers.items()))
            self.of_home.feed(HomeBegan(numbers, disk.journal, "home" in disk.lost))

    def settle(self) -> None:
        """Write what the disk did not take."""
        while self.owed and not self.computer.is_full:
            self.owed.pop(0)()

    def _write(self, write: Callable[[], None]) -> None:
        self.owed.append(write)
        self.settle()

    def _spend(self) -> None:
        if self.commands_left is not None:
            self.commands_left -= 1
            if self.commands_left < 0:
                raise DaemonKilledError

    # -- the station ---------------------------------------------------------------------------------------------------

    def _do_here(self, command: StationCommand) -> None:
        self._spend()
        disk, processes = self.computer.disk, self.computer.processes
        match command:
            case NoteLives(members):
                if self.computer.is_full:
                    self.of_station.feed(LivesNotNoted(members, FULL))
                    return
                for member in members:
                    if member.replica not in disk.lives or disk.lives[member.replica][0] < member:
                        disk.lives[member.replica] = member, None
                self.of_station.feed(LivesNoted(members))
            case NoteFound():
                self._write(lambda: disk.lost.discard("station"))
            case StartProcess(member):
                if self.computer.is_full:
                    self.of_station.feed(ProcessNotStarted(member, "no memory"))
                else:
                    self.asked.append(member)
            case NoteProcess(member, pid):
                self._write(lambda: disk.note_process(member, pid))
            case WatchProcess(member, pid):
                self.watched[member] = pid
                if pid not in processes:
                    self.ended.append(ProcessEnded(member, Exited()))
            case KillProcess(member):
                if member in self.watched:
                    self.computer.end_process(self.watched[member], KILLED)
            case TellHosts(members):
                self._tell(command)
            case DismissHost(member):
                for process in [each for each in processes.values() if each.member == member]:
                    process.is_leaving = True
            case SendReport(report):
                if self.computer.is_home:
                    self.of_home.feed(ReportCame(self.computer.name, report))
                else:
                    self.world.up[self.computer.name].append(report)
            case CloseStation():
                self.computer.is_closed = True

    def _tell(self, told: TellHosts) -> None:
        for process in self.computer.processes.values():
            if process.member in told.members:
                if process.misses:
                    process.misses -= 1
                elif told.roster is not None:
                    process.roster.take(told.roster)
                process.is_leaving |= told.is_ending

    # -- the home ------------------------------------------------------------------------------------------------------

    def _do_for_run(self, command: HomeCommand) -> None:
        self._spend()
        disk = self.computer.disk
        match command:
            case NoteLives(members):
                if self.computer.is_full:
                    self.of_home.feed(LivesNotNoted(members, FULL))
                    return
                for member in members:
                    disk.numbers[member.replica] = max(member.incarnation, disk.numbers.get(member.replica, 0))
                self.of_home.feed(LivesNoted(members))
            case NoteFound():
                self._write(lambda: disk.lost.discard("home"))
            case NoteJournal(journal):
                self._write(lambda: setattr(disk, "journal", journal))
            case SendOrders():
                for name, orders in command.by_machine():
                    if name == self.computer.name:
                        self.of_station.feed(OrdersCame(orders))
                    else:
                        self.world.down[name].append(orders)
            case SetHomeTimer(at):
                self.timer_at = at
            case WriteIncident(member, incident):
                self.world.write(member, incident)
            case FinishRun():
                self.finished += 1
