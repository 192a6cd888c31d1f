"""What the shells of a daemon stand on: the clock, processes, sockets and files of a machine, for one run.

`Site`, `Daemon` and `Outpost` know nothing else of their machine. In a real run it is a `LocalGround`; the simulator
has grounds of its own, and runs the same shells on them.
"""

from __future__ import annotations

import asyncio
import os
import signal
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias

from isthmus.runtime.clock import Clock, Duration, Instant
from isthmus.runtime.daemon.ledger import Ledger, identity
from isthmus.runtime.daemon.stacks import StacksRead, ask_for_stacks, stacks_told
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.driver import Core, Driver
from isthmus.runtime.supervision.incidents import Exited, Happened
from isthmus.runtime.system import run_memory
from isthmus.runtime.system.disk import DISK, Disk
from isthmus.runtime.system.idleness import IdleWatch, used_in
from isthmus.runtime.system.loop_clock import LoopClock
from isthmus.runtime.system.pidfds import exit_status, pidfd_open, pidfd_send_signal
from isthmus.runtime.system.processes import RANKS_HUNG, is_stopped, kill_session, signal_name
from isthmus.runtime.tape.reading import TapeFiles, segment_bytes
from isthmus.runtime.tape.writing import TAPE_BYTES, Tape
from isthmus.runtime.wire.control_messages import Message
from isthmus.runtime.wire.control_server import ControlServer
from isthmus.runtime.wire.daemon_notes import HERE, PRIVATE, note_of, publish

Handler: TypeAlias = Callable[[bytes, Message], None]
"""(peer, message)"""
OnEnd: TypeAlias = Callable[[Member, Exited, float | None], None]
"""(member, how, CPU seconds); the seconds are None where only a parent could know."""


class HostLaunching(Protocol):
    """Starts host processes, as children of this one."""

    def prepare(self, wanted: Sequence[Replica]) -> list[Replica]:
        """Prepares launches of `wanted`; returns the order that loses least time."""

    def __call__(self, member: Member, endpoint: str, started: Callable[[int], None]) -> None:
        """Start a host with its daemon at `endpoint`; call `started` with its pid, now or later. May raise OSError."""

    def script_log(self, replica: Replica) -> Path | None:
        """The log of a replica that is a process of a user's script; None for any other."""

    def close(self) -> None:
        """No more hosts will be started. Those that were started go on."""


class Processes(Protocol):
    """Processes of this machine, by the life that each is."""

    def watch(self, member: Member, pid: int, ended: OnEnd) -> None:
        """Call `ended` once, when a process ends; soon, if it no longer exists."""

    def kill(self, member: Member) -> None:
        """Kill a process, which then ends soon; does nothing where it is not watched."""

    def stopped(self) -> tuple[Member, ...]:
        """The watched members whose process is stopped."""

    def idle(self, pids: Mapping[Member, int], now: Instant) -> dict[Member, Duration]:
        """For how long the user's code in each of these processes has done nothing; 0 where it does something."""

    def close(self) -> None:
        """Release everything; the processes go on."""


class Server(Protocol):
    """An endpoint that hosts dial. `refused` counts messages that could not be handled, by reason."""

    endpoint: str
    refused: Counter[str]

    def send(self, peer: bytes, message: Message) -> None:
        """Send a message, which may be lost."""

    def restore(self) -> None:
        """Listen again where the endpoint was deleted."""

    def close(self) -> None:
        """Hang up."""


class Ground(ABC):
    """One run on one machine, in `folder`, as the shells of its daemon see it."""

    def __init__(
        self, folder: Path, disk: Disk, clock: Clock, ledger: Ledger, processes: Processes, launch: HostLaunching
    ) -> None:
        self.folder, self.disk, self.clock, self.ledger = folder, disk, clock, ledger
        self.processes, self.launch = processes, launch

    @abstractmethod
    def drive(self, name: str, core: Core, perform: Callable[[Any], None]) -> Driver:
        """A driver of a core, whose tape is kept under that name."""

    @abstractmethod
    def serve(self, handle: Handler) -> Server:
        """Serve hosts, and whoever asks."""

    @abstractmethod
    def publish(self, endpoint: str) -> None:
        """Let hosts find this daemon at an endpoint."""

    @abstractmethod
    def restore_ledger(self) -> bool:
        """Rewrite the ledger, if it was deleted; returns whether it was."""

    @abstractmethod
    def is_gone(self) -> bool:
        """Whether the folder is not the one that it was."""

    @abstractmethod
    def flush(self) -> None:
        """Keep what the tapes have got since the last call."""

    def wrote(self, happened: Happened) -> None:
        """The home of the run, which is here, has recorded an incident."""
        return

    def forget_memory(self) -> None:
        """No host of the run will live here again: remove what its hosts have left in this machine's memory."""
        return

    def full(self) -> tuple[str, ...]:
        """The disks, by where they are mounted, that have no room for what this process writes."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """Release everything; the hosts go on."""


class LocalGround(Ground):
    """This process on this machine, `name`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        folder: Path,
        *,
        name: str,
        launch: HostLaunching,
        processes: Processes | None = None,
        tape_bytes: int = TAPE_BYTES,
    ) -> None:
        """OSError or sqlite3.Error if the ledger cannot be opened. Tapes of each core have at most `tape_bytes`.

        `processes`: None for those that `launch` starts as children of this one.
        """
        # Of runs that ended without a word nobody else removes it. The daemon before this one may be gone.
        run_memory.sweep(lambda run: run == folder.absolute() or _goes_on(run))
        was_there = (folder / HERE).exists()
        if not was_there:  # A new run, in a folder that may be called as one before, and lie where that did.
            run_memory.forget(folder)
        ledger = Ledger(folder, was_there=was_there)
        super().__init__(
            folder, DISK, LoopClock(loop, 0), ledger, processes or LocalProcesses(loop, launch.script_log), launch
        )
        self._loop, self._name, self._tape_bytes = loop, name, tape_bytes
        self._identity = identity(folder)
        self._tapes: list[tuple[TapeFiles, Tape]] = []

    def drive(self, name: str, core: Core, perform: Callable[[Any], None]) -> Driver:
        driver = Driver(core, perform, self.clock.now, segment_bytes=segment_bytes(self._tape_bytes))
        files = TapeFiles.of_daemon(self.folder, name, os.getpid(), bytes_max=self._tape_bytes)
        self._tapes.append((files, driver.tape))
        return driver

    def serve(self, handle: Handler) -> Server:
        """zmq.ZMQError or OSError if that fails."""
        return ControlServer(self._loop, PRIVATE, handle)

    def publish(self, endpoint: str) -> None:
        publish(self.folder, endpoint, self._name)

    def restore_ledger(self) -> bool:
        return self.ledger.restore()

    def is_gone(self) -> bool:
        with suppress(OSError):  # A disk that does not answer has not lost the folder.
            return identity(self.folder) != self._identity
        return False

    def wrote(self, happened: Happened) -> None:
        """The home of the run, which is here, has recorded an incident."""
        return

    def forget_memory(self) -> None:
        """No host of the run will live here again: remove what its hosts have left in this machine's memory."""
        run_memory.forget(self.folder)

    def full(self) -> tuple[str, ...]:
        return DISK.full.now()

    def flush(self) -> None:
        for files, tape in self._tapes:
            files.write(tape)

    def close(self) -> None:
        self.launch.close()
        self.processes.close()
        self.flush()
        for files, _ in self._tapes:
            files.close()
        self.ledger.close()


def _goes_on(run: Path) -> bool:
    """Whether a run goes on here: its daemon lives, as far as this process can tell."""
    with suppress(OSError):
        note = note_of(run)
        return note is not None and note.is_living
    return True


STACKS_SECONDS: Final = 0.3
"""For a script to print where its threads are, which the kernel interrupts it for: a few milliseconds."""
DESCRIPTOR_SECONDS: Final = 0.5
"""Between two attempts to watch a process for which this one has no descriptor left."""
REAP_SECONDS: Final = 0.25
REAPED_MAX: Final = 40
"""Ten seconds: the kernel kills a host's own children when the host is gone, and they end at once."""


@dataclass(slots=True)
class _Watched:
    """A process, by its pidfd; -1 while this process has no descriptor for it."""

    pid: int
    ended: OnEnd
    watch: int = -1
    is_doomed: bool = False
    """Whether it is to be killed once it has one."""


class LocalProcesses:
    """Processes that the kernel runs.

    It watches them by their pidfds, so it sees at once when one ends, and never signals a process with a reused pid.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, script_log: Callable[[Replica], Path | None] = lambda replica: None
    ) -> None:
        """`script_log` returns the log of a replica that is a process of a user's script: it is told where its threads
        are before it is killed, and prints that there."""
        self._loop, self._script_log = loop, script_log
        self._watched: dict[Member, _Watched] = {}
        self._stacks: dict[Member, StacksRead] = {}
        self._idle: IdleWatch[Member] = IdleWatch(used_in)

    def watch(self, member: Member, pid: int, ended: OnEnd) -> None:
        self._watched[member] = process = _Watched(pid, ended)
        self._open(member, process)

    def _open(self, member: Member, process: _Watched) -> None:
        """Watch a process, now or as soon as this one has a descriptor for that: an error of ours is not its end."""
        if self._watched.get(member) is not process:
            return
        try:
            process.watch = pidfd_open(process.pid)
        except ProcessLookupError:
            del self._watched[member]
            self._loop.call_soon(process.ended, member, Exited(), None)
        except OSError:
            if _child_state(process.pid) == "ended":
                self._loop.call_soon(self._end, member)
            else:
                self._loop.call_later(DESCRIPTOR_SECONDS, self._open, member, process)
        else:
            self._loop.add_reader(process.watch, self._end, member)
            if process.is_doomed:
                self._kill(member)

    def kill(self, member: Member) -> None:
        process = self._watched.get(member)
        if process is None or member in self._stacks:
            return
        log = self._script_log(member.replica)
        if log is None:
            self._kill(member)
            return
        self._stacks[member] = ask_for_stacks(process.pid, log)
        self._loop.call_later(STACKS_SECONDS, self._kill, member)

    def _kill(self, member: Member) -> None:
        process = self._watched.get(member)
        if process is None:
            return
        if process.watch >= 0:
            with suppress(ProcessLookupError):
                pidfd_send_signal(process.watch, signal.SIGKILL)
        elif _child_state(process.pid) == "lives":  # It is not reaped, so that the number is its own.
            os.kill(process.pid, signal.SIGKILL)
        else:
            process.is_doomed = True

    def idle(self, pids: Mapping[Member, int], now: Instant) -> dict[Member, Duration]:
        return self._idle.look(pids, now)

    def stopped(self) -> tuple[Member, ...]:
        return tuple(member for member, process in self._watched.items() if is_stopped(process.pid))

    def close(self) -> None:
        for process in self._watched.values():
            self._close(process)
        self._watched.clear()

    def _close(self, process: _Watched) -> None:
        if process.watch >= 0:
            self._loop.remove_reader(process.watch)
            os.close(process.watch)

    def _end(self, member: Member) -> None:
        process, stacks = self._watched.pop(member), self._stacks.pop(member, None)
        how, used = Exited(), None
        try:
            how, used = self._reaped(process, stacks, self._script_log(member.replica))
        finally:  # Whatever that raises, a run waits for this.
            self._close(process)
            process.ended(member, how, used)

    def _reaped(self, process: _Watched, stacks: StacksRead | None, log: Path | None) -> tuple[Exited, float | None]:
        """Reap a process that has ended, with what it has started; returns how it ended, and its CPU seconds."""
        # Before it is reaped. A pool of the task's own, for example, would outlive the run.
        with suppress(OSError):  # Too few descriptors for a look at /proc.
            kill_session(process.pid)
        code, used = None, None
        try:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        except ChildProcessError:  # A former daemon was its parent.
            code = exit_status(process.watch, process.pid)
        else:
            if pid:  # Or it is traced: the tracer learns its status first.
                code, used = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
        self._reap_group(process.pid)
        if code is None:
            return Exited(), None
        if code == RANKS_HUNG and stacks is None and log is not None:
            stacks = stacks_told(log)
        places = () if stacks is None else stacks.places()
        exited = Exited(signal=signal_name(-code), places=places) if code < 0 else Exited(code, places=places)
        return exited, used

    def _reap_group(self, group: int, times: int = REAPED_MAX) -> None:
        """Reap a process's children in its group, which are children of this one by now, or will be soon."""
        with suppress(ChildProcessError):
            while os.waitpid(-group, os.WNOHANG)[0]:
                pass
            if times:
                self._loop.call_later(REAP_SECONDS, self._reap_group, group, times - 1)


def _child_state(pid: int) -> Literal["lives", "ended", "no child"]:
    """Whether a child of this process lives, or has ended and is not reaped. It needs no descriptor."""
    try:
        return "lives" if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None else "ended"
    except ChildProcessError:
        return "no child"
