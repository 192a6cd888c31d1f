"""What a command says to the daemon of a machine: find it, hand a run over, watch it, find its runs again.

While it watches, every question renews the run's lease; a command that is gone does not ask, and the daemon ends the
run. A daemon that is gone for a while is waited for, because the next one of its name adopts the run.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from isthmus.programs import machine_address
from isthmus.programs.cluster import Machine
from isthmus.programs.interrupts import Interrupts, interrupts
from isthmus.programs.processes import STATUS_SECONDS, Submitted, outcome_of, shown
from isthmus.programs.request import Request
from isthmus.programs.run import Outcome, Watch
from isthmus.runtime.control import Message, ask
from isthmus.runtime.errors import ConfigError, Fault, RunError

ANSWER_SECONDS: Final = 5.0
SILENCE_SECONDS_MAX: Final = 60.0
"""Hosts without a daemon end after so long: there is nothing left to wait for."""


def find(machine: Machine) -> dict[str, Any]:
    """What the machine's daemon says of itself; ConfigError if nobody is there, or somebody else."""
    doing = f"Calling the daemon {machine.name!r} at {machine.address}"
    start = f"isthmus daemon --name {machine.name} --listen {machine.address}"
    if not machine_address.is_listening(machine.address):
        raise ConfigError(doing, "a daemon that listens there", "nobody", f"Start it: {start}")
    answer = ask(machine.address, {"type": "machine"}, ANSWER_SECONDS)
    if answer is None or answer["type"] != "machine":
        found = f"no answer within {ANSWER_SECONDS:.0f} s" if answer is None else "a daemon of a single run"
        raise ConfigError(doing, "the daemon of a machine", found, f"Look at what listens there, or start it: {start}")
    if answer["name"] != machine.name:
        do = f"Write name = {answer['name']!r} in the cluster file, or the address of {machine.name!r}."
        raise ConfigError(doing, f"the name {machine.name!r}", f"{answer['name']!r}", do)
    return answer


def permitted(machine: Machine, request: Request) -> Request:
    """The request, if the machine takes it as it is; ConfigError or PlacementError with what it refuses."""
    machine.place(request.graph, request.job)
    program, task = request.job.program, request.job.task.text
    _say(machine, {"type": "check", "program": program, "task": task, "run": str(request.run_dir)})
    return request


def hand_over(machine: Machine, submitted: Submitted, *, is_watched: bool) -> None:
    """Let the machine's daemon start a run whose folder is ready; ConfigError if it does not."""
    _say(machine, {"type": "take", "run": str(submitted.run_dir), "is_watched": is_watched})


def hand_over_detached(machine: Machine, submitted: Submitted) -> None:
    """The same for a run that nobody watches; a Ctrl-C meanwhile ends it again."""
    with interrupts() as interrupted:
        hand_over(machine, submitted, is_watched=False)
        if interrupted.count:
            _say(machine, {"type": "end", "run": str(submitted.run_dir), "reason": "ended by Ctrl-C at its start"})
    if interrupted.count:
        raise KeyboardInterrupt


def run_on_machine(machine: Machine, submitted: Submitted, watch: Watch | None) -> Outcome:
    """Hand a run over, and watch it; RunError if the run failed, or if Ctrl-C came twice."""
    with interrupts() as interrupted:
        hand_over(machine, submitted, is_watched=True)
        _watch_until_over(machine, submitted.run_dir, watch, interrupted)
    return outcome_of(submitted.run_dir, watch)


def newest_run(machine: Machine) -> Path:
    """The run folder of the one run that goes on there, or else of the newest that is over; ConfigError if that is no
    answer."""
    answer = find(machine)
    running = [Path(run["run"]) for run in answer["runs"]]
    doing = f"Looking for the run of the daemon {machine.name!r}"
    if len(running) > 1:
        do = "Name its folder in place of --cluster."
        raise ConfigError(doing, "one run that goes on", ", ".join(map(str, running)), do)
    if not running and not answer["former"]:
        raise ConfigError(doing, "a run", "none so far", "Start one: isthmus train --cluster FILE.")
    return running[0] if running else Path(answer["former"][-1]["run"])


def _watch_until_over(machine: Machine, folder: Path, watch: Watch | None, interrupted: Interrupts) -> None:
    """Renew the lease, pass on Ctrl-C, and show how it goes, until the run is over."""
    asked, heard_at = 0, time.monotonic()
    while not (folder / "over.json").exists():
        message: Message = {"type": "watch"}
        if interrupted.count > asked:
            message = {"type": "stop"} if asked == 0 else {"type": "end", "reason": "ended at once by a second Ctrl-C"}
        answer = ask(machine.address, {**message, "run": str(folder)}, seconds_max=1.0)
        if answer is not None:
            heard_at = time.monotonic()
            asked += message["type"] != "watch"
        silence = time.monotonic() - heard_at
        if silence > SILENCE_SECONDS_MAX or (answer is None and interrupted.count > 1):
            raise RunError(
                f"the daemon {machine.name!r} at {machine.address} has not answered for {silence:.0f} s; "
                "if it is gone, the run's processes end by themselves within a minute"
            )
        if answer is not None and answer["type"] == "refused" and not (folder / "over.json").exists():
            raise RunError(str(Fault(*answer["faults"][0])))
        if watch is not None and answer is not None and answer["type"] == "status":
            watch.update(shown(answer))
        time.sleep(STATUS_SECONDS)


def _say(machine: Machine, message: Message) -> Message:
    """Say something that has to be answered; ConfigError with what the daemon refuses."""
    answer = ask(machine.address, message, ANSWER_SECONDS)
    if answer is None:
        doing, expected = f"Asking the daemon {machine.name!r} at {machine.address}", "an answer"
        do = "`isthmus status --all` shows whether it is still there, and its runs."
        raise ConfigError(doing, expected, f"none within {ANSWER_SECONDS:.0f} s", do)
    if answer["type"] == "refused":
        raise ConfigError.of([Fault(*fault) for fault in answer["faults"]])
    return answer
