"""The daemon of a machine: takes runs that commands hand to it, supervises several at once, and answers for them.

Each run has a `Daemon` of its own on the same loop, and its folder is on this machine. A run is running, then finishing
(its processes have ended, and summary and report are written), then over: `over.json` is there. What may be loaded is
judged by name before anything starts; this process imports nobody's code. Every message has one answer, and one that
asks for what cannot be is answered with the faults, as a request that is wrong.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, final

import zmq

from isthmus.programs import spec
from isthmus.programs.machine_config import MachineConfig
from isthmus.programs.machine_registry import Run
from isthmus.programs.machine_run import LEASE_TICKS_MAX, TICK_SECONDS, MachineRun, has_hosts, told_of
from isthmus.runtime.control import ControlServer, Message, version_of
from isthmus.runtime.errors import ConfigError, Fault, RunError

FORMER_MAX: Final = 100
"""How many runs that are over it remembers."""
UNABLE: Final = (OSError, sqlite3.Error, zmq.ZMQError, RunError)
"""What a run may fail with that cannot be supervised."""
ENDED_BY_COMMAND: Final = f"the command that watched the run has not been heard of for {LEASE_TICKS_MAX} s"
ENDED_BY_DAEMON: Final = "ended with the daemon of its machine"


@final
class MachineDaemon:
    """The runs of one machine. `on_change` is called with the runs that are not over whenever they change, `tell` with
    a line for people; `on_idle` when it is ending and no run is left."""

    def __init__(
        self,
        loop: Any,
        name: str,
        listen: str,
        config: MachineConfig,
        *,
        tell: Callable[[str], None],
        on_change: Callable[[list[Run]], None],
        on_idle: Callable[[], None],
    ) -> None:
        """Bind; zmq.ZMQError if the endpoint is taken."""
        self.name = name
        self.has_killed = False
        self._loop, self._config = loop, config
        self._tell, self._on_change, self._on_idle = tell, on_change, on_idle
        self._runs: dict[str, MachineRun] = {}
        self._former: dict[str, str] = {}
        self._is_ending = False
        self._server = ControlServer(loop, listen, self._hear, self._stranger)
        self.endpoint = self._server.endpoint
        self._handlers: Mapping[str, Callable[[Message], Message]] = {
            "machine": lambda message: self._machine(),
            "check": self._check,
            "take": self._take,
            "watch": self._watch,
            "stop": self._stop,
            "end": self._end,
        }
        loop.call_later(TICK_SECONDS, self._tick)

    # -- from outside --------------------------------------------------------------------------------------------------

    def adopt(self, run: Run) -> None:
        """Go on with a run of the daemon before this one: with its hosts that live, or to its end if none does."""
        folder = Path(run.folder)
        if (folder / "over.json").exists():
            return
        try:
            told, is_alive = told_of(folder, "Adopting a run"), has_hosts(folder)
            held = self._hold(folder, told, is_watched=run.is_watched)
        except (ConfigError, *UNABLE) as error:
            self._tell(f"leaves {folder}, a run of the daemon before it: {error}")
            return
        self._say(held, f"adopts {folder}" if is_alive else f"finds {folder} without a living process")
        if not is_alive:
            held.daemon.end("failed", "the daemon of its machine was gone for too long")

    def request_end(self) -> None:
        """The first time, ask every run to stop, and take no more; after that, end them at once."""
        is_first, self._is_ending = not self._is_ending, True
        for run in list(self._runs.values()):
            if is_first:
                run.daemon.request_stop()
            elif run.daemon.outcome == "running":
                self.has_killed = True
                run.daemon.end("failed", ENDED_BY_DAEMON)
        if is_first and self._runs:
            self._tell(f"asks {_count(len(self._runs))} to stop, and waits; a second signal ends them at once")
        if not self._runs:
            self._on_idle()

    def close(self) -> None:
        """Unbind."""
        self._server.close()

    # -- messages ------------------------------------------------------------------------------------------------------

    def _hear(self, peer: bytes, message: Message) -> None:
        handler = self._handlers.get(message["type"])
        try:
            if handler is None:
                raise ValueError(f"no message: {message['type']!r}")
            answer = handler(message)
        except ConfigError as error:
            answer = {"type": "refused", "faults": [list(fault) for fault in error.faults]}
        except (KeyError, TypeError, ValueError, OSError) as error:
            found = f"{type(error).__name__}: {error}"
            fault = Fault("Reading a message", "one that a daemon can act on", found, "Use one version everywhere.")
            answer = {"type": "refused", "faults": [list(fault)]}
        self._server.send(peer, answer)

    def _stranger(self, message: Message) -> None:
        self._tell(f"refused a command of {version_of(message)}; this is {version_of()}")

    def _machine(self) -> Message:
        runs = [{"run": folder, "outcome": run.daemon.outcome} for folder, run in self._runs.items()]
        former = [{"run": folder, "outcome": outcome} for folder, outcome in self._former.items()]
        return {"type": "machine", "name": self.name, "pid": os.getpid(), "runs": runs, "former": former}

    def _check(self, message: Message) -> Message:
        """Whether a job of this program and task would be taken."""
        self._permit(str(message["program"]), str(message["task"]), str(message["run"]))
        return {"type": "permitted"}

    def _permit(self, program: str, task: str, run: str) -> None:
        faults = list(self._config.faults(program, task, self.name))
        if self._is_ending:
            do = "Start it again, or wait until it has been."
            faults.append(Fault(f"Handing a run to the daemon {self.name!r}", "one that goes on", "it is ending", do))
        if faults:
            self._tell(f"refused {run}: expected {faults[0].expected}, found {faults[0].found}")
            raise ConfigError.of(faults)

    def _take(self, message: Message) -> Message:
        """Start a run whose folder is ready."""
        folder, is_watched = Path(str(message["run"])), bool(message["is_watched"])
        doing = f"Handing {folder} to the daemon {self.name!r}"
        told = told_of(folder, doing)
        self._permit(told.job.program, told.job.task.text, str(folder))
        if str(folder) in self._runs or (folder / "daemon.json").exists():
            raise ConfigError(doing, "a run that has not started", "one that has", "Start another: isthmus train.")
        try:
            run = self._hold(folder, told, is_watched=is_watched)
        except UNABLE as error:
            do = "Look at the folder and at what the machine has left: space, memory, processes."
            raise ConfigError(doing, "to supervise it", f"{type(error).__name__}: {error}", do) from error
        self._say(run, f"took {folder}: {sum(told.roles.values())} hosts{'' if is_watched else ', detached'}")
        return {"type": "taken"}

    def _watch(self, message: Message) -> Message:
        """The status of a run; renews its lease."""
        run = self._run_of(message)
        run.renew()
        return {"type": "status", **run.daemon.status()}

    def _stop(self, message: Message) -> Message:
        run = self._run_of(message)
        self._say(run, f"asks {run.folder} to stop")
        run.daemon.request_stop()
        return {"type": "stopping"}

    def _end(self, message: Message) -> Message:
        self._run_of(message).daemon.end("failed", str(message["reason"]))
        return {"type": "ending"}

    def _run_of(self, message: Message) -> MachineRun:
        """The run that a message is about; ConfigError if it is over, or not of this daemon."""
        folder = str(message["run"])
        if folder not in self._runs:
            found = f"one that is over: {self._former[folder]}" if folder in self._former else "none of its runs"
            do = "`isthmus status --all` shows what there is on this machine."
            raise ConfigError(f"Asking the daemon {self.name!r} for {folder}", "a run that goes on", found, do)
        return self._runs[folder]

    # -- runs ----------------------------------------------------------------------------------------------------------

    def _hold(self, folder: Path, told: spec.Spec, *, is_watched: bool) -> MachineRun:
        """Be responsible for a run from now on."""
        run = MachineRun(
            self._loop,
            folder,
            told,
            machine=self.name,
            is_watched=is_watched,
            on_over=lambda: self._over(run),
        )
        self._runs[str(folder)] = run
        self._changed()
        return run

    def _over(self, run: MachineRun) -> None:
        why = "" if run.daemon.error is None else f" ({run.daemon.error})"
        self._say(run, f"finished {run.folder}: {run.daemon.outcome}{why}")
        del self._runs[str(run.folder)]
        self._former[str(run.folder)] = run.daemon.outcome
        if len(self._former) > FORMER_MAX:
            del self._former[next(iter(self._former))]
        self._changed()
        if self._is_ending and not self._runs:
            self._on_idle()

    def _tick(self) -> None:
        """End the runs of commands that are gone."""
        self._loop.call_later(TICK_SECONDS, self._tick)
        for run in list(self._runs.values()):
            if run.tick():
                self._say(run, f"ends {run.folder}: {ENDED_BY_COMMAND}")
                run.daemon.end("failed", ENDED_BY_COMMAND)

    def _changed(self) -> None:
        self._on_change([Run(folder, run.is_watched) for folder, run in self._runs.items()])

    def _say(self, run: MachineRun, line: str) -> None:
        """Tell people, and the run's own log of its daemon."""
        self._tell(line)
        run.log(line)


def _count(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"
