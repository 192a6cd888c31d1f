"""The outpost of a run on a machine that is not its home: starts, adopts and kills hosts there, as the home says.

It decides nothing. Orders say which lives there are to be, its reports which there are and how others ended; both say
everything each time (`post` has the theory). Its hosts speak to it on loopback, as they would to a daemon of their own,
so they need not know that the run is elsewhere. While the link to the home is down it keeps them alive with the roster
that it heard last; without an order for HOME_SECONDS, or once the home says that the run is over, it ends them.

Which process is which life is in `daemon.sqlite` in its folder, so that the next daemon of this machine adopts them.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from isthmus.runtime.control import HEARTBEAT_SECONDS, Message
from isthmus.runtime.gate import Gate
from isthmus.runtime.ids import Replica
from isthmus.runtime.ledger import Ledger, LedgerError, started_at
from isthmus.runtime.lives import Life
from isthmus.runtime.post import REPORT
from isthmus.runtime.store import write_json
from isthmus.runtime.supervisor import Launch, Supervisor

HOME_SECONDS: Final = 600.0
"""Without a word from home for so long, the run is lost: nobody would ever end these hosts."""


class Outpost:
    """The part of run `run` that is on this machine, in `folder`. `send` takes a message home, or loses it; `on_over`
    is called once, when every process has ended for good."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        folder: Path,
        *,
        run: str,
        name: str,
        launch: Launch,
        send: Callable[[Message], None],
        on_over: Callable[[], None],
    ) -> None:
        """Bind; zmq.ZMQError, OSError or sqlite3.Error if that cannot be."""
        self.folder, self.run = folder, run
        self._loop, self._name, self._send, self._on_over = loop, name, send, on_over
        self._ledger = Ledger(folder / "daemon.sqlite")
        self._supervisor = Supervisor(loop, launch, self._ledger, self)
        self._gate = Gate(loop, "tcp://127.0.0.1:*", run, self._supervisor, self, {})
        self._ended: dict[Replica, tuple[int, str, dict[str, Any]]] = {}
        self._reasons: dict[Replica, str] = {}
        self._complaints: dict[Replica, str] = {}
        self._roster: Message = {"type": "beat"}
        self._is_stopping = self._is_over = self._is_done = self._is_closed = False
        self._ordered_at = time.monotonic()

    def start(self) -> None:
        """Say where this outpost is, and adopt the hosts that live here."""
        here = {"endpoint": self._gate.endpoint, "pid": os.getpid(), "started": started_at(os.getpid())}
        write_json(self.folder / "daemon.json", {**here, "name": self._name})
        for replica in self._ledger.replicas():
            self._supervisor.adopt(replica)
        self._beat()

    def order(self, message: Mapping[str, Any]) -> None:
        """Do what the home says; KeyError, TypeError or ValueError for what no home of ours says."""
        self._ordered_at = time.monotonic()
        if message["over"]:
            self.end()
            return
        wanted: dict[Replica, tuple[int, bool]] = {
            Replica.parse(name): (int(incarnation), bool(is_wanted))
            for name, incarnation, is_wanted in message["members"]
        }
        roster = message["roster"]
        if roster is not None:
            self._roster = {"type": "roster", "members": list(roster), "keys": dict(message["keys"])}
        self._is_stopping = bool(message["stopping"])
        self._gate.farewell = str(message["farewell"])
        self._obey(wanted)
        self._tell_all()
        self.report()

    def end(self) -> None:
        """The run is over: end every host, and be over."""
        self._is_over = True
        for life in list(self._supervisor.lives.values()):
            self._supervisor.kill(life)
        self._finish_if_alone()

    def report(self) -> None:
        """Tell the home which lives there are, and how others ended."""
        lives = [
            {
                "replica": str(life.member.replica),
                "incarnation": life.member.incarnation,
                "pid": life.pid,
                "beats": life.beats,
                "is_stopped": self._supervisor.is_stopped(life),
                "error": life.error,
                "endpoints": life.endpoints,
                "phase": life.phase,
                "published": life.published,
                "figures": life.figures,
            }
            for life in self._supervisor.lives.values()
        ]
        ended = [[str(replica), *told] for replica, told in self._ended.items()]
        self._send({"type": REPORT, "run": self.run, "lives": lives, "ended": ended})

    def close(self) -> None:
        """Let go of everything; the hosts, if any are left, go on."""
        self._is_closed = True
        self._supervisor.close()
        self._gate.close()
        self._ledger.close()

    # -- orders --------------------------------------------------------------------------------------------------------

    def _obey(self, wanted: Mapping[Replica, tuple[int, bool]]) -> None:
        """Kill what is not wanted, and start what is and has never been."""
        still = {replica: incarnation for replica, (incarnation, _) in wanted.items()}
        self._ended = {replica: told for replica, told in self._ended.items() if still.get(replica) == told[0]}
        for replica, life in list(self._supervisor.lives.items()):
            if wanted.get(replica) != (life.member.incarnation, True):
                self._reasons.setdefault(replica, "")
                self._supervisor.kill(life)
        missing = []
        for replica, (incarnation, is_wanted) in wanted.items():
            if replica in self._supervisor.lives or self._supervisor.is_starting(replica) or replica in self._ended:
                continue
            if self._ledger.last(replica) < incarnation and is_wanted:
                missing.append(replica)
            else:
                self._ended[replica] = incarnation, "ended while nobody looked", {}
        for replica in self._supervisor.prepare(missing) if missing else []:
            self._start(replica, wanted[replica][0])

    def _start(self, replica: Replica, incarnation: int) -> None:
        try:
            self._supervisor.start(replica, self._gate.endpoint, incarnation)
        except LedgerError as error:  # The next order tries again.
            self._complain(replica, str(error))
        except OSError as error:  # No memory, or no process left; there may be later.
            self._ended[replica] = incarnation, f"ended before it began: {error}", {}

    def _complain(self, replica: Replica, what: str) -> None:
        """Say once why a replica is not there."""
        if self._complaints.get(replica) != what:
            self._complaints[replica] = what
            sys.stderr.write(f"outpost of {self.run}: {what}\n")

    # -- what becomes of lives -----------------------------------------------------------------------------------------

    def life_began(self, life: Life) -> None:
        """There is a process."""
        if self._is_over:
            self._supervisor.kill(life)

    def life_mute(self, life: Life, reason: str) -> None:
        """A process that says nothing is killed; whether there is another is for the home to say."""
        self._reasons[life.member.replica] = f"killed: {reason}"
        self._supervisor.kill(life)

    def life_ended(self, life: Life, reason: str) -> None:
        """A process is gone."""
        said = self._reasons.pop(life.member.replica, "")
        self._ended[life.member.replica] = life.member.incarnation, said or reason, dict(life.figures)
        self.report()
        self._finish_if_alone()

    def life_heard(self, life: Life) -> None:
        """It lives; a newcomer is told at once what all know."""
        if life.beats == 1:
            self._tell_all()
            self.report()

    def life_failed(self, life: Life) -> None:
        """A body of it raised."""
        self.report()

    def life_over(self, life: Life) -> None:
        """Only a recorder says so, which is at home."""

    def _finish_if_alone(self) -> None:
        if self._is_over and self._supervisor.is_idle and not self._is_done:
            self._is_done = True
            self._supervisor.start_no_more()
            self._loop.call_soon(self._on_over)

    # -- again and again -----------------------------------------------------------------------------------------------

    def _tell_all(self) -> None:
        """Tell all hosts what the home said last."""
        self._gate.send_all(self._roster)
        if self._is_stopping:
            self._gate.send_all({"type": "stop"})
        if self._gate.farewell:
            self._gate.send_all({"type": "exit", "reason": self._gate.farewell})

    def _beat(self) -> None:
        if self._is_closed:
            return
        self._ledger.settle()
        self._tell_all()
        self.report()
        if time.monotonic() - self._ordered_at > HOME_SECONDS:
            self.end()
        self._loop.call_later(HEARTBEAT_SECONDS, self._beat)
