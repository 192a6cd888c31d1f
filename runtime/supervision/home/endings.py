"""The end of a run: hosts are ordered to exit, after EXIT killed, and after ABANDON more, no machine is awaited.

A run that was asked to stop comes to its end by itself. One whose outcome is *settled* is over, even if this daemon
dies; it is finished when no life is left.
"""

from __future__ import annotations

from typing import Final

from isthmus.runtime.clock import seconds
from isthmus.runtime.supervision.home.events import FinishRun, Outcome
from isthmus.runtime.supervision.home.state import RunState
from isthmus.runtime.supervision.incidents import Failure

EXIT: Final = seconds(10)
"""The time that hosts have to exit on request; then they are killed."""
ABANDON: Final = seconds(5)
"""The time that other machines have to report the end of their hosts, once all are to be killed."""


def stop(run: RunState) -> None:
    """Ask the hosts to bring the run to its end."""
    if not run.is_stopping:
        run.is_stopping = run.has_changed = True
    run.has_news = True


def settle(run: RunState, outcome: Outcome, failure: Failure | None) -> None:
    """Fix the outcome of the run for good; hosts may exit by themselves."""
    if not run.is_ending:
        run.is_ending = True
        run.due.clear()
        if run.outcome == "running":
            run.outcome, run.failure = outcome, failure
            run.has_changed = True
        run.exit_at = run.after(EXIT)
    run.has_news = True


def end_run(run: RunState, outcome: Outcome, failure: Failure | None) -> None:
    """Fix the outcome of the run, and kill every process."""
    settle(run, outcome, failure)
    kill_all(run)


def kill_all(run: RunState) -> None:
    """Have every process killed; where the lives of the run are unknown, once they are known."""
    run.exit_at = run.adopt_until if run.is_unsure else None
    if run.is_unsure:
        return
    for machine in run.fleet.machines.values():
        machine.condemned.update(machine.tracked)
    if run.abandon_at is None:
        run.abandon_at = run.after(ABANDON)
    run.has_news = True


def finish_if_alone(run: RunState) -> None:
    """Finish the run once the outcome is settled and no life is left."""
    is_alone = run.fleet.is_idle and not run.noting and not run.is_unsure
    if run.is_ending and is_alone and not run.is_finished:
        run.is_finished = True
        run.commands.append(FinishRun())
