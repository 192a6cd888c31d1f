"""The process of a loop that has started itself, as its daemon sees it.

Decides what such a daemon has in place of processes of its own. The loop's process has started it, and is the one host
that it ever has: it is handed one life, and never killed. A life that the home ends is lost to the loop, which hears of
it; once the loop's process ends, or its `with`, the daemon leaves the home, and ends.

Theory of operation. Each has one end of a line (`runtime.system.lines`). The loop's first message says how to
join (`LoopHome`), its merged leaves, and whether it can evaluate. To the loop go: `state`, in words, for people;
`faults`, if it cannot join; `first`, if the home waits for a model: then the loop goes on to its first step, and
answers with its `model`; `life`, by which it is a host of the run; `lost`, if the home has ended that; `evaluates`,
whether it is to evaluate. From the loop come `model` and, once it is no host any more, `ended`.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, final

from isthmus.programs.engine.machine.services import DaemonService, ServedMachine
from isthmus.programs.loop_script import LoopLife
from isthmus.runtime.clock import Duration, Instant
from isthmus.runtime.daemon.ground import HostLaunching, OnEnd
from isthmus.runtime.errors import Fault
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.incidents import Exited
from isthmus.runtime.system.idleness import IdleWatch, used_in
from isthmus.runtime.system.lines import ProcessLine
from isthmus.runtime.system.pidfds import pidfd_open
from isthmus.runtime.system.processes import is_stopped

OVER_SECONDS: Final = 60.0
"""How long a home whose run is over may take to fetch the files of it."""
ANSWER_SECONDS: Final = 1.0
"""In which the home hears why a loop takes no part."""
_LOST: Final = "the home has given its slot up: it was taken for stuck, did nothing for too long, or was not heard of"


@final
class LoopGuest(DaemonService):
    """The process `pid` of a loop, at the other end of a line (`Processes`)."""

    def __init__(
        self,
        pid: int,
        line: ProcessLine,
        *,
        leaves: Sequence[Any] = (),
        evaluates: bool = False,
    ) -> None:
        """`leaves`: as `loop_task.leaf_rows` has them."""
        self.leaves, self.evaluates = leaves, evaluates
        """Whether the loop can evaluate."""
        self._is_chosen = False
        self._pid, self._line = pid, line
        self._model: dict[str, Any] | None = None
        self._member: Member | None = None
        self._is_first = self._is_through = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._machine: ServedMachine | None = None
        self._watched: tuple[Member, OnEnd] | None = None
        self._pidfd = pidfd_open(pid)
        # This process, which it has started, is none of the user's.
        self._idle: IdleWatch[Member] = IdleWatch(lambda pid: used_in(pid, apart=(os.getpid(),)))

    def guest(self) -> LoopGuest:
        """The process itself."""
        return self

    def start(self, machine: ServedMachine) -> None:
        """Serve the user's loop from now on."""
        self._machine, self._loop = machine, machine.loop
        loop = machine.loop
        loop.add_reader(self._line.fileno(), self._hear)
        loop.add_reader(self._pidfd, self._see_end)
        loop.call_soon(self._hear)  # Something may have come with the first message.

    def tell(self, **fields: Any) -> None:
        """Send a message to the loop; one that has gone misses it."""
        with suppress(OSError):
            self._line.send(fields)

    # -- its model and its life ----------------------------------------------------------------------------------------

    def model(self, slots: int, seed: int) -> dict[str, Any] | None:
        """The model of the loop, which is the first of a run with so many slots and this seed; None until its first
        step."""
        if not self._is_first:
            self._is_first = True
            self.tell(first={"slots": slots, "seed": seed})
        return self._model

    def refuse(self, faults: Sequence[Fault]) -> None:
        """No run begins with its model, or none that it may be in: it hears why, and this daemon ends."""
        self.tell(faults=[list(fault) for fault in faults])
        assert self._machine is not None
        self._machine.later(ANSWER_SECONDS, lambda: self._go(Exited()))

    def choose(self, *, is_chosen: bool) -> None:
        """Tell the loop whether it is the one that evaluates."""
        if is_chosen != self._is_chosen:
            self._is_chosen = is_chosen
            self.tell(evaluates=is_chosen)

    def life(self, folder: Path) -> HostLaunching:
        """How lives of the run in `folder` are begun here."""
        return _OneLife(self, folder)

    def begin(self, folder: Path, member: Member, daemon: str) -> int | None:
        """Hand the one life to the loop; returns its pid, None if it has had one."""
        if self._member is not None or self._is_through:
            return None
        self._member = member
        life = LoopLife(str(folder), str(member.replica), member.incarnation, daemon)
        self.tell(life=life._asdict())
        return self._pid

    # -- as processes --------------------------------------------------------------------------------------------------

    def watch(self, member: Member, pid: int, ended: OnEnd) -> None:
        """Call `ended` once its life is over; soon for another one, which this process was before, or another was."""
        assert self._loop is not None
        if member != self._member or self._is_through:
            self._loop.call_soon(ended, member, Exited(), None)
        else:
            self._watched = member, ended

    def kill(self, member: Member) -> None:
        """Take the life from it; the process goes on."""
        if self._watched is not None and self._watched[0] == member:
            self.tell(lost=_LOST)
            self._go(Exited(signal=signal.SIGKILL.name))

    def stopped(self) -> tuple[Member, ...]:
        return (self._watched[0],) if self._watched is not None and is_stopped(self._pid) else ()

    def idle(self, pids: Mapping[Member, int], now: Instant) -> dict[Member, Duration]:
        return self._idle.look(pids, now)

    def close(self) -> None:
        """No-op: it lives as long as this process."""

    # -- what it says --------------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        self._hear_all()
        assert self._loop is not None
        if self._line.is_over:  # What it has forked may hold its end; this is its own doing.
            self._loop.remove_reader(self._line.fileno())
            self._go(Exited())

    def _take(self, message: Mapping[str, Any]) -> None:
        if "model" in message:
            self._model = message["model"]
        elif "ended" in message:
            self._go(Exited(int(message["ended"])), is_over=bool(message["is_over"]))

    def _see_end(self) -> None:
        assert self._loop is not None
        self._loop.remove_reader(self._pidfd)
        self._hear_all()  # What it has sent before its end: it may have left in order.
        self._go(Exited())

    def _hear_all(self) -> None:
        for message in self._line.hear():
            self._take(message)

    def _go(self, how: Exited, *, is_over: bool = False) -> None:
        """Its life, if it had one, is over: leave, and end; of a run that is over, once the home has what it wants.

        The home hears of the leave before the end: it would ask for a next life.
        """
        if self._is_through:
            return
        self._is_through = True
        assert self._machine is not None
        if is_over:
            self._end(how)
            self._machine.later(OVER_SECONDS, self._machine.request_end)
        else:
            self._machine.request_end()
            self._end(how)

    def _end(self, how: Exited) -> None:
        if self._watched is not None and self._loop is not None:
            (member, ended), self._watched = self._watched, None
            self._loop.call_soon(ended, member, how, None)


@final
class _OneLife:
    """The launch of the one life (`HostLaunching`)."""

    def __init__(self, guest: LoopGuest, folder: Path) -> None:
        self._guest, self._folder = guest, folder

    def prepare(self, wanted: Sequence[Replica]) -> list[Replica]:
        return list(wanted)

    def __call__(self, member: Member, endpoint: str, started: Callable[[int], None]) -> None:
        pid = self._guest.begin(self._folder, member, endpoint)
        if pid is None:
            raise OSError("its loop has ended")
        started(pid)

    def script_log(self, replica: Replica) -> Path | None:
        """None: it is never killed."""
        return None

    def close(self) -> None:
        """No-op."""
