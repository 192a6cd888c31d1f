"""Runs in a storm: SIGTERM on many processes at once, again and again, or no descriptor left. Whatever comes of them
is said, and all that they leave behind tells the same."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from contextlib import nullcontext, suppress

import pytest

from isthmus.runtime.supervision.incidents import Adopted, Restarted
from tests.patience import PATIENCE
from tests.programs.engine.run.agreement import disagreements
from tests.programs.engine.run.process_run import Run, resume

pytestmark = [pytest.mark.process, pytest.mark.soak]

TOKENS = 300_000
GUSTS = (
    ("learner/0", "learner/1"),
    ("syncer/0", "recorder/0"),
    ("recorder/0", "evaluator/0", "learner/2"),
    ("learner/0", "syncer/0", "recorder/0"),
)
HOSTS = 6


def blow(run: Run, names: tuple[str, ...], number: int = signal.SIGTERM) -> None:
    """Send a signal to all of these at once, twice: those that take it for a request hear it again."""
    pids = run.wait_for(lambda: found if (found := run.pids()).keys() >= set(names) else None)
    for name in (*names, *names):
        with suppress(ProcessLookupError):
            os.kill(pids[name], number)


def end(run: Run) -> dict[str, object]:
    """Wait for the end, of whatever kind; it is told alike by status, summary and model, and by all files."""
    out, error = run.command.communicate(timeout=PATIENCE)
    run.wait_until_gone()
    assert "Traceback" not in out + error, (out, error)
    summary = run.summary()
    assert (run.command.returncode == 0) == (summary["outcome"] in ("done", "stopped")), (error, summary["outcome"])
    assert (summary["error"] is None) == (run.command.returncode == 0)
    if summary["outcome"] == "done":
        assert summary["tokens_total"] >= 0.9 * TOKENS
    if run.command.returncode == 0:
        assert len(list((run.folder / "snapshots" / "final").glob("*.safetensors"))) == summary["fragments"]
    assert disagreements(run.folder) == []
    return summary


@pytest.mark.parametrize("last", ["daemon", "command"])
def test_a_storm_of_sigterm(start: Callable[..., Run], last: str) -> None:
    """Hosts follow their daemon, whatever they are sent; where all are told, the run is set aside, and goes on."""
    run = start(learners=3, tokens=TOKENS)
    for gust in GUSTS:
        run.wait_for_merges(3)
        blow(run, gust)
    run.wait_for_merges(3)
    assert not {Restarted(), Adopted()} & {*run.incidents()}
    everybody = tuple(sorted(run.pids()))
    blow(run, ("daemon",) if last == "daemon" else everybody)
    if last == "command":
        run.signal(signal.SIGTERM)
    _, error = run.command.communicate(timeout=PATIENCE)
    run.wait_until_gone()
    assert (run.command.returncode, run.summary()["outcome"]) == (75, "interrupted"), error
    assert run.summary()["tokens_lost"] == 0
    assert disagreements(run.folder) == []
    run.command = resume(run)
    assert end(run)["outcome"] == "done"


STANDARD = 3
"""Descriptors that no process gives back, so that one of another number is no longer there once it is closed."""


def starve(pids: dict[str, int]) -> None:
    """Leave these processes no descriptor beyond those that they have now."""
    for pid in pids.values():
        _, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (STANDARD, most))


@pytest.mark.parametrize("starved", [("learner/0", "syncer/0", "evaluator/0"), ("recorder/0", "daemon"), None])
def test_descriptors_that_run_out(start: Callable[..., Run], starved: tuple[str, ...] | None) -> None:
    run = start(learners=3, tokens=TOKENS)
    run.wait_for_merges(5)
    pids = run.wait_for(lambda: found if len(found := run.pids()) == HOSTS + 1 else None)
    victim = pids.pop("learner/1")
    hungry = {name: pids[name] for name in starved or pids}
    state = run.folder / "recorder.state"
    run.wait_for(state.exists)
    limits = {pid: resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in hungry.values()}
    starve(hungry)
    os.kill(victim, signal.SIGKILL)  # Its next life wants a connection of every other host.
    run.wait_for_merges(5)  # What was open is written by now.
    written = state.stat().st_mtime_ns
    run.wait_for_merges(20)
    if run.pids().get("recorder/0") == hungry.get("recorder/0"):  # Of the next daemon it may be another life.
        assert state.stat().st_mtime_ns == written, "it could open a file"
    for pid, before in limits.items():
        with suppress(ProcessLookupError) if pid == pids["daemon"] else nullcontext():
            # libzmq aborts where it cannot accept on a Unix socket; the next daemon adopts the hosts.
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    assert end(run)["outcome"] == "done"
    assert run.incidents("learner/1#2"), "its next life was there"
