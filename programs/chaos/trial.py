"""One run under a plan: started as by `isthmus train`, struck, and awaited until it is over.

On several machines it is handed over to its home and detached, so that the home may die with everything on it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from isthmus.programs.chaos.figures import Figures, figures_of
from isthmus.programs.chaos.links import Conditions, Links
from isthmus.programs.chaos.machines import Machines
from isthmus.programs.chaos.plan import LEARNER, OF_LINKS, Planned, Slow
from isthmus.programs.chaos.processes import Cast, owner_of
from isthmus.programs.chaos.strikes import Strike, Striker
from isthmus.programs.outer_settings import LEARNERS_MAX
from isthmus.programs.run.host_process import PROXY
from isthmus.programs.run.in_processes import OVER
from isthmus.programs.run.private_daemon import kill_all
from isthmus.runtime.errors import RunError

LOOK_SECONDS: Final = 0.1
ASK_SECONDS: Final = 5.0
SILENCE_SECONDS_MAX: Final = 120.0
"""A daemon that was killed is back within seconds; on a machine with several times as many busy processes as cores it
took half a minute."""
END_SECONDS_MAX: Final = 120.0
"""Time limit for a run that is ended from here: it may need a minute to write to a full disk."""


@dataclass(frozen=True, slots=True)
class Order:
    """A training run: `task` and `sets` are the --task and --set of `isthmus train`."""

    program: str
    task: str | None
    sets: tuple[str, ...]
    links: Slow | None = None
    machines: int = 1
    learners: int = 1

    def command(self, folder: Path, cluster: Path | None) -> list[str]:
        """The command line."""
        main = "from isthmus.programs.command.main import main; main()"
        options = [part for text in self.sets for part in ("--set", text)]
        options += ["--task", self.task] if self.task is not None else []
        options += ["--cluster", str(cluster), "--detach"] if cluster is not None else []
        return [sys.executable, "-c", main, "train", self.program, *options, "--quiet", "--run-dir", str(folder)]


def run(
    order: Order, folder: Path, faults: Sequence[Planned], say: Callable[[str], None], *, is_endless: bool = False
) -> Figures:
    """Train under these faults; returns the figures. RunError if the run fails, or leaves no summary.

    `is_endless`: faults that were not due before the end of the run are left out.
    """
    strikes: list[Strike] = []
    links = _links(order.links) if order.links or any(fault.kind in OF_LINKS for fault in faults) else None
    environment = {} if links is None else {PROXY: links.address}
    with ExitStack() as ended:
        machines = None if order.machines == 1 else ended.enter_context(_machines(order, folder, environment))
        cluster, home = (None, {}) if machines is None else (machines.cluster, machines.home)
        command = ended.enter_context(_started(order.command(folder, cluster), folder, {**environment, **home}))
        striker: Striker | None = None
        try:
            life = Life(command, folder, is_detached=cluster is not None)
            while not life.is_over():
                if striker is None and faults and (zero := Cast(folder).zero()) is not None:
                    striker = Striker(Cast(folder), faults, zero, order.program, links, machines)
                if machines is not None:
                    machines.look()
                if striker is not None:
                    for strike in striker.news():
                        say(_told(strike))
                time.sleep(LOOK_SECONDS)
        finally:
            strikes = striker.close() if striker is not None else [Strike(fault, is_late=True) for fault in faults]
            if links is not None:
                links.close()
    if not (folder / "summary.json").exists():
        log = (folder.parent / f"{folder.name}.log").read_text().strip()
        raise RunError(f"{order.program} left no summary in {folder}: {log}")
    return figures_of(folder, [strike for strike in strikes if not (is_endless and strike.is_late)])


@final
class Life:
    """Whether a run goes on: as long as its `command`, or, if that only hands it over, until its folder has its end."""

    def __init__(self, command: subprocess.Popen[bytes], folder: Path, *, is_detached: bool) -> None:
        self._command, self._folder, self._is_detached = command, folder, is_detached
        self._heard = self._asked = time.monotonic()

    def is_over(self) -> bool:
        """Whether the run is over; RunError if no daemon has answered for it for SILENCE_SECONDS_MAX."""
        code = self._command.poll()
        if code is None:
            self._heard = time.monotonic()
            return False
        if code or not self._is_detached or (self._folder / OVER).exists():
            return True
        now = time.monotonic()
        if now - self._asked > ASK_SECONDS:
            self._asked = now
            self._heard = now if Cast(self._folder).status() else self._heard
        if now - self._heard > SILENCE_SECONDS_MAX:
            raise RunError(f"no daemon has answered for the run in {self._folder} for {now - self._heard:.0f} s")
        return False


@contextmanager
def _started(command: Sequence[str], folder: Path, more: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """The command, with its output beside the folder; it and its processes are gone after the block."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, **more},
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(END_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kill_all(folder)


def _machines(order: Order, folder: Path, environment: Mapping[str, str]) -> Machines:
    """The machines of a run, beside its folder, which the home's daemon makes."""
    references = [text for text in (order.program, order.task) if text is not None]
    return Machines(folder.parent, folder.name, order.machines, order.learners, references, environment)


def _links(usual: Slow | None) -> Links:
    """A proxy; learners' links have the requested conditions."""
    links = Links(owner_of, Conditions())
    for slot in range(LEARNERS_MAX if usual is not None else 0):
        assert usual is not None
        kbits = usual.kbits[min(slot, len(usual.kbits) - 1)] if usual.kbits else None
        links.way(f"{LEARNER}/{slot}").conditions = Conditions(kbits, usual.latency)
    return links


def _told(strike: Strike) -> str:
    return f"{strike.fault.kind} {strike.fault.host}: {strike.proof or strike.why}"
