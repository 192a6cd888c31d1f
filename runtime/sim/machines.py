"""A machine of a universe: its processes, its disk, its power, and its present daemon, if it has one.

It decides nothing. A process exists from when a daemon requests it, boots for a while, and is then a host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.sim.host import Life
from isthmus.runtime.sim.machine.disk import SimulatedDisk
from isthmus.runtime.sim.machine.ledger import Book
from isthmus.runtime.supervision.home.events import HomeEvent, Places
from isthmus.runtime.supervision.incidents import Exited
from isthmus.runtime.supervision.messages import Report
from isthmus.runtime.supervision.station_events import StationEvent

KILLED: Final = Exited(signal="SIGKILL")


class Daemon(Protocol):
    """A machine's view of its daemon."""

    name: str

    def feed(self, event: StationEvent) -> None:
        """Feed an event to the station."""

    def feed_home(self, event: HomeEvent) -> None:
        """Feed an event to the home, if it has one."""

    def hear_report(self, machine: str, report: Report) -> None:
        """Handle the report of a station elsewhere."""

    def saw_end(self, process: Process) -> None:
        """A process of its machine has ended."""

    def die(self) -> None:
        """End at once; the hosts go on."""


@dataclass(slots=True)
class StartTrouble:
    """A machine has no room for the next `count` processes; `struck` is called when it refuses one."""

    count: int
    struck: Callable[[], None]


@dataclass(slots=True)
class StartLag:
    """A daemon learns of a started process `lag` seconds later; `struck` is called when one is started."""

    lag: float
    struck: Callable[[], None]


@dataclass(slots=True)
class Process:
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
    daemon: Daemon | None = None
    processes: dict[int, Process] = field(default_factory=dict)
    crashes: dict[Replica, int] = field(default_factory=dict)
    start_troubles: dict[int, StartTrouble] = field(default_factory=dict)
    start_lags: dict[int, StartLag] = field(default_factory=dict)
    is_dark: bool = False
    places: Places | None = None
    follows: tuple[str, int] = ("", 1)

    def living(self) -> list[Life]:
        return [process.life for process in self.processes.values() if process.life is not None and not process.end]

    def process(self, member: Member) -> Process | None:
        """The process of a life, if it exists."""
        found = (each for each in self.processes.values() if each.member == member and not each.end)
        return next(found, None)

    def end(self, process: Process, how: Exited = KILLED) -> None:
        """End a process at once; the daemon of its machine sees it, if there is one."""
        if process.end is not None:
            return
        process.end = how
        process.cancel_boot()
        if process.life is not None:
            process.life.kill()
        if self.daemon is not None:
            self.daemon.saw_end(process)

    def refuses_start(self) -> bool:
        """Whether there is no room for the next process."""
        for trouble in self.start_troubles.values():
            if trouble.count:
                trouble.count -= 1
                trouble.struck()
                return True
        return False

    def start_lag(self) -> float:
        """The delay in seconds after which its daemon learns of a process that is started now."""
        lags = list(self.start_lags.values())
        for each in lags:
            each.struck()
        return max((each.lag for each in lags), default=0.0)

    def stopped(self) -> tuple[Member, ...]:
        """The lives whose process is stopped by a signal."""
        return tuple(each.member for each in self.processes.values() if each.is_stopped and not each.end)
