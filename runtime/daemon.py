"""The daemon: supervises the hosts of one run, on this machine and, by their outposts, on others.

It starts one process per host, knows at once when one is gone, restarts it under the next incarnation with a back-off
that grows, tells every host who is live and where, passes on a request to stop, and answers commands. It never
computes, and holds nothing that training needs: when it dies, the hosts go on, find the daemon that takes its place
through the file `daemon.json` in the run folder, and are adopted by it. Only it decides: an outpost does what it says.

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
from types import MappingProxyType
from typing import Any, Final

from isthmus.runtime.clock import Duration, seconds
from isthmus.runtime.control import HEARTBEAT_SECONDS, Message, decode, encode
from isthmus.runtime.fleet import Fleet, Places
from isthmus.runtime.gate import Gate
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.ledger import Ledger, started_at
from isthmus.runtime.lives import BACKOFF_SECONDS, HEALTHY_SECONDS, SERVING, Life
from isthmus.runtime.patience import MembershipOptions
from isthmus.runtime.presence import Excuse, HostAnnounced, HostEnded
from isthmus.runtime.roll import Roll
from isthmus.runtime.store import Lines, write_json
from isthmus.runtime.supervisor import Launch, Supervisor
from isthmus.runtime.topology import LEARNER

ADOPTED: Final = "adopted by a new daemon"
ADOPT_SECONDS: Final = 10.0
"""How long a new daemon waits for hosts that it adopted to find it, which they do within a few seconds."""
EXIT_SECONDS: Final = 10.0
"""How long hosts may take to end when they are told to; then they are killed."""
PATIENCE: Final = seconds(20)
"""Whatever was learned, a silent host is replaced after this."""
DEVIATION_MIN: Final = seconds(1)
"""A host with regular heartbeats is suspect after 3.3 s of silence, and replaced after 7.3 s: on a machine with six
times as many busy processes as cores a healthy one was silent for 1.9 s, and a body that keeps the interpreter to
itself for some seconds is to cost nobody a life. Whether a process has ended or was stopped, the daemon sees itself."""
ABANDON_SECONDS: Final = 5.0
"""How long other machines may take to tell that their hosts are gone, once all are to be killed."""


class Daemon:
    """The run named `run`. `roles` gives the replicas of each role at its start, `slots_max` the most that there may be
    where that is more; `places` says which are on other machines; `on_over` is called once, when every process has
    ended; `patience` is how long a silent host is waited for."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        folder: Path,
        roles: Mapping[str, int],
        *,
        run: str,
        name: str,
        listen: str,
        launch: Launch,
        on_over: Callable[[Daemon], None],
        patience: Duration = PATIENCE,
        slots_max: Mapping[str, int] = MappingProxyType({}),
        places: Places | None = None,
    ) -> None:
        self.folder, self.name = folder, name
        self.outcome = "running"
        self.error: str | None = None
        self.lost: Replica | None = None
        self.status_last: dict[str, Any] = {}
        self._loop, self._on_over = loop, on_over
        self._ledger = Ledger(folder / "daemon.sqlite")
        supervisor = Supervisor(loop, launch, self._ledger, self)
        self._supervisor, self._lives = supervisor, supervisor.lives
        self.fleet = Fleet(supervisor, self._ledger, self, places or Places(name))
        self._events = Lines(folder / "events.jsonl")
        self._roles, self._slots_max = dict(roles), {**roles, **slots_max}
        self._replicas = [Replica(role, slot) for role in roles for slot in range(roles[role])]
        self._replicas += sorted(set(self.fleet.machines) - set(self._replicas))
        options = MembershipOptions(
            slots_max=self._slots_max,
            interval_first=seconds(HEARTBEAT_SECONDS),
            deviation_min=DEVIATION_MIN,
            silence_max=patience,
        )
        self._roll = Roll(loop, options, self)
        self._is_stopping = self._ledger.noted("stopping") is not None
        self._is_ending = False
        self._is_over = False
        self._is_closed = False
        self._adopting: set[Replica] = set()
        self._recall()
        commands = {"status": self._status_asked, "stop": self._stop, "end": self._end_asked}
        self._gate = Gate(loop, listen, run, supervisor, self, commands)
        self.endpoint = self._gate.endpoint

    # -- from outside --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Say where this daemon is, adopt the hosts that live, start the others; or end them, if the run is over."""
        here = {"endpoint": self.endpoint, "pid": os.getpid(), "started": started_at(os.getpid()), "name": self.name}
        write_json(self.folder / "daemon.json", here)
        wanted = []
        for replica in self._replicas:
            if self.fleet.adopt(replica):
                self._adopting.add(replica)
                if replica in self._lives:
                    self.tell(self._lives[replica].member, ADOPTED)
            elif self.outcome == "running" and replica not in self.fleet.retired:
                wanted.append(replica)
        for replica in self.fleet.in_order(wanted):
            self._start(replica)
        if self.outcome != "running":
            self.end(self.outcome)
        if self._adopting:
            self._loop.call_later(ADOPT_SECONDS, self._adopting.clear)
        self._beat()

    def request_stop(self) -> None:
        """Ask the hosts to bring the run to its end."""
        self._is_stopping = True
        self._ledger.note("stopping")
        self._tell_all()

    def end(self, outcome: str, error: str | None = None) -> None:
        """Kill every host, and be over."""
        self._settle(outcome, error)
        for life in list(self._lives.values()):
            self.fleet.kill(life)
        self.fleet.condemn()
        self._tell_all()
        self._finish_if_alone()
        self._loop.call_later(ABANDON_SECONDS, self._abandon)

    def hear(self, machine: str, report: Mapping[str, Any]) -> None:
        """Take what the outpost on another machine says; KeyError, TypeError or ValueError for what none says."""
        self.fleet.hear(machine, report)

    def join(self, machine: str, islands: int) -> list[Replica]:
        """Let a machine take part, with learners in the next slots that are free; those that there was room for."""
        first = 1 + max((replica.slot for replica in self._replicas if replica.role == LEARNER), default=-1)
        last = min(first + islands, self._slots_max.get(LEARNER, 0))
        slots = [Replica(LEARNER, slot) for slot in range(first, last)]
        if self._is_stopping or self._is_ending:
            return []
        self.fleet.join(machine, slots)
        self._replicas += slots
        for replica in slots:
            self.fleet.start(replica, self.endpoint)
            self.tell(Member(replica, 1), f"joined with its machine {machine}")
        self._tell_all()
        return slots

    def take_away(self, machine: str, how: str) -> None:
        """Let a machine take part no more, because it was `how`: its hosts end, and its learners' slots with them."""
        self.fleet.take_away(machine, how)
        self._tell_all()

    @property
    def former_figures(self) -> Mapping[str, float]:
        """What hosts that have ended had used: 'ROLE.cpu_seconds', 'ROLE.bytes_sent'."""
        return self._supervisor.figures

    def status(self) -> dict[str, Any]:
        """What `isthmus status` shows."""
        hosts = [self._host(replica) for replica in self._replicas]
        return {"run": str(self.folder), "outcome": self.outcome, "error": self.error, "daemon": self.name,
                "pid": os.getpid(), "hosts": hosts, "training": self.status_last,
                "refused": dict(self._gate.refused)}  # fmt: skip

    def close(self) -> None:
        """Let go of everything; the hosts, if any are left, go on."""
        self._is_closed = True
        self._supervisor.close()
        self._roll.close()
        self._gate.close()
        self._events.close()
        self._ledger.close()

    # -- what the next daemon has to know ------------------------------------------------------------------------------

    def _settle(self, outcome: str, error: str | None) -> None:
        """The run is over, in this way, whatever happens to this daemon."""
        self._is_ending = True
        self._gate.farewell = "the run is over"
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
            self.fleet.start(replica, self.endpoint)
        except OSError as error:  # No memory, no process left, no room for its number; there may be later.
            self._roll.explain(Member(replica, self._ledger.last(replica)), f"not started yet: {error}")
            self._loop.call_later(BACKOFF_SECONDS[-1], self._start, replica)

    def life_began(self, life: Life) -> None:
        """There is a process for a replica."""
        if life.member.incarnation > 1 or life.member.replica in self._adopting:
            self.tell(life.member, ADOPTED if life.member.replica in self._adopting else "restarted")
        if self._is_ending:
            self.fleet.kill(life)

    def life_mute(self, life: Life, reason: str) -> None:
        """A process that says nothing is replaced."""
        self.member_removed(life.member, reason)

    def life_ended(self, life: Life, reason: str) -> None:
        """A process is gone; the next one takes its place, unless the run is ending."""
        replica = life.member.replica
        self._adopting.discard(replica)
        if not self._is_ending:
            self.tell(life.member, reason)
        self._roll.remember(HostEnded(life.member, reason))
        self._roll.explain(life.member, reason)
        if self._is_ending:
            self._finish_if_alone()
        elif not (self._is_stopping and replica.role == LEARNER and self._has_learner()):
            self._start_later(life, reason)

    def _has_learner(self) -> bool:
        """Whether a learner is there that can give the last answers, so that a restart would only delay the end."""
        return any(life.member.replica.role == LEARNER and life.phase in SERVING for life in self._lives.values())

    def _start_later(self, former: Life, reason: str) -> None:
        """Start the next life of a replica, unless lives of it end again and again."""
        replica = former.member.replica
        retired = self.fleet.retired
        if replica in retired:
            if all(other in retired for other in self._replicas if other.role == LEARNER):
                self.request_stop()  # Nobody is left to train: the model is what was merged last.
            return
        delay = self.fleet.delay(former)
        if not self.fleet.relocate(replica):
            self.lost = replica
            self.end("failed", f"{replica} has no machine any more: {reason}")
        elif delay is None and replica.role == LEARNER and replica.slot >= self._roles[LEARNER]:
            self.tell(former.member, f"given up: it ended again and again, the last time: {reason}")
            self.fleet.retire(replica, "given up")
        elif delay is None:
            self.lost = replica
            what = f"{replica} ended again and again before it had served for {HEALTHY_SECONDS:.0f} s"
            self.end("failed", f"{what}; the last time: {reason}. Look at {self._log(replica)}.")
        else:
            self._loop.call_later(delay, self._start, replica)

    def _finish_if_alone(self) -> None:
        if self._is_ending and self.fleet.is_idle and not self._is_over:
            self._is_over = True
            self._supervisor.start_no_more()
            self._on_over(self)

    def _abandon(self) -> None:
        """Wait no more for machines that do not answer."""
        if not self._is_closed:
            self.fleet.give_up()
            self._finish_if_alone()

    def _log(self, replica: Replica) -> Path:
        return self.folder / "logs" / f"{replica.role}-{replica.slot}.log"

    # -- messages ------------------------------------------------------------------------------------------------------

    def life_heard(self, life: Life) -> None:
        """It lives; the first time it is let in, and all are told. Its hello may have been lost, or come too early."""
        if life.member.replica.role == "recorder" and "record" in life.published:
            self.status_last = life.published["record"]
        if life.member in self._roll.members():
            self._roll.remember(life.heartbeat())
            return
        self._adopting.discard(life.member.replica)
        self._roll.remember(HostAnnounced(life.member, life.phase))
        self._tell_all()

    def life_over(self, life: Life) -> None:
        """The recorder says that everything final is there."""
        if self._is_ending:
            return
        self.status_last = life.published.get("record", self.status_last)
        error = self.status_last.get("error")
        self._settle("failed" if error else "stopped" if self._is_stopping else "done", error)
        self._tell_all()
        self._loop.call_later(EXIT_SECONDS, self.end, self.outcome)
        self._finish_if_alone()

    def life_failed(self, life: Life) -> None:
        """A body raised; its host ends, and is restarted like any other that ends."""
        self.tell(life.member, f"failed: {life.error}")

    def _status_asked(self, peer: bytes, message: Message) -> None:
        self._gate.send(peer, {"type": "status", **self.status()})

    def _stop(self, peer: bytes, message: Message) -> None:
        self.request_stop()
        self._gate.send(peer, {"type": "stopping"})

    def _end_asked(self, peer: bytes, message: Message) -> None:
        self._gate.send(peer, {"type": "ending"})
        self.end("failed", str(message.get("reason", "ended by a command")))

    # -- membership ----------------------------------------------------------------------------------------------------

    def members_changed(self) -> None:
        """Somebody was admitted or removed: everybody is told."""
        self._tell_all()

    def excuse(self, member: Member) -> tuple[Excuse, str] | None:
        """Why the silence of a member is not its own doing; when the run comes to its end, nothing excuses it."""
        life = self._lives.get(member.replica)
        is_asked = life is not None and life.member == member and not self._is_coming_to_its_end()
        return self.fleet.excuse(life) if life is not None and is_asked else None

    def _is_coming_to_its_end(self) -> bool:
        return self._is_stopping or any(life.phase == "final" for life in self._lives.values())

    def member_removed(self, member: Member, reason: str) -> None:
        """A host that was removed while its process lives hangs: it is killed, so that the next can take its place. One
        that ends with the run is silent while it writes down what it has, and is given EXIT_SECONDS for that."""
        life = self._lives.get(member.replica)
        if life is not None and life.member == member and not self._is_ending:
            self.tell(member, f"killed: {reason}")
            self.fleet.kill(life)

    def tell(self, member: Member, what: str) -> None:
        """Write down what happened to a host."""
        line = {"at": time.monotonic_ns(), "host": str(member.replica), "incarnation": member.incarnation, "what": what}
        self._events.append(line)

    # -- what hosts are told -------------------------------------------------------------------------------------------

    def _roster(self) -> list[list[Any]]:
        """[replica, incarnation, endpoints, machine] of every live member."""
        rows = []
        for member in self._roll.members():
            life = self._lives.get(member.replica)
            if life is not None and life.member == member:
                rows.append(
                    [str(member.replica), member.incarnation, life.endpoints, self.fleet.machine(member.replica)]
                )
        return rows

    def _tell_all(self) -> None:
        """Tell everybody who is live, that the run is to stop, and that it is over, as far as it is.

        Who is live not before all that were adopted have spoken, for whoever is missing in a roster is gone.
        """
        roster = None if self._adopting else self._roster()
        keys = self.fleet.keys()
        self._gate.send_all({"type": "beat"} if roster is None else {"type": "roster", "members": roster, "keys": keys})
        if self._is_stopping:
            self._gate.send_all({"type": "stop"})
        if self._gate.farewell:
            self._gate.send_all({"type": "exit", "reason": self._gate.farewell})
        self.fleet.order(roster=roster, keys=keys, stopping=self._is_stopping, farewell=self._gate.farewell)

    def _beat(self) -> None:
        """Let hosts know that there is a daemon, and what they may have missed."""
        if self._is_closed:
            return
        self.fleet.beat()
        self._ledger.settle()
        self._events.flush()
        self._roll.review(LEARNER if self._is_coming_to_its_end() and not self._is_ending else "")
        self._tell_all()
        self._loop.call_later(2 * HEARTBEAT_SECONDS, self._beat)

    def _host(self, replica: Replica) -> dict[str, Any]:
        life = self._lives.get(replica)
        known = life.shown() if life is not None else {"pid": None, "phase": "gone"}
        state, newest = self._roll.state(replica), self._ledger.last(replica)
        return {
            "name": str(replica),
            "role": replica.role,
            "machine": self.fleet.machine(replica),
            "incarnation": newest if life is None else life.member.incarnation,
            "state": self.fleet.retired.get(replica, state),
            "reason": self._roll.reason(replica),
            **known,
        }
