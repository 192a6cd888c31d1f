"""The machines of a run: a daemon each on loopback, which is started again when it has ended, as by a service manager.

A machine is killed with everything that runs on it, at once. Its processes are identified by the state folder in the
environment of its daemon, and of all that the daemon has started: so nothing of it is left, and nothing else is struck.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self, final

from isthmus.programs.chaos.plan import machine_name, machine_number
from isthmus.programs.chaos.processes import Process, process
from isthmus.programs.request.reference import is_file
from isthmus.programs.run import registry
from isthmus.runtime.errors import RunError

STATE: Final = "XDG_STATE_HOME"
KEEPS_ENVIRONMENT: Final = {"SPT_NOENV": "1"}
"""Keeps a process's title from overwriting the environment that the kernel shows."""
LISTEN_SECONDS_MAX: Final = 60.0
END_SECONDS_MAX: Final = 30.0
LOOK_SECONDS: Final = 0.05
_MAIN: Final = (
    "from isthmus.runtime.system.processes import die_with_parent; die_with_parent({parent})\n"
    "from isthmus.programs.command.main import main; main()"
)


@final
class Machines:
    """The `count` machines of a run, named `machine-0` (the home) and so on; `learners` are spread over them.

    They are started in `folder`, with their files in a folder there that is named after the `run`; `references` name
    code that they may load; `environment` is added to theirs. RunError if one does not start to listen.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        count: int,
        learners: int,
        references: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        self._folder, self._environment = folder.absolute(), environment
        self._own = self._folder / f"{run}-machines"
        self._own.mkdir(parents=True, exist_ok=True)
        modules = [text.partition(":")[0] for text in references]
        files = [text for text in modules if is_file(text)]
        self._config = self._own / "machine.toml"
        self._config.write_text(f"[programs]\nmodules = {json.dumps(files)}\n")
        self._config.chmod(0o600)
        self._lock = threading.Lock()
        self._is_over = False
        self._daemons: list[subprocess.Popen[bytes]] = []
        try:
            self._daemons += [self._start(number, "tcp://127.0.0.1:0") for number in range(count)]
            self._endpoints = [self._listens(number) for number in range(count)]
        except BaseException:
            self.close()
            raise
        self.cluster = self._own / "cluster.toml"
        self.cluster.write_text("".join(self._table(number, learners) for number in range(count)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def home(self) -> Mapping[str, str]:
        """The environment of a command that is typed at home."""
        return {STATE: str(self._state(0))}

    def look(self) -> None:
        """Start again whatever daemon has ended."""
        with self._lock:
            for number, daemon in enumerate(self._daemons):
                if daemon.poll() is not None and not self._is_over:
                    self._daemons[number] = self._start(number, self._endpoints[number])

    def kill(self, name: str, kill: Callable[[Process], object]) -> list[Process]:
        """Kill all processes on a machine of a plan, its daemon first; returns them. No restart happens meanwhile."""
        with self._lock:
            number = machine_number(name)
            found = sorted(self._processes(number), key=lambda each: each.pid != self._daemons[number].pid)
            for each in found:
                kill(each)
            return found

    def close(self) -> None:
        """End the daemons, and whatever they have left."""
        with self._lock:
            self._is_over = True
        try:
            for daemon in self._daemons:
                daemon.terminate()
            until = time.monotonic() + END_SECONDS_MAX
            for daemon in self._daemons:
                with suppress(subprocess.TimeoutExpired):
                    daemon.wait(max(0.0, until - time.monotonic()))
        finally:  # Also after a second Ctrl-C.
            for number, daemon in enumerate(self._daemons):
                for each in self._processes(number):
                    with suppress(ProcessLookupError):
                        os.kill(each.pid, 9)
                daemon.wait()

    def _start(self, number: int, endpoint: str) -> subprocess.Popen[bytes]:
        words = ["daemon", "--name", machine_name(number), "--listen", endpoint, "--config", str(self._config)]
        with (self._own / f"{machine_name(number)}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", _MAIN.format(parent=os.getpid()), *words],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self._environment, **KEEPS_ENVIRONMENT, STATE: str(self._state(number))},
            )

    def _listens(self, number: int) -> str:
        """The address of a daemon, once it has one."""
        until = time.monotonic() + LISTEN_SECONDS_MAX
        while (entry := registry.machine(machine_name(number), self._state(number))) is None:
            if self._daemons[number].poll() is not None or time.monotonic() > until:
                log = (self._own / f"{machine_name(number)}.log").read_text().strip()
                raise RunError(f"the daemon {machine_name(number)} does not listen: {log}")
            time.sleep(LOOK_SECONDS)
        return entry.endpoint

    def _table(self, number: int, learners: int) -> str:
        """A machine in the cluster file. The last ones have the learners that are left over."""
        count = len(self._daemons)
        islands = learners // count + (number >= count - learners % count)
        roles = "" if number == 0 else 'roles = ["learner"]\n'
        where = f'name = "{machine_name(number)}"\naddress = "{self._endpoints[number]}"\n'
        return f"[[machine]]\n{where}{roles}islands = {islands}\n"

    def _state(self, number: int) -> Path:
        return self._own / f"state-{number}"

    def _processes(self, number: int) -> Iterator[Process]:
        """The processes on a machine."""
        mark = f"{STATE}={self._state(number)}".encode()
        for path in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                is_of = mark in (path / "environ").read_bytes().split(b"\0")
                if is_of and (found := process(int(path.name))) is not None:
                    yield found
