"""Inflicts the faults of a plan on real processes, and proves each from /proc.

Where the learners of a program cannot go on without one of them (`TOGETHER`), all are ended with it, as launchers of
such programs do, and begin again at once from the last snapshot: each as fast as one that was struck alone.

A fault that is due waits for the process that it names, which may not be back yet after an earlier fault. Its delay is
recorded, and so is the observation: that the process was gone, that it stood still and used no CPU time, how much less
of it it had. A fault without such a proof has not happened.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from isthmus.programs.chaos.links import CHUNK_BYTES, Conditions, Links, Way
from isthmus.programs.chaos.machines import Machines
from isthmus.programs.chaos.plan import FORK_SERVER, MACHINE, OF_LINKS, Planned
from isthmus.programs.chaos.processes import Cast, Process
from isthmus.runtime.system.processes import is_stopped

BACK_SECONDS_MAX: Final = 60.0
"""Wait for the target of a strike to live and work; a host from nothing takes a few seconds."""
GONE_SECONDS_MAX: Final = 5.0
"""Time limit for a killed process to be gone, and for a stopped one to stand still."""
TICK_SECONDS: Final = 1.0 / os.sysconf("SC_CLK_TCK")
"""What the kernel counts CPU time in: of a process that has just been stopped one may be counted yet."""
LOOK_SECONDS: Final = 0.02
SEARCH_SECONDS: Final = 0.1
"""Between two scans of all processes, each of which takes some milliseconds from the run."""
TOGETHER: Final = {"data-parallel": "learner"}
"""Program -> the role whose replicas are ended together."""
IN_FLIGHT_BYTES_MAX: Final = 4 * CHUNK_BYTES
"""Bytes that may still pass a way that has just become mute: a chunk of each connection and direction."""
PERIOD_SECONDS: Final = 0.1
"""Period of the duty cycle that slows a process: some ten inner steps of the small model."""


class Strike(msgspec.Struct, frozen=True):
    """The result of a planned fault.

    `begun` and `ended` in seconds of the monotonic clock, `pid`, and the `proof` in words; an empty `proof`: it did not
    happen, and `why`. `hosts` are those that a machine took along. `back` is when the next fork server was ready, which
    no file records. `is_late`: the run was over before the fault happened.
    """

    fault: Planned
    begun: float = 0.0
    ended: float = 0.0
    pid: int = 0
    proof: str = ""
    why: str = ""
    hosts: tuple[str, ...] = ()
    back: float | None = None
    is_late: bool = False

    def as_data(self) -> dict[str, Any]:
        """For --json."""
        return {**msgspec.to_builtins(self.fault), "proof": self.proof, "why": self.why}


class Striker:
    """Carries a plan out, a thread for each fault that is due."""

    def __init__(
        self,
        cast: Cast,
        faults: Sequence[Planned],
        zero: float,
        program: str,
        links: Links | None = None,
        machines: Machines | None = None,
    ) -> None:
        self._links, self._machines = links, machines
        self._cast, self._zero, self._together = cast, zero, TOGETHER.get(program)
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._strikes: dict[int, Strike] = {}
        self._told: set[int] = set()
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
            new = [strike for number, strike in self._strikes.items() if number not in self._told]
            self._told.update(self._strikes)
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
        find: Callable[[str], Any] = self._cast.find_machine if fault.role == MACHINE else self._cast.find
        while (found := find(fault.host)) is None:
            if self._over.wait(SEARCH_SECONDS):
                return
            if time.monotonic() > until:
                self._note(number, Strike(fault, why=f"no such process for {BACK_SECONDS_MAX:.0f} s"))
                return
        if fault.role == MACHINE:
            assert self._machines is not None, "a plan that kills one has them"
            others = self._cast.find_all(self._together) if self._together else []
            strike = _kill_machine(fault, found, self._machines)
            for other in others:
                _signal(other, signal.SIGKILL)
            self._note(number, strike)
            return
        if fault.kind in OF_LINKS:
            assert self._links is not None, "a plan with faults of links has them"
            self._note(number, _clog(fault, found, self._links.way(fault.host), self._over))
            return
        others = self._cast.find_all(fault.role) if fault.kind == "kill" and fault.role == self._together else []
        strike = _STRIKES[fault.kind](fault, found, self._over)
        for other in others:
            _signal(other, signal.SIGKILL)
        self._note(number, strike)
        if fault.host == FORK_SERVER and fault.kind == "kill" and strike.proof:
            self._note(number, msgspec.structs.replace(strike, back=self._ready_again(fault.host)))

    def _ready_again(self, host: str) -> float | None:
        """The time at which a killed process had a successor; None if it does not get one."""
        until = time.monotonic() + BACK_SECONDS_MAX
        while self._cast.find(host) is None:
            if self._over.wait(SEARCH_SECONDS) or time.monotonic() > until:
                return None
        return time.monotonic()

    def _note(self, number: int, strike: Strike) -> None:
        with self._lock:
            self._strikes[number] = strike


def _kill(fault: Planned, process: Process, over: threading.Event) -> Strike:
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


def _pause(fault: Planned, process: Process, over: threading.Event) -> Strike:
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


def _slow(fault: Planned, process: Process, over: threading.Event) -> Strike:
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


def _clog(fault: Planned, process: Process, way: Way, over: threading.Event) -> Strike:
    """Change the conditions of a way for a while, and count the bytes and segments affected."""
    begun, usual = time.monotonic(), way.conditions
    passed, held, lost = way.passed_bytes, way.held_bytes, way.lost_segments
    way.conditions = Conditions(
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
    told = f"{held:,} bytes held up, {passed_then:,} passed"
    is_proved = held > 0
    if fault.kind == "lose":
        told, is_proved = f"{lost:,} segments lost, {passed_then:,} bytes", lost > 0
    if fault.kind == "mute" and passed_then > IN_FLIGHT_BYTES_MAX:
        is_proved = False
    if not is_proved:
        return Strike(fault, begun, ended, process.pid, why=told)
    return Strike(fault, begun, ended, process.pid, proof=told)


_STRIKES: Final[dict[str, Callable[[Planned, Process, threading.Event], Strike]]] = {
    "kill": _kill,
    "pause": _pause,
    "slow": _slow,
}


def _signal(process: Process, number: int) -> bool:
    """Whether this very process was sent a signal: its number may have gone to another one meanwhile."""
    with suppress(OSError):
        watch = os.pidfd_open(process.pid)
        try:
            if process.is_there:
                signal.pidfd_send_signal(watch, number)
                return True
        finally:
            os.close(watch)
    return False


def comes_about(what: Callable[[], bool]) -> bool:
    """Wait at most GONE_SECONDS_MAX for `what` to hold; returns whether it does."""
    until = time.monotonic() + GONE_SECONDS_MAX
    while not (found := what()) and time.monotonic() < until:
        time.sleep(LOOK_SECONDS / 10)
    return found
