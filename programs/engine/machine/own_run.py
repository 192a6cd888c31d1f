"""The run of `isthmus daemon --run FILE`: begun by the daemon that is its home, or gone on with.

What a unit, a job script or a pod starts is one process tree then. The request is prepared in a process of its own, the
command `isthmus train --cluster FILE --detach`, because a daemon imports no user's code; it calls this daemon as any
other command does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final, final

from isthmus.programs.engine.machine.daemon import MachineDaemon
from isthmus.programs.engine.machine.names import DaemonRun
from isthmus.programs.engine.request import new_folder
from isthmus.programs.engine.run.resume import again, outcome_of
from isthmus.runtime.errors import ConfigError, Fault

ERROR_LENGTH_MAX: Final = 4000


@final
class OwnRun:
    """The run that the cluster file `file` describes, in the folder `run_dir` below the daemon's root.

    If it `goes_on`, one that is there is continued where it was cut off, set aside, stopped, or failed.
    """

    def __init__(self, machine: MachineDaemon, file: Path, run_dir: Path | None, *, goes_on: bool) -> None:
        self._machine, self._file, self._goes_on = machine, file, goes_on
        self._folder = machine.root / (run_dir or new_folder.RUNS / file.stem)

    def begin(self) -> None:
        """Begin it, or go on with it; the daemon ends with status 2 if it cannot be."""
        machine, folder = self._machine, self._folder
        if str(folder) in machine.folders:  # The former daemon of this name had it.
            return
        if not (self._goes_on and new_folder.has_run(folder)):
            threading.Thread(target=self._hand_over, name=f"begin {folder.name}", daemon=True).start()
            return
        outcome = outcome_of(folder)
        if outcome == "done":
            machine.tell(f"{folder} is done")
            machine.know(str(folder), outcome)
            return
        try:
            again(folder, f"Going on with {folder}")
        except ConfigError as error:
            machine.fail(error)
            return
        machine.adopt(DaemonRun(str(folder), is_watched=False))

    def _hand_over(self) -> None:
        """In a thread: have a command prepare the run and hand it to this daemon."""
        command = [sys.executable, "-m", "isthmus.programs.command", "train", "--cluster", str(self._file), "--detach"]
        command += ["--quiet", "--run-dir", str(self._folder)]
        done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=False)
        if done.returncode:
            doing, do = f"Starting the run of {self._file}", "Mend that, and start the daemon again."
            told = done.stderr.split("isthmus: ")[-1].strip().rstrip(".")  # Warnings come first.
            found = told[-ERROR_LENGTH_MAX:] or f"status {done.returncode}"
            fault = ConfigError.of([Fault(doing, "a run that this daemon takes", found, do)])
            self._machine.loop.call_soon_threadsafe(self._machine.fail, fault)
