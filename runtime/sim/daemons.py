"""The machines of a universe and their daemons, which perform the commands of the supervision cores.

Cores, driver and constants are those of real daemons; processes, ledgers and links are simulated. A daemon may be
suspended, and may die between any two commands; its successor on the machine starts from the ledger. A process exists
from when a daemon requests it, boots for a while, and is then a host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from isthmus.runtime.clock import Instant, seconds
from isthmus.runtime.daemon.outpost import of_report, read_report
from isthmus.runtime.host.virtual_time import VirtualClock
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.sim.host import Life
from isthmus.runtime.sim.lies import Liar
from isthmus.runtime.sim.machine import Book, HostClock, Mount, SimulatedDisk, SimulatedLedger
from isthmus.runtime.sim.network import ControlLinks
from isthmus.runtime.sim.world import SEGMENT_BYTES
from isthmus.runtime.supervision.driver import Driver
from isthmus.runtime.supervision.home import Home
from isthmus.runtime.supervision.home_events import (
    BadReportCame,
    FinishRun,
    HomeBeat,
    HomeBegan,
    HomeCommand,
    HomeEvent,
    HomeTimerFired,
    NoteJournal,
    Places,
    Recorded,
    ReportCame,
    RunRoles,
    SendOrders,
    SetHomeTimer,
    TurnedAway,
    WriteIncident,
)
from isthmus.runtime.supervision.incidents import Exited, Incident
from isthmus.runtime.supervision.messages import Report, ReportError, Row
from isthmus.runtime.supervision.station import BEAT_SECONDS, Station
from isthmus.runtime.supervision.station_events import (
    CloseStation,
    DismissHost,
    FollowHome,
    HomeCalled,
    KillProcess,
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
    StationEvent,
    TellHosts,
    TurnAway,
    WatchProcess,
)
from isthmus.runtime.tape.writing import Tape
from isthmus.runtime.wire.control_messages import Message

KILLED: Final = Exited(signal="SIGKILL")


class DaemonView(Protocol):
    """A machine's view of its daemon."""

    name: str

    def feed(self, event: StationEvent) -> None:
        """Feed an event to the station."""

    def feed_home(self, event: HomeEvent) -> None:
        """Feed an event to the home, if it has one."""

    def hear_report(self, machine: str, message: Message) -> None:
        """Handle the report of a station elsewhere."""

    def saw_end(self, process: SimulatedProcess) -> None:
        """A process of its machine has ended."""

    def die(self) -> None:
        """End at once; the hosts go on."""


@dataclass(slots=True)
class StartTrouble:
    """A machine has no room for the next `count` processes; `struck` is called with the replica of each refused one."""

    count: int
    struck: Callable[[Replica], None]


@dataclass(slots=True)
class StartLag:
    """A daemon learns of a started process `lag` seconds later; `struck` is called when one is started."""

    lag: float
    struck: Callable[[], None]


@dataclass(slots=True)
class StationLie:
    """The station of a machine lies; `struck` is called when it does."""

    liar: Liar
    struck: Callable[[], None]


@dataclass(slots=True)
class SimulatedProcess:
    """A process that exists or has existed; `life` is None until it has booted."""

    member: Member
    pid: int
    life: Life | None = None
    cancel_boot: Callable[[], None] = lambda: None
    is_stopped: bool = False
    end: Exited | None = None


@dataclass(slots=True)
class SimulatedMachine:
    """A machine of a universe.

    `places` are those of the run whose home it is, or was, as far as it knows; `follows` is the home that its station
    has recorded, with the term. `crashes` counts, by replica, how many more lives end soon after they begin;
    `start_troubles` are by the number of the fault that made each.
    """

    name: str
    address: str
    disk: SimulatedDisk
    book: Book = field(default_factory=Book)
    daemon: DaemonView | None = None
    processes: dict[int, SimulatedProcess] = field(default_factory=dict)
    crashes: dict[Replica, int] = field(default_factory=dict)
    start_troubles: dict[int, StartTrouble] = field(default_factory=dict)
    start_lags: dict[int, StartLag] = field(default_factory=dict)
    lies: dict[int, StationLie] = field(default_factory=dict)
    is_dark: bool = False
    places: Places | None = None
    follows: tuple[str, int] = ("", 1)

    def living(self) -> list[Life]:
        return [process.life for process in self.processes.values() if process.life is not None and not process.end]

    def process(self, member: Member) -> SimulatedProcess | None:
        """The process of a life, if it exists."""
        processes = (each for each in self.processes.values() if each.member == member and not each.end)
        return next(processes, None)

    def end(self, process: SimulatedProcess, how: Exited = KILLED) -> None:
        """End a process at once; the daemon of its machine sees it, if there is one."""
        if process.end is not None:
            return
        process.end = how
        process.cancel_boot()
        if process.life is not None:
            process.life.kill()
        if self.daemon is not None:
            self.daemon.saw_end(process)

    def refuses_start(self, replica: Replica) -> bool:
        """Whether there is no room for the process of a replica."""
        for trouble in self.start_troubles.values():
            if trouble.count:
                trouble.count -= 1
                trouble.struck(replica)
                return True
        return False

    def start_lag(self) -> float:
        """The delay in seconds after which its daemon learns of a process that is started now."""
        lags = list(self.start_lags.values())
        for each in lags:
            each.struck()
        return max((each.lag for each in lags), default=0.0)

    def lied(self, message: Message, roster: Sequence[Row]) -> Message:
        """A report as it leaves the machine: what its station says, or lies in its place."""
        for each in list(self.lies.values()):
            false = each.liar.lied(message, roster)
            if false != message:
                each.struck()
            message = false
        return message

    def stopped(self) -> tuple[Member, ...]:
        """The lives whose process is stopped by a signal."""
        return tuple(each.member for each in self.processes.values() if each.is_stopped and not each.end)


STATION_SECONDS: Final = 1.0
"""Delay between the end of a station and a new one on its machine, for a home that still gives it orders."""
JOURNAL: Final = "journal"
TAKES_OVER_NS: Final = 50_000_000
"""Delay until the next daemon of a home has begun, while linked machines already report."""


class DiedError(Exception):
    """The daemon is dead, and stops in the middle of its work."""


@dataclass(frozen=True, slots=True)
class Shared:
    """The objects and callbacks that all daemons of a universe share.

    `launch` starts a process; `began` and `wrote` are called for each start and incident, `finished` at the end of the
    run, `died` when a daemon comes to the command at which it dies; `recorded` is what the incidents so far tell.
    """

    clock: VirtualClock
    links: ControlLinks
    machines: Mapping[str, SimulatedMachine]
    cast: RunRoles
    launch: Callable[[SimulatedMachine, Member], SimulatedProcess]
    began: Callable[[Member], None]
    wrote: Callable[[SimulatedMachine, Member, Incident], None]
    finished: Callable[[SimulatedMachine, Home], None]
    died: Callable[[SimulatedMachine], None]
    recorded: Callable[[], Recorded]


class SimulatedDaemon:
    """The daemon on `machine`. It dies instead of performing a command after the next `commands_left`."""

    def __init__(self, shared: Shared, machine: SimulatedMachine, number: int) -> None:
        self.clock = HostClock(shared.clock)
        self.name = f"daemon {machine.name}#{number}"
        self.tapes: list[Tape] = []
        self._stations: list[Station] = []
        self.home: Home | None = None
        self.homes: Driver | None = None
        self.commands_left: int | None = None
        self._mount = Mount(machine.disk)
        self._ledger = SimulatedLedger(machine.book, self._mount)
        self._shared, self._machine = shared, machine
        self._station()
        self._cancel_timer: Callable[[], None] = lambda: None
        self._ended: set[int] = set()
        self._roster: tuple[Row, ...] = ()
        """The hosts of the run, as its station has learned last."""
        self._heard: set[str] = set()
        """The machines whose reports have arrived: they follow this home."""
        if machine.places is not None:
            self.home = Home(shared.cast, machine.places)
            self.homes = Driver(self.home, self._perform_home, self.clock.now, segment_bytes=SEGMENT_BYTES)

    def _station(self) -> None:
        """Begin a station, with a tape of its own."""
        self.station = Station(is_at_home=self._machine.places is not None)
        self._stations.append(self.station)
        self.stations = Driver(self.station, self._perform, self.clock.now, segment_bytes=SEGMENT_BYTES)
        self.tapes.append(self.stations.tape)

    @property
    def refused(self) -> Counter[str]:
        return sum((station.refused for station in self._stations), Counter[str]())

    def start(self) -> None:
        """Start, like a new process."""
        remembered = []
        for member, pid in self._ledger.newest():
            process = None if pid is None else self._machine.processes.get(pid)
            remembered.append(Remembered(member, pid, process is not None and process.end is None))
        self.feed(StationBegan(tuple(remembered), self._ledger.is_lost("station"), *self._following()))
        if self.homes is not None:
            journal = self._ledger.noted(JOURNAL)
            is_lost = self._ledger.is_lost("home")
            recorded = self._shared.recorded() if is_lost else Recorded()
            began = HomeBegan(self._ledger.numbers(), journal, is_lost, recorded)
            takes = 0 if journal is None else TAKES_OVER_NS
            self.clock.call_at(Instant(self.clock.now() + takes), partial(self.feed_home, began))
        self._beat()

    def _following(self) -> tuple[str, int]:
        """The home that the station follows at first, and its term."""
        places = self._machine.places
        return self._machine.follows if places is None else (places.home, places.term)

    def die(self) -> None:
        self.clock.is_dead = self._mount.is_gone = True

    # -- events --------------------------------------------------------------------------------------------------------

    def feed(self, event: StationEvent) -> None:
        self.clock.run(partial(self._feed, self.stations, event))

    def feed_home(self, event: HomeEvent) -> None:
        if self.homes is not None:
            self.clock.run(partial(self._feed, self.homes, event))

    def saw_end(self, process: SimulatedProcess) -> None:
        if process.pid in self._ended:
            return
        self._ended.add(process.pid)
        assert process.end is not None
        self.feed(ProcessEnded(process.member, process.end, 0.0))

    def _feed(self, driver: Driver, event: StationEvent | HomeEvent) -> None:
        try:
            driver.feed(event)
        except DiedError:
            self._shared.died(self._machine)

    def _beat(self) -> None:
        self._ledger.settle()
        self.feed(StationBeat(self._machine.stopped()))
        self.feed_home(HomeBeat())
        self._call()
        self.clock.call_at(Instant(self.clock.now() + seconds(BEAT_SECONDS)), self._beat)

    def _call(self) -> None:
        """Announce this home to machines that do not report to it yet."""
        if self.home is not None and self.home.term > 1 and not self.home.is_ending:
            event = HomeCalled(self._machine.name, self.home.term)
            for name in self.home.fleet.others:
                if name not in self._heard and name in self._shared.machines:
                    self._shared.links.send(self._machine.name, name, partial(self._obeyed, name, event))

    def _live_on(self) -> None:
        """Die here, if this is the command."""
        if self.clock.is_dead:
            raise DiedError
        if self.commands_left is not None:
            self.commands_left -= 1
            if self.commands_left < 0:
                self.die()
                raise DiedError

    # -- commands of the station ---------------------------------------------------------------------------------------

    def _perform(self, command: StationCommand) -> None:
        self._live_on()
        machine = self._machine
        match command:
            case NoteLives():
                self._note(self.stations, self._ledger.begin, command.members)
            case NoteFound():
                self._ledger.mark_whole("station")
            case StartProcess():
                self._start(command.member)
            case NoteProcess():
                self._ledger.started(command.member, command.pid)
            case WatchProcess():
                process = machine.processes.get(command.pid)
                if process is None or process.end is not None:
                    self._soon(self.stations, ProcessEnded(command.member, Exited()))
            case KillProcess():
                if (process := machine.process(command.member)) is not None:
                    # The kernel ends it and reports that soon, not now.
                    self._shared.clock.call_soon(partial(machine.end, process))
            case TellHosts():
                self._roster = command.roster or self._roster
                for member in command.members:
                    if (process := machine.process(member)) is not None and process.life is not None:
                        roster, ends = command.roster, command.is_ending
                        stops, forms = command.is_stopping, command.forms
                        process.life.on_message(self, roster, stop=stops, end=ends, forms=forms)
            case DismissHost():
                if (process := machine.process(command.member)) is not None and process.life is not None:
                    process.life.on_message(self, None, stop=False, end=True)
            case SendReport():
                self._report(command.report)
            case FollowHome():
                machine.follows = command.home, command.term
            case TurnAway():
                self._turn_away(command)
            case CloseStation():
                self.clock.call_at(Instant(self.clock.now() + seconds(STATION_SECONDS)), self._station_anew)

    def _station_anew(self) -> None:
        """Begin a new, empty station, as for a home that finds the machine without one."""
        if not self.clock.is_dead:
            self._machine.book.forget()
            self._station()
            self.feed(StationBegan((), False, *self._following()))

    def _start(self, member: Member) -> None:
        machine = self._machine
        if machine.refuses_start(member.replica):
            self._soon(self.stations, ProcessNotStarted(member, "no process left"))
            return
        self._shared.began(member)
        process = self._shared.launch(machine, member)
        started, lag = ProcessStarted(member, process.pid), machine.start_lag()
        if lag:
            at = Instant(self.clock.now() + seconds(lag))
            self.clock.call_at(at, partial(self._feed, self.stations, started))
        else:
            self._soon(self.stations, started)

    def _report(self, report: Report) -> None:
        if self.homes is not None:
            self.homes.feed(ReportCame(self._machine.name, report))
            return
        name, home = self._machine.name, self._machine.follows[0]
        message = self._machine.lied(of_report(report, {}), self._roster)

        def arrive() -> None:
            daemon = self._shared.machines[home].daemon
            if daemon is not None:
                daemon.hear_report(name, message)

        self._shared.links.send(name, home, arrive)

    def hear_report(self, machine: str, message: Message) -> None:
        """Handle the report of a station elsewhere."""
        self._heard.add(machine)
        try:
            report, _ = read_report(message)
        except ReportError as error:
            self.feed_home(BadReportCame(machine, error.fault))
        else:
            self.feed_home(ReportCame(machine, report))

    def _turn_away(self, command: TurnAway) -> None:
        """Tell the home here, or the machine that claims to be home, that another one is."""
        event = TurnedAway(command.by, command.term)
        if command.home == self._machine.name:
            self.feed_home(event)
            return

        def arrive() -> None:
            daemon = self._shared.machines[command.home].daemon
            if daemon is not None:
                daemon.feed_home(event)

        self._shared.links.send(self._machine.name, command.home, arrive)

    # -- commands of the home ------------------------------------------------------------------------------------------

    def _perform_home(self, command: HomeCommand) -> None:
        self._live_on()
        assert self.home is not None
        assert self.homes is not None
        match command:
            case NoteLives():
                self._note(self.homes, self._ledger.give, command.members)
            case NoteFound():
                self._ledger.mark_whole("home")
            case NoteJournal():
                self._ledger.note(JOURNAL, command.journal)
            case SendOrders():
                self._order(command)
            case WriteIncident():
                self._shared.wrote(self._machine, command.member, command.incident)
            case SetHomeTimer():
                self._cancel_timer()
                self._cancel_timer = self.clock.call_at(command.at, partial(self.feed_home, HomeTimerFired()))
            case FinishRun():
                self._shared.finished(self._machine, self.home)

    def _order(self, command: SendOrders) -> None:
        for name, orders in command.by_machine():
            event = OrdersCame(orders)
            if name == self._machine.name:
                self.stations.feed(event)
            else:
                self._shared.links.send(self._machine.name, name, partial(self._obeyed, name, event))

    def _obeyed(self, name: str, event: OrdersCame | HomeCalled) -> None:
        """Orders, or a call, arrive at a machine."""
        daemon = self._shared.machines[name].daemon
        if daemon is not None:
            daemon.feed(event)

    # -- for both cores ------------------------------------------------------------------------------------------------

    def _note(self, driver: Driver, write: Callable[[tuple[Member, ...]], None], members: tuple[Member, ...]) -> None:
        try:
            write(members)
        except OSError as error:
            driver.feed(LivesNotNoted(members, str(error)))
        else:
            driver.feed(LivesNoted(members))

    def _soon(self, driver: Driver, event: StationEvent) -> None:
        """Feed an event at this instant, after the present work."""
        self.clock.call_soon(partial(self._feed, driver, event))
