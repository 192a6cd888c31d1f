"""The daemon: supervises the hosts of one run on this machine.

It starts one process per host, knows at once when one is gone, restarts it under the next incarnation with a back-off
that grows, tells every host who is live and where, passes on a request to stop, and answers commands. It never
computes, and holds nothing that training needs: when it dies, the hosts go on, find the daemon that takes its place
through the file `daemon.json` in the run folder, and are adopted by it.

Incarnations, pids and the times of processes' starts are in `daemon.sqlite` in the run folder, written before a process
starts: a number is never used twice, and a pid that belongs to somebody else by now is not taken for a host.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from isthmus.runtime.clock import Duration, Instant, seconds
from isthmus.runtime.control import HEARTBEAT_SECONDS, ControlServer, Message
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.ledger import Ledger, started_at
from isthmus.runtime.membership import (
    PHASES,
    AdmitMember,
    ClearSuspicion,
    HeartbeatArrived,
    HostAnnounced,
    HostEnded,
    MembershipCore,
    MembershipEvent,
    MembershipOptions,
    MembershipTimerFired,
    RefuseMember,
    RemoveMember,
    SetMembershipTimer,
    SuspectMember,
)
from isthmus.runtime.store import Lines, write_json

BACKOFF_SECONDS: Final = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Before the n-th start in a row that did not come to anything; the first restart is at once."""
FAILURES_MAX: Final = 5
"""So many lives in a row that end before they served: the program is at fault, and the run has failed."""
HEALTHY_SECONDS: Final = 10.0
"""A life this long after it began to serve wipes out the failures before it."""
ADOPT_SECONDS: Final = 10.0
"""How long a new daemon waits for hosts that it adopted to find it, which they do within a few seconds."""
EXIT_SECONDS: Final = 10.0
"""How long hosts may take to end when they are told to; then they are killed."""
PHI_GONE: Final = 300.0
"""The daemon sees processes end. Silence only tells of one that hangs or is stopped, so it takes 19 s of it at least
until that host is replaced: long enough for somebody to stop and resume it."""
SERVING: Final = frozenset({"stepping", "serving", "final"})

Launch = Callable[[Replica, int, str], subprocess.Popen[bytes]]
"""(replica, incarnation, the daemon's endpoint) -> the process of the host."""


@dataclass(slots=True)
class Life:
    """One host process, as the daemon knows it. `watch` is its pidfd."""

    member: Member
    pid: int
    watch: int
    process: subprocess.Popen[bytes] | None
    peer: bytes = b""
    endpoints: list[str] = field(default_factory=list)
    phase: str = "starting"
    served_at: float | None = None
    published: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)


class Daemon:
    """One run. `roles` gives the replicas of each role; `on_over` is called once, when every process has ended."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        folder: Path,
        roles: Mapping[str, int],
        *,
        name: str,
        listen: str,
        launch: Launch,
        on_over: Callable[[Daemon], None],
    ) -> None:
        self.folder, self.name = folder, name
        self.outcome = "running"
        self.error: str | None = None
        self.status_last: dict[str, Any] = {}
        self.former_figures: dict[str, float] = {}
        self._loop, self._launch, self._on_over = loop, launch, on_over
        self._replicas = [Replica(role, slot) for role in roles for slot in range(roles[role])]
        self._lives: dict[Replica, Life] = {}
        self._failures: dict[Replica, int] = {}
        self._states: dict[Replica, str] = {}
        self._reasons: dict[Replica, str] = {}
        self._ledger = Ledger(folder / "daemon.sqlite")
        self._events = Lines(folder / "events.jsonl")
        options = MembershipOptions(slots_max=dict(roles), phi_gone=PHI_GONE, silence_max=seconds(3600))
        self._membership = MembershipCore(options)
        self._zero = time.monotonic_ns()
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopping = False
        self._is_ending = False
        self._adopting: set[Replica] = set()
        self._server = ControlServer(loop, listen, self._hear)
        self.endpoint = self._server.endpoint
        self._handlers: dict[str, Callable[[bytes, Message], None]] = {
            "hello": self._hello,
            "heartbeat": self._heartbeat,
            "over": self._over,
            "failed": self._failed,
            "status": lambda peer, _: self._server.send(peer, {"type": "status", **self.status()}),
            "stop": self._stop,
            "end": self._end_asked,
        }

    # -- from outside --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Say where this daemon is, adopt the hosts that live, start the others."""
        write_json(self.folder / "daemon.json", {"endpoint": self.endpoint, "pid": os.getpid(), "name": self.name})
        for replica in self._replicas:
            known = self._ledger.newest(replica)
            if known is not None and started_at(known.pid) == known.started:
                self._watch(Life(Member(replica, known.incarnation), known.pid, os.pidfd_open(known.pid), None))
                self._adopting.add(replica)
                self._tell(replica, known.incarnation, "adopted by a new daemon")
            else:
                self._start(replica)
        if self._adopting:
            self._loop.call_later(ADOPT_SECONDS, self._adopting.clear)
        self._beat()

    def request_stop(self) -> None:
        """Ask the hosts to bring the run to its end."""
        self._is_stopping = True
        self._send_all({"type": "stop"})

    def end(self, outcome: str, error: str | None = None) -> None:
        """Kill every host, and be over."""
        if self.outcome == "running":
            self.outcome, self.error = outcome, error
        self._is_ending = True
        for life in list(self._lives.values()):
            self._kill(life)
        self._finish_if_alone()

    def status(self) -> dict[str, Any]:
        """What `isthmus status` shows."""
        hosts = [self._host(replica) for replica in self._replicas]
        published = self.status_last
        return {"run": str(self.folder), "outcome": self.outcome, "error": self.error, "daemon": self.name,
                "pid": os.getpid(), "hosts": hosts, "training": published}  # fmt: skip

    def close(self) -> None:
        """Let go of everything; the hosts, if any are left, go on."""
        if self._timer is not None:
            self._timer.cancel()
        for life in self._lives.values():
            self._loop.remove_reader(life.watch)
            os.close(life.watch)
        self._server.close()
        self._events.close()
        self._ledger.close()

    # -- processes -----------------------------------------------------------------------------------------------------

    def _start(self, replica: Replica) -> None:
        if self._is_ending or replica in self._lives:
            return
        incarnation = self._ledger.next(replica)
        process = self._launch(replica, incarnation, self.endpoint)
        self._ledger.started(replica, incarnation, process.pid)
        self._watch(Life(Member(replica, incarnation), process.pid, os.pidfd_open(process.pid), process))
        if incarnation > 1:
            self._tell(replica, incarnation, "restarted")

    def _watch(self, life: Life) -> None:
        self._lives[life.member.replica] = life
        self._loop.add_reader(life.watch, self._ended, life)

    def _ended(self, life: Life) -> None:
        """A process is gone."""
        replica = life.member.replica
        self._adopting.discard(replica)
        self._loop.remove_reader(life.watch)
        os.close(life.watch)
        del self._lives[replica]
        code = life.process.wait() if life.process is not None else None
        for name in ("cpu_seconds", "bytes_sent"):
            key = f"{replica.role}.{name}"
            self.former_figures[key] = self.former_figures.get(key, 0.0) + float(life.figures.get(name, 0))
        reason = _ending(code)
        if not self._is_ending:
            self._tell(replica, life.member.incarnation, reason)
        self._reasons[replica] = reason
        self._remember(HostEnded(life.member, reason))
        if self._is_ending:
            self._finish_if_alone()
            return
        if self._is_stopping and replica.role == "learner":
            return
        lived = 0.0 if life.served_at is None else time.monotonic() - life.served_at
        failures = 1 if lived >= HEALTHY_SECONDS else self._failures.get(replica, 0) + 1
        self._failures[replica] = failures
        if failures > FAILURES_MAX:
            what = f"{replica} ended {failures} times before it had served for {HEALTHY_SECONDS:.0f} s"
            self.end("failed", f"{what}; the last time: {reason}. Look at {self._log(replica)}.")
            return
        self._loop.call_later(BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS)) - 1], self._start, replica)

    def _kill(self, life: Life) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(life.watch, signal.SIGKILL)

    def _finish_if_alone(self) -> None:
        if self._is_ending and not self._lives:
            self._on_over(self)

    def _log(self, replica: Replica) -> Path:
        return self.folder / "logs" / f"{replica.role}-{replica.slot}.log"

    # -- messages ------------------------------------------------------------------------------------------------------

    def _hear(self, peer: bytes, message: Message) -> None:
        handler = self._handlers.get(message["type"])
        if handler is None:
            self._server.refused["unknown type"] += 1
            return
        try:
            handler(peer, message)
        except (KeyError, TypeError, ValueError) as error:
            self._server.refused[f"malformed {message['type']}: {error}"] += 1

    def _life_of(self, peer: bytes, message: Message) -> Life | None:
        """The life that a message comes from, if it is the present one of its replica; others are told to end."""
        member = Member(Replica.parse(message["replica"]), int(message["incarnation"]))
        life = self._lives.get(member.replica)
        if life is None or life.member != member:
            self._server.send(peer, {"type": "exit", "reason": "another incarnation has taken this place"})
            return None
        life.peer = peer
        return life

    def _hello(self, peer: bytes, message: Message) -> None:
        life = self._life_of(peer, message)
        if life is None:
            return
        life.endpoints = [str(endpoint) for endpoint in message["endpoints"]]
        self._note(life, message)
        self._adopting.discard(life.member.replica)
        self._remember(HostAnnounced(life.member, _phase(life.phase)))
        self._send_roster()
        if self._is_stopping:
            self._server.send(peer, {"type": "stop"})

    def _heartbeat(self, peer: bytes, message: Message) -> None:
        life = self._life_of(peer, message)
        if life is None:
            return
        self._note(life, message)
        self._remember(HeartbeatArrived(life.member, _phase(life.phase)))

    def _note(self, life: Life, message: Message) -> None:
        life.phase = str(message["phase"])
        life.published = dict(message["published"])
        life.figures = dict(message["figures"])
        if life.phase in SERVING and life.served_at is None:
            life.served_at = time.monotonic()
        if life.member.replica.role == "recorder" and "record" in life.published:
            self.status_last = life.published["record"]

    def _over(self, peer: bytes, message: Message) -> None:
        """The recorder says that everything final is there."""
        life = self._life_of(peer, message)
        if life is None or self._is_ending:
            return
        self._note(life, message)
        self.outcome = "stopped" if self._is_stopping else "done"
        self._is_ending = True
        self._send_all({"type": "exit", "reason": "the run is over"})
        self._loop.call_later(EXIT_SECONDS, self.end, self.outcome)
        self._finish_if_alone()

    def _failed(self, peer: bytes, message: Message) -> None:
        """A body raised; its host ends, and is restarted like any other that ends."""
        life = self._life_of(peer, message)
        if life is not None:
            self._tell(life.member.replica, life.member.incarnation, f"failed: {message['error']}")

    def _stop(self, peer: bytes, message: Message) -> None:
        self.request_stop()
        self._server.send(peer, {"type": "stopping"})

    def _end_asked(self, peer: bytes, message: Message) -> None:
        self._server.send(peer, {"type": "ending"})
        self.end("failed", str(message.get("reason", "ended by a command")))

    # -- membership ----------------------------------------------------------------------------------------------------

    def _remember(self, event: MembershipEvent) -> None:
        """Feed the membership core, and do what it says."""
        changed = False
        for command in self._membership.handle(event, self._now()):
            match command:
                case AdmitMember():
                    self._states[command.member.replica] = "alive"
                    changed = True
                case RemoveMember():
                    self._states[command.member.replica] = "gone"
                    self._reasons[command.member.replica] = command.reason
                    self._replace(command.member, command.reason)
                    changed = True
                case SuspectMember() | ClearSuspicion():
                    replica = command.member.replica
                    self._states[replica] = "suspect" if isinstance(command, SuspectMember) else "alive"
                    self._reasons[replica] = command.reason
                    self._tell(replica, command.member.incarnation, command.reason)
                case SetMembershipTimer():
                    self._set_timer(command.at)
                case RefuseMember():
                    self._tell(command.member.replica, command.member.incarnation, f"refused: {command.reason}")
        if changed:
            self._send_roster()

    def _replace(self, member: Member, reason: str) -> None:
        """A host that was removed while its process lives hangs: it is killed, so that the next can take its place."""
        life = self._lives.get(member.replica)
        if life is not None and life.member == member:
            self._tell(member.replica, member.incarnation, f"killed: {reason}")
            self._kill(life)

    def _set_timer(self, at: Instant) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay = max(0.0, (at - self._now()) / 1e9)
        self._timer = self._loop.call_later(delay, lambda: self._remember(MembershipTimerFired()))

    def _now(self) -> Instant:
        return Instant(Duration(time.monotonic_ns() - self._zero))

    # -- what hosts are told -------------------------------------------------------------------------------------------

    def _roster(self) -> list[list[Any]]:
        """[replica, incarnation, endpoints] of every live member."""
        rows = []
        for member, _, _ in self._membership.roster():
            life = self._lives.get(member.replica)
            if life is not None and life.member == member:
                rows.append([str(member.replica), member.incarnation, life.endpoints])
        return rows

    def _send_roster(self) -> None:
        """Tell everybody who is live; not before all that were adopted have spoken, for whoever is missing is gone."""
        self._send_all({"type": "beat"} if self._adopting else {"type": "roster", "members": self._roster()})

    def _beat(self) -> None:
        """Let hosts know that there is a daemon, and what they may have missed."""
        self._send_roster()
        self._loop.call_later(2 * HEARTBEAT_SECONDS, self._beat)

    def _send_all(self, message: Message) -> None:
        for life in self._lives.values():
            if life.peer:
                self._server.send(life.peer, message)

    def _tell(self, replica: Replica, incarnation: int, what: str) -> None:
        """Write down what happened to a host."""
        line = {"at": time.monotonic_ns(), "host": str(replica), "incarnation": incarnation, "what": what}
        self._events.append(line)

    def _host(self, replica: Replica) -> dict[str, Any]:
        life = self._lives.get(replica)
        known: dict[str, Any] = {
            "name": str(replica),
            "role": replica.role,
            "pid": None if life is None else life.pid,
            "phase": "gone" if life is None else life.phase,
            "incarnation": life.member.incarnation if life is not None else 0,
            "state": self._states.get(replica, "starting"),
            "reason": self._reasons.get(replica, ""),
        }
        if life is not None:
            known.update(life.figures)
            known["published"] = life.published if replica.role != "recorder" else {}
        return known


def _phase(phase: str) -> Any:
    """The phase, as membership knows them; ValueError for another."""
    if phase not in PHASES:
        raise ValueError(f"no phase: {phase!r}")
    return phase


def _ending(code: int | None) -> str:
    """How a process ended, in words."""
    if code is None:
        return "ended"
    if code < 0:
        return f"killed by signal {signal.Signals(-code).name}"
    return f"exited with status {code}" if code else "exited"
