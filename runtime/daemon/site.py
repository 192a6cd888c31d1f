"""The part of a run on this machine: performs the commands of its station's core, and feeds it events.

It decides nothing. A home has one beside its own core, an outpost has one alone. The hosts' status for people travels
beside reports, by life, and no core sees it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, assert_never

from isthmus.runtime.clock import Instant
from isthmus.runtime.daemon.host_endpoint import Handler, HostEndpoint, Shown
from isthmus.runtime.daemon.ledger import Ledger, LedgerError
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.driver import Driver
from isthmus.runtime.supervision.incidents import Exited
from isthmus.runtime.supervision.messages import Orders, Report
from isthmus.runtime.supervision.station import LONELY_BEATS, Station
from isthmus.runtime.supervision.station_events import (
    CloseStation,
    DismissHost,
    FollowHome,
    HomeCalled,
    HostSpoke,
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
    StationLeft,
    TellHosts,
    TurnAway,
    WatchProcess,
)
from isthmus.runtime.system.processes import is_stopped, kill_session
from isthmus.runtime.tape.reading import TapeFiles, segment_bytes
from isthmus.runtime.tape.writing import TAPE_BYTES
from isthmus.runtime.wire.daemon_notes import HERE, publish


class Launch(Protocol):
    """Starts host processes, as children of this one."""

    def prepare(self, wanted: Sequence[Replica]) -> list[Replica]:
        """Prepares launches of `wanted`; returns the order that loses least time."""

    def __call__(self, member: Member, endpoint: str, started: Callable[[int], None]) -> None:
        """Start a host with its daemon at `endpoint`; call `started` with its pid, now or later. May raise OSError."""

    def close(self) -> None:
        """No more hosts will be started. Those that were started go on."""


REAP_SECONDS: Final = 0.25
REAPED_MAX: Final = 40
"""Ten seconds: the kernel kills a host's own children when the host is gone, and they end at once."""


@dataclass(slots=True)
class _Watched:
    """A process, by its pidfd."""

    pid: int
    watch: int


class LocalProcesses:
    """Processes of this machine, by the life that each is.

    `ended(member, exited, cpu_seconds)` is called once for each; the seconds are None where it was not a child of this
    process.

    It watches processes by their pidfds, so it sees at once when one ends, and never signals a process with a reused
    pid.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ended: Callable[[Member, Exited, float | None], None]) -> None:
        self._loop, self._ended = loop, ended
        self._watched: dict[Member, _Watched] = {}

    def watch(self, member: Member, pid: int) -> None:
        """Watch a process for its end; one that no longer exists has ended."""
        try:
            watch = os.pidfd_open(pid)
        except OSError:
            self._loop.call_soon(self._ended, member, Exited(), None)
            return
        self._watched[member] = _Watched(pid, watch)
        self._loop.add_reader(watch, self._end, member)

    def kill(self, member: Member) -> None:
        """Kill a process, which then ends soon; does nothing where it is not watched."""
        process = self._watched.get(member)
        if process is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(process.watch, signal.SIGKILL)

    def stopped(self) -> tuple[Member, ...]:
        """Members whose process is stopped, by a signal or a debugger."""
        return tuple(member for member, process in self._watched.items() if is_stopped(process.pid))

    def close(self) -> None:
        """Release everything; the processes go on."""
        for process in self._watched.values():
            self._loop.remove_reader(process.watch)
            os.close(process.watch)
        self._watched.clear()

    def _end(self, member: Member) -> None:
        process = self._watched.pop(member)
        self._loop.remove_reader(process.watch)
        os.close(process.watch)
        # Before it is reaped. A pool of the task's own, for example, would outlive the run.
        kill_session(process.pid)
        try:
            pid, status, used = os.wait4(process.pid, os.WNOHANG)
        except ChildProcessError:  # A former daemon was its parent.
            pid = 0
        self._reap_group(process.pid)
        if not pid:  # Not our child, or traced: the tracer learns its status first.
            self._ended(member, Exited(), None)
            return
        code = os.waitstatus_to_exitcode(status)
        exited = Exited(signal=signal.Signals(-code).name) if code < 0 else Exited(code)
        self._ended(member, exited, used.ru_utime + used.ru_stime)

    def _reap_group(self, group: int, times: int = REAPED_MAX) -> None:
        """Reap a process's children in its group, which are children of this one by now, or will be soon."""
        with suppress(ChildProcessError):
            while os.waitpid(-group, os.WNOHANG)[0]:
                pass
            if times:
                self._loop.call_later(REAP_SECONDS, self._reap_group, group, times - 1)


class Site:
    """The hosts of run `run` on this machine, in `folder`.

    `report` is called with each report of the station, and the hosts' status; `on_over` is called once, when every
    process has ended for good; `commands` handle messages that no host sends. `ledger` may be shared with a home in the
    same daemon. The run's home is the machine `home`, in that `term`; without orders from it hosts end after
    `lonely_beats`. `follow` and `turn_away` perform the commands about homes.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        folder: Path,
        *,
        run: str,
        name: str,
        listen: str,
        launch: Launch,
        is_at_home: bool,
        home: str,
        term: int,
        report: Callable[[Report, Mapping[Member, Shown]], None],
        turn_away: Callable[[TurnAway], None],
        follow: Callable[[FollowHome], None] = lambda command: None,
        lonely_beats: int = LONELY_BEATS,
        on_over: Callable[[], None] = lambda: None,
        commands: Mapping[str, Handler] | None = None,
        tape_bytes: int = TAPE_BYTES,
    ) -> None:
        """Bind; zmq.ZMQError, OSError or sqlite3.Error if that fails."""
        self.folder, self.shown = folder, dict[Member, Shown]()
        self.ledger = Ledger(folder, was_there=(folder / HERE).exists())
        self.station = Station(is_at_home=is_at_home, lonely_beats=lonely_beats)
        self._home, self._term = home, term
        self._follow, self._turn_away = follow, turn_away
        self.keys: Mapping[str, str] = {}
        self._loop, self._name, self._launch = loop, name, launch
        self._report, self._on_over = report, on_over
        self._is_closed = False
        self._driver = Driver(self.station, self._perform, now, segment_bytes=segment_bytes(tape_bytes))
        self._tape_files = TapeFiles.of_daemon(folder, "station", os.getpid(), bytes_max=tape_bytes)
        self._processes = LocalProcesses(loop, self._ended)
        self.endpoint_of_hosts = HostEndpoint(loop, listen, run, self._spoke, commands or {})

    def start(self) -> None:
        """Publish this daemon's endpoint, and adopt the hosts that live here."""
        publish(self.folder, self.endpoint_of_hosts.endpoint, self._name)
        remembered = tuple(Remembered(*row) for row in self.ledger.newest())
        self._launch.prepare(
            [each.member.replica for each in remembered]
        )  # What has ended meanwhile is wanted again soon.
        self._driver.feed(StationBegan(remembered, self.ledger.is_lost("station"), self._home, self._term))

    def call(self, home: str, term: int) -> None:
        """A machine claims to be the home of the run."""
        self._driver.feed(HomeCalled(home, term))

    def order(self, orders: Orders, keys: Mapping[str, str]) -> None:
        """Handle orders of a home."""
        self.keys = keys
        self._driver.feed(OrdersCame(orders))

    def beat(self) -> bool:
        """Count a beat, every BEAT_SECONDS; returns whether the ledger had been deleted."""
        was_removed = self.ledger.restore()
        self.ledger.settle()
        self._driver.feed(StationBeat(self._processes.stopped()))
        self._tape_files.write(self._driver.tape)
        return was_removed

    def leave(self) -> None:
        """Leave the run: end every host."""
        self._driver.feed(StationLeft())

    def close(self) -> None:
        """Release everything; the hosts, if any are left, go on."""
        self._is_closed = True
        self._launch.close()
        self._processes.close()
        self.endpoint_of_hosts.close()
        self._tape_files.write(self._driver.tape)
        self._tape_files.close()
        self.ledger.close()

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
                self.ledger.mark_whole("station")
            case StartProcess():
                self._start_process(command.member)
            case NoteProcess():
                self.ledger.started(command.member, command.pid)
            case WatchProcess():
                self._processes.watch(command.member, command.pid)
            case KillProcess():
                self._processes.kill(command.member)
            case TellHosts():
                self.endpoint_of_hosts.tell(command, self.keys)
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
                self._launch.close()
                self._loop.call_soon(self._on_over)
            case _:
                assert_never(command)

    def _note_lives(self, members: tuple[Member, ...]) -> None:
        try:
            self.ledger.begin(members)
        except LedgerError as error:
            self._driver.feed(LivesNotNoted(members, str(error)))
            return
        lives = {member.replica: member for member in members}
        self._driver.feed(LivesNoted(tuple(lives[replica] for replica in self._launch.prepare(list(lives)))))

    def _start_process(self, member: Member) -> None:
        try:
            self._launch(member, self.endpoint_of_hosts.endpoint, lambda pid: self._started(member, pid))
        except OSError as error:
            self._driver.feed(ProcessNotStarted(member, str(error)))


def now() -> Instant:
    """The monotonic clock of this machine."""
    return Instant(time.monotonic_ns())
