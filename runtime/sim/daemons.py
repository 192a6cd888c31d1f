"""The machines of a universe, and the daemons on them: the shells of real ones, on simulated ground.

Cores and shells, their messages and the statements of the ledger are those of real daemons; clock, processes, links and
the ledger's disk are simulated. A daemon may be suspended, and may die between any two commands; its successor on the
machine starts from the ledger. A process exists from when a daemon requests it, boots for a while, and is then a host.
What a machine's daemon decides beyond the shells of a run (who is called, where a run is stationed) is simulated here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, final

from isthmus.runtime.clock import Duration, Instant, seconds
from isthmus.runtime.daemon.ground import Ground, Handler, OnEnd
from isthmus.runtime.daemon.home_daemon import Daemon, DirectoryTerms, journal_in
from isthmus.runtime.daemon.outpost import Outpost
from isthmus.runtime.host.virtual_time import VirtualClock
from isthmus.runtime.ids import Member, Party, Replica
from isthmus.runtime.sim.host import RUN, Life
from isthmus.runtime.sim.lies import Liar
from isthmus.runtime.sim.machine import HostClock, LedgerFile, Mount, SimulatedDisk
from isthmus.runtime.sim.network import ControlLinks
from isthmus.runtime.sim.world import SEGMENT_BYTES
from isthmus.runtime.supervision.driver import Core, Driver
from isthmus.runtime.supervision.home import Home
from isthmus.runtime.supervision.home_events import Journal, Places, RunRoles
from isthmus.runtime.supervision.incidents import Exited, Happened
from isthmus.runtime.supervision.messages import BEAT_SECONDS, LONELY_BEATS, Directory
from isthmus.runtime.supervision.rosters import Row
from isthmus.runtime.supervision.station import Station
from isthmus.runtime.supervision.station_events import FollowHome
from isthmus.runtime.tape.writing import Tape
from isthmus.runtime.wire.control_messages import Message, decode, encode

KILLED: Final = Exited(signal="SIGKILL")


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
    idle_since: Instant | None = None
    """Since when the user's code in it has done nothing."""
    end: Exited | None = None


@dataclass(slots=True)
class SimulatedMachine:
    """A machine of a universe."""

    name: str
    address: str
    disk: SimulatedDisk
    records: SimulatedDisk = field(default_factory=lambda: SimulatedDisk(""))
    """Its disk, as far as it is a home, never fails: ledger and incidents are not lost together."""
    ledger: LedgerFile = field(default_factory=LedgerFile)
    daemon: SimulatedDaemon | None = None
    processes: dict[int, SimulatedProcess] = field(default_factory=dict)
    crashes: dict[Replica, int] = field(default_factory=dict)
    """By replica, how many more lives end soon after they begin."""
    start_troubles: dict[int, StartTrouble] = field(default_factory=dict)
    """By the number of the fault that made each."""
    start_lags: dict[int, StartLag] = field(default_factory=dict)
    lies: dict[int, StationLie] = field(default_factory=dict)
    is_dark: bool = False
    boots: int = 0
    """Counts the returns of its power."""
    places: Places | None = None
    """Those of the run whose home it is, or was, as far as it knows."""
    follows: tuple[str, int] = ("", 1)
    """The home that its station has recorded, with the term."""

    def journal(self) -> Journal | None:
        """The journal of the home here."""
        return journal_in(self.ledger.database)

    def living(self) -> list[Life]:
        return [process.life for process in self.processes.values() if process.life is not None and not process.end]

    def boot_id(self) -> bytes:
        return str(self.boots).encode()

    def started_at(self, pid: int, /) -> int | None:
        process = self.processes.get(pid)
        return None if process is None or process.end is not None else pid

    def end(self, process: SimulatedProcess, how: Exited = KILLED) -> None:
        """End a process at once; the daemon of its machine sees it, if there is one."""
        if process.end is not None:
            return
        process.end = how
        process.cancel_boot()
        if process.life is not None:
            process.life.kill()
        if self.daemon is not None:
            self.daemon.processes.saw_end(process)

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


STATION_SECONDS: Final = 1.0
"""Delay between the end of a station and a new one on its machine, for a home that still gives it orders."""
TAKES_OVER_NS: Final = 50_000_000
"""Delay until the next daemon of a home has begun, while linked machines already report."""


class DiedError(Exception):
    """The daemon is dead, and stops in the middle of its work."""


@dataclass(frozen=True, slots=True)
class Shared:
    """The objects and callbacks that all daemons of a universe share."""

    clock: VirtualClock
    links: ControlLinks
    machines: Mapping[str, SimulatedMachine]
    cast: RunRoles
    directory: Directory
    """What homes know of machines."""
    terms: Callable[[], DirectoryTerms]
    """What the program makes of that, for one home."""
    parties: Mapping[str, Party]
    """Who brought them."""
    launch: Callable[[SimulatedMachine, Member], SimulatedProcess]
    """Starts a process."""
    began: Callable[[Member], None]
    """Called for each start."""
    wrote: Callable[[SimulatedMachine, Happened], None]
    """Called for each incident."""
    finished: Callable[[SimulatedMachine, Home], None]
    """Called at the end of the run."""
    died: Callable[[SimulatedMachine], None]
    """Called when a daemon comes to the command at which it dies."""


class DaemonClock(HostClock):
    """The clock of a daemon, which may die in each callback; `died` is called then."""

    def __init__(self, universe: VirtualClock, died: Callable[[], None]) -> None:
        super().__init__(universe)
        self._died = died

    def run(self, callback: Callable[[], None]) -> None:
        try:
            super().run(callback)
        except DiedError:
            self._died()


class SimulatedProcesses:
    """The processes of a machine, as one of its daemons starts, watches and kills them."""

    def __init__(self, shared: Shared, machine: SimulatedMachine, clock: HostClock) -> None:
        self._shared, self._machine, self._clock = shared, machine, clock
        self._watched: dict[Member, tuple[SimulatedProcess, OnEnd]] = {}

    def prepare(self, wanted: Sequence[Replica]) -> list[Replica]:
        return list(wanted)

    def __call__(self, member: Member, endpoint: str, started: Callable[[int], None]) -> None:
        machine = self._machine
        if machine.refuses_start(member.replica):
            raise OSError("no process left")
        self._shared.began(member)
        process = self._shared.launch(machine, member)
        at = Instant(self._clock.now() + seconds(machine.start_lag()))
        self._clock.call_at(at, partial(started, process.pid))

    def script_log(self, replica: Replica) -> Path | None:
        return None

    def watch(self, member: Member, pid: int, ended: OnEnd) -> None:
        process = self._machine.processes.get(pid)
        if process is None or process.end is not None:
            self._clock.call_soon(partial(ended, member, Exited(), None))
        else:
            self._watched[member] = process, ended

    def kill(self, member: Member) -> None:
        if member in self._watched:
            # The kernel ends it and reports that soon, not now.
            self._shared.clock.call_soon(partial(self._machine.end, self._watched[member][0]))

    def stopped(self) -> tuple[Member, ...]:
        return tuple(member for member, (process, _) in self._watched.items() if process.is_stopped)

    def idle(self, pids: Mapping[Member, int], now: Instant) -> dict[Member, Duration]:
        since = {member: process.idle_since for member, (process, _) in self._watched.items() if member in pids}
        return {member: Duration(0 if at is None else now - at) for member, at in since.items()}

    def saw_end(self, process: SimulatedProcess) -> None:
        """A process of the machine has ended."""
        _, ended = self._watched.pop(process.member, (process, None))
        if ended is not None and process.end is not None:
            self._clock.run(partial(ended, process.member, process.end, 0.0))

    def close(self) -> None:
        self._watched.clear()


class SimulatedServer:
    """The endpoint of a daemon, and the lives that have dialled it, by their names."""

    def __init__(self, daemon: SimulatedDaemon, handle: Handler) -> None:
        self.endpoint, self.refused = daemon.name, Counter[str]()
        self._daemon, self._handle = daemon, handle
        self._lives: dict[bytes, Life] = {}
        self._is_closed = False

    def send(self, peer: bytes, message: Message) -> None:
        self._lives[peer].deliver(self._daemon, decode(encode(message)))

    def receive(self, life: Life, message: bytes) -> None:
        """A host has sent a message."""
        peer = str(life.member).encode()
        self._lives[peer] = life
        if not self._is_closed:
            self._daemon.clock.run(partial(self._handle, peer, decode(message)))

    def restore(self) -> None:
        """Nothing deletes it."""

    def close(self) -> None:
        self._is_closed = True


@final
class SimulatedDaemon(Ground):
    """The daemon on `machine`: the shells of a home or of an outpost, for which it is the ground.

    It dies instead of performing a command after the next `commands_left`.
    """

    clock: DaemonClock
    processes: SimulatedProcesses

    def __init__(self, shared: Shared, machine: SimulatedMachine, number: int) -> None:
        self.name = f"daemon {machine.name}#{number}"
        self.tapes: dict[str, list[Tape]] = {"station": [], "home": []}
        self.commands_left: int | None = None
        self.is_published = self.is_leaving = False
        self._shared, self._machine = shared, machine
        self._mount = Mount(machine.disk)
        self._stations: list[Station] = []
        self._drivers: dict[str, Driver] = {}
        """Those of its present cores, by name."""
        self._heard: set[str] = set()
        """The machines whose reports have arrived: they follow this home."""
        clock = DaemonClock(shared.clock, self._died)
        processes = SimulatedProcesses(shared, machine, clock)
        super().__init__(
            RUN, Mount(machine.records), clock, machine.ledger.open(self._mount, machine), processes, processes
        )
        self._home: Daemon | None = None
        self._outpost: Outpost | None = None
        if (places := machine.places) is not None:
            self._home = Daemon(
                self,
                shared.cast,
                run=RUN.name,
                name=machine.name,
                on_over=lambda daemon: shared.finished(machine, daemon.home),
                places=places,
                send=self._send,
                directory=lambda: shared.directory,
                terms=shared.terms(),
                parties=lambda: dict(shared.parties),
                turn_away=lambda other: self._tell_home(other, machine.name, places.term),
            )

    def start(self) -> None:
        """Start, like a new process."""
        if self._home is None:
            self.clock.run(self._begin_outpost)
            self._announce()
            return
        takes = 0 if self._machine.journal() is None else TAKES_OVER_NS
        self.clock.call_at(Instant(self.clock.now() + takes), self._home.start)
        self._call()

    def _begin_outpost(self) -> None:
        machine = self._machine
        home, term = machine.follows
        self._outpost = Outpost(
            self,
            run=RUN.name,
            name=machine.name,
            home=home,
            term=term,
            send=self._report,
            follow=self._follow,
            turn_away=lambda command: self._tell_home(command.home, command.by, command.term),
            lonely_seconds=LONELY_BEATS * BEAT_SECONDS,
            on_over=self._end_outpost,
            keeps_texts=False,
        )
        self._outpost.start()

    @property
    def home(self) -> Home | None:
        """The core of the home, if it is here."""
        return None if self._home is None else self._home.home

    @property
    def station(self) -> Station:
        """The core of its present station."""
        return self._stations[-1]

    @property
    def refused(self) -> Counter[str]:
        return sum((station.refused for station in self._stations), Counter[str]())

    def check(self) -> None:
        """Raise InvariantError, with its last events, unless its cores are sound."""
        for driver in self._drivers.values():
            driver.check()

    def leave(self, seconds_max: float) -> None:
        """Leave within so many seconds, as after a signal; then this daemon ends."""
        self.is_leaving = True
        if self._home is not None:
            self.at_home(lambda home: home.set_aside(seconds_max))
        elif self._outpost is not None:
            self.clock.run(partial(self._outpost.leave, seconds_max))

    def die(self) -> None:
        """End at once; the hosts go on."""
        self.clock.is_dead = self._mount.is_gone = True

    # -- the ground of its shells --------------------------------------------------------------------------------------

    def wrote(self, happened: Happened) -> None:
        self._shared.wrote(self._machine, happened)

    def drive(self, name: str, core: Core, perform: Callable[[Any], None]) -> Driver:
        def performing(command: Any) -> None:
            self._live_on()
            perform(command)

        driver = Driver(core, performing, self.clock.now, segment_bytes=SEGMENT_BYTES)
        self.tapes[name].append(driver.tape)
        self._drivers[name] = driver
        if isinstance(core, Station):
            self._stations.append(core)
        return driver

    def serve(self, handle: Handler) -> SimulatedServer:
        self.server = SimulatedServer(self, handle)
        return self.server

    def publish(self, endpoint: str) -> None:
        self.is_published = True

    def restore_ledger(self) -> bool:
        return False

    def is_gone(self) -> bool:
        return False

    def flush(self) -> None:
        """Does nothing: tapes are kept in memory."""

    def close(self) -> None:
        self.processes.close()

    def _died(self) -> None:
        if self._machine.daemon is self:
            self._shared.died(self._machine)

    def _live_on(self) -> None:
        """Die here, if this is the command."""
        if self.clock.is_dead:
            raise DiedError
        if self.commands_left is not None:
            self.commands_left -= 1
            if self.commands_left < 0:
                self.die()
                raise DiedError

    # -- other machines ------------------------------------------------------------------------------------------------

    def at_home(self, act: Callable[[Daemon], object]) -> None:
        """Do something with the home here, if there is one."""
        home = self._home

        def run() -> None:
            if home is not None:
                act(home)

        self.clock.run(run)

    def _reach(self, name: str, act: Callable[[SimulatedDaemon], None]) -> None:
        """Do something with the daemon of another machine, once a message has got there."""

        def arrive() -> None:
            daemon = self._shared.machines[name].daemon
            if daemon is not None:
                daemon.clock.run(partial(act, daemon))

        if name in self._shared.machines:
            self._shared.links.send(self._machine.name, name, arrive)

    def _send(self, name: str, message: Message) -> None:
        """Orders of the home here."""
        self._reach(name, lambda daemon: daemon._ordered(self._machine.name, message))

    def _ordered(self, home: str, message: Message) -> None:
        if self._outpost is not None:
            self._outpost.order(home, message)

    def _left(self, name: str) -> None:
        """A machine has left the run."""
        if self._home is not None:
            self._home.take_away(name, "left")

    def _announce(self) -> None:
        """Tell the home that this machine is there: one that had left has its slots again."""
        self.clock.call_at(Instant(self.clock.now() + seconds(BEAT_SECONDS)), self._announce)
        if self._outpost is not None and not self.is_leaving:
            self._reach(self._machine.follows[0], lambda daemon: daemon._linked(self._machine.name))

    def _linked(self, name: str) -> None:
        home = self._home
        if home is not None and home.outcome == "running" and name in home.home.fleet.away:
            home.join(name, len(home.home.fleet.left_by(name)))

    def _report(self, message: Message) -> None:
        """A report of the outpost here."""
        told = self._machine.lied(message, self._stations[-1].rows() if self._stations else ())
        self._reach(self._machine.follows[0], lambda daemon: daemon._reported(self._machine.name, told))

    def _reported(self, machine: str, message: Message) -> None:
        if self._home is not None:
            self._heard.add(machine)
            self._home.on_message(machine, message)

    def _call(self) -> None:
        """Announce this home to machines that do not report to it yet."""
        home = self.home
        if home is not None and home.term > 1 and not home.is_ending:
            for name in home.fleet.others:
                if name not in self._heard:
                    self._tell_home(name, self._machine.name, home.term)
        self.clock.call_at(Instant(self.clock.now() + seconds(BEAT_SECONDS)), self._call)

    def _called(self, home: str, term: int) -> None:
        """A machine claims to be the home."""
        if self._home is not None:
            self._home.call(home, term)
        elif self._outpost is not None:
            self._outpost.call(home, term)

    def _tell_home(self, name: str, home: str, term: int) -> None:
        """Tell another machine which one is the home, as that does when it calls there."""
        self._reach(name, lambda daemon: daemon._called(home, term))

    def _follow(self, command: FollowHome) -> None:
        self._machine.follows = command.home, command.term

    def _end_outpost(self) -> None:
        """The run has left this machine; a home that still gives orders finds another outpost soon."""
        assert self._outpost is not None
        self._outpost.close()
        self._outpost = None
        if self.is_leaving:
            self._reach(self._machine.follows[0], lambda daemon: daemon._left(self._machine.name))
            self.clock.call_soon(partial(self._shared.died, self._machine))
            return
        self.clock.call_at(Instant(self.clock.now() + seconds(STATION_SECONDS)), self._begin_anew)

    def _begin_anew(self) -> None:
        self._machine.ledger.forget()
        self.ledger = self._machine.ledger.open(self._mount, self._machine)
        self._begin_outpost()
