"""One run under a daemon, its own or that of a machine: its `Daemon`, its processes, and its end.

Hosts and commands of this machine reach it at a socket that only their user can reach (`daemon_notes`); it takes no
other run.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, final

from isthmus.programs.engine.request.new_folder import AT_END, RunLock
from isthmus.programs.engine.request.spec import Spec
from isthmus.programs.engine.results.run_files import OVER
from isthmus.programs.engine.run.launch import NONE_AHEAD, Ahead, Launcher
from isthmus.programs.engine.run.merge_shares import MergeShares
from isthmus.programs.engine.run.run_end import RunEnd, error_of
from isthmus.programs.engine.run.script_lives import Forbids, ScriptLives, permitted
from isthmus.runtime.daemon.ground import LocalGround
from isthmus.runtime.daemon.home_daemon import Daemon
from isthmus.runtime.errors import RunError
from isthmus.runtime.supervision.home_events import INTERRUPTED
from isthmus.runtime.system.files import write_json

LEAVING_SHARE: Final = 0.7
"""Of a grace, for hosts to leave; the rest is for summary, report and trace, which take one to three seconds."""


@final
class HeldRun:
    """The run in a folder, under a daemon of this process, until it is closed.

    It is running, then finishing: every process has ended, `gather` fetches what is elsewhere, and `finish` writes
    summary and report in a thread, because the daemon goes on answering. Then it is over: `over.json` is there, unless
    `is_unwritten` or it was set aside, and `on_over` is called.

    Arguments:
        loop: that of the daemon.
        folder: that of the run.
        run_spec: what the folder says of the run.
        lock: that of the folder, which this process has.
        machine: the name of this machine.
        finish: writes summary and report.
        on_over: called once it is over.
        gather: fetches what is elsewhere.
        own_seconds: returns further CPU seconds of the run, beside those of hosts and fork servers.
        ahead: what was there before its daemon.
        forbids: as in `ScriptLives`.
        of_machines: the arguments of `Daemon` about other machines.
    """

    def __init__(
        self,
        loop: Any,
        folder: Path,
        run_spec: Spec,
        *,
        lock: RunLock,
        machine: str,
        finish: Callable[[Path, RunEnd], None],
        on_over: Callable[[], None],
        gather: Callable[[], Awaitable[None]] | None = None,
        own_seconds: Callable[[], float] = lambda: 0.0,
        ahead: Ahead = NONE_AHEAD,
        forbids: Forbids = permitted,
        **of_machines: Any,
    ) -> None:
        """Bind; OSError, sqlite3.Error, zmq.ZMQError or RunError if the run cannot be supervised."""
        self.folder, self.is_unwritten = folder, False
        self._loop, self._lock, self._finish, self._on_over = loop, lock, finish, on_over
        self._gather, self._own_seconds = gather, own_seconds
        for name in AT_END:  # Of a home that was set aside, or that died while it wrote them.
            (folder / name).unlink(missing_ok=True)
        script = run_spec.script
        self._launch = Launcher(
            loop,
            folder,
            run_spec.computing,
            run_spec.task_of,
            None if script is None else ScriptLives(folder, run_spec, script, ahead.scripts, forbids),
            ahead.servers,
            run_spec.settings.first_beat_seconds,
        )
        tape_bytes = run_spec.settings.tape_bytes
        self.daemon = Daemon(
            LocalGround(loop, folder, name=machine, launch=self._launch, tape_bytes=tape_bytes),
            run_spec.cast,
            run=run_spec.run,
            name=machine,
            on_over=lambda daemon: self._end(),
            terms=MergeShares(run_spec.weight_share_max),
            **of_machines,
        )

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.daemon.outcome == "running"

    @property
    def is_set_aside(self) -> bool:
        """Whether it goes on with the next daemon."""
        return self.daemon.outcome == INTERRUPTED

    def set_aside(self, grace: float) -> None:
        """Have its hosts here leave, and its last files written, within `grace` seconds."""
        self.daemon.set_aside(grace * LEAVING_SHARE)

    def close(self) -> None:
        """Release everything; the hosts, if any are left, go on."""
        self.daemon.close()
        self._lock.close()

    def _end(self) -> None:
        if self._gather is None:
            self._write()
        else:
            self._gathering = self._loop.create_task(self._gathered(self._gather))

    async def _gathered(self, gather: Callable[[], Awaitable[None]]) -> None:
        try:
            await gather()
        finally:
            self._write()

    def _write(self) -> None:
        daemon = self.daemon
        end = RunEnd.of(daemon, self._own_seconds() + self._launch.cpu_seconds)

        def work() -> None:
            outcome, error = daemon.outcome, error_of(daemon)
            try:
                self._finish(self.folder, end)
            except (RunError, OSError, subprocess.SubprocessError) as failure:
                outcome, error = "failed", error or str(failure)
            finally:
                self._loop.call_soon_threadsafe(self._written, outcome, error)

        threading.Thread(target=work, name=f"finish {self.folder.name}").start()

    def _written(self, outcome: str, error: str | None) -> None:
        try:
            if outcome != INTERRUPTED:
                write_json(self.folder / OVER, {"outcome": outcome, "error": error})
        except OSError:
            self.is_unwritten = True
        self._on_over()
