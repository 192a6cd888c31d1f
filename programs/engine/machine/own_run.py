"""The run of `isthmus daemon --run FILE`: begun by the daemon that is its home, or gone on with.

What a unit, a job script or a pod starts is one process tree then. The request is prepared in a process of its own, the
command `isthmus train --cluster FILE --detach`, because a daemon imports no user's code; it calls this daemon as any
other command does.

A run whose task is OPEN_NAME has loops as learners that start themselves. Its request is prepared once the first of
them has made a step, and told of its model: the home asks the daemon of the first that is linked, again and again. A
model that the request refuses is refused to that loop, and the home waits for another.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any, Final, final

from isthmus.programs.engine.cluster import cluster_file
from isthmus.programs.engine.machine.absent_homes import alone_ns
from isthmus.programs.engine.machine.client import DaemonClient
from isthmus.programs.engine.machine.links import MALFORMED
from isthmus.programs.engine.machine.names import DaemonRun
from isthmus.programs.engine.machine.outposts import NO_MODEL
from isthmus.programs.engine.machine.run import UNABLE, unable
from isthmus.programs.engine.machine.services import DaemonService, ServedMachine
from isthmus.programs.engine.request import new_folder, reference, sources, spec
from isthmus.programs.engine.request.run_settings import RunSettings
from isthmus.programs.engine.results.run_files import check_files
from isthmus.programs.engine.run.resume import again, outcome_of
from isthmus.programs.loop_script import OPEN, OPEN_NAME
from isthmus.programs.loop_task import ModelFound
from isthmus.runtime.errors import ConfigError, Fault, shortened
from isthmus.runtime.system.files import write_json
from isthmus.runtime.system.processes import status_name

ERROR_LENGTH_MAX: Final = 4000
ASK_SECONDS: Final = 0.5
"""Between two questions for a model that a loop does not have yet."""
ASK_SECONDS_MAX: Final = 20.0
HAND_OVER_SECONDS_MAX: Final = 300.0
"""For the request of a model that a loop has told of; a model of LEAVES_MAX leaves takes 20 s."""


@final
class OwnRun(DaemonService):
    """The run that the cluster file `file` describes, in the folder `run_dir` below the daemon's root.

    If it `goes_on`, one that is there is continued where it was cut off, set aside, stopped, or failed. Where its files
    are others now, and it `accepts_changes`, all of its machines begin anew from the snapshot; otherwise the daemon
    ends, with that in its message.
    """

    def __init__(self, file: Path, run_dir: Path | None, *, goes_on: bool, accepts_changes: bool = False) -> None:
        self._file, self._run_dir, self._goes_on = file, run_dir, goes_on
        self._accepts_changes = accepts_changes
        self._refused = set[str]()
        """Daemons of loops whose model was refused."""
        self._asking: asyncio.Task[None] | None = None
        self._wanted: RunSettings | None = None
        """The settings of a run that waits for the first loop."""
        self._preparing: subprocess.Popen[str] | None = None

    def start(self, machine: ServedMachine) -> None:
        """Begin the run as soon as the daemon serves."""
        self._machine = machine
        self._folder = machine.root.folder / (self._run_dir or new_folder.RUNS / self._file.stem)
        machine.later(0.0, self._begin_or_go_on)

    def _begin_or_go_on(self) -> None:
        """Begin it, or go on with it; the daemon ends with status 2 if it cannot be."""
        machine, folder = self._machine, self._folder
        if str(folder) in machine.folders:  # The former daemon of this name had it.
            return
        if not (self._goes_on and new_folder.has_run(folder)):
            self._begin_anew()
            return
        doing = f"Going on with {folder}"
        try:
            check_files(folder, doing)
            if (outcome := outcome_of(folder)) == "done":
                machine.tell(f"{folder} is done")
                machine.know(str(folder), outcome)
                return
            if self._accepts_changes and sources.changed(folder):
                machine.neighbours.set_aside.add(spec.load(folder).run)  # Its machines keep what they have for it.
                threading.Thread(target=self._begin_with_changes, name=f"resume {folder.name}", daemon=True).start()
                return
            again(folder, doing, alone_ns(folder))
        except ConfigError as error:
            machine.fail(error)
            return
        except UNABLE as error:
            machine.fail(unable(doing, error))
            return
        machine.adopt(DaemonRun(str(folder), is_watched=False))

    def _begin_anew(self) -> None:
        machine = self._machine
        run = cluster_file.read(self._file).sections.get("run", {})
        if run.get("task") != OPEN_NAME:
            threading.Thread(target=self._begin, name=f"begin {self._folder.name}", daemon=True).start()
            return
        try:
            settings = RunSettings.read({key: run[key] for key in run if key not in ("task", "program")})
        except ConfigError as error:
            machine.fail(error)
            return
        threading.Thread(target=self._check_calls, name=f"begin {self._folder.name}", daemon=True).start()
        machine.tell(f"waits for the first loop, which brings the model of {self._folder}")
        self._wanted = settings

    def _check_calls(self) -> None:
        """In a thread: end the daemon, before the first loop comes, if the file does not say how to call it."""
        try:
            DaemonClient.of(cluster_file.read(self._file)).find()
        except ConfigError as error:
            self._machine.loop.call_soon_threadsafe(self._machine.fail, error)

    def _begin(self) -> None:
        """In a thread: begin the run, or end the daemon."""
        self._or_end(self._hand_over("--run-dir", str(self._folder)), f"Starting the run of {self._file}")

    def _begin_with_changes(self) -> None:
        """In a thread: go on with the run, whose files are others now, or end the daemon."""
        self._or_end(self._hand_over("--resume", str(self._folder), "--accept-changes"), f"Resuming {self._folder}")

    def _or_end(self, told: str, doing: str) -> None:
        if told:
            do = "Mend that, and start the daemon again."
            fault = ConfigError.of([Fault(doing, "a run that this daemon takes", told, do)])
            self._machine.loop.call_soon_threadsafe(self._machine.fail, fault)

    def _hand_over(self, *options: str, seconds_max: float | None = None) -> str:
        """Have a command prepare the run and hand it to this daemon, for seconds; returns what it complains of.

        One that takes too long is ended: the model of a loop may be made to be slow.
        """
        command = [sys.executable, "-m", "isthmus.programs.command", "train", "--cluster", str(self._file), "--detach"]
        command += ["--quiet", *options]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=dict(os.environ), **pipes) as self._preparing:
            try:
                _, told = self._preparing.communicate(timeout=seconds_max)
            except subprocess.TimeoutExpired:
                self._preparing.kill()
                return f"its preparation took more than {seconds_max} s"
        if not self._preparing.returncode:
            return ""
        told = told.split("isthmus: ")[-1].strip().rstrip(".")  # Warnings come first.
        return shortened(told, ERROR_LENGTH_MAX) or status_name(self._preparing.returncode)

    def close(self) -> None:
        """End the command that prepares the run: the next daemon has one of its own, and one of the two would lose."""
        if self._preparing is not None:
            self._preparing.terminate()

    # -- loops that start themselves -----------------------------------------------------------------------------------

    def loop_linked(self, name: str) -> None:
        """The daemon of a loop is linked: ask it for its model, if a run waits for one, and no other is asked."""
        instance = self._machine.neighbours.links.instance(name)
        if self._wanted is not None and self._asking is None and instance not in self._refused:
            self._asking = self._machine.loop.create_task(self._ask(name, instance, self._wanted))

    async def _ask(self, name: str, instance: str, settings: RunSettings) -> None:
        """Ask the daemon of a loop for its model as long as it is linked, and begin the run with that."""
        links = self._machine.neighbours.links
        request = {"type": "model", "slots": settings.slots_max, "seed": settings.seed}
        try:
            while links.is_up(name) and links.instance(name) == instance:
                answer = (await links.request(name, request, ASK_SECONDS_MAX))["model"]
                if answer is not None:
                    await self._begin_with(name, instance, ModelFound.checked(answer))
                    return
                await asyncio.sleep(ASK_SECONDS)
        except (ConfigError, *MALFORMED) as error:
            self._refuse(name, instance, str(error))
        finally:
            self._asking = None

    async def _begin_with(self, name: str, instance: str, found: ModelFound) -> None:
        machine, path = self._machine, self._folder.with_name(f"{self._folder.name}.model.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, found.answer())
        machine.tell(f"has the model of {self._folder} from {name}: {len(found.leaves)} leaves")
        task = reference.called(OPEN, {"model": str(path)})
        machine.neighbours.put_first(name)
        hand_over = partial(self._hand_over, seconds_max=HAND_OVER_SECONDS_MAX)
        options = "--run-dir", str(self._folder), "--task", task, "--learners", "0"
        told = await machine.loop.run_in_executor(None, hand_over, *options)
        if told:
            machine.neighbours.put_first("")
            self._refuse(name, instance, told)
        else:
            self._wanted = None

    def _refuse(self, name: str, instance: str, why: str) -> None:
        """Begin no run with the model of a loop, and wait for another one."""
        self._refused.add(instance)
        self._machine.tell(f"begins no run with the model of {name}: {why}")
        do = "Mend that in the script, or in the file at the home."
        fault = Fault(f"Starting the run of {self._file.name}", "a model with which the home begins it", why, do)
        self._machine.neighbours.links.send(name, {"type": NO_MODEL, "faults": [list(fault)]})
