"""The processes of a run's hosts: started, adopted, seen to end, killed, and remembered in the ledger.

It knows processes by their pidfds, so it sees at once when one ends, and never signals a stranger. Whether the next
life of a replica is wanted is its owner's to say.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from isthmus.runtime.control import decode, encode
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.ledger import Ledger, started_at
from isthmus.runtime.lives import Life, Restarts, ending

STOPPED: Final = ("T", "t")
"""The states of a process that a signal has stopped, and of one that a debugger has (proc(5))."""
HELLO_SECONDS: Final = 60.0
"""How long a process may take to say hello, which is two seconds of imports where nobody is in the way."""


class Launch(Protocol):
    """Starts host processes, as children of this one."""

    def prepare(self, wanted: Sequence[Replica]) -> list[Replica]:
        """These are about to be asked for; the result is the order that loses least time."""

    def __call__(self, member: Member, endpoint: str, started: Callable[[int], None]) -> None:
        """Start a host, which finds its daemon at `endpoint`, and call `started` with its pid, now or later."""

    def close(self) -> None:
        """No more hosts are asked for. Those that were started go on."""


class Owner(Protocol):
    """Who wants to know, and may not want another life."""

    def life_began(self, life: Life) -> None:
        """There is a process."""

    def life_ended(self, life: Life, reason: str) -> None:
        """It is there no more."""

    def life_mute(self, life: Life, reason: str) -> None:
        """It should have said hello by now."""


class Supervisor:
    """`lives` are the present ones, beside which others may keep those on other machines; `figures` sums what those
    that ended had used, 'ROLE.cpu_seconds' and the like."""

    def __init__(self, loop: asyncio.AbstractEventLoop, launch: Launch, ledger: Ledger, owner: Owner) -> None:
        self.lives: dict[Replica, Life] = {}
        noted = ledger.noted("figures")
        self.figures: dict[str, float] = {} if noted is None else decode(noted)["figures"]
        self._loop, self._launch, self._ledger, self._owner = loop, launch, ledger, owner
        self._restarts = Restarts()
        self._starting: set[Replica] = set()
        self._is_closed = False

    @property
    def is_idle(self) -> bool:
        """Whether there is no process, and none is being started."""
        return not self.lives and not self._starting

    def is_starting(self, replica: Replica) -> bool:
        """Whether a process was asked for, whose pid is not known yet."""
        return replica in self._starting

    def adopt(self, replica: Replica) -> bool:
        """Take on the process that another supervisor has started, if it is there."""
        known = self._ledger.newest(replica)
        if known is None or started_at(known.pid) != known.started:
            return False
        self._watch(Life(Member(replica, known.incarnation), known.pid, os.pidfd_open(known.pid), is_child=False))
        return True

    def prepare(self, wanted: Sequence[Replica]) -> list[Replica]:
        """These are about to be started; the result is the order that loses least time."""
        return self._launch.prepare(wanted)

    def start(self, replica: Replica, endpoint: str, incarnation: int | None = None) -> None:
        """Start a life of a replica that has none: the next, or the one of a number that somebody else has given.

        OSError if the machine has no room for it.
        """
        if replica in self.lives or replica in self._starting:
            return
        if incarnation is None:
            incarnation = self._ledger.next(replica)
        else:
            self._ledger.take(replica, incarnation)
        member = Member(replica, incarnation)
        self._starting.add(replica)
        try:
            self._launch(member, endpoint, partial(self._started, member))
        except OSError:
            self._starting.discard(replica)
            raise

    def delay(self, former: Life) -> float | None:
        """Seconds to wait before the next life of a replica; None if lives of it end again and again."""
        return self._restarts.delay(former, time.monotonic())

    def kill(self, life: Life) -> None:
        """Kill one on this machine, which ends it soon."""
        assert life.watch is not None
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(life.watch, signal.SIGKILL)

    def is_stopped(self, life: Life) -> bool:
        """Whether one on this machine is stopped, by a signal or a debugger, as the kernel tells it."""
        try:
            text = Path(f"/proc/{life.pid}/stat").read_text()
        except OSError:
            return False
        # The name in parentheses may hold anything, so the state is looked for behind its end.
        return text.rpartition(")")[2].split()[0] in STOPPED

    def count(self, life: Life) -> None:
        """Add what a life that has ended had used."""
        for name in ("cpu_seconds", "bytes_sent"):
            key = f"{life.member.replica.role}.{name}"
            self.figures[key] = self.figures.get(key, 0.0) + float(life.figures.get(name, 0))
        self._ledger.note("figures", encode({"type": "figures", "figures": self.figures}))

    def start_no_more(self) -> None:
        """Nothing will be started any more."""
        self._launch.close()

    def close(self) -> None:
        """Let go of everything; the processes go on."""
        self._is_closed = True
        self._launch.close()
        for life in self.lives.values():
            if life.watch is not None:
                self._loop.remove_reader(life.watch)
                os.close(life.watch)

    def _started(self, member: Member, pid: int) -> None:
        self._starting.discard(member.replica)
        self._ledger.started(member.replica, member.incarnation, pid)
        life = Life(member, pid, os.pidfd_open(pid), is_child=True)
        self._watch(life)
        self._owner.life_began(life)

    def _watch(self, life: Life) -> None:
        self.lives[life.member.replica] = life
        assert life.watch is not None
        self._loop.add_reader(life.watch, self._ended, life)
        self._expect_hello(life)

    def _expect_hello(self, life: Life) -> None:
        due = self._loop.time() + HELLO_SECONDS
        self._loop.call_later(HELLO_SECONDS, self._judge_hello, life, due)

    def _judge_hello(self, life: Life, due: float) -> None:
        if self._is_closed or self.lives.get(life.member.replica) is not life or life.peer:
            return
        if self._loop.time() - due > 1.0:  # This process was stopped itself: a hello may lie unread.
            self._expect_hello(life)
        else:
            self._owner.life_mute(life, f"no word from it for {HELLO_SECONDS:.0f} s")

    def _ended(self, life: Life) -> None:
        replica = life.member.replica
        assert life.watch is not None
        self._loop.remove_reader(life.watch)
        os.close(life.watch)
        del self.lives[replica]
        code = None
        if life.is_child:
            _, status, used = os.wait4(life.pid, 0)
            code = os.waitstatus_to_exitcode(status)
            life.figures["cpu_seconds"] = used.ru_utime + used.ru_stime
        self.count(life)
        self._owner.life_ended(life, f"{ending(code)}: {life.error}" if life.error else ending(code))
