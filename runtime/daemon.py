"""The daemon: supervises the hosts of one run on this machine.

It starts one process per host, knows at once when one is gone, restarts it under the next incarnation with a back-off
that grows, tells every host who is live and where, passes on a request to stop, and answers commands. It never
computes, and holds nothing that training needs: when it dies, the hosts go on, find the daemon that takes its place
through the file `daemon.json` in the run folder, and are adopted by it.

Incarnations, pids and the times of processes' starts are in `daemon.sqlite` in the run folder, written before a process
starts: a number is never used twice, and a pid that belongs to somebody else by now is not taken for a host. That the
run is to stop, and that it is over, are noted there, too: whatever a daemon has confirmed, the next one knows.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from isthmus.runtime.clock import Duration, seconds
from isthmus.runtime.control import HEARTBEAT_SECONDS, ControlServer, Message, decode, encode
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.ledger import Ledger, started_at
from isthmus.runtime.lives import BACKOFF_SECONDS, HEALTHY_SECONDS, SERVING, Life
from isthmus.runtime.membership import PHASES, HeartbeatArrived, HostAnnounced, HostEnded, MembershipOptions
from isthmus.runtime.roll import Roll
from isthmus.runtime.store import Lines, write_json
from isthmus.runtime.supervisor import Launch, Supervisor

ADOPT_SECONDS: Final = 10.0
"""How long a new daemon waits for hosts that it adopted to find it, which they do within a few seconds."""
EXIT_SECONDS: Final = 10.0
"""How long hosts may take to end when they are told to; then they are killed."""
PATIENCE: Final = seconds(20)
"""The daemon sees processes end. Silence only tells of one that hangs or is stopped, so a host is replaced after 20 s
of it, or 18.8 s where its heartbeats were regular: long enough for somebody to stop and resume it."""
PHI_GONE: Final = 300.0
"""A threshold that no silence below 18.8 s reaches, whatever was learned."""
REFUSED_MAX: Final = 256
"""Different faults of messages that are told apart."""
HURRY_SECONDS: Final = 5.0
"""Once a run is to stop, nobody waits longer than this for a learner that is suspect."""


class Daemon:
    """One run. `roles` gives the replicas of each role; `on_over` is called once, when every process has ended;
    `patience` is how long a silent host is waited for."""

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
        patience: Duration = PATIENCE,
    ) -> None:
        self.folder, self.name = folder, name
        self.outcome = "running"
        self.error: str | None = None
        self.status_last: dict[str, Any] = {}
        self._loop, self._on_over = loop, on_over
        self._replicas = [Replica(role, slot) for role in roles for slot in range(roles[role])]
        self._run = str(folder.resolve())
        self._ledger = Ledger(folder / "daemon.sqlite")
        self._supervisor = Supervisor(loop, launch, self._ledger, self)
        self._lives = self._supervisor.lives
        self._events = Lines(folder / "events.jsonl")
        options = MembershipOptions(
            slots_max=dict(roles),
            phi_gone=PHI_GONE,
            interval_first=seconds(HEARTBEAT_SECONDS),
            deviation_first=seconds(1),
            silence_max=patience,
        )
        self._roll = Roll(loop, options, self)
        self._is_stopping = self._ledger.noted("stopping") is not None
        self._is_ending = False
        self._is_over = False
        self._is_closed = False
        self._adopting: set[Replica] = set()
        self._recall()
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
        """Say where this daemon is, adopt the hosts that live, start the others; or end them, if the run is over."""
        here = {"endpoint": self.endpoint, "pid": os.getpid(), "started": started_at(os.getpid()), "name": self.name}
        write_json(self.folder / "daemon.json", here)
        wanted = []
        for replica in self._replicas:
            if self._supervisor.adopt(replica):
                self._adopting.add(replica)
                self.tell(self._lives[replica].member, "adopted by a new daemon")
            elif self.outcome == "running":
                wanted.append(replica)
        self._supervisor.start_all(wanted, self.endpoint)
        if self.outcome != "running":
            self.end(self.outcome)
        if self._adopting:
            self._loop.call_later(ADOPT_SECONDS, self._adopting.clear)
        self._beat()

    def request_stop(self) -> None:
        """Ask the hosts to bring the run to its end."""
        self._is_stopping = True
        self._ledger.note("stopping")
        self._send_all({"type": "stop"})
        for member in self._roll.suspects():
            self.member_suspected(member)

    def end(self, outcome: str, error: str | None = None) -> None:
        """Kill every host, and be over."""
        self._settle(outcome, error)
        for life in list(self._lives.values()):
            self._supervisor.kill(life)
        self._finish_if_alone()

    @property
    def former_figures(self) -> Mapping[str, float]:
        """What hosts that have ended had used: 'ROLE.cpu_seconds', 'ROLE.bytes_sent'."""
        return self._supervisor.figures

    def status(self) -> dict[str, Any]:
        """What `isthmus status` shows."""
        hosts = [self._host(replica) for replica in self._replicas]
        return {"run": str(self.folder), "outcome": self.outcome, "error": self.error, "daemon": self.name,
                "pid": os.getpid(), "hosts": hosts, "training": self.status_last,
                "refused": dict(self._server.refused)}  # fmt: skip

    def close(self) -> None:
        """Let go of everything; the hosts, if any are left, go on."""
        self._is_closed = True
        self._supervisor.close()
        self._roll.close()
        self._server.close()
        self._events.close()
        self._ledger.close()

    # -- what the next daemon has to know ------------------------------------------------------------------------------

    def _settle(self, outcome: str, error: str | None) -> None:
        """The run is over, in this way, whatever happens to this daemon."""
        self._is_ending = True
        if self.outcome == "running":
            self.outcome, self.error = outcome, error
            record = {"outcome": outcome, "error": error, "training": self.status_last}
            self._ledger.note("over", encode({"type": "over", **record}))

    def _recall(self) -> None:
        """Take in what the daemon before this one has noted."""
        over = self._ledger.noted("over")
        if over is not None:
            told = decode(over)
            self.outcome, self.error, self.status_last = told["outcome"], told["error"], told["training"]

    # -- processes -----------------------------------------------------------------------------------------------------

    def _start(self, replica: Replica) -> None:
        if self._is_ending or self._is_closed:
            return
        try:
            self._supervisor.start(replica, self.endpoint)
        except OSError as error:  # No memory, or no process left; there may be later.
            self._roll.explain(replica, f"not restarted yet: {error}")
            self._loop.call_later(BACKOFF_SECONDS[-1], self._start, replica)

    def life_began(self, life: Life) -> None:
        """There is a process for a replica."""
        if life.member.incarnation > 1:
            self.tell(life.member, "restarted")
        if self._is_ending:
            self._supervisor.kill(life)

    def life_mute(self, life: Life, reason: str) -> None:
        """A process that says nothing is replaced."""
        self.member_removed(life.member, reason)

    def life_ended(self, life: Life, reason: str) -> None:
        """A process is gone; the next one takes its place, unless the run is ending."""
        replica = life.member.replica
        self._adopting.discard(replica)
        if not self._is_ending:
            self.tell(life.member, reason)
        self._roll.explain(replica, reason)
        self._roll.remember(HostEnded(life.member, reason))
        if self._is_ending:
            self._finish_if_alone()
        elif not (self._is_stopping and replica.role == "learner" and self._has_learner()):
            self._start_later(life, reason)

    def _has_learner(self) -> bool:
        """Whether a learner is there that can give the last answers, so that a restart would only delay the end."""
        return any(life.member.replica.role == "learner" and life.phase in SERVING for life in self._lives.values())

    def _start_later(self, former: Life, reason: str) -> None:
        """Start the next life of a replica, unless lives of it end again and again."""
        replica = former.member.replica
        delay = self._supervisor.delay(former)
        if delay is None:
            what = f"{replica} ended again and again before it had served for {HEALTHY_SECONDS:.0f} s"
            self.end("failed", f"{what}; the last time: {reason}. Look at {self._log(replica)}.")
        else:
            self._loop.call_later(delay, self._start, replica)

    def _finish_if_alone(self) -> None:
        if self._is_ending and self._supervisor.is_idle and not self._is_over:
            self._is_over = True
            self._supervisor.start_no_more()
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
            told, refused = f"malformed {message['type']}: {error}"[:200], self._server.refused
            refused[told if len(refused) < REFUSED_MAX or told in refused else "others"] += 1

    def _life_of(self, peer: bytes, message: Message) -> Life | None:
        """The life that a message comes from, if it is the present one of its replica; others are told to end.

        A host of another run, whose daemon had this port before, is left alone: it looks for its own.
        """
        if message["run"] != self._run:
            raise ValueError("a host of another run")
        member = Member(Replica.parse(message["replica"]), int(message["incarnation"]))
        life = self._lives.get(member.replica)
        if life is None or life.member != member:
            # Of one that is being started, this daemon does not know yet which process it is.
            if self._supervisor.is_starting(member.replica):
                self._server.refused["too early"] += 1
            else:
                self._server.send(peer, {"type": "exit", "reason": "another incarnation has taken this place"})
            return None
        life.peer = peer
        if self._is_ending:  # It was not there when everybody was told.
            self._server.send(peer, {"type": "exit", "reason": "the run is over"})
        return life

    def _hello(self, peer: bytes, message: Message) -> None:
        life = self._life_of(peer, message)
        if life is not None:
            self._welcome(peer, life, message)

    def _welcome(self, peer: bytes, life: Life, message: Message) -> None:
        """Let a host in."""
        life.endpoints = [str(endpoint) for endpoint in message["endpoints"]]
        self._note(life, message)
        self._adopting.discard(life.member.replica)
        self._roll.remember(HostAnnounced(life.member, _phase(life.phase)))
        self._send_roster()
        if self._is_stopping:
            self._server.send(peer, {"type": "stop"})

    def _heartbeat(self, peer: bytes, message: Message) -> None:
        life = self._life_of(peer, message)
        if life is not None and life.member not in self._roll.members():
            self._welcome(peer, life, message)  # Its hello was lost, or came before its pid was known.
        elif life is not None:
            self._note(life, message)
            self._roll.remember(HeartbeatArrived(life.member, _phase(life.phase)))

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
        self._settle("stopped" if self._is_stopping else "done", None)
        self._send_all({"type": "exit", "reason": "the run is over"})
        self._loop.call_later(EXIT_SECONDS, self.end, self.outcome)
        self._finish_if_alone()

    def _failed(self, peer: bytes, message: Message) -> None:
        """A body raised; its host ends, and is restarted like any other that ends."""
        life = self._life_of(peer, message)
        if life is not None:
            life.error = str(message["error"])
            self.tell(life.member, f"failed: {life.error}")

    def _stop(self, peer: bytes, message: Message) -> None:
        self.request_stop()
        self._server.send(peer, {"type": "stopping"})

    def _end_asked(self, peer: bytes, message: Message) -> None:
        self._server.send(peer, {"type": "ending"})
        self.end("failed", str(message.get("reason", "ended by a command")))

    # -- membership ----------------------------------------------------------------------------------------------------

    def members_changed(self) -> None:
        """Somebody was admitted or removed: everybody is told."""
        self._send_roster()

    def member_suspected(self, member: Member) -> None:
        """Where the run is to stop, its last rounds do not wait for long for a learner that is silent."""
        if self._is_stopping and member.replica.role == "learner":
            self._loop.call_later(HURRY_SECONDS, self._leave_out, member)

    def _leave_out(self, member: Member) -> None:
        if not self._is_closed and member in self._roll.suspects():
            self.member_removed(member, "silent while the run comes to its end")

    def member_removed(self, member: Member, reason: str) -> None:
        """A host that was removed while its process lives hangs: it is killed, so that the next can take its place."""
        life = self._lives.get(member.replica)
        if life is not None and life.member == member:
            self.tell(member, f"killed: {reason}")
            self._supervisor.kill(life)

    def tell(self, member: Member, what: str) -> None:
        """Write down what happened to a host."""
        line = {"at": time.monotonic_ns(), "host": str(member.replica), "incarnation": member.incarnation, "what": what}
        self._events.append(line)

    # -- what hosts are told -------------------------------------------------------------------------------------------

    def _roster(self) -> list[list[Any]]:
        """[replica, incarnation, endpoints] of every live member."""
        rows = []
        for member in self._roll.members():
            life = self._lives.get(member.replica)
            if life is not None and life.member == member:
                rows.append([str(member.replica), member.incarnation, life.endpoints])
        return rows

    def _send_roster(self) -> None:
        """Tell everybody who is live; not before all that were adopted have spoken, for whoever is missing is gone."""
        self._send_all({"type": "beat"} if self._adopting else {"type": "roster", "members": self._roster()})

    def _beat(self) -> None:
        """Let hosts know that there is a daemon, and what they may have missed."""
        if self._is_closed:
            return
        self._send_roster()
        self._loop.call_later(2 * HEARTBEAT_SECONDS, self._beat)

    def _send_all(self, message: Message) -> None:
        for life in self._lives.values():
            if life.peer:
                self._server.send(life.peer, message)

    def _host(self, replica: Replica) -> dict[str, Any]:
        life, newest = self._lives.get(replica), self._ledger.newest(replica)
        known = life.shown() if life is not None else {"pid": None, "phase": "gone"}
        return {
            "name": str(replica),
            "role": replica.role,
            "incarnation": 0 if newest is None else newest.incarnation,
            "state": self._roll.state(replica),
            "reason": self._roll.reason(replica),
            **known,
        }


def _phase(phase: str) -> Any:
    """The phase, as membership knows them; ValueError for another."""
    if phase not in PHASES:
        raise ValueError(f"no phase: {phase!r}")
    return phase
