"""The start of the processes of a run's hosts by its daemon, and its link to the fork server.

Decides how a host is started: forked, if it computes, from a fork server that has imported jax and the task; from
nothing otherwise, and where the fork server refuses, hangs or dies. Where a script of the user's is the learner, its
processes run the script, and nothing is forked. Either way it is a child of the daemon, in a
session of its own, with a log in the run folder. The daemon's loop never waits.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, TypeVar, final

from isthmus.programs.engine.run.logs import FORK_SERVER_LOG, PLAIN_SERVER_LOG, log_of, opened_log
from isthmus.programs.engine.run.script_lives import ScriptLives
from isthmus.programs.engine.run.script_processes import ScriptsAhead, output_to
from isthmus.runtime.errors import RunError, log_entry
from isthmus.runtime.ids import Member, Replica, leader
from isthmus.runtime.supervision.home_events import START_SECONDS
from isthmus.runtime.system import files
from isthmus.runtime.system.children import Child
from isthmus.runtime.system.processes import environment, is_stopped, signal_name, spawn_leader

TICK_SECONDS: Final = 0.5
ANSWER_TICKS_MAX: Final = 20
"""Ten seconds for an answer, which takes some hundredths of a second: on a machine with six times as many busy
processes as cores a healthy one was late by 1.9 s."""
CLOSE_SECONDS_MAX: Final = 5.0
"""Time limit for a killed process to be gone; with 250 MB of memory it takes some hundredths of a second."""

Asked = TypeVar("Asked")


class Ahead(NamedTuple):
    """What was there before its daemon: fork servers, which lead sessions, by task, that of PLAIN for hosts that do not
    compute, which have no other; and processes of a script that wait for their lives."""

    servers: Mapping[str, Child] = MappingProxyType({})
    scripts: ScriptsAhead | None = None


NONE_AHEAD: Final = Ahead()


@final
class ForkLink(Generic[Asked]):
    """One fork server, from its start to its end: a child, and what it owes.

    `answered(asked, answer)` is called for each request, in order; `used(cpu_seconds)` for each process that was
    reaped; `ended(unanswered, how)` once, if it ends before it is closed.

    That its pidfd becomes readable is the only sign of its end, because the end of its line comes a moment before or
    after. At the end everything that it has sent is taken first, so that a request that is then unanswered has become
    no host: a forked host waits until its pid has been sent, and ends by itself if that never happens (`fork_server`).
    So it may be started in another way, without two processes for one life.

    Time is counted in ticks, of which a daemon that was stopped sees one: it does not blame a fork server for its own
    sleep.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        child: Child,
        *,
        answered: Callable[[Asked, Mapping[str, Any]], None],
        used: Callable[[float], None],
        ended: Callable[[list[Asked], str], None],
        start_seconds: float = START_SECONDS,
    ) -> None:
        """`child`: a fork server that leads a session. It has `start_seconds` to import and trace, as long as a host
        that is started from nothing has for the same."""
        self._preparing_ticks_max = start_seconds / TICK_SECONDS
        self._loop, self._child, self._answered, self._used, self._ended = loop, child, answered, used, ended
        self._pending: deque[Asked] = deque()
        self._ticks = 0
        self.is_ready = self._is_ticking = self._is_reaped = False
        self._verdict = ""
        self.is_gone = False
        """Whether it and its whole process group are gone."""
        loop.add_reader(child.line.fileno(), self._hear)
        loop.add_reader(child.watch, self._see_end)

    def ask(self, pending: Asked, request: Mapping[str, Any]) -> None:
        """Send a request; OSError if it cannot be sent now, and then it is not answered."""
        if not self._child.line.offer(request):
            raise OSError("it reads none, or has ended")
        if not self._pending:
            self._ticks = 0
        self._pending.append(pending)
        self._keep_ticking()

    def close(self) -> None:
        """End it with its process group, which hosts have left. Idempotent."""
        if not self._is_reaped:
            os.killpg(self._child.pid, signal.SIGKILL)  # It is not reaped, so that the number is its own.
            self._reap(CLOSE_SECONDS_MAX)
        elif not self._reap_group():
            os.killpg(self._child.pid, signal.SIGKILL)  # One of its group is a child here, and holds the number.
        self._reap_group_soon()

    # -- answers -------------------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        """Take everything that it has sent."""
        for answer in self._child.line.hear():
            if self._is_reaped:  # An answer may cause `close`.
                return
            self._take(answer)
        if self._child.line.is_over and not self._is_reaped:
            self._loop.remove_reader(self._child.line.fileno())

    def _take(self, answer: Mapping[str, Any]) -> None:
        self._ticks = 0
        if "ready" in answer:
            self.is_ready = True
        else:
            self._answered(self._pending.popleft(), answer)

    def _see_end(self) -> None:
        self._hear()
        if not self._is_reaped:
            self._reap()
            self._reap_group_soon()  # A host that waits for its pid ends about now.
            self._ended(list(self._pending), self._verdict or self._how())

    # -- time ----------------------------------------------------------------------------------------------------------

    def _keep_ticking(self) -> None:
        if self._pending and not self._is_ticking:
            self._is_ticking = True
            self._loop.call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        """Kill it if it owes an answer for too long."""
        self._is_ticking = False
        if self._is_reaped:
            return
        self._child.line.flush()
        self._ticks += 1
        is_preparing = not self.is_ready and not is_stopped(self._child.pid)
        if self._pending and self._ticks > (self._preparing_ticks_max if is_preparing else ANSWER_TICKS_MAX):
            self._verdict = f"did not answer for {self._ticks * TICK_SECONDS:.0f} s, and was killed"
            self._child.kill()
        self._keep_ticking()

    # -- the end -------------------------------------------------------------------------------------------------------

    def _reap(self, seconds: float = 0.0) -> None:
        """Reap it once it has ended, after so many seconds at most, and hear it no more."""
        self._is_reaped = True
        self._loop.remove_reader(self._child.watch)
        self._loop.remove_reader(self._child.line.fileno())
        if self._child.reap(seconds):
            self._used(self._child.cpu_seconds)
        else:
            self._child.let_go(0.0)

    def _how(self) -> str:
        """How it has ended."""
        status = self._child.status
        if status is None:
            return "has ended"
        return f"was ended by {signal_name(-status)}" if status < 0 else f"exited with status {status}"

    def _reap_group_soon(self) -> None:
        """Reap the ended processes of its group now and, if some are left, a tick from now."""
        if not self._reap_group():
            self._loop.call_later(TICK_SECONDS, self._reap_group)

    def _reap_group(self) -> bool:
        """Reap the ended processes of its group; returns whether none is left that is a child of this process."""
        while not self.is_gone:
            try:
                pid, _, usage = os.wait4(-self._child.pid, os.WNOHANG)
            except ChildProcessError:
                self.is_gone = True
                break
            if not pid:
                break
            self._used(usage.ru_utime + usage.ru_stime)
        return self.is_gone


UNASKED_MAX: Final = 3
"""Fork servers that are started in a row without a host that needs one: the cause of so many ends would persist."""
RETRY_SECONDS: Final = 1.0
"""Between two attempts to start a process for which there is no room."""
PLAIN: Final = ""
"""In place of the task of a fork server, for that of the hosts that do not compute."""
_SERVER: Final = "isthmus.programs.engine.run.fork_server"
_PR_SET_CHILD_SUBREAPER: Final = 36


class _Wanted(NamedTuple):
    """A requested host."""

    member: Member
    endpoint: str
    started: Callable[[int], None]


class Launcher:
    """Starts the hosts of the run in `folder`, and keeps their logs short.

    Hosts of the `computing` roles import the task that `task_of` names, and are forked by the fork server of that task.
    Where there are `scripts`, they are processes of a script instead.

    `cpu_seconds`: used by fork servers that have ended.

    A fork server that had been ready is replaced at once, so that the next host does not wait for imports; one that
    dies before, or after several of which no host was asked, is replaced when a host asks for it.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        folder: Path,
        computing: Iterable[str],
        task_of: Callable[[Replica], str],
        scripts: ScriptLives | None = None,
        servers: Mapping[str, Child] = MappingProxyType({}),
        start_seconds: float = START_SECONDS,
    ) -> None:
        self._start_seconds = start_seconds
        self._ahead, self._scripts = dict(servers), scripts
        self._loop, self._folder, self._task_of = loop, folder, task_of
        self._computing = frozenset(computing)
        self.cpu_seconds = 0.0
        self._servers: dict[str, ForkLink[_Wanted]] = {}
        self._former: list[ForkLink[_Wanted]] = []
        self._is_closed = False
        self._unasked: Counter[str] = Counter()
        (folder / "logs").mkdir(exist_ok=True)
        self._keep_logs_short()
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise RunError(f"this process cannot become a subreaper: {os.strerror(ctypes.get_errno())}")
        for task in servers:
            self._fork_server(task)

    def prepare(self, wanted: Sequence[Replica]) -> list[Replica]:
        """Start the fork servers that `wanted` need; returns it with those that need them last: they take a while."""
        if self._scripts is not None:
            self._scripts.prepare(wanted)
        for task in dict.fromkeys(self._task_of(replica) for replica in wanted if self._computes(replica)):
            with suppress(OSError):  # The next request for a host meets the same error.
                self._fork_server(task)
        return sorted(wanted, key=self._computes)

    def __call__(self, member: Member, endpoint: str, started: Callable[[int], None]) -> None:
        """Start one host with its daemon's `endpoint`, and call `started` with its pid.

        OSError if there is no room for the process.
        """
        wanted = _Wanted(member, endpoint, started)
        if self._computes(member.replica):
            task = self._task_of(member.replica)
        elif PLAIN in self._servers and not self._is_script(member.replica):
            task = PLAIN
        else:
            started(self._start(wanted))
            return
        server, self._unasked[task] = self._fork_server(task), 0
        request = {"name": str(member.replica), "incarnation": member.incarnation, "endpoint": endpoint}
        try:
            server.ask(wanted, request)
        except OSError as error:
            self._start_from_nothing(wanted, f"the fork server takes no request: {error}")

    def close(self) -> None:
        """End the fork servers and the remains of former ones; hosts keep running. Idempotent."""
        self._is_closed = True
        if self._scripts is not None:
            self._scripts.close()
        servers = [*self._former, *self._servers.values()]
        for server in servers:
            server.close()  # It holds nothing, and may be busy with the imports of the user's task.
        self._servers, self._former = {}, [server for server in servers if not server.is_gone]

    def _keep_logs_short(self) -> None:
        """Cut logs that have become too long, until this is closed."""
        if not self._is_closed:
            files.cut(self._folder / "logs")
            self._loop.call_later(files.LOOK_SECONDS, self._keep_logs_short)

    def _computes(self, replica: Replica) -> bool:
        """Whether a host imports the task, and is forked."""
        return self._scripts is None and leader(replica).role in self._computing

    def script_log(self, replica: Replica) -> Path | None:
        """The log of a host that is a process of the script; None for any other."""
        return log_of(self._folder, replica) if self._is_script(replica) else None

    def _is_script(self, replica: Replica) -> bool:
        """Whether a host is a process of a script."""
        return self._scripts is not None and replica.role in self._computing

    # -- the fork server of a task -------------------------------------------------------------------------------------

    def _fork_server(self, task: str) -> ForkLink[_Wanted]:
        """The fork server, started if there is none; OSError if there is no room for it."""
        if task not in self._servers:
            self._former = [server for server in self._former if not server.is_gone]
            child = self._ahead.pop(task, None) or self._start_server(task)
            self._servers[task] = ForkLink(
                self._loop,
                child,
                answered=self._answered,
                used=self._used,
                ended=partial(self._server_ended, task),
                start_seconds=self._start_seconds,
            )
        return self._servers[task]

    def _start_server(self, task: str) -> Child:
        with opened_log(self._folder / "logs" / FORK_SERVER_LOG) as log:
            return Child(_SERVER, [self._folder, task], output=log, variables=environment(computes=True), leads=True)

    def _answered(self, wanted: _Wanted, answer: Mapping[str, Any]) -> None:
        """The fork server has started a host, or refused with a reason."""
        if "pid" in answer:
            wanted.started(answer["pid"])
        else:
            self._start_from_nothing(wanted, answer["refused"])

    def _used(self, cpu_seconds: float) -> None:
        self.cpu_seconds += cpu_seconds

    def _server_ended(self, task: str, unanswered: list[_Wanted], how: str) -> None:
        """The fork server is gone: start the hosts requested from it without one; later hosts get a new one."""
        server = self._servers.pop(task, None)
        was_ready = server is not None and server.is_ready
        if server is not None:
            self._former.append(server)
        log = PLAIN_SERVER_LOG if task == PLAIN else FORK_SERVER_LOG
        why = f"the fork server {how}; look at {self._folder / 'logs' / log}"
        is_replaced = task != PLAIN and was_ready and self._unasked[task] < UNASKED_MAX
        if is_replaced:
            then = "a new one is started"
        else:
            then = "hosts do without" if task == PLAIN else "the next host that computes gets a new one"
        say(f"{why}; {then}")
        for wanted in unanswered:
            self._start_from_nothing(wanted, why)
        if is_replaced:
            self._unasked[task] += 1
            with suppress(OSError):  # There is no room for it now; the next host asks again.
                self._fork_server(task)

    # -- from nothing --------------------------------------------------------------------------------------------------

    def _start_from_nothing(self, wanted: _Wanted, why: str) -> None:
        """Start a host that should have been forked, and print why."""
        say(f"{wanted.member} is started from nothing: {why}")
        self._insist(wanted, is_first=True)

    def _insist(self, wanted: _Wanted, *, is_first: bool = False) -> None:
        """Start a host from nothing, as soon as there is room for a process: no caller waits for an error."""
        if self._is_closed:
            return
        try:
            pid = self._start(wanted)
        except OSError as error:
            if is_first:
                say(f"{wanted.member} cannot be started, which is tried again every second: {error}")
            self._loop.call_later(RETRY_SECONDS, self._insist, wanted)
            return
        wanted.started(pid)

    def _start(self, wanted: _Wanted) -> int:
        member, replica = wanted.member, wanted.member.replica
        if self._scripts is not None and self._is_script(replica):
            return self._scripts.start(member, wanted.endpoint)
        arguments = [
            "isthmus.programs.engine.run.host_process",
            str(self._folder),
            str(replica),
            str(member.incarnation),
        ]
        computes = self._computes(replica)
        return _spawn([*arguments, wanted.endpoint], log_of(self._folder, replica), computes=computes)


def _spawn(arguments: Sequence[str], log: Path, *, computes: bool) -> int:
    """Start a module of ours with arguments, as the leader of a session. Its pid."""
    with opened_log(log) as file:
        command = [sys.executable, "-m", *arguments]
        return spawn_leader(command, environment(computes=computes), output_to(file))


def say(line: str) -> None:
    """Write a line into the daemon's log; a disk that does not take it costs the line, and nothing else."""
    with suppress(OSError):
        os.write(1, f"{log_entry(line)}\n".encode())
