"""A real run in which one learner is two processes: it trains beside an ordinary one, and has its lives as one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from isthmus.runtime.supervision.incidents import Condemned, GangMemberLost, Restarted
from tests.effort import soaked
from tests.programs.engine.run.process_run import Run

pytestmark = pytest.mark.process
FOLLOWER = "learner.1/0"


@pytest.mark.parametrize("killed", [FOLLOWER, soaked("learner/0")])
def test_an_island_of_two_processes_lives_and_ends_as_one(start: Callable[..., Run], killed: str) -> None:
    run = start("--set", "run.processes=[2]", "--set", "program.fragments=2")
    run.wait_for(lambda: is_merged(run, 0), 120.0)
    pids = run.pids()
    run.kill(killed)
    merged = run.merges()
    run.wait_for(lambda: run.steps().get("learner/0") and run.host("learner/0")["incarnation"] == 2, 120.0)
    run.wait_for(lambda: is_merged(run, merged + 2), 120.0)
    other = "learner/0" if killed == FOLLOWER else FOLLOWER
    assert Condemned(GangMemberLost(killed)) in run.incidents(f"{other}#1")
    for name in ("learner/0", FOLLOWER):
        assert Restarted() in run.incidents(f"{name}#2")
        assert run.pids()[name] != pids[name]
    assert run.host("learner/1")["incarnation"] == 1


def is_merged(run: Run, begin: int) -> bool:
    """Whether learner 0 gave something to a merge from this one on."""
    return run.merges() > begin and any(0 in voters for voters in run.voters()[begin:])
