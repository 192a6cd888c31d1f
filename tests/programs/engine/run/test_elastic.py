"""A real run in which one learner is an elastic island of two processes: either is killed, and nothing else notices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from isthmus.runtime.supervision.incidents import ProcessBack, ProcessLost, Reformed, Restarted
from tests.effort import soaked
from tests.programs.engine.run.process_run import Run
from tests.programs.engine.run.test_gangs import FOLLOWER, is_merged

pytestmark = pytest.mark.process
LEADER = "learner/0"
LIFE = f"{LEADER}#1"


@pytest.mark.long
@pytest.mark.parametrize("killed", [FOLLOWER, soaked(LEADER)])
def test_an_elastic_island_of_two_processes_goes_on(start: Callable[..., Run], killed: str) -> None:
    run = start("--set", "run.processes=[2]", "--set", "run.devices_min=1", "--set", "program.fragments=2")
    run.wait_for(lambda: is_merged(run, 0), 120.0)
    pids = run.pids()
    assert not [comm for comm in run.comms() if " " in comm or "/" in comm]  # Forkers and workers, too.
    run.kill(killed)
    run.wait_for(lambda: Restarted() in run.incidents(f"{killed}#2"), 60.0)
    if killed == FOLLOWER:
        run.wait_for(lambda: ProcessBack(FOLLOWER, 2, 2) in run.incidents(LIFE), 120.0)
        run.wait_for(lambda: 2 in [each.processes for each in run.incidents(LIFE) if isinstance(each, Reformed)], 120.0)
        assert ProcessLost(FOLLOWER, 1, 2) in run.incidents(LIFE)
    run.wait_for_merges(1)
    run.wait_for(lambda: is_merged(run, run.merges() - 1), 120.0)
    assert run.host(killed)["incarnation"] == 2
    for name in {LEADER, FOLLOWER, "learner/1"} - {killed}:
        assert run.host(name)["incarnation"] == 1
        assert run.pids()[name] == pids[name]
    summary = run.stop()
    if killed == FOLLOWER:
        assert summary["tokens_lost"] == 0
