"""A run's home, its stations and their processes in memory: every fault is a call, and nothing happens by itself.

Messages between computers wait on their way until somebody delivers, repeats or loses them.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from isthmus.runtime.clock import Duration, Instant, milliseconds
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.driver import Driver
from isthmus.runtime.supervision.home_events import HomeBeat, HomeTimerFired, Places, ReportCame, RunRoles
from isthmus.runtime.supervision.incidents import Ended, Exited, Incident, Unseen
from isthmus.runtime.supervision.messages import Heartbeat, Orders, Over, Report
from isthmus.runtime.supervision.station_events import (
    HostSpoke,
    OrdersCame,
    ProcessEnded,
    ProcessStarted,
    StationBeat,
)
from tests.runtime.supervision.supervised_daemon import Daemon, DaemonKilledError, Disk, Process

BEAT: Final = milliseconds(500)
RECORDER: Final = Replica("recorder", 0)


class Computer:
    """A machine. `is_full`: its disk takes no number, and no process finds room."""

    def __init__(self, name: str, world: World) -> None:
        self.name, self.world, self.is_home = name, world, name == world.places.home
        self.disk = Disk()
        self.processes: dict[int, Process] = {}
        self.daemon: Daemon | None = None
        self.is_full = self.is_closed = False
        self.unseen: list[Member] = []
        """What a daemon has asked the system for, before it died."""

    def feed(self, driver: Driver, event: Any) -> None:
        """Let something happen to a core of this daemon, which may die of it."""
        try:
            driver.feed(event)
        except DaemonKilledError:
            self.kill_daemon()
        if not self.world.is_healed:
            self.check()

    def check(self) -> None:
        """Raise InvariantError unless the cores here are sound."""
        if self.daemon is not None:
            self.daemon.station.check()
            self.daemon.home.check()

    def start_daemon(self) -> None:
        """Have a daemon, where there is none."""
        if self.daemon is None and not self.is_closed:
            self.daemon = Daemon(self, self.world)
            self.daemon.start()

    def kill_daemon(self) -> None:
        """Whatever it knew is gone, but for the disk."""
        assert self.daemon is not None
        self.unseen += self.daemon.asked
        self.daemon = None

    def lose_disk(self) -> None:
        """The ledger is gone, and with it the daemon."""
        if self.daemon is not None:
            self.kill_daemon()
        self.disk = Disk(lost={"home", "station"})

    def fork(self) -> None:
        """The oldest process that was asked for is there."""
        if self.unseen:
            self.world.create(self, self.unseen.pop(0))
        elif self.daemon is not None and self.daemon.asked:
            member = self.daemon.asked.pop(0)
            self.feed(self.daemon.of_station, ProcessStarted(member, self.world.create(self, member)))

    def end_process(self, pid: int, end: Exited) -> None:
        """A process is there no more, as its daemon will see."""
        process = self.processes.pop(pid, None)
        if process is not None and self.daemon is not None and self.daemon.watched.get(process.member) == pid:
            self.daemon.ended.append(ProcessEnded(process.member, end))

    def see_ends(self) -> None:
        """The daemon sees which processes have ended."""
        while self.daemon is not None and self.daemon.ended:
            event = self.daemon.ended.pop(0)
            self.world.seen_ends[event.member] = self.daemon, self.world.home.daemon
            self.daemon.watched.pop(event.member, None)
            self.feed(self.daemon.of_station, event)

    def speak(self, pid: int) -> None:
        """A host says what it is; one that was told to leave ends."""
        process = self.processes[pid]
        if process.is_stopped:
            return
        if process.is_leaving:
            self.end_process(pid, Exited(0))
        elif self.daemon is not None:
            is_over = self.world.is_over and process.member.replica == RECORDER
            said = Heartbeat(process.phase, (f"tcp://{self.name}:{pid}", f"tcp://{self.name}:{pid + 1}"))
            more = {"meets": process.meets, "asks": process.roster.asks}
            over = Over() if is_over else None
            self.feed(self.daemon.of_station, HostSpoke(process.member, pid, said, over=over, **more))

    def beat(self) -> None:
        """Half a second has passed."""
        if self.daemon is not None:
            self.daemon.settle()
            stopped = tuple(each.member for each in self.processes.values() if each.is_stopped)
            self.feed(self.daemon.of_station, StationBeat(stopped))
        if self.daemon is not None and self.is_home:
            self.feed(self.daemon.of_home, HomeBeat())


class World:
    """All computers. `started` has every life that ever became a process."""

    def __init__(self, cast: RunRoles, places: Places) -> None:
        self.cast, self.places = cast, places
        self.now = Instant(0)
        self.is_over = self.is_healed = False
        self.started: list[Member] = []
        self.incidents: list[tuple[Member, Incident]] = []
        self.seen_ends: dict[Member, tuple[Daemon, Daemon | None]] = {}
        self.computers = {name: Computer(name, self) for name in (places.home, *places.offers)}
        self.up: dict[str, deque[Report]] = {name: deque() for name in self.computers}
        self.down: dict[str, deque[Orders]] = {name: deque() for name in self.computers}
        for computer in self.computers.values():
            computer.start_daemon()

    @property
    def home(self) -> Computer:
        return self.computers[self.places.home]

    def create(self, computer: Computer, member: Member) -> int:
        """A process begins; its pid."""
        assert member not in self.started, f"{member} began twice"
        self.started.append(member)
        pid = 1000 + len(self.started)
        computer.processes[pid] = Process(member, pid)
        return pid

    def write(self, member: Member, incident: Incident) -> None:
        """Keep an incident. How a life ended is known, if its station and the home are those that were there then."""
        self.incidents.append((member, incident))
        if member in self.seen_ends and isinstance(incident, Ended):
            station, home = self.seen_ends[member]
            is_known = home is self.home.daemon and any(each.daemon is station for each in self.computers.values())
            assert not (is_known and isinstance(incident.end, Unseen)), f"how {member} ended was told only once"

    def tell_home(self, event: Any) -> None:
        """Somebody asks something of the run."""
        if self.home.daemon is not None:
            self.home.feed(self.home.daemon.of_home, event)

    def pass_time(self, duration: Duration) -> None:
        """Let time go by, and the timer fire, if it is due."""
        self.now = Instant(self.now + duration)
        daemon = self.home.daemon
        if daemon is not None and daemon.timer_at is not None and self.now >= daemon.timer_at:
            daemon.timer_at = None
            self.home.feed(daemon.of_home, HomeTimerFired())

    def deliver_report(self, name: str, *, is_lost: bool = False, is_kept: bool = False) -> None:
        """The oldest report of a machine comes home, or is lost; one that is kept comes again."""
        if self.up[name]:
            report = self.up[name][0] if is_kept else self.up[name].popleft()
            if not is_lost:
                self.tell_home(ReportCame(name, report))

    def deliver_orders(self, name: str, *, is_lost: bool = False, is_kept: bool = False) -> None:
        """The oldest orders come to a machine, or are lost; such that are kept come again."""
        if self.down[name]:
            orders, daemon = self.down[name][0] if is_kept else self.down[name].popleft(), self.computers[name].daemon
            if not is_lost and daemon is not None and not self.computers[name].is_closed:
                self.computers[name].feed(daemon.of_station, OrdersCame(orders))

    # -- healing -------------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """No fault any more: every daemon is there, every disk takes what it is given, every process goes on."""
        self.is_healed = True
        for computer in self.computers.values():
            computer.is_full = False
            computer.start_daemon()
            assert computer.daemon is not None or computer.is_closed
            if computer.daemon is not None:
                computer.daemon.commands_left = None
            for process in computer.processes.values():
                process.is_stopped, process.misses = False, 0

    def live(self, beats: int, *, without: str = "") -> None:
        """Let so many beats pass in which every host speaks, and everything arrives but what goes to or comes from one
        machine."""
        for number in range(2 * beats):
            self.pass_time(Duration(BEAT // 2))
            for name, computer in self.computers.items():
                while computer.unseen or (computer.daemon is not None and computer.daemon.asked):
                    computer.fork()
                for pid in list(computer.processes):
                    computer.speak(pid)
                computer.see_ends()
                if number % 2:
                    computer.beat()
                for _ in range(len(self.up[name])):
                    self.deliver_report(name, is_lost=name == without)
                for _ in range(len(self.down[name])):
                    self.deliver_orders(name, is_lost=name == without)
                computer.check()

    def living(self) -> list[Member]:
        """The life of every process, sorted."""
        return sorted(process.member for each in self.computers.values() for process in each.processes.values())
