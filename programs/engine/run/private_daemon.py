"""The daemon of one run, as the command keeps it running.

Decides when the next daemon of a run is started, and when there is no point in another.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, final

from isthmus.programs.engine.request import new_folder
from isthmus.programs.engine.request.new_folder import RunLock
from isthmus.programs.engine.results.run_files import OVER
from isthmus.programs.engine.run.logs import DAEMON_LOG, FORK_SERVER_LOG, PLAIN_SERVER_LOG, open_log
from isthmus.programs.engine.run.preparing import DaemonAhead
from isthmus.runtime.clock import Instant
from isthmus.runtime.daemon.ledger import FILE as LEDGER
from isthmus.runtime.daemon.ledger import living
from isthmus.runtime.errors import INTERRUPTED_STATUS, RunError
from isthmus.runtime.ids import Replica
from isthmus.runtime.supervision.liveness import BACKOFF_SECONDS, Restarts
from isthmus.runtime.system.children import Child, Succession
from isthmus.runtime.system.files import write_bytes
from isthmus.runtime.system.processes import kill_if, signal_name, started_at
from isthmus.runtime.wire.control_client import ask
from isthmus.runtime.wire.control_messages import Message
from isthmus.runtime.wire.daemon_notes import note_of, remove_dead_socket

GONE_SECONDS_MAX: Final = 10.0
"""Time limit for killed processes to be gone."""
PAUSE_SECONDS: Final = 0.05
_DAEMON: Final = Replica("daemon", 0)
_PROCESS: Final = "isthmus.programs.engine.run.daemon_process"
_HOST_LOG: Final = re.compile(r".+-\d+\.log")
_PROBE_BYTES: Final = 4096
"""A block of most disks."""


@final
class PrivateDaemon:
    """Keeps a daemon running for the run in `folder`, whose `lock` each inherits; `say` gets lines for people.

    A daemon that dies is replaced by the rule for hosts (`restarts`): at once the first time, later where daemons end
    again and again, with all forgiven once one has served for HEALTHY. Only a daemon that ends again and again is given
    up. Where the run folder cannot be written the daemon is not at fault: further ones are tried, for as long as the
    run has hosts that train without one, which is a minute (ORPHAN_SECONDS). After that there is nothing left to adopt.
    """

    fate: Final = "was killed"

    def __init__(
        self,
        folder: Path,
        lock: RunLock,
        say: Callable[[str], None],
        grace: float,
        ahead: DaemonAhead | None = None,
    ) -> None:
        """Start the first, unless one waits for the run (`ahead`); RunError if it cannot be started.

        `grace`: the seconds in which each sets the run aside.
        """
        self._folder, self._lock, self._say, self._grace = folder, lock, say, grace
        self._is_set_aside = False
        self._given_up_by: RunError | None = None
        self._restarts = Restarts()
        self._served_at: Instant | None = None
        self._is_told = False
        self._was_refused = False
        """Whether the disk took nothing when the last daemon had ended."""
        self.is_unwritten = False
        """The run is over, and the disk does not even take that fact."""
        self.seen: dict[str, Any] = {}
        """The status of its daemons so far."""
        self._daemons = Succession(self._start, self._follow, None if ahead is None else self._taken(ahead))
        if self._daemons.child is None:
            try:
                self._daemons.begin()
            except OSError as error:
                raise RunError(_not_started(error)) from None

    @property
    def is_over(self) -> bool:
        """Whether the end of the run is written, or the run was set aside."""
        return self._is_set_aside or (self._folder / OVER).exists()

    def status(self) -> Message | None:
        """The newest status of the present daemon; None while there is none."""
        status = self._ask({"type": "status"}, 1.0)
        if status is not None:
            if self._served_at is None:
                self._served_at, self._is_told = _now(), False
            # A new daemon has no training status until the recorder reports, nor figures of hosts until they do.
            former = {host["name"]: host for host in self.seen.get("hosts", ())}
            hosts = [{**former.get(host["name"], {}), **host} for host in status["hosts"]]
            self.seen.update({name: value for name, value in status.items() if value or name not in self.seen})
            self.seen["hosts"] = hosts
        return status

    def confirms(self, message: Message) -> bool:
        """Whether the present daemon answers a request."""
        return self._ask(message, 2.0) is not None

    def tend(self) -> None:
        """Start the next daemon once it is due; RunError if another is pointless."""
        if self._given_up_by is not None:
            raise self._given_up_by
        self._daemons.look()
        if not self.is_over:
            self._daemons.go_on()

    def detach(self) -> bool:
        """Let the daemon and its run go on without this process; whether there is a daemon that can."""
        child = self._daemons.child
        if child is None or child.wait(0.0) or self._endpoint is None:
            return False
        try:
            child.line.send({"detach": True})
        except OSError:  # It ends.
            return False
        child.let_go(0.0)
        return True

    def kill(self) -> None:
        """Kill it, and every process of the run."""
        child, self._daemons.child = self._daemons.child, None
        if child is not None:
            child.kill()
            child.reap(None)
        kill_all(self._folder)
        remove_dead_socket(self._folder)

    def give_up(self, error: RunError) -> None:
        """Kill every process of the run, from another thread than that of all else; the next `tend` raises `error`."""
        self._given_up_by = error
        child = self._daemons.child
        if child is not None:
            child.kill()
        kill_all(self._folder)

    def close(self, patience: Callable[[], float]) -> None:
        """Close the daemon's line, and wait until it has ended, and the run with it, if that is not over.

        Kills the daemon after `patience` seconds, which may change meanwhile.
        """
        child = self._daemons.child
        if child is None:
            self.kill()
            return
        child.line.end()
        begun = time.monotonic()
        while not child.reap(PAUSE_SECONDS):
            if time.monotonic() > begun + patience():
                self.kill()
                return

    @property
    def _endpoint(self) -> str | None:
        """The daemon's endpoint; None until it is published, and while there is no daemon."""
        note = None
        with suppress(OSError):  # Too few descriptors now: it is asked again.
            note = note_of(self._folder)
        child = self._daemons.child
        is_there = note is not None and child is not None and note.pid == child.pid
        return note.endpoint if note is not None and is_there else None

    def _ask(self, message: Message, seconds_max: float) -> Message | None:
        endpoint = self._endpoint
        return None if endpoint is None else ask(endpoint, message, seconds_max)

    def _taken(self, ahead: DaemonAhead) -> Child | None:
        """The daemon that waits for this run; None if it is gone."""
        try:
            ahead.take(self._folder, self._lock.file, self._grace)
        except OSError:
            ahead.child.end()
            return None
        return ahead.child

    def _start(self) -> Child:
        """Start a daemon, as a process of its own session, with the lock; OSError if that cannot be."""
        logs = self._folder / "logs"
        logs.mkdir(exist_ok=True)
        arguments = ["--lock", self._lock.file, "--grace", self._grace, self._folder]
        with open_log(logs / DAEMON_LOG) as log:
            return Child(_PROCESS, arguments, files=[self._lock.file], output=log, leads=True)

    # -- the next one --------------------------------------------------------------------------------------------------

    def _follow(self, former: Child | OSError) -> float:
        """See to the daemon after one that has ended, or could not be started: the seconds until it is due; RunError if
        another daemon is pointless."""
        if isinstance(former, OSError):
            return self._put_off(f"before it began: {_not_started(former)}")
        former.reap()
        self._lock.sign()  # The one that it names is gone.
        status = former.status
        if status == INTERRUPTED_STATUS:
            self._is_set_aside = True
            return 0.0
        if status == new_folder.UNWRITTEN:
            self.is_unwritten = True
            raise RunError(f"the run is over, but its end could not be written into {self._folder}: make room there")
        if status is None:  # Another thread of the user's process waits for any child.
            return self._put_off("in a way that is not known")
        return self._put_off(f"by {signal_name(-status)}" if status < 0 else f"with status {status}")

    def _put_off(self, how: str) -> float:
        """The back-off after this end, in seconds; RunError if another daemon is pointless."""
        now = _now()
        delay = self._restarts.delay(_DAEMON, self._served_at, now)
        has_served, self._served_at = self._served_at is not None, None
        refusal = "" if has_served else refusal_of(self._folder)
        if refusal and not self._is_told:
            self._is_told = True
            self._say(
                f"no daemon can be started, because {self._folder} cannot be written: {refusal}. Make room there, or "
                "mend it. It is tried again; the run goes on without one for a minute."
            )
        was_refused, self._was_refused = self._was_refused, bool(refusal)
        if delay is not None:
            return delay / 1e9
        if not (refusal or was_refused) or not has_hosts(self._folder):
            raise RunError(self._despair(how, refusal))
        return BACKOFF_SECONDS[-1] if refusal else BACKOFF_SECONDS[0]  # Room was made while that one began.

    def _despair(self, how: str, refusal: str) -> str:
        """Why another daemon is pointless."""
        count = self._restarts.failures(_DAEMON)
        if refusal:
            return (
                f"its daemon could not be started {count} times in a row, because {self._folder} cannot be written: "
                f"{refusal}; its hosts have ended without one. Make room there, and start the run again."
            )
        log = self._folder / "logs" / DAEMON_LOG
        return f"its daemon ended {count} times in a row, the last time {how}; look at {log}"


def refusal_of(folder: Path) -> str:
    """Why a disk does not take a small file into a folder now; empty if it does."""
    path = folder / f".probe.{os.getpid()}"
    try:
        write_bytes(path, b"\0" * _PROBE_BYTES)
    except OSError as error:
        return error.strerror or str(error)
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
    return ""


def processes_of(folder: Path) -> Iterator[tuple[int, str]]:
    """Pid and log name of each process whose output goes to a log of the run."""
    logs = os.path.realpath(folder / "logs")
    yield from ((pid, log.name) for pid, log in _logs() if str(log.parent) == logs)


def folders() -> set[Path]:
    """The run folders of the daemons of this user that have one run each."""
    return {log.parent.parent for _, log in _logs() if log.name == DAEMON_LOG}


def _logs() -> Iterator[tuple[int, Path]]:
    """Pid and log of each other process of this user that is of a run."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    yield from ((pid, log) for pid in pids if pid != os.getpid() and (log := _log_of(pid)) is not None)


def has_hosts(folder: Path) -> bool:
    """Whether a host of the run lives."""
    return any(_HOST_LOG.fullmatch(name) for _, name in processes_of(folder))


def kill_all(folder: Path) -> None:
    """Kill every process of the run, and wait until they are gone.

    Processes of a run are identified by the destination of their output, so that one which its daemon had not yet
    noted, or could not, is found as well; and by its ledger, so that one which has closed its output is.
    """
    until = time.monotonic() + GONE_SECONDS_MAX
    logs, noted = os.path.realpath(folder / "logs"), _noted(folder)

    def is_of_run(pid: int) -> bool:
        log = _log_of(pid)
        return noted.get(pid, _NEVER) == started_at(pid) or (log is not None and str(log.parent) == logs)

    while processes := [pid for pid in {*noted, *(pid for pid, _ in processes_of(folder))} if is_of_run(pid)]:
        if time.monotonic() > until:
            return
        for pid in processes:
            with suppress(ProcessLookupError):
                kill_if(pid, is_of_run)
        time.sleep(PAUSE_SECONDS)


_NEVER: Final = -1
"""When no process has started."""


def _noted(folder: Path) -> dict[int, int]:
    """The living hosts in the ledger of a run: pid -> when it started. This process is none of them, where it is a
    user's, which is a host beside its script."""
    pids = living(folder) if (folder / LEDGER).exists() else []
    return {pid: begun for pid in pids if pid != os.getpid() and (begun := started_at(pid)) is not None}


def _log_of(pid: int) -> Path | None:
    """The log of a run that is a process's output; None if it has another, or ended."""
    try:
        is_mine = Path(f"/proc/{pid}").stat().st_uid == os.geteuid()
        path = Path(os.readlink(f"/proc/{pid}/fd/1").removesuffix(" (deleted)"))
    except OSError:  # Or it is another user's.
        return None
    is_log = path.name in (DAEMON_LOG, FORK_SERVER_LOG, PLAIN_SERVER_LOG) or _HOST_LOG.fullmatch(path.name)
    return path if is_mine and is_log and path.parent.name == "logs" else None


def _not_started(error: OSError) -> str:
    return f"its daemon could not be started: {error}"


def _now() -> Instant:
    return Instant(time.monotonic_ns())
