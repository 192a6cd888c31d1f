"""Faults inflicted on a real run, each with its proof from /proc: on processes, on machines, and on links.

Decides when a fault of a plan is carried out, and whether it has happened: a fault without a proof (the process was
gone, stood still, used less CPU time; bytes were held up) has not. Everything about processes is read from outside: the
daemon reports the pid of a host, /proc whether that process is there.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, final

import msgspec

from isthmus.programs.engine.machine.names import living
from isthmus.programs.engine.machine.socks_greeting import (
    GREETING_BYTES_MAX,
    SocksGreeting,
    ToDaemon,
    ToHost,
    TurnDown,
)
from isthmus.programs.engine.request.reference import is_file, split
from isthmus.programs.engine.run.logs import FORK_SERVER_LOG
from isthmus.programs.engine.run.private_daemon import processes_of
from isthmus.programs.wings.chaos.chaos_plan import (
    DAEMON,
    FORK_SERVER,
    MACHINE,
    OF_LINKS,
    Planned,
    machine_name,
    machine_number,
)
from isthmus.runtime.errors import ConfigError, Fault, RunError
from isthmus.runtime.ids import LEARNER
from isthmus.runtime.system.addresses import UNHEARD_MS_MAX
from isthmus.runtime.system.pidfds import pidfd_open, pidfd_send_signal
from isthmus.runtime.system.processes import is_stopped, started_at
from isthmus.runtime.wire.control_client import ask
from isthmus.runtime.wire.daemon_notes import note_of
from isthmus.runtime.wire.porter_greeting import CONNECTED, UNREACHABLE
from isthmus.runtime.wire.ways import Gate, WayThread

CHUNK_BYTES: Final = 16_384
"""Bytes of a read: eleven segments."""
SEGMENT_BYTES: Final = 1_448
AGAIN_SECONDS: Final = 0.2
"""Time until TCP sends a lost segment again: the minimum of Linux."""
HELD_BYTES_MAX: Final = 1 << 20
"""Limit in one direction of a connection; beyond it nothing is read, as with a socket's buffer."""
DIAL_SECONDS_MAX: Final = UNHEARD_MS_MAX / 1000
"""Of a dial for a host, which waits for its proxy as long."""
BACKLOG: Final = 512
ACCEPT_SECONDS: Final = 0.1
"""Without accepting, after descriptors have run out."""


@dataclass(slots=True)
class WayConditions:
    """The conditions of a way: thousands of bits a second (None: unlimited), additional latency in seconds, the share
    of lost segments, whether nothing passes."""

    kbits: float | None = None
    latency: float = 0.0
    share: float = 0.0
    is_mute: bool = False


@dataclass(slots=True)
class Way:
    """The way of one host to all others. Counts: `passed_bytes` in both directions, `held_bytes` of those that waited
    for any condition, `lost_segments`."""

    conditions: WayConditions
    passed_bytes: int = 0
    held_bytes: int = 0
    lost_segments: int = 0
    free_at: dict[str, float] = field(default_factory=dict)
    """Direction -> the time at which the bytes sent before have passed."""


class WayGate(Gate):
    """One direction of a way, of all connections of its host together."""

    piece_bytes = CHUNK_BYTES
    waiting_bytes_max = HELD_BYTES_MAX

    def __init__(self, way: Way, direction: str, rng: random.Random) -> None:
        self.way, self.direction = way, direction
        self._rng = rng

    @property
    def is_shut(self) -> bool:
        return self.way.conditions.is_mute

    def due(self, size_bytes: int) -> float | None:
        """The time at which bytes that arrive now are delivered."""
        way, now, conditions = self.way, time.monotonic(), self.way.conditions
        due = now + conditions.latency
        if conditions.kbits is not None:
            free = max(now, way.free_at.get(self.direction, 0.0)) + size_bytes * 8 / (1e3 * conditions.kbits)
            way.free_at[self.direction] = free
            due = free + conditions.latency
        if conditions.share:
            lost = sum(self._rng.random() < conditions.share for _ in range(-(-size_bytes // SEGMENT_BYTES)))
            way.lost_segments += lost
            due += AGAIN_SECONDS * lost
        return due

    def passed(self, size_bytes: int, *, has_waited: bool) -> None:
        self.way.passed_bytes += size_bytes
        self.way.held_bytes += size_bytes * has_waited


class LinkProxy:
    """A proxy in threads of its own; `owner_of(pid)` names the host of a process, and `usual` is how ways are at first.

    Learners and the evaluator dial all other hosts through this SOCKS5 proxy on loopback if the environment names it.
    The kernel tells which host a connection belongs to: the socket's inode, and the process that has it. Conditions
    hold for all connections of a host together, in both directions. A lost segment costs the time that TCP takes to
    send it again, as in the simulator: bytes are late, in order, and none is missing. What passes is passed on as by a
    porter (`ways`), with gates.
    """

    def __init__(self, owner_of: Callable[[int], str], usual: WayConditions) -> None:
        self._owner_of, self._usual = owner_of, usual
        self._hosts: dict[str, Way] = {}
        self._rng = random.Random("links")
        self._lock = threading.Lock()
        self._greeting: dict[socket.socket, threading.Thread] = {}
        """Those that have not said yet where they lead, or whose far end is being dialled."""
        self._is_closed = False
        self._ways = WayThread("links")
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        self.address = "{}:{}".format(*self._listener.getsockname())
        self._thread = threading.Thread(target=self._accept, name="link dials", daemon=True)
        self._thread.start()

    def way(self, host: str) -> Way:
        """The way of a host."""
        usual = self._usual
        fresh = Way(WayConditions(usual.kbits, usual.latency, usual.share, usual.is_mute))
        return self._hosts.setdefault(host, fresh)

    def close(self) -> None:
        """End every connection."""
        self._is_closed = True
        self._listener.shutdown(socket.SHUT_RDWR)  # So that nothing waits for another connection.
        self._thread.join()
        self._listener.close()
        with self._lock:
            greeting = dict(self._greeting)
        for near in greeting:
            with suppress(OSError):  # It is another thread's, which may have closed it.
                near.shutdown(socket.SHUT_RDWR)
        for thread in greeting.values():
            thread.join()
        self._ways.close()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                near, (_, port) = self._listener.accept()
            except OSError:  # Closed, or too few descriptors now.
                time.sleep(0 if self._is_closed else ACCEPT_SECONDS)
                continue
            thread = threading.Thread(target=self._lead, args=(near, port), name="link dial", daemon=True)
            with self._lock:
                self._greeting[near] = thread
            thread.start()

    def _lead(self, near: socket.socket, port: int) -> None:
        """One connection: SOCKS5 without a password, a dial on its behalf, then bytes both ways."""
        with ExitStack() as stack, suppress(OSError):
            stack.enter_context(near)
            stack.callback(self._forget, near)
            gates = self._gates(port, endpoint := _greeted(near))
            try:
                far = stack.enter_context(socket.create_connection(endpoint, DIAL_SECONDS_MAX))
            except OSError:
                near.sendall(UNREACHABLE)
                return
            near.sendall(CONNECTED)
            for each in (near, far):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._ways.give(near, far, *gates):
                stack.pop_all()
                self._forget(near)

    def _forget(self, near: socket.socket) -> None:
        with self._lock:
            del self._greeting[near]

    def _gates(self, port: int, endpoint: tuple[str, int]) -> tuple[Gate, Gate]:
        """The gates there and back of a connection from a port to an endpoint."""
        way = self.way(self._owner_of(pid_of(port)))
        return WayGate(way, "up", self._rng), WayGate(way, "down", self._rng)


def _greeted(near: socket.socket) -> tuple[str, int]:
    """The address and port that a client requests; OSError for anything but a CONNECT of SOCKS5."""
    greeting = SocksGreeting(lambda host, port: True)
    while data := near.recv(GREETING_BYTES_MAX):
        verdict = greeting.receive(data)
        if isinstance(verdict, ToDaemon):
            break
        near.sendall(verdict.answer)
        if isinstance(verdict, ToHost):
            if verdict.received:
                break  # Before it is told that the far end is there, a client has nothing to say.
            return verdict.host, verdict.port
        if isinstance(verdict, TurnDown):
            break
    raise OSError("no CONNECT of SOCKS5")


def pid_of(port: int) -> int:
    """The process whose TCP socket on loopback has this port; 0 if no accessible process has it."""
    local = f":{port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(local) and row[9] != "0"}
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and inodes & set(_open_files(path / "fd")):
            return int(path.name)
    return 0


def _open_files(folder: Path) -> Iterator[str]:
    """The targets of a process's descriptors, as far as they are accessible."""
    with suppress(OSError):
        for name in os.listdir(folder):
            with suppress(OSError):
                yield os.readlink(folder / name)


ANSWER_SECONDS = 1.0


class RunProcess(NamedTuple):
    """A process, distinguishable from a later one of the same pid."""

    pid: int
    started: int

    @property
    def is_there(self) -> bool:
        """Whether it has not ended."""
        return started_at(self.pid) == self.started

    @property
    def cpu_seconds(self) -> float:
        """User and system time so far; 0 once it is gone."""
        with suppress(OSError):
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return 0.0


def process(pid: int) -> RunProcess | None:
    """The process that has this pid now."""
    started = started_at(pid) if pid else None
    return None if started is None else RunProcess(pid, started)


def check_permitted() -> None:
    """ConfigError if this kernel, or the confinement of this process, does not permit strikes, or their proof."""
    doing, wrong = "Preparing the plan", list[Fault]()
    try:
        watch = pidfd_open(os.getpid())
        try:
            pidfd_send_signal(watch, 0)
        finally:
            os.close(watch)
    except OSError as error:
        do = "Use Linux 5.3 or later, and a confinement (seccomp) that permits pidfd_open and pidfd_send_signal."
        wrong.append(Fault(doing, "signals to processes by pidfd", str(error), do))
    if process(os.getpid()) is None or not _is_readable(Path("/proc/self/environ")):
        do = "Mount /proc (proc(5)), readable for the user that runs this command."
        wrong.append(Fault(doing, "/proc, which proves faults", "none that can be read", do))
    if wrong:
        raise ConfigError.of(wrong)


def _is_readable(path: Path) -> bool:
    with suppress(OSError):
        return bool(path.read_bytes())
    return False


def owner_of(pid: int) -> str:
    """The host of a run that a process is, by the title that it has given itself; '' if it is none."""
    with suppress(OSError):
        title = Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode("utf-8", "replace")
        return title.partition("isthmus ")[2]
    return ""


class ProcessTable:
    """The processes of the run in `folder`, by name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def status(self) -> Mapping[str, Any]:
        """The status from the run's daemon; empty if none answers."""
        note = note_of(self._folder)
        with suppress(OSError, ConfigError):
            return {} if note is None else ask(note.endpoint, {"type": "status"}, ANSWER_SECONDS) or {}
        return {}

    def zero(self) -> float | None:
        """The first inner step of the run, in seconds of the monotonic clock; None before it."""
        training = self.status().get("training") or {}
        if training.get("zero") is None or not training.get("tokens"):
            return None
        zero_ns: int = json.loads((self._folder / "spec.json").read_text())["zero_ns"]
        return float(zero_ns + training["zero"]) / 1e9

    def find_all(self, role: str) -> list[RunProcess]:
        """The processes of a role, whatever they do."""
        pids = [host["pid"] for host in self.status().get("hosts", ()) if host["role"] == role]
        return [running for pid in pids if (running := process(pid or 0)) is not None]

    def find_machine(self, name: str) -> tuple[str, ...] | None:
        """The hosts of a machine of a plan, if all of them do their work."""
        own = machine_name(machine_number(name))
        hosts = [host for host in self.status().get("hosts", ()) if host["machine"] == own]
        return tuple(host["name"] for host in hosts) if hosts and all(map(_works, hosts)) else None

    def find(self, name: str) -> RunProcess | None:
        """The process of this name, if it lives and works."""
        if name == FORK_SERVER:
            pids = [pid for pid, log in processes_of(self._folder) if log == FORK_SERVER_LOG]
            ready = [pid for pid in pids if owner_of(pid) == FORK_SERVER]  # Its title shows that it is ready.
            return process(ready[0]) if ready else None
        status = self.status()
        if name == DAEMON:
            return process(status.get("pid", 0))
        host = next((host for host in status.get("hosts", ()) if host["name"] == name), None)
        return process(host["pid"] or 0) if host is not None and _works(host) else None


def _works(host: Mapping[str, Any]) -> bool:
    return host["phase"] in ("stepping", "serving")


STATE: Final = "XDG_STATE_HOME"
KEEPS_ENVIRONMENT: Final = {"SPT_NOENV": "1"}
"""Keeps a process's title from overwriting the environment that the kernel shows."""
LISTEN_SECONDS_MAX: Final = 60.0
END_SECONDS_MAX: Final = 30.0
DAEMON_LOOK_SECONDS: Final = 0.05
_MAIN: Final = (
    "from isthmus.runtime.system.processes import die_with_parent; die_with_parent({parent})\n"
    "from isthmus.programs.command.main import main; main()"
)


@final
class Machines:
    """The machines of a run, named `machine-0` (the home) and so on. RunError if one does not start to listen.

    Each has a daemon on loopback, which is started again when it has ended, as by a service manager. A machine is
    killed with everything that runs on it, at once: its processes are identified by the state folder in the environment
    of its daemon, and of all that the daemon has started.

    Arguments:
        folder: where they are started.
        run: names a folder there, which has their files.
        count: how many.
        learners: spread over them.
        references: name code that they may load.
        environment: added to theirs.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        count: int,
        learners: int,
        references: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        self._folder, self._environment = folder.absolute(), environment
        self._own = self._folder / f"{run}-machines"
        self._own.mkdir(parents=True, exist_ok=True)
        files = [where for where, _ in map(split, references) if is_file(where)]
        self._config = self._own / "machine.toml"
        self._config.write_text(f"[programs]\nmodules = {json.dumps(files)}\n")
        self._config.chmod(0o600)
        self._lock = threading.Lock()
        self._is_over = False
        self._daemons: list[subprocess.Popen[bytes]] = []
        try:
            self._daemons += [self._start(number, "tcp://127.0.0.1:0") for number in range(count)]
            self._endpoints = [self._listens(number) for number in range(count)]
        except BaseException:
            self.close()
            raise
        self.cluster = self._own / "cluster.toml"
        self.cluster.write_text("".join(self._table(number, learners) for number in range(count)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def home(self) -> Mapping[str, str]:
        """The environment of a command that is typed at home."""
        return {STATE: str(self._state(0))}

    def look(self) -> None:
        """Start again whatever daemon has ended."""
        with self._lock:
            for number, daemon in enumerate(self._daemons):
                if daemon.poll() is not None and not self._is_over:
                    self._daemons[number] = self._start(number, self._endpoints[number])

    def kill(self, name: str, kill: Callable[[RunProcess], object]) -> list[RunProcess]:
        """Kill all processes on a machine of a plan, its daemon first; returns them. No restart happens meanwhile."""
        with self._lock:
            number = machine_number(name)
            processes = sorted(self._processes(number), key=lambda each: each.pid != self._daemons[number].pid)
            for each in processes:
                kill(each)
            return processes

    def close(self) -> None:
        """End the daemons, and whatever they have left."""
        with self._lock:
            self._is_over = True
        try:
            for daemon in self._daemons:
                daemon.terminate()
            until = time.monotonic() + END_SECONDS_MAX
            for daemon in self._daemons:
                with suppress(subprocess.TimeoutExpired):
                    daemon.wait(max(0.0, until - time.monotonic()))
        finally:  # Also after a second Ctrl-C.
            for number, daemon in enumerate(self._daemons):
                for each in self._processes(number):
                    with suppress(ProcessLookupError):
                        os.kill(each.pid, 9)
                daemon.wait()

    def _start(self, number: int, endpoint: str) -> subprocess.Popen[bytes]:
        words = ["daemon", "--name", machine_name(number), "--listen", endpoint, "--config", str(self._config)]
        with (self._own / f"{machine_name(number)}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", _MAIN.format(parent=os.getpid()), *words],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self._environment, **KEEPS_ENVIRONMENT, STATE: str(self._state(number))},
            )

    def _listens(self, number: int) -> str:
        """The address of a daemon, once it has one."""
        until = time.monotonic() + LISTEN_SECONDS_MAX
        while (entry := living(self._state(number)).get(machine_name(number))) is None:
            if self._daemons[number].poll() is not None or time.monotonic() > until:
                log = (self._own / f"{machine_name(number)}.log").read_text().strip()
                raise RunError(f"the daemon {machine_name(number)} does not listen: {log}")
            time.sleep(DAEMON_LOOK_SECONDS)
        return entry.note.endpoint

    def _table(self, number: int, learners: int) -> str:
        """A machine in the cluster file. The last ones have the learners that are left over."""
        count = len(self._daemons)
        islands = learners // count + (number >= count - learners % count)
        roles = "" if number == 0 else 'roles = ["learner"]\n'
        where = f'name = "{machine_name(number)}"\naddress = "{self._endpoints[number]}"\n'
        return f"[[machine]]\n{where}{roles}islands = {islands}\n"

    def _state(self, number: int) -> Path:
        return self._own / f"state-{number}"

    def _processes(self, number: int) -> Iterator[RunProcess]:
        """The processes on a machine."""
        mark = f"{STATE}={self._state(number)}".encode()
        for path in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                is_of = mark in (path / "environ").read_bytes().split(b"\0")
                if is_of and (running := process(int(path.name))) is not None:
                    yield running


BACK_SECONDS_MAX: Final = 60.0
"""Wait for the target of a strike to live and work; a host from nothing takes a few seconds."""
GONE_SECONDS_MAX: Final = 5.0
"""Time limit for a killed process to be gone, and for a stopped one to stand still."""
TICK_SECONDS: Final = 1.0 / os.sysconf("SC_CLK_TCK")
"""What the kernel counts CPU time in: of a process that has just been stopped one may be counted yet."""
LOOK_SECONDS: Final = 0.002
SEARCH_SECONDS: Final = 0.1
"""Between two scans of all processes, each of which takes some milliseconds from the run."""
TOGETHER: Final = {"data-parallel": LEARNER}
"""Program -> the role whose replicas are ended together."""
IN_FLIGHT_BYTES_MAX: Final = 4 * CHUNK_BYTES
"""Bytes that may still pass a way that has just become mute: a chunk of each connection and direction."""
PERIOD_SECONDS: Final = 0.1
"""Period of the duty cycle that slows a process: some ten inner steps of the small model."""


class Strike(msgspec.Struct, frozen=True):
    """The result of a planned fault."""

    fault: Planned
    begun: float = 0.0
    """In seconds of the monotonic clock."""
    ended: float = 0.0
    """Likewise."""
    pid: int = 0
    proof: str = ""
    """In words; empty: it did not happen."""
    why: str = ""
    """Why it did not."""
    hosts: tuple[str, ...] = ()
    """Those that a machine took along."""
    back: float | None = None
    """When the next fork server was ready, which no file records."""
    is_late: bool = False
    """The run was over before the fault happened."""

    def as_data(self) -> dict[str, Any]:
        """For --json."""
        return {**msgspec.to_builtins(self.fault), "proof": self.proof, "why": self.why}


class Striker:
    """Carries a plan out, a thread for each fault that is due.

    Where the learners of a program cannot continue without one of them (`TOGETHER`), all are ended with it, as
    launchers of such programs do, and begin again at once from the last snapshot. A fault that is due waits for the
    process that it names, which may not be back yet after an earlier fault; its delay is recorded.
    """

    def __init__(
        self,
        processes: ProcessTable,
        faults: Sequence[Planned],
        zero: float,
        program: str,
        links: LinkProxy | None = None,
        machines: Machines | None = None,
    ) -> None:
        self._links, self._machines = links, machines
        self._processes, self._zero, self._together = processes, zero, TOGETHER.get(program)
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._strikes: dict[int, Strike] = {}
        self._reported: set[int] = set()
        self._threads = [
            threading.Thread(target=self._await, args=(number, fault), name=f"fault {number}", daemon=True)
            for number, fault in enumerate(faults)
        ]
        self._faults = faults
        for thread in self._threads:
            thread.start()

    def news(self) -> list[Strike]:
        """The strikes since the last call."""
        with self._lock:
            new = [strike for number, strike in self._strikes.items() if number not in self._reported]
            self._reported.update(self._strikes)
        return new

    def close(self) -> list[Strike]:
        """Wait for strikes under way, cancel those not due; returns the result of every fault, in the plan's order."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        missed = "the run was over before it was due: give it more tokens, or an earlier moment"
        late = [Strike(fault, why=missed, is_late=True) for fault in self._faults]
        return [self._strikes.get(number, strike) for number, strike in enumerate(late)]

    def _await(self, number: int, fault: Planned) -> None:
        if self._over.wait(max(0.0, self._zero + fault.at - time.monotonic())):
            return
        until = time.monotonic() + BACK_SECONDS_MAX
        find: Callable[[str], Any] = self._processes.find_machine if fault.role == MACHINE else self._processes.find
        while (victim := find(fault.host)) is None:
            if self._over.wait(SEARCH_SECONDS):
                return
            if time.monotonic() > until:
                self._note(number, Strike(fault, why=f"no such process for {BACK_SECONDS_MAX:.0f} s"))
                return
        if fault.role == MACHINE:
            assert self._machines is not None, "a plan that kills one has them"
            others = self._processes.find_all(self._together) if self._together else []
            strike = _kill_machine(fault, victim, self._machines)
            for other in others:
                _signal(other, signal.SIGKILL)
            self._note(number, strike)
            return
        if fault.kind in OF_LINKS:
            assert self._links is not None, "a plan with faults of links has them"
            self._note(number, _clog(fault, victim, self._links.way(fault.host), self._over))
            return
        others = self._processes.find_all(fault.role) if fault.kind == "kill" and fault.role == self._together else []
        strike = _STRIKES[fault.kind](fault, victim, self._over)
        for other in others:
            _signal(other, signal.SIGKILL)
        self._note(number, strike)
        if fault.host == FORK_SERVER and fault.kind == "kill" and strike.proof:
            self._note(number, msgspec.structs.replace(strike, back=self._ready_again(fault.host)))

    def _ready_again(self, host: str) -> float | None:
        """The time at which a killed process had a successor; None if it does not get one."""
        until = time.monotonic() + BACK_SECONDS_MAX
        while self._processes.find(host) is None:
            if self._over.wait(SEARCH_SECONDS) or time.monotonic() > until:
                return None
        return time.monotonic()

    def _note(self, number: int, strike: Strike) -> None:
        with self._lock:
            self._strikes[number] = strike


def _kill(fault: Planned, process: RunProcess, over: threading.Event) -> Strike:
    begun = time.monotonic()
    if not _signal(process, signal.SIGKILL):
        return Strike(fault, begun, begun, process.pid, why="it had ended by itself")
    if not comes_about(lambda: not process.is_there):
        return Strike(fault, begun, begun, process.pid, why="SIGKILL was sent, and it is still there")
    return Strike(fault, begun, begun, process.pid, proof=f"process {process.pid} is gone")


def _kill_machine(fault: Planned, hosts: tuple[str, ...], machines: Machines) -> Strike:
    begun = time.monotonic()
    killed = machines.kill(fault.host, lambda each: _signal(each, signal.SIGKILL))
    if not comes_about(lambda: not any(each.is_there for each in killed)):
        return Strike(fault, begun, begun, why="SIGKILL was sent, and something of it is still there")
    proof = f"{len(killed)} processes are gone: its daemon, {', '.join(hosts)}"
    return Strike(fault, begun, begun, killed[0].pid, proof, hosts=hosts)


def _pause(fault: Planned, process: RunProcess, over: threading.Event) -> Strike:
    begun = time.monotonic()
    try:
        is_sent = _signal(process, signal.SIGSTOP)
        if not is_sent or not comes_about(lambda: is_stopped(process.pid)):
            return Strike(fault, begun, begun, process.pid, why="it did not stand still")
        before = process.cpu_seconds
        over.wait(fault.seconds)
        used, was_stopped = process.cpu_seconds - before, process.is_there and is_stopped(process.pid)
    finally:
        _signal(process, signal.SIGCONT)
    ended = time.monotonic()
    if not was_stopped or used > 1.5 * TICK_SECONDS:
        return Strike(fault, begun, ended, process.pid, why=f"it did not stand still: {used:.2f} s of CPU time")
    return Strike(fault, begun, ended, process.pid, proof=f"state T, no CPU time in {ended - begun:.1f} s")


def _slow(fault: Planned, process: RunProcess, over: threading.Event) -> Strike:
    """Let it run for one part in `factor` of each period."""
    begun = time.monotonic()
    before, stops = process.cpu_seconds, 0
    until, runs = begun + fault.seconds, PERIOD_SECONDS / fault.factor
    try:
        while time.monotonic() < until and not over.is_set() and _signal(process, signal.SIGSTOP):
            stops += comes_about(lambda: is_stopped(process.pid) or not process.is_there)
            over.wait(PERIOD_SECONDS - runs)
            _signal(process, signal.SIGCONT)
            over.wait(runs)
    finally:
        _signal(process, signal.SIGCONT)
    ended = time.monotonic()
    share = (process.cpu_seconds - before) / (ended - begun)
    if not stops:
        return Strike(fault, begun, ended, process.pid, why="it never stood still")
    return Strike(fault, begun, ended, process.pid, proof=f"stopped {stops} times, {share:.0%} of a core")


def _clog(fault: Planned, process: RunProcess, way: Way, over: threading.Event) -> Strike:
    """Change the conditions of a way for a while, and count the bytes and segments affected."""
    begun, usual = time.monotonic(), way.conditions
    passed, held, lost = way.passed_bytes, way.held_bytes, way.lost_segments
    way.conditions = WayConditions(
        fault.kbits if fault.kind == "throttle" else usual.kbits,
        fault.latency if fault.kind == "clog" else usual.latency,
        fault.share if fault.kind == "lose" else usual.share,
        fault.kind == "mute",
    )
    over.wait(fault.seconds)
    passed_then = way.passed_bytes - passed
    way.conditions = usual
    ended = time.monotonic()
    if fault.kind == "mute":
        # Held-up bytes pass once the fault is over; the next heartbeat of the wire arrives within that time.
        comes_about(lambda: way.held_bytes > held)
    held, lost = way.held_bytes - held, way.lost_segments - lost
    effect = f"{held:,} bytes held up, {passed_then:,} passed"
    is_proved = held > 0
    if fault.kind == "lose":
        effect, is_proved = f"{lost:,} segments lost, {passed_then:,} bytes", lost > 0
    if fault.kind == "mute" and passed_then > IN_FLIGHT_BYTES_MAX:
        is_proved = False
    if not is_proved:
        return Strike(fault, begun, ended, process.pid, why=effect)
    return Strike(fault, begun, ended, process.pid, proof=effect)


_STRIKES: Final[dict[str, Callable[[Planned, RunProcess, threading.Event], Strike]]] = {
    "kill": _kill,
    "pause": _pause,
    "slow": _slow,
}


def _signal(process: RunProcess, number: int) -> bool:
    """Whether this very process was sent a signal: its number may have gone to another one meanwhile."""
    with suppress(OSError):
        watch = pidfd_open(process.pid)
        try:
            if process.is_there:
                pidfd_send_signal(watch, number)
                return True
        finally:
            os.close(watch)
    return False


def comes_about(what: Callable[[], bool]) -> bool:
    """Wait at most GONE_SECONDS_MAX for `what` to hold; returns whether it does."""
    until = time.monotonic() + GONE_SECONDS_MAX
    while not (holds := what()) and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
    return holds
