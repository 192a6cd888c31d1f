"""A run that a command hands to the daemon of a machine: handed over, watched, and found again.

While it watches, every question renews the run's lease; a command that is gone does not ask, and the daemon ends the
run. A daemon that is gone for a while is waited for, because the next one of its name adopts the run. The run folder
may be on another machine than the command: answers contain everything that the command needs.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final, Protocol, final

from isthmus.programs.engine.cluster.handover import Handover, RunRoot
from isthmus.programs.engine.machine.client import GO_ON, DaemonClient
from isthmus.programs.engine.request import new_folder, spec
from isthmus.programs.engine.run.in_processes import Submitted
from isthmus.programs.engine.run.interrupts import Interrupts, interrupts
from isthmus.programs.engine.run.watch_loop import RunOutcome, RunWatch, Watch, ended
from isthmus.runtime.errors import ConfigError, Fault, RunError
from isthmus.runtime.wire.control_messages import Message

SILENCE_SECONDS_MAX: Final = 60.0
"""Hosts without a daemon end after this time, so that a longer wait is pointless."""


def folder_there(daemon: DaemonClient, root: str, run_dir: Path | None) -> str:
    """The run folder that --run-dir names for a daemon with run root `root`; empty without --run-dir.

    A relative path begins at the root; ConfigError for an absolute one outside it.
    """
    if run_dir is None:
        return ""
    path = Path(os.path.expanduser(run_dir))
    path = Path(os.path.normpath(path if path.is_absolute() else Path(root) / path))
    return RunRoot(Path(root)).name_of(path, f"Choosing the run folder on the machine {daemon.name!r}")


def hand_over(daemon: DaemonClient, handed: Handover, *, is_watched: bool) -> Submitted:
    """Have a daemon make the run folder and start the run; returns the folder there. ConfigError if it refuses.

    If the folder turns out to be on this machine, runs/latest points to it.
    """
    answer = daemon.say({"type": "take", "handover": handed.as_data(), "is_watched": is_watched})
    folder = Path(str(answer["run"]))
    if (folder / new_folder.CONFIG).exists():
        new_folder.point_latest_to(folder)
    return Submitted(handed.name, spec.read(handed.spec).job, folder)


class BeginRun(Protocol):
    """Has a daemon begin a run, or go on with it."""

    def __call__(self, *, is_watched: bool) -> Submitted: ...


def go_on(daemon: DaemonClient, ready: Submitted, *, is_watched: bool) -> Submitted:
    """Have a daemon go on with a run whose folder there is ready for it. ConfigError if it refuses."""
    name = folder_there(daemon, daemon.find()["root"], ready.run_dir)
    daemon.say({"type": GO_ON, "run": name, "is_watched": is_watched})
    new_folder.point_latest_to(ready.run_dir)
    return ready


def detached(daemon: DaemonClient, begin: BeginRun) -> Submitted:
    """A run that has begun without a watching command; a Ctrl-C meanwhile ends the run again."""
    with interrupts() as interrupted:
        submitted = begin(is_watched=False)
        if interrupted.count:
            reason = "ended by Ctrl-C at its start"
            daemon.say({"type": "end", "run": str(submitted.run_dir), "reason": reason})
    if interrupted.count:
        raise KeyboardInterrupt
    return submitted


def watch_on_machine(
    daemon: DaemonClient, submitted: Submitted, watch: Watch | None, interrupted: Interrupts
) -> RunOutcome:
    """Watch a run that was handed over; RunError if the run failed, or if Ctrl-C came twice."""
    machine = _MachineWatch(daemon, str(submitted.run_dir))
    RunWatch(machine, interrupted).until_over(submitted.run_dir, watch)
    return ended(submitted.run_dir, machine.summary, watch)


@final
class _MachineWatch:
    """The run in the folder `run` of a machine's daemon, as its command watches it: each question renews its lease."""

    fate: Final = "if it is gone, the run's processes end by themselves within a minute"

    def __init__(self, daemon: DaemonClient, run: str) -> None:
        self._daemon, self._run = daemon, run
        self._heard_at = time.monotonic()
        self.is_over = False
        self.summary: dict[str, Any] | None = None

    def tend(self) -> None:
        """RunError after SILENCE_SECONDS_MAX without an answer."""
        silence = time.monotonic() - self._heard_at
        if silence > SILENCE_SECONDS_MAX:
            at = f"the daemon {self._daemon.name!r} at {self._daemon.address}"
            raise RunError(f"{at} has not answered for {silence:.0f} s; {self.fate}")

    def status(self) -> Message | None:
        answer = self._ask({"type": "watch"})
        if answer is not None and answer["type"] == "refused":
            raise RunError(str(Fault(*answer["faults"][0])))
        if answer is not None and answer["type"] == "over":
            self.is_over, self.summary = True, answer["summary"]
            return None
        return answer

    def confirms(self, message: Message) -> bool:
        return self._ask(message) is not None

    def detach(self) -> bool:
        return False

    def _ask(self, message: Message) -> Message | None:
        answer = self._daemon.ask({**message, "run": self._run}, 1.0)
        if answer is not None:
            self._heard_at = time.monotonic()
        return answer


def newest_run(daemon: DaemonClient) -> Path:
    """The run folder of the one run in progress there, or else of the newest that is over; ConfigError if that is no
    answer."""
    answer = daemon.find()
    running = [Path(run["run"]) for run in answer["runs"]]
    doing = f"Looking for the run of the daemon {daemon.name!r}"
    if len(running) > 1:
        do = "Name its folder in place of --cluster."
        raise ConfigError(doing, "one run that goes on", ", ".join(map(str, running)), do)
    if not running and not answer["former"]:
        raise ConfigError(doing, "a run", "none so far", "Start one: isthmus train --cluster FILE.")
    return running[0] if running else Path(answer["former"][-1]["run"])
